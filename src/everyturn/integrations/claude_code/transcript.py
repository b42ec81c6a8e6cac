r"""The lines of a transcript file, read from any offset in bounded memory, whatever state the file is in.

A line ends at `\n` and nowhere else: JSON strings may hold U+2028, U+0085 and the like. The last line is left for the
next time while it is incomplete. What cannot be read is told by line number, and what is whole around it is kept:
records glued together, a record after a line that was cut, a record beside a run of zero bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

MAX_LINE = 32 * 1024 * 1024
HEAD = 4096
TAIL = 256
_BLOCK = 1024 * 1024
_MAX_SALVAGED = 2 * 1024 * 1024
_MAX_ATTEMPTS = 50
_DECODER = json.JSONDecoder(strict=False)
# The keys with which a record of a transcript begins.
_START = re.compile(
    r'\{"(?:parentUuid|type|uuid|sessionId|isSidechain|agentId|message|timestamp|cwd|leafUuid|messageId|userType)"'
)
_SPACE = " \t\r\0\ufeff"

BLANK = "blank"
"""The problem of a line that holds nothing; it is counted, and not one of those that are told."""


@dataclass(slots=True)
class Line:
    """One line of a file: the records it holds, and what is wrong with it."""

    number: int
    start: int
    end: int
    """The offset behind it."""
    records: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None
    finished: bool = True
    """False for a last line that is complete but has no line end yet."""


def open_regular(path: Path) -> IO[bytes]:
    """A file, opened for reading. Raises OSError, also for what is no regular file (a pipe would block)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "Not a regular file", os.fspath(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def head_hash(file: IO[bytes]) -> str | None:
    """What identifies a file that only grows: its first line, at most 4 KB of it. None while that is incomplete."""
    head = os.pread(file.fileno(), HEAD, 0)
    line, end, _ = head.partition(b"\n")
    if not end and len(head) < HEAD and not _complete(line):
        return None
    return hashlib.sha256(line).hexdigest()


def tail_hash(file: IO[bytes], offset: int) -> str:
    """The bytes just before an offset: other bytes there mean that the file was written anew."""
    start = max(offset - TAIL, 0)
    return hashlib.sha256(os.pread(file.fileno(), offset - start, start)).hexdigest()


def lines(file: IO[bytes], offset: int = 0, number: int = 1, *, begun: bool = False) -> Iterator[Line]:
    """The lines from an offset on; `number` is that of the line the offset is in.

    With `begun`, that line was taken before its line end was written: only what came behind it is new.
    """
    file.seek(offset)
    kept: list[bytes] = []
    start, size, held = offset, 0, 0
    zeros = too_long = False
    while block := file.read(_BLOCK):
        position = 0
        while (found := block.find(b"\n", position)) >= 0:
            too_long = too_long or held + found - position > MAX_LINE
            kept.append(block[position:found])
            end = start + size + found - position + 1
            data = b"".join(kept)
            if not (begun and not data.strip(b"\r")):
                yield _line(number, start, end, data, zeros, too_long)
            number += 1
            start, position, size, held = end, found + 1, 0, 0
            begun = zeros = too_long = False
            kept.clear()
        rest = block[position:]
        size += len(rest)
        if not held and not rest.strip(b"\0"):
            zeros = zeros or bool(rest)
        elif too_long or held + len(rest) > MAX_LINE:
            too_long = True
            kept.clear()
        else:
            kept.append(rest)
            held += len(rest)
    data = b"".join(kept)
    if data and not too_long and _complete(data):
        yield _line(number, start, start + size, data, zeros, False, finished=False)


def _complete(data: bytes) -> bool:
    """Whether this is a whole record: the beginning of one never is."""
    try:
        return isinstance(_DECODER.decode(_text(data)), dict)
    except (ValueError, RecursionError):
        return False


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip(_SPACE)


def _line(
    number: int, start: int, end: int, data: bytes, zeros: bool, too_long: bool, *, finished: bool = True
) -> Line:
    line = Line(number, start, end, finished=finished)
    if too_long:
        line.problem = f"longer than {MAX_LINE // 1024 // 1024} MB"
        return line
    text = _text(data)
    zeros = zeros or b"\0" in data
    if zeros:
        line.problem = "zero bytes"
    if not text:
        line.problem = line.problem or BLANK
        return line
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        line.records, problem = _salvaged(text)
        line.problem = "zero bytes" if zeros and line.records else problem
        return line
    if isinstance(found, dict):
        line.records = [found]
    else:
        line.problem = f"a JSON {type(found).__name__}, not an object"
    return line


def _salvaged(text: str) -> tuple[list[dict[str, Any]], str]:
    """The whole records on a line that is not one record, and what is wrong with the line."""
    records: list[dict[str, Any]] = []
    problem = "records without a line end between them"
    if len(text) > _MAX_SALVAGED:
        return [], "not JSON"
    position = attempts = 0
    while position < len(text) and attempts < _MAX_ATTEMPTS:
        attempts += 1
        try:
            found, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            found, end = None, position
        # A part of a record that was cut is JSON too; a record of its own ends where another begins, or with the line.
        end = _behind_space(text, end)
        if isinstance(found, dict) and (end == len(text) or _START.match(text, end)) and _is_record(found):
            records.append(found)
            position = end
            continue
        problem = "cut, or not JSON"
        following = _START.search(text, position + 1)
        if following is None:
            break
        position = following.start()
    return records, problem


def _behind_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _is_record(found: dict[str, Any]) -> bool:
    return isinstance(found.get("type"), str) and any(
        key in found for key in ("uuid", "sessionId", "timestamp", "message", "leafUuid", "messageId")
    )
