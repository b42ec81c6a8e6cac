"""From an event to its row: the columns are filled from the JSON, and hold what can be stored and indexed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import jsonable
from .errors import InvalidValue
from .event_records import EventRecord
from .rows import EventRow

_TOOL_EVENTS = frozenset(("tool_call", "tool_result", "agent_tool_event"))
_SEPARATORS = str.maketrans("\x1e\x1f", "\ufffd\ufffd")


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


def event_row(record: EventRecord, encode: Callable[[Any], str]) -> EventRow:
    """The row of a record, checked and cleaned; `encode` makes the JSON of its event. Raises InvalidValue."""
    if not record.agent_id or not isinstance(record.agent_id, str):
        raise InvalidValue(f"The agent_id {record.agent_id!r} of an event is not a string that names an agent.")
    return EventRow(
        run_key(record.run_id),
        _column(record.agent_id, "agent_id") or "",
        _column(record.agent_name, "agent_name"),
        _turn_number(record.turn),
        _column(record.tool_name, "tool_name"),
        _column(record.tool_call_id, "tool_call_id"),
        _column(record.internal_call_id, "internal_call_id"),
        encode(record.event),
    )


def run_key(value: Any) -> str:
    """A run's id as it is stored. Raises InvalidValue."""
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
    if not isinstance(value, str):
        raise InvalidValue(f"The {what} {value!r} of an event is not a string.")
    cleaned = jsonable.clean_text(value).translate(_SEPARATORS)
    if what in ("run_id", "agent_id", "tool_name") and len(cleaned.encode()) > 2000:
        if what == "tool_name":
            return cleaned[:256]
        raise InvalidValue(f"The {what} {cleaned[:40]!r}… is longer than 2,000 bytes, and it is indexed. Shorten it.")
    return cleaned
