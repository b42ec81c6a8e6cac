"""Group commit: appends that meet share one statement, and so one commit.

One task owns one connection and writes whatever is queued as a single autocommit statement. It neither waits for more rows
nor caps batches below what a statement should hold: while one batch is under way the next one gathers. An append returns once
its rows are durable. One writer also keeps order: rows become visible in the order in which they were submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import psycopg

from . import sqlfiles
from .connection import Session
from .database_errors import translate
from .errors import DatabaseUnavailable

_SEPARATOR = "\x1f"
_NULL = "\x1e"
_MAX_ROWS = 1000
_MAX_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class TurnRow:
    """A row for `agent_turns`, its values already text."""

    id: UUID
    conversation: UUID
    agent: str
    kind: str
    payload: str
    embedding: str | None = None
    embedded_by: str | None = None
    created_at: datetime | None = None


@dataclass(slots=True)
class EventRow:
    """A row for `agent_events`, its event already JSON text."""

    run_id: str
    agent_id: str
    agent_name: str | None
    turn: int | None
    tool_name: str | None
    tool_call_id: str | None
    internal_call_id: str | None
    event: str


@dataclass(frozen=True, slots=True)
class Appended:
    """What the database gave a turn."""

    seq: int
    created_at: datetime


@dataclass(slots=True, eq=False)
class _Unit:
    """Rows that are stored together or not at all, and the append that waits for them."""

    turns: Sequence[TurnRow]
    events: Sequence[EventRow]
    lock: int | None
    done: asyncio.Future[list[Appended]]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(len(t.payload) + len(t.embedding or "") for t in self.turns) + sum(
            len(e.event) for e in self.events
        )

    @property
    def rows(self) -> int:
        return len(self.turns) + len(self.events)


class Writer:
    """The writer of one event loop. Its session also holds the advisory locks of the conversations being run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._queue: list[_Unit] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_event = 0
        self._closed = False

    async def append(
        self, turns: Sequence[TurnRow] = (), events: Sequence[EventRow] = (), *, lock: int | None = None
    ) -> list[Appended]:
        """Store these rows together; return, once they are durable, what the database gave each turn.

        A caller that is cancelled stops waiting; its rows are written all the same.
        """
        return await asyncio.shield(self.submit(turns, events, lock=lock))

    def submit(
        self, turns: Sequence[TurnRow] = (), events: Sequence[EventRow] = (), *, lock: int | None = None
    ) -> asyncio.Future[list[Appended]]:
        """Queue these rows; the future is done once they are durable. To wait for it, shield it.

        `lock` is the advisory lock of a new conversation, taken in the same statement.
        """
        if self._closed:
            raise DatabaseUnavailable("This database was closed; open it again with et.connect().")
        unit = _Unit(turns, events, lock, asyncio.get_running_loop().create_future())
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
                _fail(
                    batch + self._queue,
                    DatabaseUnavailable("The event loop ended while an append was under way."),
                )
                self._queue = []
                raise
            except BaseException as error:  # whatever it is, nobody may wait for ever
                _fail(batch, error)

    def _take(self) -> list[_Unit]:
        """As much of the queue as one statement should hold: at least one unit."""
        rows = size = count = 0
        for unit in self._queue:
            rows += unit.rows
            size += unit.size
            if count and (rows > _MAX_ROWS or size > _MAX_BYTES):
                break
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    async def _write(self, batch: list[_Unit]) -> None:
        try:
            await self._write_durably(batch)
        except psycopg.Error as error:
            if len(batch) == 1:
                _fail(batch, translate(error))
                return
            # One bad row must not fail its neighbours: each unit alone, in the order in which they came.
            for unit in batch:
                await self._write([unit])

    async def _write_durably(self, batch: list[_Unit]) -> None:
        """Write a batch exactly once, across as many lost connections as it takes."""
        sent = False
        while True:
            conn, fresh = await self.session.connection()
            if fresh:
                last = await self.session.fetch("SELECT last_value, is_called FROM agent_events_id_seq")
                if sent and await self._committed(batch):
                    return
                self._last_event = last[0][0] if last[0][1] else 0
            sent = True
            try:
                await self._statement(conn, batch)
                return
            except psycopg.Error as error:
                if not self.session.lost(error):
                    raise

    async def _committed(self, batch: list[_Unit]) -> bool:
        """Whether the statement that was under way when the connection broke took effect.

        All rows of a statement are there or none. A turn is known by its id; an event has none of ours, but only this
        writer writes its run, and every earlier event of it was acknowledged with an id up to `_last_event`.
        """
        await self.session.bury_predecessor()
        turns = [turn.id for unit in batch for turn in unit.turns]
        if turns:
            rows = await self.session.fetch("SELECT id, seq, created_at FROM agent_turns WHERE id = ANY(%s)", (turns,))
            if len(rows) < len(turns):
                return False
            stored = {row[0]: Appended(row[1], row[2]) for row in rows}
            _succeed(batch, stored)
            return True
        runs = [event.run_id for unit in batch for event in unit.events]
        rows = await self.session.fetch(
            "SELECT 1 FROM agent_events WHERE run_id = ANY(%s) AND id > %s LIMIT 1", (runs, self._last_event)
        )
        if rows:
            _succeed(batch, {})
        return bool(rows)

    async def _statement(self, conn: psycopg.AsyncConnection[Any], batch: list[_Unit]) -> None:
        turns: Iterable[TurnRow] = [turn for unit in batch for turn in unit.turns]
        events = [event for unit in batch for event in unit.events]
        locks = [unit.lock for unit in batch if unit.lock is not None]
        stored: dict[UUID, Appended] = {}
        if len(batch) == 1 and not locks and len(batch[0].turns) + len(batch[0].events) == 1:
            await self._single(conn, batch[0], stored)
        else:
            name = "append_turns_and_events"
            values: dict[str, Any] = {}
            if not events and not locks:
                name = "append_turns"
            elif not turns:
                name = "append_events"
            if turns or locks:
                values |= _turn_columns(turns)
            if events or locks or name == "append_turns_and_events":
                values |= _event_columns(events)
            unlock: list[int] = []
            if name == "append_turns_and_events":
                unlock = self.session.take_released()
                values["lock"] = ",".join(map(str, locks))
                values["unlock"] = ",".join(map(str, unlock))
            try:
                row = await self._one_row(conn, name, values)
            except psycopg.Error as error:
                # A session's locks outlive the statement that failed: free what it may have taken.
                if not self.session.lost(error):
                    self.session.put_back_released(unlock + locks)
                    await self.session.free_released()
                raise
            self.session.held.update(locks)
            self._last_event = row.get("last_event") or self._last_event
            created = row.get("created_at")
            given = {turn.id: turn.created_at for turn in turns if turn.created_at is not None}
            for part in (row.get("appended") or "").split(",") if turns else ():
                text, _, seq = part.partition(" ")
                key_id = UUID(text)
                stored[key_id] = Appended(int(seq), given.get(key_id, cast(datetime, created)))
        _succeed(batch, stored)

    async def _single(self, conn: psycopg.AsyncConnection[Any], unit: _Unit, stored: dict[UUID, Appended]) -> None:
        if unit.turns:
            turn = unit.turns[0]
            row = await self._one_row(
                conn,
                "append_turn",
                {
                    "id": turn.id,
                    "conversation": turn.conversation,
                    "agent": turn.agent,
                    "kind": turn.kind,
                    "payload": turn.payload,
                    "embedding": turn.embedding,
                    "embedded_by": turn.embedded_by,
                    "created_at": turn.created_at,
                },
            )
            stored[turn.id] = Appended(row["seq"], row["created_at"])
            return
        event = unit.events[0]
        row = await self._one_row(
            conn,
            "append_event",
            {
                "run_id": event.run_id,
                "agent_id": event.agent_id,
                "agent_name": event.agent_name,
                "turn": event.turn,
                "tool_name": event.tool_name,
                "tool_call_id": event.tool_call_id,
                "internal_call_id": event.internal_call_id,
                "event": event.event,
            },
        )
        self._last_event = row["id"]

    async def _one_row(self, conn: psycopg.AsyncConnection[Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
        cursor = await self.session.execute(conn, sqlfiles.query(name), values)
        row = await cursor.fetchone()
        assert row is not None
        return row


def _join(values: Iterable[str | None]) -> str:
    return _SEPARATOR.join([_NULL if value is None else value for value in values])


def _turn_columns(turns: Iterable[TurnRow]) -> dict[str, Any]:
    return {
        "ids": ",".join([turn.id.hex for turn in turns]),
        "conversations": ",".join([turn.conversation.hex for turn in turns]),
        "agents": _SEPARATOR.join([turn.agent for turn in turns]),
        "kinds": ",".join([turn.kind for turn in turns]),
        "payloads": _SEPARATOR.join([turn.payload for turn in turns]),
        "embeddings": _join([turn.embedding for turn in turns]),
        "embedders": _join([turn.embedded_by for turn in turns]),
        "times": _join([turn.created_at.isoformat() if turn.created_at is not None else None for turn in turns]),
    }


def _event_columns(events: Sequence[EventRow]) -> dict[str, Any]:
    return {
        "runs": _SEPARATOR.join([event.run_id for event in events]),
        "agent_ids": _SEPARATOR.join([event.agent_id for event in events]),
        "agent_names": _join([event.agent_name for event in events]),
        "event_turns": ",".join(["" if event.turn is None else str(event.turn) for event in events]),
        "tool_names": _join([event.tool_name for event in events]),
        "tool_call_ids": _join([event.tool_call_id for event in events]),
        "internal_call_ids": _join([event.internal_call_id for event in events]),
        "events": _SEPARATOR.join([event.event for event in events]),
    }


def _succeed(batch: list[_Unit], stored: dict[UUID, Appended]) -> None:
    for unit in batch:
        if not unit.done.done():
            unit.done.set_result([stored[turn.id] for turn in unit.turns])


def _fail(batch: list[_Unit], error: BaseException) -> None:
    for unit in batch:
        if not unit.done.done():
            unit.done.set_exception(error)
