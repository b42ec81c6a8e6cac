"""An agent: a name, tools, a model and instructions, over one database."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from . import payloads, transactions
from .agent_tool import AgentTool
from .blocking import Blocking, Portal
from .database import Database
from .errors import ConversationConflict, DatabaseUnavailable, InvalidValue
from .history import History
from .hooks import EvalHooks
from .ids import uuid7
from .impl_hash import UNKNOWN
from .models import Leaf, Source, resolve
from .names import as_uuid, check_name
from .run import Run
from .run_log import CallInProgress
from .stream import StreamEvent
from .tools import Tool, unique
from .values import RunResult
from .waiting import settled

if TYPE_CHECKING:
    from .memory import Memory

_INCLUDE = ("all", "agent_tool_events")
_PATIENCE = 30
_KEPT_OF_FEW = frozenset(("agent_tool_event", "final", "error"))
_portal_lock = threading.Lock()
_shared_portal: Portal | None = None


class Agent:
    """An agent whose every turn is a row.

    `model` is a string (`"anthropic:…"`, `"openai:…"`) or a function of an `et.ModelRequest`; `history` decides which
    turns are sent (`et.last_turns(n)`, `et.token_budget(n)`, a function of one's own; None sends all); `max_turns` caps
    the model calls of one run; `include="agent_tool_events"` keeps only the events of child agents and the end mark.

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
        if hooks is not None and not isinstance(hooks, EvalHooks):
            raise InvalidValue(f"The hooks of an agent are an et.EvalHooks; got a {type(hooks).__name__}.")
        if history is not None and not callable(history):
            raise InvalidValue(f"history is a function over turns, such as et.last_turns(50); got {history!r:.80}.")
        if isinstance(hook_timeout, bool) or not isinstance(hook_timeout, int | float) or not hook_timeout > 0:
            raise InvalidValue(f"hook_timeout={hook_timeout!r} leaves a hook no time; give seconds above 0.")
        self.db = db
        self.name = check_name(name, "agent name")
        self.tools: dict[str, Tool] = unique(tools)
        self.leaf = resolve(model)
        self.instructions = instructions
        self.hooks = hooks
        self.max_turns = max_turns
        self.settings = _settings(settings)
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
        run, begin = self._new_run(prompt, conversation, deps, attributes, settings)
        return await self._execute(run, begin)

    async def run_stream(
        self,
        prompt: str,
        conversation: UUID | str | None = None,
        *,
        deps: Any = None,
        attributes: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[StreamEvent]:
        """`run`, event by event; each is durable when it is received, and `final` is the last.

        Closing the iterator before `final` cancels the run, which `resume` can finish. Raises as `run` does, after the
        `error` event.
        """
        run, begin = self._new_run(prompt, conversation, deps, attributes, settings)
        queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        run.streaming = True
        run.emit = queue.put_nowait
        task = asyncio.create_task(self._execute(run, begin), name=f"everyturn run {run.run_id}")
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                if not run.ended:
                    task.cancel()
                await settled([task], _PATIENCE)
            if task.done() and not task.cancelled():
                task.exception()

    async def resume(
        self, conversation: UUID | str, *, deps: Any = None, settings: Mapping[str, Any] | None = None
    ) -> RunResult:
        """Finish a conversation that a crash, an error or a limit left unfinished, as a new run that names the old.

        A call that had started ends as interrupted; one that had not is run. A finished conversation returns its stored
        result. Raises ConversationNotFound, ConversationConflict, and as `run` does.
        """
        run = Run(self, as_uuid(conversation, "conversation"), deps=deps, settings=_settings(settings))
        return await self._execute(run, run.take_up)

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
        return AgentTool(self, name, description)

    async def run_within(
        self,
        parent: CallInProgress | None,
        prompt: str,
        conversation: UUID,
        deps: Any,
        attributes: Mapping[str, Any] | None,
    ) -> RunResult:
        """A run that is the handler of another agent's call: that one's stream tells its events."""
        run = Run(self, conversation, deps=deps, parent=parent)
        return await self._execute(run, lambda: run.begin(prompt, attributes, new=True))

    @property
    def impl_hash(self) -> str:
        """Which implementation this agent is, as a tool: its model, its instructions and its tools."""
        parts = [self.name, self.leaf.name, self.prompt_rev, *(tool.impl_hash for tool in self.tools.values())]
        if UNKNOWN in parts:
            return UNKNOWN
        return "v1:" + hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]

    def keeps(self, event: StreamEvent) -> bool:
        """Whether this event is stored."""
        return self.include == "all" or event["type"] in _KEPT_OF_FEW

    def memory_for(self, conversation: UUID, run_id: str) -> Memory:
        """The memory as a handler of this run is given it."""
        from .memory import Memory

        return Memory(self.db, agent=self.name, scope=self.scope, conversation=conversation, run_id=run_id)

    def _new_run(
        self,
        prompt: str,
        conversation: UUID | str | None,
        deps: Any,
        attributes: Mapping[str, Any] | None,
        settings: Mapping[str, Any] | None,
    ) -> tuple[Run, Callable[[], Awaitable[None]]]:
        if not isinstance(prompt, str):
            raise InvalidValue(f"The prompt of a run is a string; got a {type(prompt).__name__}.")
        if attributes is not None and not isinstance(attributes, Mapping):
            raise InvalidValue(f"The attributes of a run are a dict; got a {type(attributes).__name__}.")
        new = conversation is None
        key = uuid7() if conversation is None else as_uuid(conversation, "conversation")
        run = Run(self, key, deps=deps, settings=_settings(settings))
        return run, lambda: run.begin(prompt, attributes, new=new)

    async def _execute(self, run: Run, begin: Callable[[], Awaitable[RunResult | None]]) -> RunResult:
        with transactions.outside():
            try:
                stored = await begin()
                return await run.drive() if stored is None else stored
            except (GeneratorExit, ConversationConflict, DatabaseUnavailable):
                raise  # nothing can, or may, be written
            except BaseException as error:
                if run.begun and not run.ended:
                    await _finish_writing(run.fail(error, "model" if isinstance(error, Exception) else "cancelled"))
                raise
            finally:
                run.release()

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        return (self._portal or _portal()).run(awaitable)


def _portal() -> Portal:
    """The event loop, on a thread of its own, that the blocking methods of agents share."""
    global _shared_portal
    with _portal_lock:
        if _shared_portal is None:
            _shared_portal = Portal()
        return _shared_portal


def _forget_portal() -> None:
    global _shared_portal, _portal_lock
    _shared_portal, _portal_lock = None, threading.Lock()


# A fork copies the portal without its thread.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_portal)


def _settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    if settings is not None and not isinstance(settings, Mapping):
        raise InvalidValue(f"The settings of a model are a dict; got a {type(settings).__name__}.")
    return dict(settings or {})


async def _finish_writing(writing: Awaitable[None]) -> None:
    """Wait for the last turns of a run that is being cancelled, also when it is cancelled again."""
    task = asyncio.ensure_future(writing)
    if await settled([task], _PATIENCE) and not task.cancelled():
        task.exception()
