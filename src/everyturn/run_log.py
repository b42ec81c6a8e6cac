"""What one run writes: turns and events, durable before anybody sees them, and the hooks that are called for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from . import payloads, stream
from .blocks import open_calls
from .errors import EmbedderError
from .events import record_of
from .history import INTERRUPTED
from .hooks import call_hook, calling_agent
from .ids import uuid7
from .messages import ToolCall
from .redaction import Redaction
from .stream import StreamEvent
from .turns import NewTurn, as_turn
from .values import Turn, Usage
from .waiting import settled
from .writer import Appended, EventRow, TurnRow

if TYPE_CHECKING:
    from .agent import Agent

logger = logging.getLogger("everyturn")

_PATIENCE = 10
_CANCELLED = "The run was cancelled."
_CANCELLED_CALL = "The run was cancelled while this call was under way: its outcome is not known."


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """The call whose handler is running: a child agent's events are told as part of it."""

    run: RunLog
    call: ToolCall
    internal_id: str


current_call: ContextVar[CallInProgress | None] = ContextVar("everyturn_call", default=None)


class RunLog:
    """The part of a run that writes. Nothing of it is streamed, or shown to a hook, before it is durable."""

    def __init__(self, agent: Agent, conversation: UUID, parent: CallInProgress | None = None) -> None:
        self.agent = agent
        self.db = agent.db
        self.conversation = conversation
        self.run_id = str(uuid7())
        self.parent = parent
        """The call of another agent that this run is the handler of: that run's stream tells its events, wrapped."""
        self.streaming = False
        """Whether the model is asked to stream."""
        self.emit: Callable[[StreamEvent], None] | None = None
        """Gets every event once it is durable."""
        self.turns: list[Turn] = []
        """The conversation as far as it is known: what was loaded, and what this run appended."""
        self.own: list[Turn] = []
        """What this run appended."""
        self.usage = Usage()
        self.number = 1
        self.begun = False
        """Whether anything of this run is stored."""
        self.ended = False
        """Whether the log says how the run ended."""
        self.guard: Callable[[], None] | None = None
        """Raises ConversationConflict once the conversation is another run's."""
        self._unsure = False
        self._hooking = asyncio.Lock()

    def turn(self, kind: str, payload: dict[str, Any]) -> NewTurn:
        """A turn of this run, to be appended."""
        return NewTurn(self.conversation, self.agent.name, kind, payload)

    def masked(self, value: Any) -> Any:
        """A value of plain JSON as it is stored."""
        return value if self.db.redact is None else self.db.redact(value)

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
        rows = [self.db.turns.row(turn, lenient=True) for turn in turns]
        await self._embed(rows)
        told = list(events() if callable(events) else events)
        root, shown = self._told_by(told)
        rules = root.db.redact
        masked = rules.masked if isinstance(rules, Redaction) else 0
        records = [
            root.db.events.row(record_of(root.run_id, root.agent.name, event))
            for event in shown
            if root.agent.keeps(event)
        ]
        if isinstance(rules, Redaction) and rules.masked != masked:
            # What is received is what is stored.
            shown = [StreamEvent(rules(event)) for event in shown]
        ends = any(event["type"] in ("final", "error") for event in told)
        if root.db is self.db:
            made = await self._store(rows, records, lock, ends)
        else:
            made = await self._store(rows, [], lock, ends)
            await root._store([], records, None, False)
        if root.emit is not None:
            for event in shown:
                root.emit(event)
        return made

    async def _embed(self, rows: Sequence[TurnRow]) -> None:
        try:
            await self.db.turns.embed(rows)
        except EmbedderError as error:
            if not self.begun:
                raise
            # What happened is kept, whatever becomes of its vector.
            logger.warning("%s The rows are kept without vectors.", error)

    def _told_by(self, events: Sequence[StreamEvent]) -> tuple[RunLog, Sequence[StreamEvent]]:
        """The run whose stream tells these events, and how: wrapped once for each agent in between."""
        log: RunLog = self
        while log.parent is not None:
            at, name = log.parent, log.agent.name
            events = [stream.agent_tool_event(at.run.number, at.call, at.internal_id, name, event) for event in events]
            log = at.run
        return log, events

    async def _store(
        self, rows: Sequence[TurnRow], events: Sequence[EventRow], lock: int | None, ends: bool
    ) -> list[Turn]:
        if not rows and not events and lock is None:
            return []
        future = self.db.writer.submit(rows, events, lock=lock, guard=self.guard)
        try:
            appended = await asyncio.shield(future)
        except asyncio.CancelledError:
            # The rows are written all the same, and what follows has to know of them.
            if not await settled([future], _PATIENCE):
                self._unsure = True
            elif not future.cancelled() and future.exception() is None:
                self._took(rows, future.result(), ends)
            raise
        return self._took(rows, appended, ends)

    def _took(self, rows: Sequence[TurnRow], appended: Sequence[Appended], ends: bool) -> list[Turn]:
        made = [as_turn(row, new.seq, new.created_at) for row, new in zip(rows, appended, strict=True)]
        self.took(made)
        self.ended = self.ended or ends
        return made

    def took(self, turns: Sequence[Turn]) -> None:
        """Turns are stored: they belong to the conversation and to this run."""
        self.begun = True
        self.turns.extend(turns)
        self.own.extend(turns)

    # Ending badly

    async def fail(self, error: BaseException, stage: str, rows: Sequence[NewTurn] = ()) -> None:
        """End the run in the log: calls under way get their outcome, and an error turn and an error event say why."""
        if self.ended or self._unsure:
            return
        cancelled = stage == "cancelled"
        under_way = [call for _, call in open_calls(self.turns) if call.started is not None]
        outcomes = [
            self.turn(
                "error",
                payloads.error(
                    error if cancelled else None,
                    stage if cancelled else "interrupted",
                    self.run_id,
                    type=None if cancelled else "Interrupted",
                    message=_CANCELLED_CALL if cancelled else INTERRUPTED,
                    call=call.call,
                ),
            )
            for call in under_way
        ]
        payload = payloads.error(error, stage, self.run_id, message=_CANCELLED if cancelled else None)
        event = stream.error(self.run_id, payload["type"], payload["message"], self.usage)
        stored = await self.append([*outcomes, *rows, self.turn("error", payload)], [event])
        for call, outcome in zip(under_way, stored, strict=False):
            await self.fire(call.started, outcome)
        await self.fire(*stored[len(under_way) :])

    # Hooks

    async def fire(self, *turns: Turn | None) -> None:
        """Call the turn hook for turns that are durable, one after another."""
        hooks = self.agent.hooks
        if hooks is None or hooks.on_turn_complete is None:
            return
        async with self._hooking:
            for turn in turns:
                if turn is not None:
                    await self.hook(hooks.on_turn_complete, turn)

    async def hook(self, function: Callable[[Any], Any], value: Any) -> None:
        """Call a hook; one that fails becomes an error turn, which fires no hook."""
        token = calling_agent.set(self.agent)
        try:
            error = await call_hook(function, value, self.agent.hook_timeout)
        finally:
            calling_agent.reset(token)
        if error is not None:
            await self.append([self.turn("error", payloads.error(error, "hook", self.run_id))])
