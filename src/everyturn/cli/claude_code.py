"""`everyturn claude-code`: Claude Code's sessions as turns and cases."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyturn.cli.command import Session, command, noun
from everyturn.cli.filters import EmbedderOption, JsonOption, embedder_named, readable
from everyturn.cli.output import Output
from everyturn.errors import InvalidValue

if TYPE_CHECKING:
    from everyturn.integrations.claude_code.importing import FileReport

app = noun("Claude Code: keep its sessions as turns, and its exchanges as cases.")

_SHOWN = 20

UserOption = Annotated[bool, typer.Option("--user", help="For all sessions of this user (the default).")]
ProjectOption = Annotated[
    bool, typer.Option("--project", help="For sessions in the current directory: .claude/ is written there.")
]


@app.command("install")
def install(user: UserOption = False, project: ProjectOption = False, json: JsonOption = False) -> None:
    """Add hooks and the commands /eval-capture and /eval-bad to Claude Code's settings.

    Other hooks and settings stay as they are. Running it again changes nothing.
    """
    from everyturn.integrations.claude_code.commands import add_commands
    from everyturn.integrations.claude_code.settings import add_hooks

    folder = _folder(user, project)
    program = _program(project)
    # A hook that is gone, or fails, must not stop a session: exit code 2 would.
    change = add_hooks(
        folder / "settings.json",
        f"command -v {program} >/dev/null 2>&1 && {program} claude-code hook || true",
    )
    _tell(Output(), json, change.path, change.changed, "hooks added", add_commands(folder / "commands", program))


@app.command("uninstall")
def uninstall(user: UserOption = False, project: ProjectOption = False, json: JsonOption = False) -> None:
    """Take our hooks and commands out of Claude Code's settings, and nothing else."""
    from everyturn.integrations.claude_code.commands import remove_commands
    from everyturn.integrations.claude_code.settings import remove_hooks

    folder = _folder(user, project)
    change = remove_hooks(folder / "settings.json")
    written = remove_commands(folder / "commands")
    _tell(Output(), json, change.path, change.changed, "hooks removed", written)


@app.command("hook")
def hook() -> None:
    """Note on the spool that a session went on: what Claude Code calls, with its event on stdin.

    It opens no database, writes nothing but what Claude Code reads, and always ends with exit code 0.
    """
    from everyturn.integrations.claude_code.hook import main

    raise typer.Exit(main())


@command(app, "import")
async def import_transcripts(
    session: Session,
    path: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Transcripts, or directories that hold some.", show_default=False),
    ] = None,
    project: Annotated[
        Path | None, typer.Option("--project", metavar="DIR", help="Those of sessions in this directory.")
    ] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option("--redact", metavar="REGEX", help="Mask what this matches, before anything is stored."),
    ] = None,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> int:
    """Append what is new in transcripts to the log.

    Without PATH: all transcripts of this user, and those that hooks noted. A line that is stored already is never
    stored again, whatever file repeats it. Lines that cannot be read are told by number; the rest is imported.
    """
    from everyturn.integrations.claude_code import files, spool
    from everyturn.integrations.claude_code.importing import import_files

    with ExitStack() as stack:
        if path:
            paths = files.named(path)
        else:
            folder = files.project_folder(project) if project is not None else files.home() / "projects"
            if project is not None and not folder.is_dir():
                raise InvalidValue(f"Claude Code has no transcripts of {project}: there is no {folder}.")
            paths = files.below(folder)
            if project is None:
                notes = stack.enter_context(spool.taken())
                paths = files.in_order([*paths, *files.noted(notes)])
        reports: list[FileReport] = []
        async with session.database(embedder=embedder_named(embedder), redact=_masking(redact)) as db:
            with session.out.working(f"Reading {len(paths)} transcripts"):
                await import_files(db, paths, progress=reports.append)
    _report(session.out, reports, json)
    return 4 if any(report.error for report in reports) else 0


