"""Bringing transcripts into the log: each line once, and only what is new of a file."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID, uuid5

import psycopg

from everyturn.database_errors import translate
from everyturn.errors import EveryturnError
from everyturn.rows import turn_columns
from everyturn.turns import NewTurn
from everyturn.values import Usage

from . import files, transcript
from .reading import NAMESPACE, Counts, Read, Reading
from .transcript import Line

if TYPE_CHECKING:
    from everyturn.database import Database

_MAX_LINES = 500
_MAX_SIZE = 4 * 1024 * 1024
# Being overtaken means that another process got on: this ends when the lines do.
_MAX_ATTEMPTS = 1000
_LONGEST_PAUSE = 0.05


@dataclass(slots=True)
class FileReport:
    """What was brought in of one transcript."""

    path: Path
    conversation: UUID | None = None
    """The conversation of the session, or of the subagent's session."""
    turns: Counter[str] = field(default_factory=Counter)
    """The turns that were appended, by kind."""
    usage: Usage = field(default_factory=Usage)
    counts: Counts = field(default_factory=Counts)
    unfinished: bool = False
    """Whether the last line is still incomplete: it is left for the next time."""
    error: str | None = None
    """Why the file could not be read."""


class _Overtaken(Exception):
    """Another process wrote some of the same lines."""


@dataclass(slots=True)
class _Place:
    """How far a file is read."""

    position: int = 0
    line: int = 1
    begun: bool = False


async def import_files(
    db: Database, paths: Iterable[Path], *, progress: Callable[[FileReport], None] | None = None
) -> list[FileReport]:
    """Append what is new in these transcripts. A file that cannot be read is reported, and the others go on.

    Safe to call from several processes at once, and again after one was killed: nothing is appended twice.
    """
    reports = []
    for path in paths:
        report = await import_file(db, path)
        reports.append(report)
        if progress is not None:
            progress(report)
    return reports


async def import_file(db: Database, path: Path) -> FileReport:
    """Append what is new in one transcript."""
    report = FileReport(path)
    try:
        with transcript.open_regular(path) as file:
            for _ in range(_MAX_ATTEMPTS):
                report.counts = Counts()
                try:
                    await _Importer(db, path, file, report).run()
                    return report
                except _Overtaken:
                    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))
            raise EveryturnError(
                f"Other processes keep importing {path} at the same time. Try again when they are done."
            )
    except OSError as error:
        if isinstance(error, EveryturnError):
            raise
        report.error = error.strerror or str(error)
    return report


