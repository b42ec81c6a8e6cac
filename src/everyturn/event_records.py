"""One row of `agent_events`, and what every store of events can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from .errors import InvalidValue

ENDS = frozenset(("final", "error"))
"""The types that end a run."""
STATUSES = ("running", "finished", "failed", "cut off")


@dataclass(frozen=True)
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

    @classmethod
    def of(cls, row: dict[str, Any]) -> EventRecord:
        """The record of a row with every column; thousands of them, whose fields are not set one by one."""
        record = object.__new__(cls)
        object.__setattr__(record, "__dict__", row)
        return record

    @property
    def type(self) -> str | None:
        """The event's type; None where it says none."""
        kind = self.event.get("type") if isinstance(self.event, Mapping) else None
        return kind if isinstance(kind, str) else None

    @property
    def ends(self) -> bool:
        """Whether the run ends with this event."""
        return self.type in ENDS


@runtime_checkable
class EventStore(Protocol):
    """Where the events of runs are kept: the three methods every store has."""

    async def append(self, record: EventRecord) -> None:
        """Keep an event; it is durable when this returns."""

    async def load(self, run_id: str) -> list[EventRecord]:
        """The events of a run, in order."""

    async def clear(self, run_id: str) -> None:
        """Remove the events of this run, and of no other."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run that left events, and how it stands."""

    run_id: str
    agent_id: str
    agent_name: str | None
    status: str
    """`running`, `finished`, `failed` or `cut off`."""
    events: int
    turns: int | None
    started_at: datetime
    ended_at: datetime
    """When the last event was stored."""
    output: str | None
    """The answer, or what the error said; at most 500 characters."""
    conversation: str | None = None
    """The conversation, where the run's events tell it."""
    resumes: str | None = None
    """The run that this one took up."""


def checked_status(status: str | None) -> str | None:
    """A status as the tables' functions write it. Raises InvalidValue."""
    plain = status.replace("_", " ").replace("-", " ") if isinstance(status, str) else status
    if plain is not None and plain not in STATUSES:
        raise InvalidValue(f"The status {status!r} is not one of {', '.join(STATUSES)}.")
    return plain


def checked_types(types: Iterable[str] | None) -> list[str] | None:
    """Types of events, or one alone. Raises InvalidValue."""
    wanted = [types] if isinstance(types, str) else list(types) if types is not None else None
    if wanted is not None and not all(isinstance(kind, str) for kind in wanted):
        raise InvalidValue(f"types={wanted!r} does not hold names of types only.")
    return wanted


def checked_number(value: int | None, what: str, least: int = 0) -> int | None:
    """A number as a bigint holds it; one below `least` is refused, or beyond. Raises InvalidValue."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63):
        raise InvalidValue(f"{what}={value!r} is not a whole number from {least} up.")
    return value
