"""The result of a run that finished earlier, read from its turns."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from .blocks import payload_of, run_of
from .values import RunResult, Turn, Usage


def stored_result(turns: Sequence[Turn], done: Turn) -> RunResult:
    """What the run that ended with the answer `done` returned."""
    run_id = run_of(done)
    own = [turn for turn in turns if run_of(turn) == run_id] if run_id is not None else [done]
    answers = [payload_of(turn) for turn in own if turn.kind == "model"]
    usage = sum((Usage.from_payload(answer.get("usage")) for answer in answers), Usage())
    costs = [_cost(answer.get("costUsd")) for answer in answers]
    known = [cost for cost in costs if cost is not None]
    cost = sum(known, Decimal(0)) if len(known) == len(costs) else None
    text = payload_of(done).get("text")
    output = text if isinstance(text, str) else ""
    return RunResult(output, done.conversation, run_id or "", own, usage, cost)


def _cost(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return None
    return cost if cost.is_finite() else None