@command(app, "capture")
async def capture(
    session: Session,
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="TAGS", help="Tags, by commas or spaces.", show_default=False)
    ] = None,
    of: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="The session; default: the newest of this project.")
    ] = None,
    transcript: Annotated[Path | None, typer.Option("--transcript", metavar="FILE", help="Its transcript.")] = None,
    bad: Annotated[bool, typer.Option("--bad", help="Also record the verdict bad on the answer.")] = False,
    rationale: Annotated[
        str | None, typer.Option("--rationale", metavar="TEXT", help="Why, with --bad.", parser=readable)
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="TEXT", help="Default: handcrafted; production with --bad.")
    ] = None,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> None:
    """Keep the last exchange of a session as an eval case: its prompt, with what the model had seen and called.

    What is new of the session's transcript is imported first.
    """
    from everyturn.integrations.claude_code.capture import capture_tail

    path = _transcript(of, transcript)
    wanted = [tag for text in tags or () for tag in re.split(r"[,\s]+", readable(text)) if tag]
    async with session.database(embedder=embedder_named(embedder)) as db:
        tail = await capture_tail(
            db,
            path,
            tags=wanted or (["bad"] if bad else ["handcrafted"]),
            verdict="bad" if bad else None,
            rationale=(rationale or "").strip() or None,
            source=source,
        )
    case = tail.case
    if json:
        session.out.json(
            {"id": case.id, "stored": case.stored, "prompt": case.prompt, "tags": case.tags, "turn": tail.turn.id}
        )
        return
    what = f"case {case.id} (tags: {', '.join(case.tags) or 'none'})"
    session.out.line(f"Captured {what}." if case.stored else f"Captured already: {what}.")


def _folder(user: bool, project: bool) -> Path:
    from everyturn.integrations.claude_code import files

    if user and project:
        raise typer.BadParameter("--user and --project exclude each other; give one.")
    return Path.cwd() / ".claude" if project else files.home()


def _program(project: bool) -> str:
    """How Claude Code finds this program: by its path, but by its name in settings that others share."""
    beside = Path(sys.executable).with_name("everyturn")
    if project:
        return "everyturn"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("everyturn")
    return shlex.quote(found) if found else "everyturn"


def _tell(out: Output, json: bool, path: Path, changed: bool, what: str, written: list[Any]) -> None:
    if json:
        files = {str(file.path): file.outcome for file in written}
        out.json({"settings": str(path), "changed": changed, "commands": files})
    else:
        out.line(f"{path}: {what if changed else 'unchanged'}")
        for file in written:
            out.line(f"{file.path}: {file.outcome}")
        for file in written:
            if file.outcome == "kept":
                out.warn(f"{file.path} is not as everyturn wrote it, and was left alone.")
    out.flush()


def _transcript(of: str | None, given: Path | None) -> Path:
    from everyturn.integrations.claude_code import files

    if given is not None:
        if not given.is_file():
            raise InvalidValue(f"There is no transcript {given}.")
        return given.absolute()
    of = of or os.environ.get("CLAUDE_SESSION_ID") or os.environ.get("CLAUDE_CODE_SESSION_ID")
    if of:
        found = files.of_session(of)
        if found is None:
            raise InvalidValue(f"There is no transcript of session {of} below {files.home() / 'projects'}.")
        return found
    folder = files.project_folder_above(Path.cwd())
    found = files.newest(folder) if folder is not None else None
    if found is None:
        raise InvalidValue(
            f"Claude Code has no session in {Path.cwd()}. Name one with --session, or its file with --transcript."
        )
    return found


def _masking(patterns: list[str] | None) -> Any:
    if not patterns:
        return None
    try:
        return [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise InvalidValue(f"--redact {error.pattern!r} is not a regular expression: {error}.") from None


def _report(out: Output, reports: list[FileReport], json: bool) -> None:
    from everyturn.integrations.claude_code.reading import Counts
    from everyturn.values import Usage

    turns: Counter[str] = Counter()
    counts, usage = Counts(), Usage()
    for report in reports:
        turns += report.turns
        usage += report.usage
        counts.add(report.counts)
    changed = [report for report in reports if report.counts.lines or report.error]
    bad = [
        {"file": str(report.path), "line": problem.line, "reason": problem.reason}
        for report in reports
        for problem in report.counts.problems
    ]
    unread = [{"file": str(report.path), "reason": report.error} for report in reports if report.error]
    unfinished = sum(report.unfinished for report in reports)
    totals: dict[str, Any] = {
        "files": len(reports),
        "files_read": len(changed),
        "lines": counts.lines,
        "turns": dict(sorted(turns.items())),
        "usage": usage.as_payload(),
        "repeated": counts.repeated,
        "skipped": dict(sorted(counts.skipped.items())),
        "blank_lines": counts.blank,
        "bad_lines": counts.bad,
        "unfinished_lines": unfinished,
    }
    if json:
        out.json(totals | {"bad": bad, "unreadable": unread})
        return
    shown = {key: _said(value) for key, value in totals.items() if key != "usage"}
    out.fields(shown | {"tokens": f"{usage.input_tokens} in, {usage.output_tokens} out"})
    for problem in bad[:_SHOWN]:
        out.warn(f"{problem['file']}, line {problem['line']}: {problem['reason']}")
    if counts.bad > min(len(bad), _SHOWN):
        out.warn(f"… and {counts.bad - min(len(bad), _SHOWN)} more lines that could not be read.")
    for file in unread:
        out.warn(f"{file['file']} could not be read: {file['reason']}")


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return value
