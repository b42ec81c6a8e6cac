"""`everyturn replay`: put a dataset to a model, with progress, and go on with what was left."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from everyturn.cli.command import Session, command
from everyturn.cli.filters import EmbedderOption, JsonOption, argument, embedder_named, parse_uuid, readable
from everyturn.errors import InvalidValue

if TYPE_CHECKING:
    from everyturn.cli.output import Output
    from everyturn.database import Database
    from everyturn.datasets.work import Progress

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_POLL = 0.5


@command(app, "replay")
async def replay(
    session: Session,
    dataset: Annotated[
        str | None, typer.Argument(metavar="[NAME@VERSION]", help="Not with --resume.", parser=readable)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="SPEC", help="Such as anthropic:claude-opus-4-7, or python:module:name."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="python:MODULE:NAME",
            help="Replay through an agent; its calls get the recorded results, and no tool is run.",
        ),
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option("--prompt", "-p", metavar="FILE", help="The system prompt; its revision is recorded.")
    ] = None,
    prompt_rev: Annotated[
        str | None, typer.Option("--prompt-rev", metavar="REV", help="Record this instead of the file's git blob SHA.")
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model-name", metavar="NAME", help="Record the model under this name.")
    ] = None,
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            "--scorer",
            "-s",
            metavar="SPEC",
            help="exact, contains[:TEXT], regex[:PATTERN], json, numeric[:TOLERANCE], similarity[:MINIMUM], "
            "judge:MODEL, python:MODULE:FUNCTION; all given must pass. Default: exact, where there is a reference.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-j", min=1, metavar="N", help="Answers in flight.")] = 8,
    trials: Annotated[int, typer.Option("--trials", "-k", min=1, metavar="K", help="Ask each case K times.")] = 1,
    sample: Annotated[int | None, typer.Option("--sample", min=1, metavar="N", help="Only N cases.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="Which sample; the same gives the same.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="USD", help="Stop before it costs more, judges included.")
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="For each answer.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the model, such as temperature=0. May be repeated."
        ),
    ] = None,
    resume: Annotated[
        UUID | None,
        typer.Option("--resume", metavar="ID", help="Finish what is missing of a replay.", parser=argument(parse_uuid)),
    ] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="With --resume: make runs again that ended in an error.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Leave the work to `everyturn worker`, on any machine, and watch.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="With --queue: do not watch.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would take and cost.")] = False,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> int:
    """Put every case of a dataset to a model and score its answers; each is a row of eval_run.

    Ctrl-C stops; --resume ID then does exactly what is missing. Exit 0 when everything was run, whatever
    passed: `report`, `diff` and `gate` read the results.
    """
    if (dataset is None) == (resume is None):
        raise typer.BadParameter("Give a dataset, NAME@VERSION, or --resume ID.")
    from everyturn.datasets.plan import read_prompt

    async with session.database(embedder=embedder_named(embedder)) as db:
        common: dict[str, Any] = {"model": model, "agent": agent, "scorers": scorer, "max_cost": max_cost}
        with progress_bar(session.out) as show:
            if resume is not None and queue:
                unread = {"--max-cost": max_cost, "--scorer": scorer, "--model": model, "--agent": agent}
                for option, given in (unread | {"--retry-errors": retry_errors or None}).items():
                    if given is not None:
                        raise InvalidValue(
                            f"{option} would not reach the workers: they do what the replay was begun with. "
                            "Resume it without --queue."
                        )
                return await _requeue(session.out, db, resume, show, detach, json)
            common |= {"concurrency": concurrency, "progress": Noting(session.out, show)}
            if resume is not None:
                done = await db.datasets.resume(resume, retry_errors=retry_errors, **common)
            else:
                assert dataset is not None
                common |= {
                    "prompt": None if prompt is None else read_prompt(prompt),
                    "prompt_rev": prompt_rev,
                    "model_name": model_name,
                    "trials": trials,
                    "sample": sample,
                    "seed": seed,
                    "timeout": timeout,
                    "settings": _settings(setting),
                }
                if dry_run:
                    _show(session.out, asdict(await db.datasets.replay(dataset, dry_run=True, **common)), json)
                    return 0
                done = await db.datasets.replay(dataset, queue=queue, **common)
            if queue and not detach:
                done = replace(done, status=await _watch(db, done.id, show))
                if done.status == "stopped":
                    why = "It was stopped elsewhere." if max_cost is None else f"It may cost {max_cost} USD."
                    done = replace(done, stopped_because=why)
        from everyturn.datasets.work import read_progress

        _show(session.out, _summary(done, await read_progress(db, done.id)), json)
    if done.stopped_because is not None:
        session.out.warn(f"Stopped: {done.stopped_because} Go on with: everyturn replay --resume {done.id}")
        return 1
    return 0


def _settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    found = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidValue(f"--set {pair!r} is not KEY=VALUE.")
        try:
            found[key] = jsonlib.loads(value)
        except ValueError:
            found[key] = value
    return found


async def _requeue(
    out: Output, db: Database, replay_id: UUID, show: Callable[[Progress], None], detach: bool, json: bool
) -> int:
    from everyturn.datasets.queue import enqueue
    from everyturn.datasets.work import read_progress

    jobs = await enqueue(db, replay_id)
    out.note(f"{jobs} cases are in the queue; `everyturn worker` takes them.")
    status = "running" if detach else await _watch(db, replay_id, show)
    _show(out, {"id": replay_id, **_counts(await read_progress(db, replay_id))}, json)
    if status == "stopped":
        out.warn(f"Stopped. Go on with: everyturn replay --resume {replay_id}")
        return 1
    return 0


async def _watch(db: Database, replay_id: UUID, show: Callable[[Progress], None]) -> str:
    """Show how far the workers are until they are done, or stopped; return which."""
    from everyturn.datasets.work import read_progress

    while True:
        now = await read_progress(db, replay_id)
        show(now)
        [row] = await db.query("replay", id=replay_id)
        if row["status"] == "stopped" or (now.done == now.total and row["status"] != "running"):
            return str(row["status"])
        await asyncio.sleep(_POLL)


def _summary(done: Any, now: Progress) -> dict[str, Any]:
    return {
        "id": done.id,
        "dataset": done.dataset,
        "model": done.model,
        "prompt_rev": done.prompt_rev,
        "status": done.status,
        **_counts(now),
    }


def _counts(now: Progress) -> dict[str, Any]:
    return {
        "total": now.total,
        "done": now.done,
        "passed": now.passed,
        "failed": now.failed,
        "errors": now.errors,
        "unjudged": now.unjudged,
        "pass_rate": round(now.pass_rate, 4),
        "cost_usd": now.cost_usd,
        "judge_cost_usd": now.judge_cost_usd,
        "unpriced": now.unpriced,
    }


def _show(out: Output, row: dict[str, Any], json: bool) -> None:
    if json:
        out.json(row)
    else:
        out.fields(row)


class Noting:
    """Says the replay's id at the first report, so that a Ctrl-C can be resumed, and passes the reports on."""

    def __init__(self, out: Output, show: Callable[[Progress], None]) -> None:
        self._out = out
        self._show = show
        self._said = False

    def __call__(self, now: Progress) -> None:
        if not self._said:
            self._said = True
            self._out.note(f"Replay {now.replay_id} ({now.done} of {now.total} done)")
        self._show(now)


@contextmanager
def progress_bar(out: Output) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr with the running pass rate, the cost and the time to go; nothing where nobody watches."""
    if out.quiet or not sys.stderr.isatty():
        yield lambda now: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()]
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(now: Progress) -> None:
            cost = f"${now.cost_usd + now.judge_cost_usd:.4f}" + (f" ({now.unpriced} unpriced)" if now.unpriced else "")
            errors = f" {now.errors} errors" if now.errors else ""
            bar.update(
                task, total=now.total, completed=now.done, description=f"{now.pass_rate:.1%} pass{errors}  {cost}"
            )

        yield show
