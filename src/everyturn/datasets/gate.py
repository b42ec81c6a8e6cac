"""The gate: whether a candidate may be released. Each limit passes, fails, or cannot be told yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from everyturn.errors import InvalidValue, NotEnoughData

from .compare import Diff, diff
from .report import Line, report
from .sides import Side, find, sides
from .values import Dataset

if TYPE_CHECKING:
    from everyturn.database import Database

PASS, FAIL, INSUFFICIENT = "pass", "fail", "insufficient_data"


@dataclass(frozen=True, slots=True)
class Check:
    """One limit, and how the candidate stands to it."""

    name: str
    status: str
    actual: Any
    limit: Any
    said: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """`status` is `fail` when any check fails, else `insufficient_data` when any cannot be told, else `pass`."""

    status: str
    dataset: str
    candidate: str
    baseline: str | None
    checks: list[Check]


async def gate(
    db: Database,
    dataset: Dataset,
    *,
    candidate: str | None = None,
    baseline: str | None = None,
    max_regressions: int | None = None,
    min_pass_rate: float | None = None,
    max_p95_ms: int | None = None,
    max_cost_usd: Decimal | float | None = None,
    max_errors: int = 0,
) -> GateResult:
    """Hold a candidate against limits. An error is never a pass, and by default no error is allowed.

    Cases that were not run, and outputs that wait for a verdict, make a limit untellable unless it fails whatever
    they come to. Regressions are counted against the baseline (by default the newest replay of another model or
    prompt): cases it passed and the candidate fails, and failures of cases it does not have.
    """
    if min_pass_rate is not None and not 0 <= min_pass_rate <= 1:
        raise InvalidValue(f"min_pass_rate={min_pass_rate} is not a share; give a number from 0 to 1.")
    for name, limit in (("max_regressions", max_regressions), ("max_errors", max_errors), ("max_p95_ms", max_p95_ms)):
        if limit is not None and limit < 0:
            raise InvalidValue(f"{name}={limit} is below 0.")
    compared = baseline is not None or max_regressions is not None
    if not compared and min_pass_rate is None and max_p95_ms is None and max_cost_usd is None:
        raise InvalidValue(
            "A gate needs a limit: max_regressions (with a baseline), min_pass_rate, max_p95_ms or max_cost_usd."
        )
    side = await _candidate(db, dataset, candidate)
    line = await _line(db, dataset, side) if side is not None else None
    if side is None or line is None:
        said = f"{dataset} was not replayed with {candidate or 'any model'}."
        return GateResult(
            INSUFFICIENT, str(dataset), candidate or "", baseline, [Check("runs", INSUFFICIENT, 0, None, said)]
        )
    checks = [_errors(line, max_errors)]
    old: str | None = None
    if compared:
        regressions, old = await _regressions(db, dataset, side, line, baseline, max_regressions or 0)
        checks.append(regressions)
    if min_pass_rate is not None:
        checks.append(_pass_rate(line, min_pass_rate))
    if max_p95_ms is not None:
        checks.append(_latency(line, max_p95_ms))
    if max_cost_usd is not None:
        checks.append(_cost(line, Decimal(str(max_cost_usd))))
    return GateResult(overall(checks), str(dataset), side.label, old, checks)


def overall(checks: Sequence[Check]) -> str:
    found = {check.status for check in checks}
    return FAIL if FAIL in found else INSUFFICIENT if INSUFFICIENT in found else PASS


async def _candidate(db: Database, dataset: Dataset, candidate: str | None) -> Side | None:
    known = await sides(db, dataset)
    if candidate is None:
        return known[0] if known else None
    try:
        return await find(db, dataset, candidate, known)
    except NotEnoughData:
        return None


async def _line(db: Database, dataset: Dataset, side: Side) -> Line | None:
    lines = await report(db, dataset, replay=side.replay_id, model=side.model, prompt_rev=side.prompt_rev)
    return next((line for line in lines if line.prompt_rev == side.prompt_rev), None)


def _open(line: Line) -> int:
    """Runs whose verdict is still to come."""
    return max(line.planned - line.n, 0) + line.unjudged


def _waiting(line: Line) -> str:
    parts = []
    if line.planned > line.n:
        parts.append(f"{line.planned - line.n} of {line.planned} runs are not made")
    if line.unjudged:
        parts.append(f"{line.unjudged} outputs have no verdict")
    return " and ".join(parts)


def _errors(line: Line, limit: int) -> Check:
    said = f"{line.errors} of {line.n} runs ended in an error; {limit} may."
    if line.errors > limit:
        return Check("errors", FAIL, line.errors, limit, said)
    if _open(line):
        return Check("errors", INSUFFICIENT, line.errors, limit, f"{_waiting(line)}.")
    return Check("errors", PASS, line.errors, limit, said)


async def _regressions(
    db: Database, dataset: Dataset, side: Side, line: Line, baseline: str | None, limit: int
) -> tuple[Check, str | None]:
    name = "regressions"
    spec = str(side.replay_id) if side.replay_id is not None else f"{side.model}@{side.prompt_rev}"
    try:
        found: Diff = await diff(db, dataset, baseline=baseline, candidate=spec)
    except NotEnoughData as error:
        return Check(name, INSUFFICIENT, None, limit, str(error)), baseline
    old = found.baseline.label
    count = found.counts["regressed"] + found.counts["new_failure"]
    said = f"{count} cases fail that {old} does not; {limit} may."
    if count > limit:
        return Check(name, FAIL, count, limit, said), old
    if found.paired == 0:
        return Check(name, INSUFFICIENT, count, limit, f"No case has a verdict by both {old} and {side.label}."), old
    missing = found.counts["removed"] + found.counts["unjudged"]
    if _open(line) or missing:
        waiting = _waiting(line) or f"{missing} cases have no verdict on one side"
        return Check(name, INSUFFICIENT, count, limit, f"{waiting}."), old
    return Check(name, PASS, count, limit, said), old


def _pass_rate(line: Line, limit: float) -> Check:
    total = max(line.planned, line.n)
    most = (line.passed + _open(line)) / total
    least = line.passed / total
    said = f"{line.passed} of {total} runs pass ({least:.1%}); {limit:.1%} are needed."
    if most < limit:
        return Check("pass_rate", FAIL, least, limit, said)
    if least < limit or _open(line):
        return Check("pass_rate", INSUFFICIENT, least, limit, f"{said} {_waiting(line)}.")
    return Check("pass_rate", PASS, least, limit, said)


def _latency(line: Line, limit: int) -> Check:
    said = f"The p95 latency is {line.p95_ms} ms; {limit} ms are allowed."
    if line.p95_ms is None or line.planned > line.n:
        return Check("p95_ms", INSUFFICIENT, line.p95_ms, limit, f"{_waiting(line) or 'there are no runs'}.")
    return Check("p95_ms", FAIL if line.p95_ms > limit else PASS, line.p95_ms, limit, said)


def _cost(line: Line, limit: Decimal) -> Check:
    cost = (line.cost_usd or Decimal(0)) + (line.judge_cost_usd or Decimal(0))
    said = f"It cost {cost:.6f} USD; {limit} are allowed."
    if cost > limit:
        return Check("cost_usd", FAIL, cost, limit, said)
    if line.unpriced:
        return Check("cost_usd", INSUFFICIENT, cost, limit, f"{line.unpriced} of {line.n} runs are unpriced.")
    if line.planned > line.n:
        return Check("cost_usd", INSUFFICIENT, cost, limit, f"{_waiting(line)}.")
    return Check("cost_usd", PASS, cost, limit, said)
