"""Units: rows that are stored together or not at all, and the append that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from .database_errors import translate
from .errors import EveryturnError, InvalidValue
from .rows import Appended, EventRow, TurnRow

MAX_ROWS = 1000
MAX_SIZE = 32 * 1024 * 1024
"""What one statement should hold."""


@dataclass(slots=True, eq=False)
class Unit:
    """The rows of one append."""

    turns: Sequence[TurnRow]
    events: Sequence[EventRow]
    lock: int | None
    guard: Callable[[], None] | None
    done: asyncio.Future[list[Appended]]
    rows: int = field(init=False)
    size: int = field(init=False)
    """Characters of its values, near enough."""

    def __post_init__(self) -> None:
        size = 0
        for turn in self.turns:
            size += len(turn.payload) + (len(turn.embedding) if turn.embedding else 0)
        for event in self.events:
            size += len(event.event)
        self.size = size
        self.rows = len(self.turns) + len(self.events)

    def pieces(self, rows: int, size: int) -> Iterator[tuple[list[TurnRow], list[EventRow]]]:
        """The rows in order, no more of them at a time than a statement should hold: the turns, then the events."""
        turns: list[TurnRow] = []
        events: list[EventRow] = []
        length = 0
        everything: Sequence[TurnRow | EventRow] = (*self.turns, *self.events)
        for row in everything:
            more = len(row.payload) if isinstance(row, TurnRow) else len(row.event)
            if (turns or events) and (length + more > size or len(turns) + len(events) == rows):
                yield turns, events
                turns, events, length = [], [], 0
            if isinstance(row, TurnRow):
                turns.append(row)
            else:
                events.append(row)
            length += more
        yield turns, events


def allowed(unit: Unit) -> bool:
    """Ask the guard of a unit; what it raises is the outcome."""
    if unit.guard is not None:
        try:
            unit.guard()
        except EveryturnError as error:
            fail([unit], error)
            return False
    return True


def refusal(error: Exception) -> Exception:
    """What the append of a refused row raises."""
    if isinstance(error, psycopg.Error):
        return translate(error)
    if isinstance(error, UnicodeEncodeError):
        return InvalidValue(f"The row holds text that is not Unicode ({error.reason}). Nothing of it was stored.")
    return error


def succeed(batch: list[Unit], stored: dict[UUID, Appended]) -> None:
    for unit in batch:
        if not unit.done.done():
            unit.done.set_result([stored[turn.id] for turn in unit.turns])


def fail(batch: list[Unit], error: BaseException) -> None:
    for unit in batch:
        if not unit.done.done():
            unit.done.set_exception(error)
