"""Rows as the writer stores them, their values already text, and the columns they are sent in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

_SEPARATOR = "\x1f"
_NULL = "\x1e"


@dataclass(slots=True)
class TurnRow:
    """A row for `agent_turns`."""

    id: UUID
    conversation: UUID
    agent: str
    kind: str
    payload: str
    embedding: str | None = None
    embedded_by: str | None = None
    created_at: datetime | None = None

    def values(self) -> dict[str, Any]:
        """The parameters of append_turn.sql."""
        return {
            "id": self.id,
            "conversation": self.conversation,
            "agent": self.agent,
            "kind": self.kind,
            "payload": self.payload,
            "embedding": self.embedding,
            "embedded_by": self.embedded_by,
            "created_at": self.created_at,
        }


@dataclass(slots=True)
class EventRow:
    """A row for `agent_events`."""

    run_id: str
    agent_id: str
    agent_name: str | None
    turn: int | None
    tool_name: str | None
    tool_call_id: str | None
    internal_call_id: str | None
    event: str

    def values(self) -> dict[str, Any]:
        """The parameters of append_event.sql."""
        return {
            "run_id": self.run_id,
            "agent_id": self.agent_id,
            "agent_name": self.agent_name,
            "turn": self.turn,
            "tool_name": self.tool_name,
            "tool_call_id": self.tool_call_id,
            "internal_call_id": self.internal_call_id,
            "event": self.event,
        }


class Appended(NamedTuple):
    """What the database gave a turn."""

    seq: int
    created_at: datetime


def turn_columns(turns: Iterable[TurnRow]) -> dict[str, Any]:
    """The parameters of append_turns.sql: each column joined into one string, which costs a third of a list."""
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


def event_columns(events: Sequence[EventRow]) -> dict[str, Any]:
    """The parameters of append_events.sql."""
    return {
        "runs": _SEPARATOR.join([event.run_id for event in events]),
        "agent_ids": _SEPARATOR.join([event.agent_id for event in events]),
        "agent_names": _led([event.agent_name for event in events]),
        "event_turns": ",".join(["" if event.turn is None else str(event.turn) for event in events]),
        "tool_names": _led([event.tool_name for event in events]),
        "tool_call_ids": _led([event.tool_call_id for event in events]),
        "internal_call_ids": _led([event.internal_call_id for event in events]),
        "events": _SEPARATOR.join([event.event for event in events]),
    }


def _join(values: Iterable[str | None]) -> str:
    return _SEPARATOR.join([_NULL if value is None else value for value in values])


def _led(values: Iterable[str | None]) -> str:
    """Joined with the separator in front of each, which tells one empty value from none."""
    return "".join([_SEPARATOR + (_NULL if value is None else value) for value in values])
