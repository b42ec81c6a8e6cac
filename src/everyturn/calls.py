"""The tool calls of one answer: checked, admitted, run side by side, each with exactly one outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg

from . import history, jsonable, payloads, stream
from .blocking import Portal
from .context import Context
from .database_errors import translate
from .errors import DatabaseUnavailable, RateBudgetExceeded, ToolArgumentsError
from .history import Call
from .messages import ToolCall
from .stream import StreamEvent
from .turns import NewTurn, as_turn
from .values import Turn

if TYPE_CHECKING:
    from .run import Run
    from .tools import RateBudget, Tool


@dataclass(frozen=True, slots=True)
class CallInProgress:
    """The call whose handler is running: a child agent reports its events to it."""

    run: Run
    call: ToolCall
    internal_id: str


current_call: ContextVar[CallInProgress | None] = ContextVar("everyturn_call", default=None)


@dataclass(slots=True)
class Prepared:
    """A call that was looked up and checked."""

    call: Call
    tool: Tool | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    refusal: Exception | None = None
    stage: str = "tool"
    row: NewTurn | None = None
    """Its `tool_call` turn, when it needs no leave from a budget."""
    internal_id: str = field(default_factory=stream.internal_call_id)


def distinct(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls of one answer, each with an id of its own: providers leave ids out, and repeat them."""
    seen: set[str] = set()
    found = []
    for call in calls:
        base = jsonable.clean_text(call.id).replace("\x1f", "") or f"call_{uuid4().hex[:12]}"
        name, number = base, 2
        while name in seen:
            name, number = f"{base}_{number}", number + 1
        seen.add(name)
        found.append(ToolCall(name, jsonable.clean_text(call.name), jsonable.clean_lenient(call.args)))
    return found


def prepare(run: Run, calls: Sequence[Call]) -> list[Prepared]:
    """Look up each call's tool and check its arguments; nothing is written yet."""
    prepared = []
    for call in calls:
        one = Prepared(call)
        prepared.append(one)
        one.tool = run.agent.tools.get(call.call.name)
        if one.tool is None:
            known = ", ".join(run.agent.tools) or "none"
            one.refusal = ToolArgumentsError(
                f"There is no tool named {call.call.name[:100]!r}. The tools are: {known}."
            )
            continue
        try:
            one.arguments = one.tool.parse(call.call.args)
        except Exception as error:
            one.refusal = error
            continue
        if one.tool.rate_budget is None:
            payload = payloads.tool_call(call.call, one.tool.impl_hash, run.run_id)
            one.row = NewTurn(run.conversation, run.agent.name, "tool_call", payload)
    return prepared


async def run_calls(run: Run, prepared: list[Prepared]) -> None:
    """Run the calls side by side; each outcome is stored as it comes."""
    waiting = len(prepared)

    async def one(call: Prepared) -> None:
        row, shown, is_error = await _outcome(run, call)

        def events() -> list[StreamEvent]:
            nonlocal waiting
            waiting -= 1
            result = stream.tool_result(run.number, call.call.call, call.internal_id, shown, is_error=is_error)
            if waiting:
                return [result]
            return [result, *run.next_turn([done.call.call for done in prepared])]

        [turn] = await run.append([row], events)
        call.call.outcome = turn
        await run.fire(*([call.call.started] if call.call.started is not None else []), turn)

    if len(prepared) == 1:
        await one(prepared[0])
        return
    tasks = [asyncio.ensure_future(one(call)) for call in prepared]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _outcome(run: Run, prepared: Prepared) -> tuple[NewTurn, str, bool]:
    """The turn that ends a call, what is shown of it, and whether it is an error."""
    call = prepared.call.call
    if prepared.refusal is None and prepared.call.started is None:
        await _admit(run, prepared)
    if prepared.refusal is not None:
        return _failed(run, call, prepared.refusal, prepared.stage)
    tool = prepared.tool
    assert tool is not None
    started = time.perf_counter()
    token = current_call.set(CallInProgress(run, call, prepared.internal_id))
    try:
        result = await tool.call(prepared.arguments, _context(run, call))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(run, call, error, "tool")  # something the handler awaited was cancelled
    except Exception as error:
        return _failed(run, call, error, "tool")
    finally:
        current_call.reset(token)
    latency = round((time.perf_counter() - started) * 1000)
    cleaned = jsonable.clean_lenient(result)
    payload = payloads.tool_result(call, cleaned, tool.impl_hash, latency, run.run_id)
    row = NewTurn(run.conversation, run.agent.name, "tool_result", payload)
    return row, history.result_text(cleaned), False


def _failed(run: Run, call: ToolCall, error: BaseException, stage: str) -> tuple[NewTurn, str, bool]:
    payload = payloads.error(error, stage, run.run_id, call=call)
    return NewTurn(run.conversation, run.agent.name, "error", payload), payload["message"], True


def _context(run: Run, call: ToolCall) -> Context:
    loop = asyncio.get_running_loop()
    return Context(
        db=run.db,
        deps=run.deps,
        memory=run.memory(),
        agent=run.agent.name,
        conversation=run.conversation,
        run_id=run.run_id,
        tool_call_id=call.id,
        _face=lambda value: Portal(loop).face(value),
    )


async def _admit(run: Run, prepared: Prepared) -> None:
    """Ask the budget; the call is stored when it is admitted."""
    tool, call = prepared.tool, prepared.call.call
    assert tool is not None
    assert tool.rate_budget is not None
    payload = payloads.tool_call(call, tool.impl_hash, run.run_id)
    row = run.db.turns.row(NewTurn(run.conversation, run.agent.name, "tool_call", payload), lenient=True)
    parameters = {
        "id": row.id,
        "conversation": row.conversation,
        "agent": row.agent,
        "tool": tool.name,
        "payload": row.payload,
        "window_seconds": tool.rate_budget.window_seconds,
        "max_calls": tool.rate_budget.max_calls,
    }
    seq, created_at, retry_after = await _ask_budget(run, parameters)
    if retry_after is None:
        prepared.call.started = as_turn(row, seq, created_at)
        run.took([prepared.call.started])
        return
    prepared.stage = "budget"
    prepared.refusal = RateBudgetExceeded(_wait(tool.name, tool.rate_budget, retry_after), retry_after)


async def _ask_budget(run: Run, parameters: dict[str, Any]) -> tuple[int, datetime, float | None]:
    while True:
        try:
            async with run.db.own_connection() as conn:
                cursor = await conn.execute(run.db.statement("call_within_budget"), parameters)
                row = await cursor.fetchone()
            assert row is not None
            return row["seq"], row["created_at"], row["retry_after"]
        except psycopg.Error as error:
            translated = translate(error)
            if not isinstance(translated, DatabaseUnavailable):
                raise translated from error
            # Was the call admitted before the connection broke?
            stored: list[Turn] = [
                turn for turn in await run.db.turns.load(run.conversation, 1) if turn.id == parameters["id"]
            ]
            if stored:
                return stored[0].seq, stored[0].created_at, None


def _wait(tool: str, budget: RateBudget, seconds: float) -> str:
    return (
        f"The tool {tool} may be called {budget.max_calls} times in {budget.window_seconds:g} s, and it has been. "
        f"Wait {max(seconds, 0.1):.1f} s before calling it again, or go on without it."
    )
