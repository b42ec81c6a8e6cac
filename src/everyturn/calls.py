"""The tool calls of one answer: checked, admitted, run side by side, each with exactly one outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic_core import from_json

from . import history, jsonable, payloads, stream
from .blocking import Portal
from .blocks import Call
from .budget import admit
from .context import Context
from .errors import RateBudgetExceeded, ToolArgumentsError
from .messages import ToolCall
from .run_log import CallInProgress, current_call
from .stream import StreamEvent
from .turns import NewTurn
from .waiting import settled

if TYPE_CHECKING:
    from .run import Run
    from .tools import Tool


# How long a cancelled handler may take to clean up.
_PATIENCE = 10


@dataclass(slots=True, eq=False)
class Prepared:
    """A call that was looked up and checked."""

    call: Call
    tool: Tool | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    refusal: Exception | None = None
    row: NewTurn | None = None
    """Its `tool_call` turn, when it needs no leave from a budget."""
    internal_id: str = field(default_factory=stream.internal_call_id)


@dataclass(frozen=True, slots=True)
class _Outcome:
    turn: NewTurn
    shown: str
    is_error: bool


def distinct(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls of one answer, each with an id of its own: providers leave ids out, and repeat them."""
    seen: set[str] = set()
    found = []
    for call in calls:
        base = jsonable.clean_text(call.id).translate(_SEPARATORS).strip() or f"call_{uuid4().hex[:12]}"
        name, number = base, 2
        while name in seen:
            name, number = f"{base}_{number}", number + 1
        seen.add(name)
        found.append(ToolCall(name, jsonable.clean_text(call.name), jsonable.clean_lenient(_parsed(call.args))))
    return found


_SEPARATORS = {0x1E: None, 0x1F: None}


def _parsed(args: dict[str, Any] | str) -> dict[str, Any] | str:
    """The arguments as an object where the text is one; blank text means none."""
    if not isinstance(args, str):
        return args
    if not args.strip():
        return {}
    try:
        found = from_json(args, allow_inf_nan=False)
    except ValueError:
        return args
    return found if isinstance(found, dict) else args


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
            one.row = run.turn("tool_call", payloads.tool_call(call.call, one.tool.impl_hash, run.run_id))
    return prepared


async def run_calls(run: Run, prepared: Sequence[Prepared]) -> None:
    """Run the calls side by side; each outcome is stored as it comes."""
    waiting = len(prepared)

    async def one(call: Prepared) -> None:
        outcome = await _outcome(run, call)
        if run.ended:
            return  # a handler that did not heed its cancellation: the call has its outcome

        def events() -> list[StreamEvent]:
            nonlocal waiting
            waiting -= 1
            asked = call.call.call
            # JSON inside text is beyond a redaction rule: it is made of what the rule has passed.
            args = run.masked(asked.args)
            result = stream.tool_result(
                run.number, asked, call.internal_id, args, outcome.shown, is_error=outcome.is_error
            )
            if waiting:
                return [result]
            return [result, *run.next_turn([done.call.call for done in prepared])]

        [call.call.outcome] = await run.append([outcome.turn], events)
        await run.fire(call.call.started, call.call.outcome)

    if len(prepared) == 1:
        await one(prepared[0])
        return
    tasks = [asyncio.ensure_future(one(call)) for call in prepared]
    try:
        await asyncio.gather(*tasks)
    except GeneratorExit:
        raise
    except BaseException:
        for task in tasks:
            task.cancel()
        await settled(tasks, _PATIENCE)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()
        raise


async def _outcome(run: Run, prepared: Prepared) -> _Outcome:
    """Run the handler of a call; the turn that ends the call, and what is shown of it."""
    call, tool = prepared.call.call, prepared.tool
    if prepared.refusal is not None or tool is None:
        return _failed(run, call, prepared.refusal, "tool")
    if prepared.call.started is None:
        try:
            prepared.call.started = await admit(run, tool, call)
        except RateBudgetExceeded as error:
            return _failed(run, call, error, "budget")
    started = time.perf_counter()
    token = current_call.set(CallInProgress(run, call, prepared.internal_id))
    try:
        result = await tool.call(prepared.arguments, _context(run, call))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed(run, call, error, "tool")  # something the handler awaited was cancelled
    except BaseException as error:
        return _failed(run, call, error, "tool")
    finally:
        current_call.reset(token)
    latency = round((time.perf_counter() - started) * 1000)
    cleaned = jsonable.clean_lenient(result)
    payload = payloads.tool_result(call, cleaned, tool.impl_hash, latency, run.run_id)
    return _Outcome(run.turn("tool_result", payload), history.result_text(run.masked(cleaned)), False)


def _failed(run: Run, call: ToolCall, error: BaseException | None, stage: str) -> _Outcome:
    payload = payloads.error(error, stage, run.run_id, call=call)
    return _Outcome(run.turn("error", payload), payload["message"], True)


def _context(run: Run, call: ToolCall) -> Context:
    return Context(
        db=run.db,
        deps=run.deps,
        memory=run.agent.memory_for(run.conversation, run.run_id),
        agent=run.agent.name,
        conversation=run.conversation,
        run_id=run.run_id,
        tool_call_id=call.id,
        _face=Portal(asyncio.get_running_loop()).face,
    )
