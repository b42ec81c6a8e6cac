"""The values that the log returns: turns, conversations, usage and results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

TurnKind = Literal["user", "model", "tool_call", "tool_result", "error"]
KINDS: frozenset[str] = frozenset(("user", "model", "tool_call", "tool_result", "error"))


@dataclass(frozen=True, slots=True)
class Turn:
    """One row of `agent_turns`."""

    id: UUID
    seq: int
    conversation: UUID
    agent: str
    kind: str
    payload: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one conversation, in the order in which they were appended."""

    id: UUID
    agent: str
    turns: list[Turn]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
        )

    def as_payload(self) -> dict[str, int]:
        """The camelCase object of a model turn's `usage` key and of events."""
        return {
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "totalTokens": self.total_tokens,
            "cachedInputTokens": self.cached_input_tokens,
            "cacheCreationInputTokens": self.cache_creation_input_tokens,
        }

    @classmethod
    def from_payload(cls, payload: Any) -> Usage:
        """Read a `usage` object; a key that is missing or is not a number counts 0."""

        def count(key: str) -> int:
            value = payload.get(key) if isinstance(payload, Mapping) else None
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return 0
            return int(value)

        return cls(
            count("inputTokens"),
            count("outputTokens"),
            count("cachedInputTokens"),
            count("cacheCreationInputTokens"),
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """What `run` and `resume` return."""

    output: str
    """The text of the last model turn."""
    conversation: UUID
    run_id: str
    turns: list[Turn]
    """The turns this run appended, in order."""
    usage: Usage
    """The sum over the run's model calls."""
    cost_usd: Decimal | None
    """The sum over the run's model calls; None as soon as the price of one of them is not known."""
