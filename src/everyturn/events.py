"""Stream events: rows of `agent_events`, shared with programs in other languages.

The JSON of an event and the columns beside it are those of the table's contract; an unknown type or a missing key is
kept as it is. Order within a run is `id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from . import jsonable
from .errors import InvalidValue
from .writer import EventRow

if TYPE_CHECKING:
    from .database import Database

_TOOL_EVENTS = frozenset(("tool_call", "tool_result", "agent_tool_event"))
_SEPARATORS = str.maketrans("\x1e\x1f", "\ufffd\ufffd")


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One row of `agent_events`."""

    run_id: str
    agent_id: str
    event: Any
    """The event as it was streamed, usually an object with a `type`."""
    agent_name: str | None = None
    turn: int | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    internal_call_id: str | None = None
    created_at: datetime | None = None
    id: int | None = None


@runtime_checkable
class EventStore(Protocol):
    """Where the events of runs are kept: the three methods every store has."""

    async def append(self, record: EventRecord) -> None:
        """Keep an event; it is durable when this returns."""

    async def load(self, run_id: str) -> list[EventRecord]:
        """The events of a run, in order."""

    async def clear(self, run_id: str) -> None:
        """Remove the events of this run, and of no other."""


class Events:
    """`db.events`, the `EventStore` of the database."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, record: EventRecord) -> None:
        """Append one event; it is durable when this returns. Raises InvalidValue."""
        row = self.row(record)
        if self._database.ambient is None:
            await self._database.writer.append(events=[row])
            return
        await self._database.query(
            "append_event",
            run_id=row.run_id,
            agent_id=row.agent_id,
            agent_name=row.agent_name,
            turn=row.turn,
            tool_name=row.tool_name,
            tool_call_id=row.tool_call_id,
            internal_call_id=row.internal_call_id,
            event=row.event,
        )

    def row(self, record: EventRecord) -> EventRow:
        """The row of a record, checked and cleaned. Raises InvalidValue."""
        if not record.agent_id or not isinstance(record.agent_id, str):
            raise InvalidValue(f"The agent_id {record.agent_id!r} of an event is not a string that names an agent.")
        return EventRow(
            _run_id(record.run_id),
            _column(record.agent_id, "agent_id") or "",
            _column(record.agent_name, "agent_name"),
            _turn_number(record.turn),
            _column(record.tool_name, "tool_name"),
            _column(record.tool_call_id, "tool_call_id"),
            _column(record.internal_call_id, "internal_call_id"),
            self._database.encode(record.event, lenient=True),
        )

    async def load(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Sequence[str] | None = None,
    ) -> list[EventRecord]:
        """The events of a run in order: all, or the next `limit` after the event with id `after`."""
        rows = await self._database.read(
            "events_of_run",
            {
                "run_id": _run_id(run_id),
                "after": after,
                "limit": limit,
                "types": list(types) if types is not None else None,
            },
        )
        return [EventRecord(**row) for row in rows]

    async def clear(self, run_id: str) -> None:
        """Remove the events of this run."""
        await self._database.query("clear_events_of_run", run_id=_run_id(run_id))


def record_of(run_id: str, agent: str, event: Mapping[str, Any]) -> EventRecord:
    """The record of one of our own events: its columns are filled from its JSON."""
    tool = event.get("type") in _TOOL_EVENTS
    call = event.get("toolCall")
    if isinstance(call, Mapping):
        tool_name, tool_call_id = call["function"]["name"], call["callId"]
    else:
        tool_name, tool_call_id = event.get("toolName"), event.get("toolCallId")
    nested = event.get("type") == "agent_tool_event"
    return EventRecord(
        run_id,
        event["agentId"] if nested else agent,
        event,
        agent_name=event["agentName"] if nested else agent,
        turn=event.get("turn"),
        tool_name=tool_name if tool else None,
        tool_call_id=tool_call_id if tool else None,
        internal_call_id=event.get("internalCallId") if tool else None,
    )


def _run_id(value: Any) -> str:
    if not value or not isinstance(value, str):
        raise InvalidValue(f"The run_id {value!r} is not a string that names a run.")
    return _column(value, "run_id") or ""


def _turn_number(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31):
        raise InvalidValue(f"The turn {value!r} of an event is not a number from 0 up.")
    return value


def _column(value: str | None, what: str) -> str | None:
    """A text column as it can be stored and indexed."""
    if value is None:
        return None
    cleaned = jsonable.clean_text(value).translate(_SEPARATORS)
    if what in ("run_id", "agent_id", "tool_name") and len(cleaned.encode()) > 2000:
        if what == "tool_name":
            return cleaned[:256]
        raise InvalidValue(f"The {what} {cleaned[:40]!r}… is longer than 2,000 bytes, and it is indexed. Shorten it.")
    return cleaned
