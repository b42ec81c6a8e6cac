"""One run of an agent: the loop of model answers and tool calls, each step durable before the next begins."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from . import history, payloads, stream
from .calls import Prepared, distinct, prepare, run_calls
from .errors import EveryturnError, MaxTurnsExceeded, ModelError
from .events import record_of
from .hooks import call_hook
from .ids import uuid7
from .locks import ConversationLock
from .messages import (
    Message,
    ModelRequest,
    ModelTurn,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from .stream import StreamEvent
from .turns import NewTurn, as_turn
from .values import Conversation, RunResult, Turn, Usage

if TYPE_CHECKING:
    from .agent import Agent

Emit = Callable[[StreamEvent], None]


@dataclass
class Run:
    """The state of one run. `begin` or `take_up` comes first, then `drive`."""

    agent: Agent
    conversation: UUID
    deps: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    streaming: bool = False
    emit: Emit | None = None
    """Gets every event once it is durable."""
    wrap: Callable[[StreamEvent], Awaitable[None]] | None = None
    """For a child agent: stores its events, wrapped, as the parent's."""
    run_id: str = field(default_factory=lambda: str(uuid7()))
    resumes: str | None = None

    def __post_init__(self) -> None:
        self.db = self.agent.db
        self.leaf = self.agent.leaf
        self.turns: list[Turn] = []
        """The whole conversation."""
        self.own: list[Turn] = []
        """What this run appended."""
        self.usage = Usage()
        self.cost: Decimal | None = Decimal(0)
        self.lock = ConversationLock(self.db, self.conversation)
        self.number = 1
        self.block: history.Block | None = None
        self._messages: list[Message] = []
        self._used_ids: set[str] = set()
        self._prepared: list[Prepared] = []
        self._hooking = asyncio.Lock()
        self._ended = False

    # Beginning

    async def begin(self, prompt: str, attributes: Mapping[str, Any] | None, *, new: bool) -> None:
        """Append the user turn; of an earlier conversation, first close what a crash left open."""
        key = None
        if new:
            key = await self.lock.ride()
        else:
            await self.lock.acquire()
            await self._load()
            await self._interrupt(history.open_calls(self.turns))
        turn = NewTurn(self.conversation, self.agent.name, "user", payloads.user(prompt, self.run_id, attributes))
        [stored] = await self.append([turn], self._starting(stream.user_prompt(prompt)), lock=key)
        await self.fire(stored)
        await self._refresh_messages()

    async def take_up(self) -> None:
        """Go on with a conversation that was left unfinished: close the calls that had started, run those that had not."""
        blocks = history.blocks(self.turns)
        last = blocks[-1] if blocks else None
        unfinished = history.open_calls(self.turns)
        fresh = [
            (turn, call)
            for turn, call in unfinished
            if call.started is None and last is not None and turn.id == last.turn.id
        ]
        await self._interrupt([pair for pair in unfinished if pair not in fresh])
        prompt = stream.user_prompt(last.turn.payload.get("text", "") if last else "")
        if last is not None and fresh:
            await self.append([], [stream.turn_start(self.number, prompt)])
            self.block = last
            await self._call_tools([call for _, call in fresh], stored=False)
        else:
            await self.append([], self._starting(prompt))
        await self._refresh_messages()

    async def _load(self) -> None:
        last = getattr(self.agent.history, "last", None)
        self.turns = await self.db.turns.load(self.conversation, last)

    async def _interrupt(self, calls: Sequence[tuple[Turn, history.Call]]) -> None:
        """Give calls that a crash left open their outcome."""
        if not calls:
            return
        rows = [
            NewTurn(
                self.conversation,
                self.agent.name,
                "error",
                payloads.error(
                    None,
                    "interrupted",
                    self.run_id,
                    type="Interrupted",
                    message=history.INTERRUPTED,
                    call=call.call,
                ),
            )
            for _, call in calls
        ]
        outcomes = await self.append(rows)
        for (_, call), outcome in zip(calls, outcomes, strict=True):
            await self.fire(*([call.started] if call.started is not None else []), outcome)

    # The loop

    async def drive(self) -> RunResult:
        """Ask the model and run its tools until it has nothing more to call."""
        while True:
            answer, calls = await self._generate()
            if not calls:
                return await self._finish(answer)
            assert self.block is not None
            await self._call_tools(self.block.calls, stored=True)
            await self._refresh_messages()

    async def _generate(self) -> tuple[ModelTurn, list[ToolCall]]:
        request = ModelRequest(
            messages=self._messages,
            tools=list(self.agent.tools.values()),
            instructions=self.agent.instructions,
            settings=dict(self.settings),
        )
        started = time.perf_counter()
        text: list[str] = []
        reasoning: list[str] = []
        pending: list[StreamEvent] = []
        first_delta: int | None = None
        answer: ModelTurn | None = None
        try:
            async with aclosing(self.leaf.stream(request, streaming=self.streaming)) as parts:  # type: ignore[type-var]
                async for part in parts:
                    if isinstance(part, ModelTurn):
                        answer = part
                        continue
                    if isinstance(part, TextDelta):
                        text.append(part.text)
                        event = stream.text_delta(self.number, part.text)
                    elif isinstance(part, ReasoningDelta):
                        reasoning.append(part.text)
                        event = stream.reasoning_delta(self.number, part.text)
                    else:
                        assert isinstance(part, ToolCallDelta)
                        event = stream.tool_call_delta(self.number, part.id, part.name, part.args_delta)
                    if first_delta is None:
                        first_delta = _milliseconds(started)
                    if self.streaming:
                        await self.append([], [event])
                    else:
                        pending.append(event)
            if answer is None:
                raise ModelError(f"The model {self.leaf.name} ended without an answer.")
        except BaseException as error:
            partial = ModelTurn(text="".join(text), reasoning="".join(reasoning) or None)
            await self._broken(error, partial, pending, _milliseconds(started))
            if isinstance(error, Exception) and not isinstance(error, EveryturnError):
                raise ModelError(f"The model {self.leaf.name} failed: {payloads.said(error)}") from error
            raise
        if not text and answer.text:
            pending.append(stream.text_delta(self.number, answer.text))
        if not reasoning and answer.reasoning:
            pending.insert(0, stream.reasoning_delta(self.number, answer.reasoning))
        return await self._store_answer(answer, pending, first_delta, _milliseconds(started))

    async def _store_answer(
        self, answer: ModelTurn, pending: list[StreamEvent], first_delta: int | None, latency_ms: int
    ) -> tuple[ModelTurn, list[ToolCall]]:
        model = answer.model or self.leaf.name
        cost = answer.cost_usd
        if cost is None and answer.usage is not None:
            cost = self.leaf.cost(answer.usage, model)
        self.usage += answer.usage or Usage()
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        calls = distinct(answer.tool_calls)
        payload = payloads.model(
            answer,
            calls,
            model=model,
            prompt_rev=self.agent.prompt_rev,
            cost=cost,
            latency_ms=latency_ms,
            run_id=self.run_id,
            resumes=self.resumes,
        )
        rows = [NewTurn(self.conversation, self.agent.name, "model", payload)]
        prepared = prepare(self, [history.Call(call) for call in calls])
        # An unlimited call is stored with the answer that names it; one with a budget when the budget lets it in.
        rows += [one.row for one in prepared if one.row is not None]
        events = [*pending, *(stream.tool_call(self.number, call) for call in calls)]
        events.append(stream.turn_end(self.number, answer, calls, first_delta))
        if not calls:
            events.append(stream.final(self.run_id, answer.text, self.usage))
        turns = await self.append(rows, events)
        self.block = history.Block(turns[0], [one.call for one in prepared])
        stored = iter(turns[1:])
        for one in prepared:
            if one.row is not None:
                one.call.started = next(stored)
        self._prepared = prepared
        await self.fire(turns[0])
        return answer, calls

    async def _call_tools(self, calls: list[history.Call], *, stored: bool) -> None:
        prepared = self._prepared if stored else prepare(self, calls)
        if not stored:
            rows = [one.row for one in prepared if one.row is not None]
            turns = iter(await self.append(rows) if rows else [])
            for one in prepared:
                if one.row is not None:
                    one.call.started = next(turns)
        await run_calls(self, prepared)

    def next_turn(self, calls: Sequence[ToolCall]) -> list[StreamEvent]:
        """Count on; the events that begin the next turn."""
        self.number += 1
        if self.number > self.agent.max_turns:
            return []
        return self._starting(stream.tool_prompt(calls))

    def _starting(self, prompt: dict[str, Any]) -> list[StreamEvent]:
        return [
            stream.turn_start(self.number, prompt),
            stream.generation_start(self.number, self.leaf.name, self.agent.prompt_rev, list(self.agent.tools)),
        ]

    async def _refresh_messages(self) -> None:
        if self.number > self.agent.max_turns:
            await self._limit()
        kept = await history.choose(self.agent.history, list(self.turns))
        if kept is None and self.block is not None and self._messages:
            self._messages.extend(history.block_messages(self.block, self._used_ids))
            return
        self._messages = history.messages(self.turns, kept)
        self._used_ids = {call.id for message in self._messages for call in getattr(message, "tool_calls", ())}

    # Ending

    async def _finish(self, answer: ModelTurn) -> RunResult:
        self._ended = True
        hooks = self.agent.hooks
        if hooks is not None and hooks.on_conversation_complete is not None:
            turns = self.turns
            if getattr(self.agent.history, "last", None) is not None:
                turns = await self.db.turns.load(self.conversation)
            conversation = Conversation(self.conversation, self.agent.name, list(turns))
            failed = await call_hook(hooks.on_conversation_complete, conversation, self.agent.hook_timeout)
            await self._hook_failed(failed)
        return RunResult(answer.text, self.conversation, self.run_id, self.own, self.usage, self.cost)

    @property
    def ended(self) -> bool:
        """Whether the log already says how the run ended."""
        return self._ended

    async def _limit(self) -> None:
        limit = self.agent.max_turns
        error = MaxTurnsExceeded(
            f"The run asked the model {limit} times and it still calls tools (conversation {self.conversation}). "
            f"Raise max_turns, now {limit}, and resume the conversation."
        )
        await self.fail(error, "limit")
        raise error

    async def fail(self, error: BaseException, stage: str, rows: Sequence[NewTurn] = ()) -> None:
        """End the run in the log with an error turn and an error event."""
        self._ended = True
        payload = payloads.error(error, stage, self.run_id)
        if stage == "cancelled":
            payload["message"] = "The run was cancelled."
        event = stream.error(self.run_id, payload["type"], payload["message"], self.usage)
        error_turn = NewTurn(self.conversation, self.agent.name, "error", payload)
        turns = await self.append([*rows, error_turn], [event])
        await self.fire(*turns)

    async def _broken(
        self, error: BaseException, partial: ModelTurn, pending: list[StreamEvent], latency_ms: int
    ) -> None:
        """Keep what was received of an answer that broke off, and how it did."""
        rows = []
        if partial.text or partial.reasoning:
            payload = payloads.model(
                partial,
                [],
                model=self.leaf.name,
                prompt_rev=self.agent.prompt_rev,
                cost=None,
                latency_ms=latency_ms,
                run_id=self.run_id,
                resumes=self.resumes,
                incomplete=True,
            )
            rows.append(NewTurn(self.conversation, self.agent.name, "model", payload))
            self.cost = None
        stage = "model" if isinstance(error, Exception) else "cancelled"
        with contextlib.suppress(asyncio.CancelledError):
            if pending:
                await self.append([], pending)
            await self.fail(error, stage, rows)

    async def cancelled(self, error: BaseException) -> None:
        """Close the open calls and the run after a cancellation, an interrupt or a failure of our own."""
        rows = [
            NewTurn(
                self.conversation,
                self.agent.name,
                "error",
                payloads.error(
                    error,
                    "cancelled",
                    self.run_id,
                    message="The run was cancelled while this call was under way.",
                    call=call.call,
                ),
            )
            for call in (self.block.calls if self.block is not None else ())
            if call.outcome is None
        ]
        await self.fail(error, "cancelled", rows)

    # Writing

    async def append(
        self,
        turns: Sequence[NewTurn],
        events: Sequence[StreamEvent] | Callable[[], Sequence[StreamEvent]] = (),
        *,
        lock: int | None = None,
    ) -> list[Turn]:
        """Store turns and events in one statement; then they are part of the run, and streamed.

        Events that depend on what else has been stored are given as a function, called when nothing can come between.
        """
        store = self.db.turns
        rows = [store.row(turn, lenient=True) for turn in turns]
        await store.embed(rows)
        if callable(events):
            events = events()
        kept = [event for event in events if self.agent.keeps(event)] if self.wrap is None else []
        event_rows = [self.db.events.row(record_of(self.run_id, self.agent.name, event)) for event in kept]
        made: list[Turn] = []
        if rows or event_rows or lock is not None:
            future = self.db.writer.submit(rows, event_rows, lock=lock)
            try:
                appended = await asyncio.shield(future)
            except asyncio.CancelledError:
                # The rows are written all the same, and what follows has to know of them.
                await asyncio.wait({future}, timeout=10)
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._took(rows, future.result())
                raise
            made = self._took(rows, appended)
        for event in events:
            if self.wrap is not None:
                await self.wrap(event)
            if self.emit is not None:
                self.emit(event)
        return made

    def _took(self, rows: Sequence[Any], appended: Sequence[Any]) -> list[Turn]:
        made = [as_turn(row, new.seq, new.created_at) for row, new in zip(rows, appended, strict=True)]
        self.took(made)
        return made

    def took(self, turns: Sequence[Turn]) -> None:
        """Turns are stored: they belong to the conversation and to this run."""
        self.turns.extend(turns)
        self.own.extend(turns)

    def memory(self) -> Any:
        """The memory, bound to this run."""
        return self.agent.memory_for(self.conversation, self.run_id)

    # Hooks

    async def fire(self, *turns: Turn) -> None:
        """Call the turn hook for turns that are durable, one after another."""
        hooks = self.agent.hooks
        if hooks is None or hooks.on_turn_complete is None:
            return
        async with self._hooking:
            for turn in turns:
                await self._hook_failed(await call_hook(hooks.on_turn_complete, turn, self.agent.hook_timeout))

    async def _hook_failed(self, error: BaseException | None) -> None:
        if error is not None:
            payload = payloads.error(error, "hook", self.run_id)
            await self.append([NewTurn(self.conversation, self.agent.name, "error", payload)])


def _milliseconds(since: float) -> int:
    return round((time.perf_counter() - since) * 1000)
