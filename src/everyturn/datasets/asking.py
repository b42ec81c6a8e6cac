"""Asking a model what a case asks, and what comes of it: an answer, or an error that is kept as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from everyturn import history
from everyturn.errors import InvalidValue, ModelError
from everyturn.messages import AssistantMessage, Message, ModelRequest, ModelTurn, UserMessage
from everyturn.models import Leaf
from everyturn.payloads import said
from everyturn.turns import NewTurn
from everyturn.values import Turn, Usage

from .capture import new_turns
from .values import Case

_NOWHERE = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model, or an agent, made of a case."""

    output: str = ""
    latency_ms: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: Decimal | None = None
    error: str | None = None
    run_id: str | None = None
    drift: dict[str, Any] | None = None


class Asker(Protocol):
    """Answers cases."""

    model: str
    """The name in `eval_run.model`."""
    prompt_rev: str

    async def ask(self, case: Case, trial: int) -> Answer:
        """Never raises for what the model does; an error is part of the answer."""


class LeafAsker:
    """Sends a case's history and prompt to a model, under one system prompt; no tools."""

    def __init__(
        self,
        leaf: Leaf,
        *,
        model: str,
        prompt: str | None,
        prompt_rev: str,
        settings: Mapping[str, Any],
        timeout: float | None,
    ) -> None:
        self._leaf = leaf
        self._prompt = prompt
        self._settings = dict(settings)
        self._timeout = timeout
        self.model = model
        self.prompt_rev = prompt_rev

    async def ask(self, case: Case, trial: int) -> Answer:
        started = time.perf_counter()
        try:
            request = ModelRequest(messages_of(case), (), self._prompt, self._settings)
            async with asyncio.timeout(self._timeout):
                turn = await _whole(self._leaf, request)
        except TimeoutError as error:
            return Answer(latency_ms=milliseconds(started), error=timed_out(error, started, self._timeout))
        except Exception as error:
            return Answer(latency_ms=milliseconds(started), error=described(error))
        latency = milliseconds(started)
        cost = turn.cost_usd
        if cost is None and turn.usage is not None:
            cost = self._leaf.cost(turn.usage, turn.model or self._leaf.name)
        usage = turn.usage or Usage()
        if turn.tool_calls and not turn.text.strip():
            names = ", ".join(sorted({call.name for call in turn.tool_calls}))
            wrong = f"The model asked for tools ({names}) instead of answering. Replay the case through its agent."
            return Answer("", latency, usage, cost, wrong)
        return Answer(turn.text, latency, usage, cost)


async def _whole(leaf: Leaf, request: ModelRequest) -> ModelTurn:
    found: ModelTurn | None = None
    async with aclosing(leaf.stream(request, streaming=False)) as parts:  # type: ignore[type-var]
        async for part in parts:
            if isinstance(part, ModelTurn):
                found = part
    if found is None:
        raise ModelError(f"The model {leaf.name} ended without an answer.")
    return found


def messages_of(case: Case) -> list[Message]:
    """The messages a case sends: its history, where its context has one, and its prompt."""
    recorded = case.context.get("history") if isinstance(case.context, Mapping) else None
    if not isinstance(recorded, list) or not recorded:
        return [UserMessage(case.prompt)]
    if all(isinstance(entry, Mapping) and "role" in entry for entry in recorded):
        return [*map(_spoken, recorded), UserMessage(case.prompt)]
    turns = [
        Turn(UUID(int=place), place, _NOWHERE, turn.agent, turn.kind, dict(turn.payload), case.captured_at)
        for place, turn in enumerate(
            [
                *new_turns(recorded, _NOWHERE, "replay", ""),
                NewTurn(_NOWHERE, "replay", "user", {"text": case.prompt}),
            ],
            1,
        )
    ]
    return history.messages(turns)


def _spoken(entry: Mapping[str, Any]) -> Message:
    """A message written as `{role, content}`."""
    content = entry.get("content")
    if entry["role"] not in ("user", "assistant") or not isinstance(content, str):
        raise InvalidValue(
            f"The history of the case holds a message with the role {entry['role']!r}, or without text. "
            "Give {role: user | assistant, content: text}."
        )
    return UserMessage(content) if entry["role"] == "user" else AssistantMessage(content)


def milliseconds(since: float) -> int:
    return round((time.perf_counter() - since) * 1000)


def timed_out(error: BaseException, started: float, timeout: float | None) -> str:
    """Our own limit, or one of what the model is reached through."""
    if timeout is not None and time.perf_counter() - started >= timeout:
        return f"TimeoutError: no answer within {timeout:g} s."
    return described(error)


def described(error: BaseException) -> str:
    """An error as the column `error` holds it."""
    text = said(error)
    kind = type(error).__name__
    return text if isinstance(error, ModelError | InvalidValue) or text == kind else f"{kind}: {text}"
