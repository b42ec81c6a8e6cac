"""The careful way to write a batch: across lost connections exactly once, and around rows that are refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from .units import MAX_ROWS, MAX_SIZE, Unit, allowed, fail, refusal, succeed

# A statement that loses its connection again and again may be what breaks the server.
_LONGEST_TRIAL = 60.0


class CarefulWriter:
    """Writes batches one after another on a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_event: int | None = None
        """The newest event there was when this writer last asked or wrote; None until then."""

    async def write(self, batch: list[Unit], *, sent: bool = False) -> None:
        """Write a batch, of which an earlier statement may have been `sent` on a connection that broke.

        A bad row must not fail its neighbours: a refused batch is halved until that row is alone.
        """
        try:
            await self._write_durably(batch, sent)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if len(batch) == 1:
                fail(batch, refusal(error))
                return
            half = len(batch) // 2
            await self.write(batch[:half])
            await self.write(batch[half:])

    async def _write_durably(self, batch: list[Unit], sent: bool) -> None:
        """Write a batch exactly once, across as many lost connections as it takes."""
        began: float | None = time.monotonic() if sent else None
        while True:
            conn = await self.session.connection()
            try:
                if began is not None and await self._committed(conn, batch):
                    return
                if self.last_event is None and any(unit.events for unit in batch):
                    self.last_event = await self._newest_event(conn)
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
        cursor = await conn.execute(sqlfiles.query("newest_event"), prepare=False)
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
            cursor = await conn.execute(sqlfiles.query("turns_stored"), {"ids": turns}, prepare=False)
            stored = {row["id"]: Appended(row["seq"], row["created_at"]) for row in await cursor.fetchall()}
            if len(stored) < len(turns):
                return False
        else:
            events = [event for unit in batch for event in unit.events]
            values = {
                "runs": [event.run_id for event in events],
                "after": self.last_event or 0,
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
            for turns, events in unit.pieces(10 * MAX_ROWS, MAX_SIZE):
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
                self.last_event = row["id"]
        elif len(batch) == 1 and (first.size > MAX_SIZE or first.rows > 10 * MAX_ROWS):
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
            self.last_event = row["last_event"]
        if turns:
            created = cast(datetime, row["created_at"])
            given = {turn.id: turn.created_at for turn in turns if turn.created_at is not None}
            for part in row["appended"].split(","):
                key = UUID(part[:32])
                stored[key] = Appended(int(part[32:]), given.get(key, created))

    async def _one_row(self, conn: Connection, name: str, values: dict[str, Any]) -> dict[str, Any]:
        cursor = await self.session.execute(conn, sqlfiles.query(name), values)
        row = await cursor.fetchone()
        assert row is not None
        return row
