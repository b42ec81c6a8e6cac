"""The report of a dataset: how each model does under each prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.names import as_uuid

from ..statistics import majority, pass_all, wilson
from .sides import label, sides
from .values import Dataset

if TYPE_CHECKING:
    from everyturn.database import Database

_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One model under one prompt."""

    label: str
    model: str
    prompt_rev: str
    replay_id: UUID | None
    status: str
    n: int
    """Runs; errors and outputs without a verdict included."""
    planned: int
    """Runs there will be when the replay is finished."""
    cases: int
    dataset_cases: int
    trials: int
    passed: int
    failed: int
    errors: int
    unjudged: int
    pass_rate: float
    """Passes of all runs."""
    low: float
    high: float
    """The 95 % interval of the pass rate, by the number of cases: more trials of a case are no new cases."""
    mean_score: float | None
    cost_usd: Decimal | None
    """The sum of what is known; None where no price is."""
    judge_cost_usd: Decimal | None
    unpriced: int
    """Runs whose price is not known."""
    input_tokens: int
    output_tokens: int
    p50_ms: int | None
    p95_ms: int | None
    majority: float | None = None
    """The share of cases most of whose trials passed; None with one trial."""
    pass_all: float | None = None
    """The share of cases expected to pass all trials (pass^k, k the number of trials); None with one trial."""

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


async def report(
    db: Database,
    dataset: Dataset,
    *,
    replay: UUID | str | None = None,
    model: str | None = None,
    prompt_rev: str | None = None,
) -> list[Line]:
    """How each model does under each prompt, the best first; by its newest replay, or by the one given.

    Raises nothing where there are no runs: the list is empty then.
    """
    narrowed = {"name": dataset.name, "version": dataset.version, "model": model, "prompt_rev": prompt_rev}
    if replay is not None:
        rows = await db.query("pass_rate", replay=as_uuid(replay, "replay id"), **narrowed)
    else:
        # One at a time where there is a replay: of a constant id a million runs are added up in parallel.
        rows = []
        by_hand = False
        for side in await sides(db, dataset):
            if side.replay_id is None:
                by_hand = True
            else:
                rows += await db.query("pass_rate", replay=side.replay_id, **narrowed)
        if by_hand:
            rows += [row for row in await db.query("pass_rate", **narrowed) if row["replay_id"] is None]
        rows.sort(key=lambda row: (-row["pass_rate"], row["model"], row["prompt_rev"]))
    # Counting trials takes one core, so that several are counted at a time.
    turn = asyncio.Semaphore(_AT_ONCE)

    async def line(row: Mapping[str, Any]) -> Line:
        async with turn:
            return await _line(db, dataset, row, rows)

    return await asyncio.gather(*map(line, rows))


async def _line(db: Database, dataset: Dataset, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Line:
    repeated: dict[str, Any] = {}
    if row["n"] > row["cases"]:
        repeated = await _trials(db, dataset, row)
    rate = row["passed"] / row["n"]
    low, high = wilson(rate, max(row["cases"], 1))
    names = set(Line.__dataclass_fields__) & set(row)
    return Line(
        **{name: row[name] for name in names - {"pass_rate", "mean_score"}},
        label=label(row["model"], row["prompt_rev"], [r["prompt_rev"] for r in rows if r["model"] == row["model"]]),
        pass_rate=rate,
        low=low,
        high=high,
        mean_score=None if row["mean_score"] is None else float(row["mean_score"]),
        **repeated,
    )


async def _trials(db: Database, dataset: Dataset, row: Mapping[str, Any]) -> dict[str, float]:
    counted = await db.query(
        "trials_by_case",
        dataset_id=dataset.id,
        model=row["model"],
        prompt_rev=row["prompt_rev"],
        replay=row["replay_id"],
    )
    cases = sum(one["cases"] for one in counted)
    k = min(one["n"] for one in counted)
    return {
        "majority": sum(one["cases"] for one in counted if majority(one["passed"], one["n"])) / cases,
        "pass_all": sum(one["cases"] * pass_all(one["passed"], one["n"], k) for one in counted) / cases,
    }


async def by_tag(
    db: Database, dataset: Dataset, *, replay: UUID | str | None = None, model: str | None = None
) -> list[dict[str, Any]]:
    """The same for each tag: model, prompt_rev, tag, cases, n, passed, pass_rate, errors, unjudged, low, high."""
    rows = await db.query(
        "pass_rate_by_tag",
        name=dataset.name,
        version=dataset.version,
        replay=None if replay is None else as_uuid(replay, "replay id"),
        model=model,
    )
    found = []
    for row in rows:
        low, high = wilson(row["passed"] / row["n"], row["cases"])
        found.append({**row, "pass_rate": float(row["pass_rate"]), "low": low, "high": high})
    return found
