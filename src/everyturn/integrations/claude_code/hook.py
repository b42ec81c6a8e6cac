"""What Claude Code runs on its events: note on the spool which transcript has grown, and return.

It must not delay or stop a session, whatever it is given and whatever state disk and database are in: it opens neither
database nor transcript, always ends with exit code 0, and writes nothing, or one JSON object that Claude Code reads.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from everyturn.integrations.claude_code import spool

MAX_EVENT = 64 * 1024 * 1024
_LONGEST_READ = 0.8
_ENDS = ("Stop", "SessionEnd")


def main() -> int:
    """Read one event on stdin; always 0."""
    event: object = None
    try:
        event = _event()
        note = spool.note_of(event)
        if note is not None:
            spool.append(note)
    except BaseException as error:
        _say(event, error)
    return 0


def _event() -> object:
    """The event on stdin; None where there is none, it is no JSON, or it does not come."""
    try:
        return json.loads(_input().decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _input() -> bytes:
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        text = sys.stdin.read() if sys.stdin is not None else ""
        return text.encode("utf-8", "replace")
    until = time.monotonic() + _LONGEST_READ
    parts: list[bytes] = []
    size = 0
    while size <= MAX_EVENT:
        ready, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0))
        part = os.read(descriptor, 1 << 20) if ready else b""
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _say(event: object, error: BaseException) -> None:
    """Tell the user, when a turn has ended, that it was not noted; not after every tool."""
    try:
        if isinstance(event, dict) and event.get("hook_event_name") in _ENDS:
            said = getattr(error, "strerror", None) or type(error).__name__
            message = (
                f"everyturn could not note this session ({said}: {spool.directory()}). "
                "`everyturn claude-code import` brings it in all the same."
            )
            _write(json.dumps({"systemMessage": message}) + "\n")
    except BaseException:
        pass


def _write(text: str) -> None:
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        sys.stdout.write(text)
        return
    os.write(descriptor, text.encode("ascii"))  # unbuffered: a reader that left is no error at exit


if __name__ == "__main__":
    sys.exit(main())
