"""The tool calls of a run from its events: each with its result, whoever wrote the rows.

A call's id may be missing, or be used again in the next turn. Within a turn a result belongs to the call whose id it
names; without one, to the first open call of that tool with these arguments, else to the first open call of that tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .event_records import EventRecord


@dataclass(slots=True)
class EventCall:
    """A tool call as the stream tells it."""

    turn: int | None
    tool: str | None
    args: Any
    """The arguments, as JSON holds them."""
    call_id: str | None = None
    """The provider's id, where there is one."""
    internal_call_id: str | None = None
    """Joins the result with what a child agent did meanwhile."""
    called: EventRecord | None = None
    """The `tool_call` event; None where only the result is there."""
    result: EventRecord | None = None
    """The `tool_result` event; None while the call is open, or where the run was cut off."""
    children: list[EventRecord] = field(default_factory=list)
    """The `agent_tool_event`s of the child agent that this call ran."""

    @property
    def output(self) -> Any:
        """What the tool returned; None without a result."""
        event = self.result.event if self.result is not None else {}
        return event["result"] if "result" in event else event.get("output")


def pair_calls(records: Iterable[EventRecord]) -> list[EventCall]:
    """The calls of a run in the order in which they were made."""
    calls: list[EventCall] = []
    children: dict[str, list[EventRecord]] = {}
    for record in records:
        event = record.event
        if not isinstance(event, Mapping):
            continue
        if record.type == "tool_call":
            calls += _call(record, event, calls)
        elif record.type == "agent_tool_event":
            key = event.get("internalCallId") or record.internal_call_id
            if isinstance(key, str):
                children.setdefault(key, []).append(record)
        elif record.type == "tool_result":
            _result(record, event, calls)
    for call in calls:
        if call.internal_call_id is not None:
            call.children = children.get(call.internal_call_id, [])
    return calls


def _call(record: EventRecord, event: Mapping[str, Any], calls: list[EventCall]) -> list[EventCall]:
    said = event.get("toolCall")
    said = said if isinstance(said, Mapping) else event
    function = said.get("function")
    function = function if isinstance(function, Mapping) else said
    args = function["arguments"] if "arguments" in function else function.get("args")
    call_id = said.get("callId") or said.get("toolCallId") or record.tool_call_id
    own = call_id or said.get("id")
    turn = _turn(record, event)
    for earlier in calls:
        # A provider that repeats an id within an answer means one call.
        if own is not None and earlier.turn == turn and earlier.result is None and _own_id(earlier) == own:
            return []
    name = function.get("name") or said.get("toolName") or event.get("toolName") or record.tool_name
    return [EventCall(turn, name, _parsed(args), call_id, None, record)]


def _own_id(call: EventCall) -> Any:
    event = call.called.event if call.called is not None else {}
    said = event.get("toolCall")
    return call.call_id or (said.get("id") if isinstance(said, Mapping) else None)


def _said_ids(call: EventCall) -> set[str]:
    event = call.called.event if call.called is not None else {}
    said = event.get("toolCall")
    said = said if isinstance(said, Mapping) else event
    return {own for name in ("id", "callId", "toolCallId") if isinstance(own := said.get(name), str)}


def _result(record: EventRecord, event: Mapping[str, Any], calls: list[EventCall]) -> None:
    turn = _turn(record, event)
    tool = event.get("toolName") or record.tool_name
    call_id = event.get("toolCallId") or event.get("callId") or record.tool_call_id
    args = _parsed(event.get("args"))
    waiting = [call for call in calls if call.result is None and call.turn == turn]
    named = [call for call in waiting if call_id is not None and _own_id(call) == call_id]
    if not named:
        # Anvia 1.x names a call by its own id, and the provider's beside it.
        ids = {own for name in ("callId", "toolCallId") if isinstance(own := event.get(name), str)}
        named = [call for call in waiting if _said_ids(call) & ids]
    if not named:
        named = [call for call in waiting if call.tool == tool and call.call_id is None and call.args == args]
    if not named:
        named = [call for call in waiting if call.tool == tool and (call_id is None or call.call_id is None)]
    if named:
        call = named[0]
    else:
        call = EventCall(turn, tool, args, call_id)
        calls.append(call)
    call.result = record
    call.internal_call_id = event.get("internalCallId") or record.internal_call_id


def _turn(record: EventRecord, event: Mapping[str, Any]) -> int | None:
    turn = event.get("turn", record.turn)
    return turn if isinstance(turn, int) else record.turn


def _parsed(args: Any) -> Any:
    if not isinstance(args, str):
        return args
    try:
        return json.loads(args)
    except (ValueError, RecursionError):
        return args
