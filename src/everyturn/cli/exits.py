"""The exit codes, and how an error becomes one sentence and one of them."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

from everyturn.cli.text import printable
from everyturn.errors import EveryturnError, InvalidValue, NotEnoughData

OK = 0
CHECK_FAILED = 1
USAGE = 2
NOT_ENOUGH_DATA = 3
OPERATIONAL = 4
INTERRUPTED = 130

_MISSING_TABLES = {"42P01", "3F000"}


def report(error: BaseException) -> int:
    """Say what went wrong on stderr, in one sentence, and return the exit code for it.

    `EVERYTURN_DEBUG=1` adds the stack trace.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if os.environ.get("EVERYTURN_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    _say(f"Error: {sentence(error)}")
    if isinstance(error, NotEnoughData):
        return NOT_ENOUGH_DATA
    return USAGE if isinstance(error, InvalidValue) else OPERATIONAL


def sentence(error: BaseException) -> str:
    """What an error says, for somebody who did not write the program."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(sentence(part) for part in error.exceptions)
    text = " ".join(str(error).split())
    if isinstance(error, EveryturnError):
        return text or type(error).__name__
    if getattr(error, "sqlstate", None) in _MISSING_TABLES:
        return (
            f"{text.split(' LINE ')[0]}: the tables of everyturn are not, or not all, in this database. "
            "Run `everyturn db init`, or name another database with --database."
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    kind = type(error).__name__
    return f"{kind}: {text} (EVERYTURN_DEBUG=1 shows where)" if text else f"{kind} (EVERYTURN_DEBUG=1 shows where)"


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more; the exit code still tells
        print(printable(text), file=sys.stderr, flush=True)
