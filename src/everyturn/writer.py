"""Group commit: appends that meet share one statement, and so one commit.

One connection writes whatever is queued as a single autocommit statement; while one batch is under way the next one
gathers. An append returns once its rows are durable. One writer also keeps order: rows become visible in the order in
which they were submitted.

The common case goes over the `Wire`; whatever is out of the ordinary is handed to the `CarefulWriter`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from . import sqlfiles
from .careful import CarefulWriter
from .connection import Connection
from .errors import DatabaseUnavailable
from .rows import Appended, EventRow, TurnRow, event_columns, turn_columns
from .session import Session
from .units import MAX_ROWS, MAX_SIZE, Unit, allowed, fail
from .wire import Answer, Wire

__all__ = ["Appended", "EventRow", "TurnRow", "Writer"]

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# Fewer rows than this are not worth a commit of their own while others are about to come.
_SMALL = 16
# Where a commit takes longer than this, in seconds, commits are what there is to save.
_SLOW_COMMIT = 0.003


class Writer:
    """The writer of one event loop. Its session also holds the advisory locks of the conversations being run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._careful = CarefulWriter(session)
        self._queue: list[Unit] = []
        self._busy = False
        self._enough = 1
        """How many units to wait for before the next batch is sent, while appends woken by the last one are coming."""
        self._commit_time = 0.0
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._closed = False

    async def append(
        self,
        turns: Sequence[TurnRow] = (),
        events: Sequence[EventRow] = (),
        *,
        lock: int | None = None,
        guard: Callable[[], None] | None = None,
    ) -> list[Appended]:
        """Store these rows together; return, once they are durable, what the database gave each turn.

        A caller that is cancelled stops waiting; its rows are written all the same.
        """
        return await self.submit(turns, events, lock=lock, guard=guard)

    def submit(
        self,
        turns: Sequence[TurnRow] = (),
        events: Sequence[EventRow] = (),
        *,
        lock: int | None = None,
        guard: Callable[[], None] | None = None,
    ) -> asyncio.Future[list[Appended]]:
        """Queue these rows; the future is done once they are durable. Cancelling it does not unqueue them.

        `lock` is the advisory lock of a new conversation, taken in the same statement. `guard` is called before the
        rows are sent, when the connection is open; what it raises is the outcome, and nothing is written.
        """
        if self._closed:
            raise DatabaseUnavailable("This database was closed; open it again with et.connect().")
        unit = Unit(turns, events, lock, guard, asyncio.get_running_loop().create_future())
        self._queue.append(unit)
        if not self._busy and len(self._queue) >= self._enough:
            self._next()
        return unit.done

    async def close(self) -> None:
        """Write what is queued, then end."""
        self._closed = True
        while self._busy or self._queue:
            self._idle.clear()
            self._next()
            await self._idle.wait()

    def _next(self, most: int = MAX_ROWS) -> None:
        """Send what is queued, `most` units of it, unless something is under way."""
        if self._busy:
            return
        if not self._queue:
            self._idle.set()
            return
        self._busy = True
        batch = self._take(most)
        if not self._send(batch):
            self._with_care(batch)

    def _take(self, most: int) -> list[Unit]:
        """As much of the queue as one statement should hold: at least one unit."""
        rows = size = count = 0
        for unit in self._queue[:most]:
            rows += unit.rows
            size += unit.size
            if count and (rows > MAX_ROWS or size > MAX_SIZE):
                break
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    # The common case

    def _send(self, batch: list[Unit]) -> bool:
        """Send a batch over the wire; False where that is not the thing to do."""
        conn = self.session.ready()
        if conn is None or (self._careful.last_event is None and any(unit.events for unit in batch)):
            return False
        if len(batch) == 1 and (batch[0].size > MAX_SIZE or batch[0].rows > MAX_ROWS):
            return False
        if self._wire is None or self._wire.conn is not conn:
            self._wire = Wire(conn)
        if not self._wire.try_lock():
            return False
        return self._send_over(self._wire, batch)

    def _send_over(self, wire: Wire, batch: list[Unit]) -> bool:
        """The same, with the lock of the connection held."""
        unlock: list[int] = []
        try:
            batch = [unit for unit in batch if unit.guard is None or allowed(unit)]
            turns = [turn for unit in batch for turn in unit.turns]
            events = [event for unit in batch for event in unit.events]
            locks = [unit.lock for unit in batch if unit.lock is not None]
            if not turns and not events and not locks:
                wire.conn.lock.release()
                self._busy = False
                _deliver(batch, [])
                self._next()
                return True
            if len(turns) + len(events) == 1 and not locks:
                name, values = ("append_turn", turns[0].values()) if turns else ("append_event", events[0].values())
            elif locks or (turns and events):
                name, values = "append_turns_and_events", turn_columns(turns) | event_columns(events)
                unlock = self.session.take_released()
                values |= {"lock": ",".join(map(str, locks)), "unlock": ",".join(map(str, unlock))}
            elif turns:
                name, values = "append_turns", turn_columns(turns)
            else:
                name, values = "append_events", event_columns(events)
            statement, order = sqlfiles.numbered(name)
            parameters = [_text(values[key]) for key in order]
        except Exception:  # the careful way finds the row
            wire.conn.lock.release()
            self.session.put_back_released(unlock)
            return False
        began = time.perf_counter()

        def answered(answer: Answer) -> None:
            if isinstance(answer, psycopg.Error):
                self._refused(wire.conn, batch, answer, locks + unlock)
                return
            self._commit_time += (time.perf_counter() - began - self._commit_time) / 8
            self.session.held.update(locks)
            stored = self._read(name, answer, turns)
            self._busy = False
            self._go_on(len(batch))
            _deliver(batch, stored)

        wire.send(name, statement, parameters, answered, prepare=self.session.prepares)
        return True

    def _go_on(self, finished: int) -> None:
        """Send the next batch once half of the appends in play are queued: the server works while the others go on.

        Where commits are slow, or appends are few, one commit for all of them is worth waiting for.
        """
        in_play = len(self._queue) + finished
        half = in_play if self._commit_time > _SLOW_COMMIT else (in_play + 1) // 2
        self._enough = min(in_play, max(_SMALL, half))
        if len(self._queue) >= self._enough:
            self._next(self._enough)
        asyncio.get_running_loop().call_soon(self._all_came)

    def _all_came(self) -> None:
        """The appends woken by the last batch have had their turn."""
        self._enough = 1
        self._next()

    def _read(self, name: str, answer: Any, turns: Sequence[TurnRow]) -> list[Appended]:
        """What the database gave each turn, in the order of the turns."""
        if name == "append_turn":
            return [Appended(_number(answer.get_value(0, 0)), _time(answer.get_value(0, 1)))]
        if name in ("append_event", "append_events"):
            self._careful.last_event = _number(answer.get_value(0, 0))
            return []
        if name == "append_turns_and_events" and (newest := answer.get_value(0, 2)) is not None:
            self._careful.last_event = _number(newest)
        if not turns:
            return []
        created = _time(answer.get_value(0, 1))
        seqs = {part[:32]: int(part[32:]) for part in answer.get_value(0, 0).decode().split(",")}
        return [Appended(seqs[turn.id.hex], turn.created_at or created) for turn in turns]

    # Everything else

    def _refused(self, conn: Connection, batch: list[Unit], error: psycopg.Error, locks: list[int]) -> None:
        """A statement failed: find out what became of it, and which row was the bad one."""
        lost = self.session.lost(error, conn)
        if not lost:
            # A session's locks outlive the statement that failed: free what it may have taken.
            self.session.put_back_released(locks)
            self._wire = None
        self._with_care(batch, sent=lost, free=bool(locks) and not lost)

    def _with_care(self, batch: list[Unit], *, sent: bool = False, free: bool = False) -> None:
        self._task = asyncio.create_task(self._carefully(batch, sent, free), name="everyturn writer")

    async def _carefully(self, batch: list[Unit], sent: bool, free: bool) -> None:
        try:
            if free:
                await self.session.free_released()
            await self._careful.write(batch, sent=sent)
        except asyncio.CancelledError:
            fail(batch + self._queue, DatabaseUnavailable("The event loop ended while an append was under way."))
            self._queue = []
            raise
        except BaseException as error:  # whatever it is, nobody may wait for ever
            fail(batch, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._busy = False
            self._enough = 1
        self._next()


def _deliver(batch: list[Unit], stored: list[Appended]) -> None:
    """Give each unit what was stored of it; the turns of the units are in order."""
    position = 0
    for unit in batch:
        until = position + len(unit.turns)
        if not unit.done.done():
            unit.done.set_result(stored[position:until])
        position = until


def _text(value: Any) -> bytes | None:
    if value is None:
        return None
    text = str(value).encode()
    if b"\0" in text:
        raise ValueError("text cannot hold NUL: libpq would end it there")
    return text


def _number(value: bytes) -> int:
    return int.from_bytes(value, signed=True)


def _time(value: bytes) -> datetime:
    # A timestamptz in binary: microseconds since 2000.
    return _EPOCH + timedelta(microseconds=_number(value))
