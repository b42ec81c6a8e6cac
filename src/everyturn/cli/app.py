"""The command tree. Listing it loads nothing: a noun's module is imported when that noun is used."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everyturn import __version__
from everyturn.cli.command import DatabaseOption, QuietOption, Settings
from everyturn.cli.exits import report

NOUNS = {
    "db": "The database itself: set up, look after, move.",
    "turn": "Turns: what agents said and did.",
    "conversation": "Conversations: which ended, which crashed, and going on with them.",
    "tool": "Tools that agents have registered.",
    "memory": "Memory: what happened, what is true, how things are done.",
    "event": "Stream events of runs.",
    "eval": "Verdicts on turns, and the evaluators that give them.",
    "case": "Eval cases: interactions worth answering again.",
    "dataset": "Datasets: cases frozen under a name and a version.",
    "replay": "Put a dataset to a model, or go on with a replay.",
    "report": "How each model does on a dataset.",
    "diff": "What a candidate changes against a baseline.",
    "gate": "Whether a candidate may be released.",
    "worker": "Take cases of queued replays.",
    "claude-code": "Claude Code: keep its sessions as turns, and its exchanges as cases.",
}
"""Every noun, with its one line of help; the module `everyturn.cli.<noun>` holds its `app`."""
ELSEWHERE = {name: ("report", f"{name}_app") for name in ("report", "diff", "gate")}
"""The commands whose app is in a module of another name."""


class Nouns(TyperGroup):
    """A command group that knows its commands by name and loads them one at a time."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in NOUNS:
            return None
        home, app = ELSEWHERE.get(cmd_name, (cmd_name.replace("-", "_"), "app"))
        command = typer.main.get_command(getattr(importlib.import_module(f"everyturn.cli.{home}"), app))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Nouns"):
            formatter.write_dl(list(NOUNS.items()))


root = typer.Typer(
    cls=Nouns,
    name="everyturn",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Exit codes: 0 ok, 1 a check failed, 2 usage, 3 not enough data, 4 operational, 130 Ctrl-C.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"everyturn {__version__}")
        raise typer.Exit()


@root.callback()
def everyturn(
    ctx: typer.Context,
    database: DatabaseOption = None,
    quiet: QuietOption = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Agents whose every turn is a row in one Postgres database."""
    ctx.obj = Settings(database=database, quiet=quiet)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are said on stderr in a sentence."""
    _prepare_streams()
    try:
        typer.main.get_command(root).main(args=None if argv is None else list(argv), prog_name="everyturn")
    except SystemExit as stop:
        return _exit_code(stop.code)
    except (Exception, KeyboardInterrupt) as error:
        return report(error)
    return 0


def _prepare_streams() -> None:
    """Never let a character that a stream cannot carry end a command.

    Output is replaced on a terminal that is not UTF-8; input that is not UTF-8 is read as U+FFFD. A stream
    that was closed (`>&-`) is opened on nothing, so that no socket or file takes its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end
    for stream, options in (
        (sys.stdout, {"errors": "replace"}),
        (sys.stderr, {"errors": "replace"}),
        (sys.stdin, {"encoding": "utf-8", "errors": "replace"}),
    ):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(**options)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
