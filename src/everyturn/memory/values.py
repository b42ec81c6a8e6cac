"""The values that memory returns, and `ALL`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal, get_args
from uuid import UUID

from everyturn.errors import InvalidValue

Kind = Literal["episodic", "semantic", "procedural"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class All:
    """Every scope, where a scope is asked for."""

    _only: All | None = None

    def __new__(cls) -> All:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "everyturn.ALL"


ALL: Final = All()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What `remember` did."""

    id: UUID
    """The memory: the new one, the one whose value was replaced, or, when skipped, the one that stands for it."""
    nearest: UUID | None = None
    """The nearest memory there was, if it was near enough: same kind, scope, agent and subjects."""
    similarity: float | None = None
    """How near it was: its cosine similarity, 1 for the same text."""
    action: Literal["added", "updated", "skipped", "superseded"] = "added"
    """`updated`: the key had a value. `skipped`: nothing was written. `superseded`: `nearest` was replaced."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `forget` removed."""

    count: int
    ids: list[UUID]
    redacted_turns: int = 0
    """How many turns of the log lost the remembered text, with `from_log=True`."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What `rebuild` found in one table: rows that the log tells otherwise or not at all, and rows it had lost."""

    kind: Kind
    removed: int
    written: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A memory found by `recall`: the fields of its row, and why it is there. Fields of other kinds are None."""

    kind: Kind
    id: UUID
    scope: str
    agent: str
    subjects: list[str]
    created_at: datetime
    text: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    conversation: UUID | None = None
    occurred_at: datetime | None = None
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    superseded_by: UUID | None = None
    cache_key: str | None = None
    value: Any = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None
    source_turn: UUID | None = None
    embedded_by: str | None = None
    lexical_rank: int | None = None
    """Its place among the hits by the words and identifiers it shares with the question; None if it shares none."""
    vector_rank: int | None = None
    """Its place among the hits by similarity; None where there was no vector to compare."""
    score: float | None = None
    """What the hits are ordered by; None when nothing was asked, and they are ordered by time."""
    similarity: float | None = None
    """The cosine similarity of its vector and the question's."""
    matched: list[str] = field(default_factory=list)
    """The lexemes of the question that it holds."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that its kind has, in order."""
        return {name: getattr(self, name) for name in ("kind", *_FIELDS[self.kind])}


_WHY = ("lexical_rank", "vector_rank", "score", "similarity", "matched")
_FIELDS: dict[str, tuple[str, ...]] = {
    "episodic": (
        *("id", "scope", "agent", "conversation", "subjects", "text", "attributes", "occurred_at", "created_at"),
        *("expires_at", "source_turn", "embedded_by", *_WHY),
    ),
    "semantic": (
        *("id", "scope", "agent", "subjects", "text", "attributes", "valid_from", "valid_until", "superseded_by"),
        *("created_at", "expires_at", "source_turn", "embedded_by", *_WHY),
    ),
    "procedural": (
        *("id", "scope", "agent", "cache_key", "subjects", "value", "created_at", "updated_at", "expires_at"),
        "source_turn",
    ),
}
_HIT_FIELDS = frozenset(f.name for f in fields(Hit))


def hit(kind: Kind, row: Mapping[str, Any]) -> Hit:
    """The hit that a row of a recall query is."""
    found = {name: value for name, value in row.items() if name in _HIT_FIELDS}
    found["matched"] = found.get("matched") or []
    return Hit(kind, **found)


def check_kind(kind: Any) -> Kind:
    if kind not in KINDS:
        raise InvalidValue(f"The kind of memory {kind!r} is not one of {', '.join(KINDS)}.")
    return kind  # type: ignore[no-any-return]
