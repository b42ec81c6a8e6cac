"""An agent: a name, tools, a model and instructions, over one database."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from . import history, payloads, stream
from .blocking import Blocking, Portal
from .calls import CallInProgress, current_call
from .context import Context
from .database import Database
from .errors import ConversationConflict, ConversationNotFound, DatabaseUnavailable, InvalidValue
from .history import History
from .hooks import EvalHooks
from .ids import uuid7
from .models import Leaf, Source, resolve
from .names import as_uuid, check_name
from .run import Run
from .stream import StreamEvent
from .tools import Tool, unique
from .values import RunResult, Turn, Usage

_INCLUDE = ("all", "agent_tool_events")
_KEPT_OF_FEW = frozenset(("agent_tool_event", "final", "error"))
_shared_portal: Portal | None = None


class Agent:
    """An agent whose every turn is a row.

    `model` is a string (`"anthropic:…"`, `"openai:…"`) or a function of an `et.ModelRequest`; `history` decides which turns
    are sent (`et.last_turns(n)`, `et.token_budget(n)`, a function of one's own; None sends all); `max_turns` caps the model
    calls of one run; `include="agent_tool_events"` keeps only the events of child agents and the end mark.

    Raises InvalidValue and ToolDefinitionError.
    """

    def __init__(
        self,
        db: Database | Blocking,
        name: str,
        *,
        tools: Sequence[Any] = (),
        model: Source | Leaf,
        instructions: str | None = None,
        hooks: EvalHooks | None = None,
        max_turns: int = 20,
        settings: Mapping[str, Any] | None = None,
        scope: str | None = None,
        history: History | None = None,
        include: str = "all",
        hook_timeout: float = 30,
    ) -> None:
        self._portal: Portal | None = None
        if isinstance(db, Blocking):
            self._portal = db._portal
            db = db._target
        if not isinstance(db, Database):
            raise InvalidValue(f"An agent needs an open database (async with et.connect() as db); got {db!r}.")
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise InvalidValue(f"max_turns={max_turns!r} lets the agent ask no model; give a number from 1 up.")
        if include not in _INCLUDE:
            raise InvalidValue(f"include={include!r} is not one of {', '.join(_INCLUDE)}.")
        if instructions is not None and not isinstance(instructions, str):
            raise InvalidValue(f"The instructions of an agent are a string; got a {type(instructions).__name__}.")
        if hook_timeout <= 0:
            raise InvalidValue(f"hook_timeout={hook_timeout!r} leaves a hook no time; give seconds above 0.")
        self.db = db
        self.name = check_name(name, "agent name")
        self.tools: dict[str, Tool] = unique(tools)
        self.leaf = resolve(model)
        self.instructions = instructions
        self.hooks = hooks
        self.max_turns = max_turns
        self.settings = dict(settings or {})
        self.scope = scope if scope is None else check_name(scope, "scope")
        self.history = history
        self.include = include
        self.hook_timeout = hook_timeout
        self.prompt_rev = payloads.prompt_rev(instructions)

    def __repr__(self) -> str:
        return f"<everyturn.Agent {self.name!r} on {self.leaf.name}>"

    async def register(self) -> list[str]:
        """Upsert the agent's tools into the registry; return the names of those that were added or changed."""
        return await self.db.tools.register(self.name, self.tools.values())

    async def run(
        self,
        prompt: str,
        conversation: UUID | str | None = None,
        *,
        deps: Any = None,
        attributes: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Answer `prompt`, calling tools as the model asks for them; every turn is durable before the next step.

        `conversation` continues an earlier one; None begins a new one. `deps` reaches handlers as `ctx.deps`;
        `attributes` is stored with the user turn. Raises ModelError, MaxTurnsExceeded, ConversationConflict and
        DatabaseUnavailable; what happened until then is in the log.
        """
        run, new = self._new_run(prompt, conversation, deps, settings)
        return await self._execute(run, run.begin(prompt, attributes, new=new))

    async def run_stream(
        self,
        prompt: str,
        conversation: UUID | str | None = None,
        *,
        deps: Any = None,
        attributes: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """`run`, event by event; each is durable when it is received, and `final` is the last.

        Closing the iterator before `final` cancels the run. Raises as `run` does, after the `error` event.
        """
        run, new = self._new_run(prompt, conversation, deps, settings)
        async for event in self._stream(run, run.begin(prompt, attributes, new=new)):
            yield event

    async def resume(
        self, conversation: UUID | str, *, deps: Any = None, settings: Mapping[str, Any] | None = None
    ) -> RunResult:
        """Finish a conversation that a crash, an error or a limit left unfinished, as a new run that names the old.

        A call that had started ends as interrupted; one that had not is run. A finished conversation returns its stored
        result. Raises ConversationNotFound, ConversationConflict, and as `run` does.
        """
        run = self._run(as_uuid(conversation, "conversation"), deps, settings)
        await run.lock.acquire()
        try:
            run.turns = await self.db.turns.load(run.conversation)
            if not run.turns:
                raise ConversationNotFound(
                    f"There is no conversation {run.conversation} to resume. "
                    "`everyturn conversation list --status crashed` shows those that are unfinished."
                )
            done = history.finished(run.turns)
            if done is not None:
                return _stored_result(run.turns, done)
        except BaseException:
            run.lock.release()
            raise
        finally:
            if run.turns and history.finished(run.turns) is not None:
                run.lock.release()
        run.resumes = next(
            (turn.payload["runId"] for turn in reversed(run.turns) if isinstance(turn.payload.get("runId"), str)),
            None,
        )
        return await self._execute(run, run.take_up())

    def run_sync(self, prompt: str, conversation: UUID | str | None = None, **options: Any) -> RunResult:
        """`run` for scripts and notebooks: waits for the result, also when called inside a running event loop."""
        result: RunResult = self._wait(self.run(prompt, conversation, **options))
        return result

    def resume_sync(self, conversation: UUID | str, **options: Any) -> RunResult:
        """`resume` for scripts and notebooks."""
        result: RunResult = self._wait(self.resume(conversation, **options))
        return result

    def register_sync(self) -> list[str]:
        """`register` for scripts and notebooks."""
        changed: list[str] = self._wait(self.register())
        return changed

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """This agent as another's tool: it takes `input`, runs in a conversation of its own, and returns its output.

        Its events are stored once, wrapped in the parent's as `agent_tool_event`.
        """

        async def ask(input: str, ctx: Context) -> str:
            parent = current_call.get()
            run = self._run(uuid7(), ctx.deps, None)
            if parent is not None:
                run.streaming = parent.run.streaming
                run.wrap = _wrapping(parent, self.name)
            return (await self._execute(run, run.begin(input, None, new=True))).output

        return _AgentTool(
            self,
            name or re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64],
            {
                "type": "object",
                "properties": {"input": {"type": "string", "description": "What the agent is asked."}},
                "required": ["input"],
                "additionalProperties": False,
            },
            ask,
            description=description or f"Ask the agent {self.name}.",
        )

    @property
    def impl_hash(self) -> str:
        """Which implementation this agent is, as a tool: its model, its instructions and its tools."""
        parts = [self.name, self.leaf.name, self.prompt_rev, *(tool.impl_hash for tool in self.tools.values())]
        return "v1:" + hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]

    def keeps(self, event: StreamEvent) -> bool:
        """Whether this event is stored."""
        return self.include == "all" or event["type"] in _KEPT_OF_FEW

    def memory_for(self, conversation: UUID, run_id: str) -> Any:
        """The memory as a handler of this run is given it."""
        try:
            from .memory import Memory
        except ImportError:
            return None
        return Memory(self.db, agent=self.name, scope=self.scope, conversation=conversation, run_id=run_id)

    def _run(self, conversation: UUID, deps: Any, settings: Mapping[str, Any] | None) -> Run:
        return Run(self, conversation, deps=deps, settings=self.settings | dict(settings or {}))

    def _new_run(
        self, prompt: str, conversation: UUID | str | None, deps: Any, settings: Mapping[str, Any] | None
    ) -> tuple[Run, bool]:
        if not isinstance(prompt, str):
            raise InvalidValue(f"The prompt of a run is a string; got a {type(prompt).__name__}.")
        key = uuid7() if conversation is None else as_uuid(conversation, "conversation")
        return self._run(key, deps, settings), conversation is None

    async def _execute(self, run: Run, beginning: Awaitable[None]) -> RunResult:
        try:
            await beginning
            return await run.drive()
        except (ConversationConflict, DatabaseUnavailable):
            raise  # nothing can, or may, be written
        except BaseException as error:
            if not run.ended:
                stage = "model" if isinstance(error, Exception) else "cancelled"
                await _finish_writing(run.cancelled(error) if stage == "cancelled" else run.fail(error, stage))
            raise
        finally:
            run.lock.release()

    async def _stream(self, run: Run, beginning: Awaitable[None]) -> AsyncIterator[StreamEvent]:
        queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        run.streaming = True
        run.emit = queue.put_nowait
        task = asyncio.create_task(self._execute(run, beginning), name=f"everyturn run {run.run_id}")
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                if not run.ended:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        global _shared_portal
        if self._portal is not None:
            return self._portal.run(awaitable)
        if _shared_portal is None:
            _shared_portal = Portal()
        return _shared_portal.run(awaitable)


class _AgentTool(Tool):
    """A tool whose implementation is an agent."""

    def __init__(self, agent: Agent, name: str, schema: dict[str, Any], handler: Any, *, description: str) -> None:
        super().__init__(name, schema, handler, description=description)
        self._agent = agent

    @property
    def impl_hash(self) -> str:
        return self._agent.impl_hash


def _wrapping(parent: CallInProgress, agent: str) -> Callable[[StreamEvent], Awaitable[None]]:
    async def wrap(event: StreamEvent) -> None:
        run = parent.run
        wrapped = stream.agent_tool_event(run.number, parent.call, parent.internal_id, agent, event)
        await run.append([], [wrapped])

    return wrap


def _stored_result(turns: list[Turn], done: Turn) -> RunResult:
    run_id = str(done.payload.get("runId", ""))
    own = [turn for turn in turns if turn.payload.get("runId") == run_id] if run_id else [done]
    answers = [turn.payload for turn in own if turn.kind == "model"]
    usage = sum((Usage.from_payload(answer.get("usage")) for answer in answers), Usage())
    costs = [answer.get("costUsd") for answer in answers]
    cost = None if None in costs else sum((Decimal(str(cost)) for cost in costs), Decimal(0))
    return RunResult(str(done.payload.get("text", "")), done.conversation, run_id, own, usage, cost)


async def _finish_writing(writing: Awaitable[None]) -> None:
    """Wait for the last turns of a run that is being cancelled, also when it is cancelled again."""
    task = asyncio.ensure_future(writing)
    for _ in range(3):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=10)
        if task.done():
            break
    if task.done() and not task.cancelled():
        task.exception()
