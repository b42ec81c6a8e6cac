"""The spool: which transcripts have grown, one JSON object a line, written by hooks and taken in by the next command.

Imported by every hook call, so it imports next to nothing. A note lost is no turn lost: it says only where to look.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator

MAX_BYTES = 1024 * 1024
"""From here on the spool is turned over: it and the one before it are kept."""
MAX_NOTE = 4096
_FIELDS = ("hook_event_name", "session_id", "transcript_path", "agent_transcript_path", "cwd", "reason")
_LONGEST_WAIT = 0.3


def directory() -> str:
    """Where the spool is: EVERYTURN_HOME, else the user's data directory."""
    home = os.environ.get("EVERYTURN_HOME")
    if home:
        return os.path.join(home, "claude-code")
    if sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Application Support")
    else:
        base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(base, "everyturn", "claude-code")


def note_of(event: object) -> dict[str, str] | None:
    """What is kept of a hook's event: never what a tool was given or returned. None where it names no session."""
    if not isinstance(event, dict):
        return None
    note = {}
    for field in _FIELDS:
        value = event.get(field)
        if isinstance(value, str) and value and len(value) <= MAX_NOTE // 4:
            note[field] = value
    return note if "transcript_path" in note or "session_id" in note else None


def append(note: dict[str, str], where: str | None = None) -> None:
    """Add a note, whole or not at all. Raises OSError."""
    folder = where or directory()
    path = os.path.join(folder, "spool.jsonl")
    line = json.dumps({"at": round(time.time(), 3), **note}).encode("ascii") + b"\n"
    try:
        file = _open(path)
    except FileNotFoundError:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = _open(path)
    try:
        # The lock keeps turning over apart from appending; a single short append is whole without it too.
        locked = _lock(file)
        if locked and os.fstat(file).st_size >= MAX_BYTES and _same(file, path):
            os.replace(path, os.path.join(folder, "spool.1.jsonl"))
        if locked and not _same(file, path):
            os.close(file)
            file = _open(path)
        os.write(file, line)
    finally:
        os.close(file)


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _same(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _lock(file: int) -> bool:
    until = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)


@contextlib.contextmanager
def taken(where: str | None = None) -> Iterator[list[dict[str, str]]]:
    """The notes so far. They are gone when the block ends, and still there when it fails."""
    folder = where or directory()
    held = []
    for name in ("spool.1.jsonl", "spool.jsonl"):
        moved = _take(folder, name)
        if moved:
            held.append(moved)
    # What a command left behind that was killed while it took the notes in.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        held = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("taken."))
    notes: list[dict[str, str]] = []
    for path in held:
        notes += _notes(path)
    yield notes
    for path in held:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _take(folder: str, name: str) -> str | None:
    path = os.path.join(folder, name)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        _lock(file)
        moved = os.path.join(folder, f"taken.{time.time_ns()}.{os.getpid()}.{name}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, moved)
            return moved
        return None
    finally:
        os.close(file)


def _notes(path: str) -> list[dict[str, str]]:
    notes = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            try:
                note = json.loads(line)
            except ValueError:
                continue
            if isinstance(note, dict):
                notes.append({key: value for key, value in note.items() if isinstance(value, str)})
    return notes
