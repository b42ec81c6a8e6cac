"""Where Claude Code keeps its transcripts, and those that belong together.

`projects/<directory of the project, with hyphens>/<session>.jsonl`, and the subagents of a session in
`<session>/subagents/agent-<id>.jsonl` or, before version 2.1.2, beside it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from everyturn.errors import InvalidValue

from .transcript import open_regular

SUFFIX = ".jsonl"
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_FIRST_LINE = 256 * 1024
_MAX_META = 64 * 1024
_NOT_SESSIONS = ("journal.jsonl", "history.jsonl", "spool.jsonl")


def home() -> Path:
    """The directory of Claude Code: CLAUDE_CONFIG_DIR, else ~/.claude."""
    given = os.environ.get("CLAUDE_CONFIG_DIR")
    return Path(given) if given else Path.home() / ".claude"


def project_folder(directory: Path) -> Path:
    """Where the transcripts of sessions begun in a directory are."""
    return home() / "projects" / re.sub(r"[^A-Za-z0-9]", "-", os.fspath(directory.absolute()))


def project_folder_above(directory: Path) -> Path | None:
    """The folder of the project that a directory is in; None where no session was begun there."""
    absolute = directory.absolute()
    return next((f for f in map(project_folder, (absolute, *absolute.parents)) if f.is_dir()), None)


def below(folder: Path) -> list[Path]:
    """All transcripts in a folder and below, those written first first: a resumed session comes after its original."""
    found = []
    for parent, _, names in os.walk(folder):
        found += [Path(parent, name) for name in names if name.endswith(SUFFIX) and name not in _NOT_SESSIONS]
    return in_order(found)


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Paths, each once, by the time they were last written."""
    return sorted({path.absolute(): None for path in paths}, key=lambda path: (_written(path), path))


def with_subagents(path: Path) -> list[Path]:
    """A session's transcript, and those of its subagents."""
    found = [path]
    own = path.with_suffix("")
    if own.is_dir():
        found += below(own)
    if not path.name.startswith("agent-") and path.parent.is_dir():
        beside = path.parent.glob(f"agent-*{SUFFIX}")
        found += [other for other in beside if _first_record(other).get("sessionId") == path.stem]
    return found


def named(paths: Iterable[str]) -> list[Path]:
    """The transcripts that arguments name: files with their subagents, and all those in directories."""
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            found += below(path)
        elif path.exists():
            found += with_subagents(path)
        else:
            raise InvalidValue(f"There is no transcript {name!r}. Name a .jsonl file, or a directory that holds some.")
    return in_order(found)


def noted(notes: Iterable[Mapping[str, str]]) -> list[Path]:
    """The transcripts that hooks noted and that are there; the rest was removed since."""
    found: dict[Path, None] = {}
    for note in notes:
        given, session = note.get("transcript_path"), note.get("session_id", "")
        if given:
            path = Path(given.replace("\0", "")).expanduser()
            if path.suffix == SUFFIX and path.is_file():
                found[path.absolute()] = None
        elif _SESSION.fullmatch(session) and (own := of_session(session)) is not None:
            found[own.absolute()] = None
    return [path for session_file in found for path in with_subagents(session_file)]


def of_session(session: str, folder: Path | None = None) -> Path | None:
    """The transcript of a session, in one project or in any."""
    if not _SESSION.fullmatch(session):
        raise InvalidValue(f"{session!r} is not the id of a session: letters, digits and hyphens.")
    folders = [folder] if folder is not None else _folders()
    found = [path for f in folders if (path := f / f"{session}{SUFFIX}").is_file()]
    return max(found, key=_written, default=None)


def newest(folder: Path) -> Path | None:
    """The transcript that was written to last, of those of sessions."""
    return max(
        (path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("agent-")), key=_written, default=None
    )


def about_agent(path: Path) -> dict[str, Any]:
    """What Claude Code noted beside a subagent's transcript: its type, and the call that started it."""
    if not path.name.startswith("agent-"):
        return {}
    try:
        with open_regular(path.with_suffix(".meta.json")) as file:
            noted = json.loads(file.read(_MAX_META))
    except (OSError, ValueError, RecursionError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _folders() -> list[Path]:
    projects = home() / "projects"
    return [path for path in projects.iterdir() if path.is_dir()] if projects.is_dir() else []


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _first_record(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            found = json.loads(file.read(_MAX_FIRST_LINE).partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
