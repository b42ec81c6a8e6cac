"""Group commit: appends that meet share one statement, and so one commit.

One task owns one connection and writes whatever is queued as a single autocommit statement. It neither waits for more
rows nor caps batches below what a statement should hold: while one batch is under way the next one gathers. An append
returns once its rows are durable. One writer also keeps order: rows become visible in the order in which they were
submitted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import psycopg

from . import sqlfiles
from .connection import Connection
from .database_errors import translate
from .errors import DatabaseUnavailable
from .rows import Appended, EventRow, TurnRow, event_columns, turn_columns
from .session import Session
from .units import Unit, allowed, fail, refusal, succeed

__all__ = ["Appended", "EventRow", "TurnRow", "Writer"]

_MAX_ROWS = 1000
_MAX_SIZE = 32 * 1024 * 1024
# A statement that loses its connection again and again may be what breaks the server.
_LONGEST_TRIAL = 60.0


class Writer:
    """The writer of one event loop. Its session also holds the advisory locks of the conversations being run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._queue: list[Unit] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_event: int | None = None
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
        return await asyncio.shield(self.submit(turns, events, lock=lock, guard=guard))

    def submit(
        self,
        turns: Sequence[TurnRow] = (),
        events: Sequence[EventRow] = (),
        *,
        lock: int | None = None,
        guard: Callable[[], None] | None = None,
    ) -> asyncio.Future[list[Appended]]:
        """Queue these rows; the future is done once they are durable. To wait for it, shield it.

        `lock` is the advisory lock of a new conversation, taken in the same statement. `guard` is called before the
        rows are sent, when the connection is open; what it raises is the outcome, and nothing is written.
        """
        if self._closed:
            raise DatabaseUnavailable("This database was closed; open it again with et.connect().")
        unit = Unit(turns, events, lock, guard, asyncio.get_running_loop().create_future())
        self._queue.append(unit)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="everyturn writer")
        return unit.done

    async def close(self) -> None:
        """Write what is queued, then end."""
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        while not (self._closed and not self._queue):
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            batch = self._take()
            try:
                await self._write(batch)
            except asyncio.CancelledError:
                fail(
                    batch + self._queue,
                    DatabaseUnavailable("The event loop ended while an append was under way."),
                )
                self._queue = []
                raise
            except BaseException as error:  # whatever it is, nobody may wait for ever
                fail(batch, error)
                if not isinstance(error, Exception):
                    raise

    def _take(self) -> list[Unit]:
        """As much of the queue as one statement should hold: at least one unit."""
        rows = size = count = 0
        for unit in self._queue:
            rows += unit.rows
            size += unit.size
            if count and (rows > _MAX_ROWS or size > _MAX_SIZE):
                break
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    async def _write(self, batch: list[Unit]) -> None:
        """Write a batch. A bad row must not fail its neighbours: a refused batch is halved until that row is alone."""
        try:
            await self._write_durably(batch)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if len(batch) == 1:
                fail(batch, refusal(error))
                return
            half = len(batch) // 2
            await self._write(batch[:half])
            await self._write(batch[half:])

    async def _write_durably(self, batch: list[Unit]) -> None:
        """Write a batch exactly once, across as many lost connections as it takes."""
        began: float | None = None
        while True:
            conn = await self.session.connection()
            try:
                if began is not None and await self._committed(conn, batch):
                    return
                if self._last_event is None and any(unit.events for unit in batch):
                    self._last_event = await self._newest_event(conn)
                batch = [unit for unit in batch if unit.guard is None or allowed(unit)]
                if not batch:
                    return
                began = began or time.monotonic()
                await self._statement(conn, batch)
                return
            except psycopg.Error as error:
                if not self.session.lost(error, conn):
                    raise
                if began is not None and time.monotonic() - began > _LONGEST_TRIAL:
                    raise translate(error) from error

    async def _newest_event(self, conn: Connection) -> int:
        cursor = await conn.execute("SELECT max(id) AS newest FROM agent_events", prepare=False)
        row = await cursor.fetchone()
        return (row["newest"] or 0) if row is not None else 0

    async def _committed(self, conn: Connection, batch: list[Unit]) -> bool:
        """Whether the statement that was under way when its connection broke took effect.

        All rows of a statement are there or none. A turn is known by its id. An event has none of ours, but those of
        this statement came after every event that was acknowledged, and in one transaction.
        """
        turns = [turn.id for unit in batch for turn in unit.turns]
        stored: dict[UUID, Appended] = {}
        if turns:
            cursor = await conn.execute(
                "SELECT id, seq, created_at FROM agent_turns WHERE id = ANY(%s)", (turns,), prepare=False
            )
            stored = {row["id"]: Appended(row["seq"], row["created_at"]) for row in await cursor.fetchall()}
            if len(stored) < len(turns):
                return False
        else:
            events = [event for unit in batch for event in unit.events]
            values = {
                "runs": [event.run_id for event in events],
                "after": self._last_event or 0,
                "events": [event.event for event in events],
            }
            cursor = await conn.execute(sqlfiles.query("events_committed"), values, prepare=False)
            if await cursor.fetchone() is None:
                return False
        await self.session.hold(conn, [unit.lock for unit in batch if unit.lock is not None])
        succeed(batch, stored)
        return True

    async def _in_pieces(self, conn: Connection, unit: Unit, stored: dict[UUID, Appended]) -> None:
        """Rows that are too many for one statement, in one transaction."""
        locks = [unit.lock] if unit.lock is not None else []
        async with conn.transaction():
            for turns, events in unit.pieces(10 * _MAX_ROWS, _MAX_SIZE):
                await self._many(conn, turns, events, locks, stored)
                locks = []

    async def _statement(self, conn: Connection, batch: list[Unit]) -> None:
        locks = [unit.lock for unit in batch if unit.lock is not None]
        stored: dict[UUID, Appended] = {}
        first = batch[0]
        if len(batch) == 1 and not locks and first.rows == 1:
            if first.turns:
                turn = first.turns[0]
                row = await self._one_row(conn, "append_turn", turn.values())
                stored[turn.id] = Appended(row["seq"], row["created_at"])
            else:
                row = await self._one_row(conn, "append_event", first.events[0].values())
                self._last_event = row["id"]
        elif len(batch) == 1 and (first.size > _MAX_SIZE or first.rows > 10 * _MAX_ROWS):
            await self._in_pieces(conn, first, stored)
        else:
            turns = [turn for unit in batch for turn in unit.turns]
            events = [event for unit in batch for event in unit.events]
            await self._many(conn, turns, events, locks, stored)
        succeed(batch, stored)

    async def _many(
        self,
        conn: Connection,
        turns: Sequence[TurnRow],
        events: Sequence[EventRow],
        locks: list[int],
        stored: dict[UUID, Appended],
    ) -> None:
        unlock: list[int] = []
        if (turns and events) or locks:
            name = "append_turns_and_events"
            values = turn_columns(turns) | event_columns(events)
            unlock = self.session.take_released()
            values["lock"] = ",".join(map(str, locks))
            values["unlock"] = ",".join(map(str, unlock))
        elif turns:
            name, values = "append_turns", turn_columns(turns)
        elif events:
            name, values = "append_events", event_columns(events)
        else:
            return
        try:
            row = await self._one_row(conn, name, values)
        except psycopg.Error as error:
            # A session's locks outlive the statement that failed: free what it may have taken.
            if not self.session.lost(error, conn):
                self.session.put_back_released(unlock + locks)
                await self.session.free_released()
            raise
        self.session.held.update(locks)
        if events:
            self._last_event = row["last_event"]
        if turns:
            created = cast(datetime, row["created_at"])
            given = {turn.id: turn.created_at for turn in turns if turn.created_at is not None}
            for part in row["appended"].split(","):
                text, _, seq = part.partition(" ")
                key = UUID(text)
                stored[key] = Appended(int(seq), given.get(key, created))

    async def _one_row(self, conn: Connection, name: str, values: dict[str, Any]) -> dict[str, Any]:
        cursor = await self.session.execute(conn, sqlfiles.query(name), values)
        row = await cursor.fetchone()
        assert row is not None
        return row
