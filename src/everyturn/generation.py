"""Asking the model once: its deltas as they come, its answer, and what is kept of an answer that breaks off."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from . import payloads, stream
from .delta_guard import DeltaGuard
from .errors import ConversationConflict, DatabaseUnavailable, ModelError
from .messages import Message, ModelRequest, ModelTurn, ReasoningDelta, TextDelta, ToolCallDelta, counted
from .redaction import Redaction
from .stream import StreamEvent
from .values import Usage

if TYPE_CHECKING:
    from .run import Run


@dataclass(slots=True)
class Answer:
    """An answer of the model, complete or as much of it as came."""

    whole: bool = False
    """Whether deltas are told in one piece, when all are there: a rule of one's own must see what spans two of them."""
    turn: ModelTurn | None = None
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    pending: list[StreamEvent] = field(default_factory=list)
    """Events that are not stored yet."""
    first_delta_ms: int | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed_ms(self) -> int:
        return round((time.perf_counter() - self.started) * 1000)

    def take(self, part: Any, number: int) -> StreamEvent | None:
        """Keep a delta; the event that tells it, if it is told at once."""
        if self.first_delta_ms is None:
            self.first_delta_ms = self.elapsed_ms
        if isinstance(part, ToolCallDelta):
            if not (
                isinstance(part.id, str) and isinstance(part.name, str | None) and isinstance(part.args_delta, str)
            ):
                raise ModelError(f"A delta of a tool call holds strings; the model gave {part!r:.100}.")
            return None if self.whole else stream.tool_call_delta(number, part.id, part.name, part.args_delta)
        if not isinstance(part, TextDelta | ReasoningDelta) or not isinstance(part.text, str):
            raise ModelError(f"A delta holds a piece of text, a string; the model gave {part!r:.100}.")
        if isinstance(part, TextDelta):
            self.text.append(part.text)
            return None if self.whole else stream.text_delta(number, part.text)
        self.reasoning.append(part.text)
        return None if self.whole else stream.reasoning_delta(number, part.text)

    def tell_whole(self, text: str, reasoning: str | None, number: int) -> None:
        """Tell what no delta has told."""
        if text and (self.whole or not self.text):
            self.pending.append(stream.text_delta(number, text))
        if reasoning and (self.whole or not self.reasoning):
            self.pending.insert(0, stream.reasoning_delta(number, reasoning))

    def complete(self, turn: ModelTurn, number: int) -> ModelTurn:
        """The answer with what only its deltas said, after the events of what only the answer says."""
        text = turn.text or "".join(self.text)
        reasoning = turn.reasoning or "".join(self.reasoning) or None
        self.tell_whole(text, reasoning, number)
        self.turn = replace(turn, text=text, reasoning=reasoning)
        return self.turn


async def generate(run: Run, messages: list[Message]) -> Answer:
    """Ask the model. Raises ModelError, with the model's error as its cause; what came until then is in the log."""
    request = ModelRequest(
        messages=list(messages),
        tools=list(run.agent.tools.values()),
        instructions=run.agent.instructions,
        settings=dict(run.settings),
    )
    rules = run.db.redact
    guard = DeltaGuard(rules) if isinstance(rules, Redaction) and rules.piecewise else None
    answer = Answer(whole=rules is not None and guard is None)
    leaf = run.agent.leaf
    try:
        turn: ModelTurn | None = None
        async with aclosing(leaf.stream(request, streaming=run.streaming)) as parts:  # type: ignore[type-var]
            async for part in parts:
                if isinstance(part, ModelTurn):
                    turn = part
                    continue
                event = answer.take(part, run.number)
                if event is None:
                    continue
                told = [event] if guard is None else list(guard.feed(event))
                if not run.streaming:
                    answer.pending += told
                elif told:
                    await run.append([], told)
        if turn is None:
            raise ModelError(f"The model {leaf.name} ended without an answer.")
    except GeneratorExit:
        raise
    except BaseException as error:
        answer.pending += guard.flush() if guard is not None else ()
        await _broken(run, answer, error)
        if (isinstance(error, Exception) and not isinstance(error, ModelError)) or _own_cancellation(error):
            raise ModelError(f"The model {leaf.name} failed: {payloads.said(error)}") from error
        raise
    answer.pending += guard.flush() if guard is not None else ()
    answer.complete(turn, run.number)
    return answer


async def _broken(run: Run, answer: Answer, error: BaseException) -> None:
    """Keep what was received of an answer that broke off, and how it did."""
    rows = []
    usage = getattr(error, "usage", None)
    try:
        usage = counted(usage)
    except ModelError:
        usage = None  # an error of the model's own may count as it likes
    text, reasoning = "".join(answer.text), "".join(answer.reasoning)
    answer.tell_whole(text, reasoning, run.number)
    if text or reasoning or usage is not None:
        partial = ModelTurn(text=text, reasoning=reasoning or None, usage=usage)
        cost = run.spent(usage, None, run.agent.leaf.name)
        rows.append(
            run.turn(
                "model",
                payloads.model(
                    partial,
                    [],
                    model=run.agent.leaf.name,
                    prompt_rev=run.agent.prompt_rev,
                    cost=cost,
                    latency_ms=answer.elapsed_ms,
                    run_id=run.run_id,
                    resumes=run.resumes,
                    incomplete=True,
                ),
            )
        )
    stage = "model" if isinstance(error, Exception) or _own_cancellation(error) else "cancelled"
    try:
        if answer.pending:
            await run.append([], answer.pending)
        await run.fail(error, stage, rows)
    except asyncio.CancelledError:
        pass  # cancelled once more while writing: the agent ends the run in the log
    except (ConversationConflict, DatabaseUnavailable):
        if isinstance(error, Exception):
            raise


def _own_cancellation(error: BaseException) -> bool:
    """Whether something the model awaited was cancelled, and not the run."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


def price(run: Run, usage: Usage | None, model: str) -> Decimal | None:
    """What this usage costs; None where it is not known. A price that cannot be had loses no answer."""
    if usage is None:
        return None
    try:
        return run.agent.leaf.cost(usage, model)
    except Exception:
        return None