class _Importer:
    def __init__(self, db: Database, path: Path, file: IO[bytes], report: FileReport) -> None:
        self._db = db
        self._path = path
        self._file = file
        self._report = report
        self._held: dict[UUID, Read] = {}
        """Records that are read and not written yet, by their own keys."""

    async def run(self) -> None:
        head = transcript.head_hash(self._file)
        size = os.fstat(self._file.fileno()).st_size
        if head is None:
            self._report.unfinished = size > 0
            return
        name = self._path.name.encode("utf-8", "replace").decode()
        self._id = uuid5(NAMESPACE, f"{name}\n{head}")
        rows = await self._db.query("claude_code_files_read", ids=[self._id])
        stored = rows[0] if rows else None
        place, state = _Place(), None
        self._expected = (-1, "")
        if stored is not None:
            self._expected = (stored["position"], stored["tail"])
            position = stored["position"]
            if position <= size and transcript.tail_hash(self._file, position) == stored["tail"]:
                place, state = _Place(position, stored["line"], stored["begun"]), stored["state"]
        self._reading = Reading(self._id, name, files.about_agent(self._path), state)
        self._report.counts = self._reading.counts
        self._report.conversation = self._reading.main
        if place.position < size:
            await self._read(place, size)

    async def _read(self, place: _Place, size: int) -> None:
        found = transcript.lines(self._file, place.position, place.line, begun=place.begun)
        for batch, last in _batches(found):
            turns = [turn async for turn in self._turns(batch)]
            keys = [item for item in turns if isinstance(item, UUID)]
            new = [item for item in turns if isinstance(item, NewTurn)]
            if batch:
                end = batch[-1]
                place = _Place(end.end, end.number + end.finished, not end.finished)
            if last:
                for chain in self._reading.chains:
                    for item in chain.flush():
                        keys.append(item) if isinstance(item, UUID) else new.append(item)
            await self._write(new, keys, self._settled(place))
        self._report.conversation = self._reading.main
        self._report.unfinished = place.position < size

    async def _turns(self, batch: list[Line]) -> Any:
        reads = [read for line in batch for read in self._reading.records(line)]
        known = await self._known(reads)
        for read in reads:
            elsewhere = known.get(read.anywhere)
            repeated = elsewhere is not None and elsewhere != read.chain.conversation
            if repeated and "continues" not in read.chain.about and read.chain.run is None:
                read.chain.about["continues"] = str(elsewhere)
            if repeated or read.own in known or read.own in self._held:
                self._reading.counts.repeated += 1
                if read.own not in self._held:
                    read.chain.seen(read.entry)
                continue
            self._held[read.own] = read
            for item in read.chain.feed(read.entry, [read.own], read.position):
                yield item

    async def _known(self, reads: list[Read]) -> dict[UUID, UUID]:
        keys = {key for read in reads for key in (read.own, read.anywhere)}
        if not keys:
            return {}
        rows = await self._db.query("claude_code_lines_known", keys=",".join(key.hex for key in keys))
        return {row["key"]: row["conversation"] for row in rows}

    def _settled(self, place: _Place) -> _Place:
        """Up to where everything is written: the start of the first message that is still being gathered."""
        waiting = [chain.pending.position for chain in self._reading.chains if chain.pending is not None]
        return min([place, *(_Place(*position) for position in waiting)], key=lambda place: place.position)

    async def _write(self, turns: list[NewTurn], keys: list[UUID], place: _Place) -> None:
        rows = [self._db.turns.row(turn, lenient=True) for turn in turns]
        await self._db.turns.embed(rows)
        self._reading.retire()
        tail = transcript.tail_hash(self._file, place.position)
        reads = [self._held[key] for key in keys]
        conversations = ",".join(read.chain.conversation.hex for read in reads)
        try:
            [answer] = await self._db.query(
                "claude_code_append",
                file=self._id,
                path=os.fsencode(self._path).decode("utf-8", "replace"),
                position=place.position,
                line=place.line,
                begun=place.begun,
                tail=tail,
                state=self._db.encode(self._reading.state(), lenient=True),
                expected_position=self._expected[0],
                expected_tail=self._expected[1],
                own_keys=",".join(key.hex for key in keys),
                own_conversations=conversations,
                any_keys=",".join(read.anywhere.hex for read in reads),
                any_conversations=conversations,
                **turn_columns(rows),
            )
        except psycopg.errors.UniqueViolation:
            raise _Overtaken from None
        except psycopg.Error as error:
            raise translate(error) from error
        if not answer["held"]:
            raise _Overtaken
        self._expected = (place.position, tail)
        for key in keys:
            del self._held[key]
        appended = set(answer["appended"])
        for turn in turns:
            if turn.id in appended:
                self._report.turns[turn.kind] += 1
                if turn.kind == "model":
                    self._report.usage += Usage.from_payload(turn.payload["usage"])


def _batches(found: Iterable[Line]) -> Iterator[tuple[list[Line], bool]]:
    """Lines in batches, the last of them marked; there is always a last one."""
    batch: list[Line] = []
    size = 0
    for line in found:
        if batch and (len(batch) >= _MAX_LINES or size + line.end - line.start > _MAX_SIZE):
            yield batch, False
            batch, size = [], 0
        batch.append(line)
        size += line.end - line.start
    yield batch, True
