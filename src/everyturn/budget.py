"""Asking a rate budget for a call: admitted calls are stored by the same statement that counts them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg

from . import payloads
from .database_errors import translate
from .errors import DatabaseUnavailable, InvalidValue, RateBudgetExceeded, TurnNotFound
from .messages import ToolCall
from .turns import as_turn
from .values import Turn
from .waiting import settled

if TYPE_CHECKING:
    from .run_log import RunLog
    from .tools import RateBudget, Tool
    from .writer import TurnRow

_PATIENCE = 10
_ATTEMPTS = 3


async def admit(run: RunLog, tool: Tool, call: ToolCall) -> Turn:
    """The `tool_call` turn, once the budget let the call in and it is stored. Raises RateBudgetExceeded."""
    asking = asyncio.ensure_future(_admit(run, tool, call))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # The call may be stored all the same, and what follows has to know of it.
        if await settled([asking], _PATIENCE) and not asking.cancelled():
            asking.exception()
        raise


async def _admit(run: RunLog, tool: Tool, call: ToolCall) -> Turn:
    budget = tool.rate_budget
    assert budget is not None
    payload = payloads.tool_call(call, tool.impl_hash, run.run_id)
    row = run.db.turns.row(run.turn("tool_call", payload), lenient=True)
    wait = 0.0
    for attempt in range(_ATTEMPTS):
        try:
            stored, wait = await _ask(run, row, tool.name, budget)
        except DatabaseUnavailable:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        except InvalidValue:
            stored = None  # stored before the connection was lost
            if attempt == 0:
                raise
        if stored is None and attempt:
            # Refused, or there already: was it let in before the connection was lost?
            try:
                stored = await run.db.turns.get(row.id)
            except TurnNotFound:
                stored = None
        if stored is None:
            break
        run.took([stored])
        return stored
    raise RateBudgetExceeded(_sentence(tool.name, budget, wait), wait)


async def _ask(run: RunLog, row: TurnRow, tool: str, budget: RateBudget) -> tuple[Turn | None, float]:
    parameters = {
        "id": row.id,
        "conversation": row.conversation,
        "agent": row.agent,
        "tool": tool,
        "payload": row.payload,
        "window_seconds": budget.window_seconds,
        "max_calls": budget.max_calls,
    }
    if run.guard is not None:
        run.guard()
    try:
        async with run.db.own_connection() as conn:
            cursor = await conn.execute(run.db.statement("call_within_budget"), parameters)
            answer = await cursor.fetchone()
    except psycopg.Error as error:
        raise translate(error) from error
    assert answer is not None
    if answer["retry_after"] is not None:
        return None, answer["retry_after"]
    return as_turn(row, answer["seq"], answer["created_at"]), 0.0


def _sentence(tool: str, budget: RateBudget, seconds: float) -> str:
    if budget.max_calls == 0:
        return f"The tool {tool} may not be called: its rate budget is 0 calls. Go on without it."
    return (
        f"The tool {tool} may be called {budget.max_calls} times in {budget.window_seconds:g} s, and it has been. "
        f"Wait {max(seconds, 0.1):.1f} s before calling it again, or go on without it."
    )
