"""One run of an agent: the loop of model answers and tool calls, each step durable before the next begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from . import history, payloads, stream
from .blocks import Block, Call, blocks, finished, open_calls, payload_of, run_of
from .calls import Prepared, distinct, prepare, run_calls
from .errors import ConversationNotFound, MaxTurnsExceeded
from .generation import Answer, generate, price
from .locks import ConversationLock
from .messages import Message, ToolCall
from .results import stored_result
from .run_log import CallInProgress, RunLog
from .stream import StreamEvent
from .values import Conversation, RunResult, Turn, Usage

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger("everyturn")

# A conversation is loaded at least this far back: the calls that a crash left open are within.
_LEAST_LOADED = 100


class Run(RunLog):
    """The state of one run. `begin` or `take_up` comes first, then `drive`."""

    def __init__(
        self,
        agent: Agent,
        conversation: UUID,
        *,
        deps: Any = None,
        settings: Mapping[str, Any] | None = None,
        parent: CallInProgress | None = None,
    ) -> None:
        super().__init__(agent, conversation, parent)
        self.deps = deps
        self.settings = agent.settings | dict(settings or {})
        self.streaming = parent.run.streaming if parent is not None else False
        self.resumes: str | None = None
        self.cost: Decimal | None = Decimal(0)
        self.lock = ConversationLock(self.db, conversation)
        self._locked = False
        self._asked = 0
        self._block: Block | None = None
        self._prepared: list[Prepared] = []
        self._messages: list[Message] = []
        self._used_ids: set[str] = set()

    # Beginning

    async def begin(self, prompt: str, attributes: Mapping[str, Any] | None, *, new: bool) -> None:
        """Append the user turn; of an earlier conversation, first close what a crash left open."""
        key = None
        if new:
            key = await self.lock.ride()
            self._locked = True
        else:
            await self._acquire()
            self.turns = await self._load()
            await self._interrupt([call for _, call in open_calls(self.turns)])
        turn = self.turn("user", payloads.user(prompt, self.run_id, attributes))
        [stored] = await self.append([turn], self._starting(stream.user_prompt(prompt)), lock=key)
        self.guard = self.lock.check
        await self.fire(stored)
        await self._refresh_messages()

    async def take_up(self) -> RunResult | None:
        """Go on with a conversation that was left unfinished: close the calls that had started, run those that had not.

        Returns the stored result of one that is finished. Raises ConversationNotFound.
        """
        await self._acquire()
        self.turns = await self.db.turns.load(self.conversation)
        if not self.turns:
            raise ConversationNotFound(
                f"There is no conversation {self.conversation} to resume. "
                "`everyturn conversation list --status crashed` shows those that are unfinished."
            )
        done = finished(self.turns)
        if done is not None:
            return stored_result(self.turns, done)
        self._say_takeover()
        self.resumes = next(filter(None, map(run_of, reversed(self.turns))), None)
        every = blocks(self.turns)
        last = every[-1] if every else None
        unfinished = open_calls(self.turns)
        at_the_end = [call for block, call in unfinished if last is not None and block.turn is last.turn]
        fresh = [call for call in at_the_end if call.started is None and not call.masked]
        await self._interrupt([call for _, call in unfinished if call not in fresh])
        question = next((block.turn for block in reversed(every) if block.turn.kind == "user"), None)
        asked = stream.user_prompt(_said(question))
        if last is not None and fresh:
            await self._take_up_calls(last, fresh, asked)
        else:
            called = [call.call for call in last.calls] if last is not None and not last.incomplete else []
            await self.append([], self._starting(stream.tool_prompt(called) if called else asked))
        await self._refresh_messages()
        return None

    def _say_takeover(self) -> None:
        agents = [turn.agent for turn in self.turns if turn.kind in ("user", "model")]
        if agents and agents[-1] != self.agent.name:
            logger.warning(
                "Agent %r goes on with conversation %s, which agent %r left unfinished.",
                self.agent.name,
                self.conversation,
                agents[-1],
            )

    async def _take_up_calls(self, block: Block, fresh: list[Call], prompt: dict[str, Any]) -> None:
        self._block = block
        self._prepared = prepare(self, fresh)
        events = [self._turn_start(prompt), *(stream.tool_call(self.number, call.call) for call in fresh)]
        self._mark_started(await self.append([one.row for one in self._prepared if one.row is not None], events))
        await run_calls(self, self._prepared)

    async def _acquire(self) -> None:
        await self.lock.acquire()
        self._locked = True
        # A lost connection takes the lock along; it comes back with the next one unless another run has it.
        self.guard = self.lock.check

    async def _load(self) -> list[Turn]:
        """The conversation, or as much of its end as the history function can ask for."""
        last = getattr(self.agent.history, "last", None)
        if not isinstance(last, int):
            return await self.db.turns.load(self.conversation)
        size = max(last, _LEAST_LOADED)
        while True:
            turns = await self.db.turns.load(self.conversation, size)
            # What is sent begins with a user turn: look for one as far back as it takes.
            if len(turns) < size or turns[0].kind == "user":
                return turns
            size *= 4

    async def _interrupt(self, calls: Sequence[Call]) -> None:
        """Give calls that a crash left open their outcome."""
        if not calls:
            return
        errors = [
            payloads.error(
                None,
                "interrupted",
                self.run_id,
                type="Interrupted",
                message=history.INTERRUPTED,
                call=call.call,
            )
            for call in calls
        ]
        outcomes = await self.append([self.turn("error", payload) for payload in errors])
        for call, outcome in zip(calls, outcomes, strict=True):
            call.outcome = outcome
            await self.fire(call.started, outcome)

    def release(self) -> None:
        """Let others have the conversation. A run that was refused it gives nothing back: it is the other's."""
        if self._locked:
            self.lock.release()

    # The loop

    async def drive(self) -> RunResult:
        """Ask the model and run its tools until it has nothing more to call."""
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        while True:
            if task is not None and task.cancelling() > cancelled:
                raise asyncio.CancelledError  # a handler, or the model, has swallowed it
            answer = await generate(self, self._messages)
            self._asked += 1
            if not await self._store_answer(answer):
                return await self._finish(answer)
            await run_calls(self, self._prepared)
            await self._refresh_messages()

    async def _store_answer(self, answer: Answer) -> bool:
        """Store an answer and the calls that need nobody's leave; whether there are calls."""
        turn = answer.turn
        assert turn is not None
        model = turn.model or self.agent.leaf.name
        calls = distinct(turn.tool_calls)
        payload = payloads.model(
            turn,
            calls,
            model=model,
            prompt_rev=self.agent.prompt_rev,
            cost=self.spent(turn.usage, turn.cost_usd, model),
            latency_ms=answer.elapsed_ms,
            run_id=self.run_id,
            resumes=self.resumes,
            masked=[call for call in calls if self._masks(call)],
        )
        self._prepared = prepare(self, [Call(call) for call in calls])
        # An unlimited call is stored with the answer that names it; one with a budget when the budget lets it in.
        rows = [self.turn("model", payload), *(one.row for one in self._prepared if one.row is not None)]
        events = [*answer.pending, *(stream.tool_call(self.number, call) for call in calls)]
        events.append(stream.turn_end(self.number, turn, calls, answer.first_delta_ms))
        if not calls:
            events.append(stream.final(self.run_id, turn.text, self.usage))
        stored = await self.append(rows, events)
        self._block = Block(stored[0], [one.call for one in self._prepared])
        self._mark_started(stored[1:])
        await self.fire(stored[0])
        return bool(calls)

    def _masks(self, call: ToolCall) -> bool:
        """Whether redaction hides what this call is called with from the log."""
        return bool(self.masked({"args": call.args}) != {"args": call.args})

    def spent(self, usage: Usage | None, cost: Decimal | None, model: str) -> Decimal | None:
        """Count what an answer used; what it cost, where that is known."""
        cost = price(self, usage, model) if cost is None else cost
        self.usage += usage or Usage()
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        return cost

    def _mark_started(self, turns: Sequence[Turn]) -> None:
        stored = iter(turns)
        for one in self._prepared:
            if one.row is not None:
                one.call.started = next(stored)

    def next_turn(self, calls: Sequence[ToolCall]) -> list[StreamEvent]:
        """Count on; the events that begin the next turn."""
        self.number += 1
        return [] if self._at_limit else self._starting(stream.tool_prompt(calls))

    @property
    def _at_limit(self) -> bool:
        return self._asked >= self.agent.max_turns

    def _turn_start(self, prompt: dict[str, Any]) -> StreamEvent:
        event = stream.turn_start(self.number, prompt)
        if self.number == 1:
            # Where the run's turns are, which run it takes up, and whether a lock tells that it lives.
            event["conversation"] = str(self.conversation)
            if self.resumes is not None:
                event["resumes"] = self.resumes
            if self.db.lock_session.pooled:
                event["unguarded"] = True
        return event

    def _starting(self, prompt: dict[str, Any]) -> list[StreamEvent]:
        return [
            self._turn_start(prompt),
            stream.generation_start(self.number, self.agent.leaf.name, self.agent.prompt_rev, list(self.agent.tools)),
        ]

    async def _refresh_messages(self) -> None:
        if self._at_limit:
            await self._limit()
        kept = await history.choose(self.agent.history, list(self.turns))
        if kept is None and self._block is not None and self._messages:
            self._messages.extend(history.block_messages(self._block, self._used_ids))
            return
        self._messages = history.messages(self.turns, kept)
        self._used_ids = {call.id for message in self._messages for call in getattr(message, "tool_calls", ())}

    # Ending

    async def _finish(self, answer: Answer) -> RunResult:
        hooks = self.agent.hooks
        if hooks is not None and hooks.on_conversation_complete is not None:
            # From the log: tools may have remembered something in it, and not all of it may have been loaded.
            turns = await self.db.turns.load(self.conversation)
            conversation = Conversation(self.conversation, self.agent.name, turns)
            await self.hook(hooks.on_conversation_complete, conversation)
        assert answer.turn is not None
        own = sorted(self.own, key=lambda turn: turn.seq)
        return RunResult(answer.turn.text, self.conversation, self.run_id, own, self.usage, self.cost)

    async def _limit(self) -> None:
        limit = self.agent.max_turns
        error = MaxTurnsExceeded(
            f"The run asked the model {limit} times and it still calls tools (conversation {self.conversation}). "
            f"Raise max_turns, now {limit}, and resume the conversation."
        )
        await self.fail(error, "limit")
        raise error


def _said(turn: Turn | None) -> str:
    text = payload_of(turn).get("text") if turn is not None else None
    return text if isinstance(text, str) else ""
