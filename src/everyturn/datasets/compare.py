"""What changed between two models or prompts, case by case, and whether it is more than noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everyturn.errors import InvalidValue, NotEnoughData

from ..statistics import SMALLEST_DISCORDANT, majority, mcnemar, paired_bootstrap
from .sides import Side, find, sides
from .values import Dataset

if TYPE_CHECKING:
    from everyturn.database import Database

CATEGORIES = ("regressed", "new_failure", "flaky", "unjudged", "improved", "removed", "new", "unchanged")


@dataclass(frozen=True, slots=True)
class Diff:
    """A candidate against a baseline."""

    dataset: str
    baseline: Side
    candidate: Side
    counts: dict[str, int]
    """Cases by category.

    `regressed` and `improved` go by the majority of a case's trials; `new_failure` and `new` are not in the baseline,
    `removed` is not in the candidate; `flaky` has the same majority, but trials that disagree; `unjudged` lacks a
    verdict on either side.
    """
    paired: int
    """Cases with a verdict on both sides."""
    baseline_rate: float | None
    candidate_rate: float | None
    """The pass rates over the paired cases."""
    difference: float | None
    low: float | None
    high: float | None
    """The 95 % bootstrap interval of the difference."""
    p_value: float | None
    """Exact McNemar: regressed against improved."""
    verdict: str
    """`better`, `worse`, `no difference shown`, or `not enough data`."""
    seed: int


def category(row: Mapping[str, Any]) -> str:
    """The category of the cases with this pair of results; the same rule as the query `regressions`."""
    old_n, old, new_n, new = row["old_n"], row["old_passed"], row["new_n"], row["new_passed"]
    if row["unjudged"]:
        return "unjudged"
    if new_n is None:
        return "removed"
    if old_n is None:
        return "new" if majority(new, new_n) else "new_failure"
    before, after = majority(old, old_n), majority(new, new_n)
    if before != after:
        return "regressed" if before else "improved"
    return "flaky" if old not in (0, old_n) or new not in (0, new_n) else "unchanged"


async def diff(
    db: Database,
    dataset: Dataset,
    *,
    baseline: str | None = None,
    candidate: str | None = None,
    seed: int = 0,
) -> Diff:
    """Compare a candidate with a baseline: each `MODEL`, `MODEL@REV` or a replay's id.

    Without a candidate it is the newest replay, without a baseline the newest one before it of another model or prompt.
    Raises NotEnoughData where a side was never replayed.
    """
    old, new = await _both(db, dataset, baseline, candidate)
    rows = await db.query(
        "diff_counts",
        dataset_id=dataset.id,
        baseline=old.model,
        baseline_rev=old.prompt_rev,
        baseline_replay=old.replay_id,
        candidate=new.model,
        candidate_rev=new.prompt_rev,
        candidate_replay=new.replay_id,
    )
    counts: Counter[str] = Counter(dict.fromkeys(CATEGORIES, 0))
    differences: Counter[float] = Counter()
    old_rate = new_rate = 0.0
    for row in rows:
        kind = category(row)
        counts[kind] += row["cases"]
        if kind in ("regressed", "improved", "flaky", "unchanged"):
            before, after = row["old_passed"] / row["old_n"], row["new_passed"] / row["new_n"]
            differences[after - before] += row["cases"]
            old_rate += before * row["cases"]
            new_rate += after * row["cases"]
    paired = sum(differences.values())
    low, high = paired_bootstrap(differences, seed=seed) if paired else (None, None)
    p = mcnemar(counts["regressed"], counts["improved"]) if paired else None
    return Diff(
        str(dataset),
        old,
        new,
        dict(counts),
        paired,
        old_rate / paired if paired else None,
        new_rate / paired if paired else None,
        (new_rate - old_rate) / paired if paired else None,
        low,
        high,
        p,
        _verdict(paired, counts["regressed"], counts["improved"], p),
        seed,
    )


def _verdict(paired: int, regressed: int, improved: int, p: float | None) -> str:
    if paired == 0:
        return "not enough data"
    if regressed + improved < SMALLEST_DISCORDANT:
        # Many cases of which hardly any changed are evidence of their own; few cases are none.
        return "not enough data" if paired < 50 or regressed + improved else "no difference shown"
    if p is not None and p < 0.05:
        return "better" if improved > regressed else "worse"
    return "no difference shown"


async def _both(db: Database, dataset: Dataset, baseline: str | None, candidate: str | None) -> tuple[Side, Side]:
    known = await sides(db, dataset)
    if candidate is not None:
        new = await find(db, dataset, candidate, known)
    elif known:
        new = known[0]
    else:
        raise NotEnoughData(f"{dataset} was not replayed yet. `everyturn replay {dataset} --model …` does it.")
    if baseline is not None:
        old = await find(db, dataset, baseline, known)
    else:
        others = [side for side in known if (side.model, side.prompt_rev) != (new.model, new.prompt_rev)]
        if not others:
            raise NotEnoughData(f"{dataset} was replayed with {new.label} only: there is nothing to compare it with.")
        old = others[0]
    if (old.model, old.prompt_rev, old.replay_id) == (new.model, new.prompt_rev, new.replay_id):
        raise InvalidValue(f"The baseline and the candidate are the same: {new.label}.")
    return old, new


async def changed_cases(
    db: Database, dataset: Dataset, found: Diff, *, kind: str = "any", limit: int | None = None
) -> list[dict[str, Any]]:
    """The cases of a category (or all that changed), with the outputs of both sides."""
    if kind != "any" and kind not in CATEGORIES:
        raise InvalidValue(f"The category {kind!r} is not one of any, {', '.join(CATEGORIES)}.")
    return await db.query(
        "regressions",
        name=dataset.name,
        version=dataset.version,
        baseline=found.baseline.model,
        baseline_rev=found.baseline.prompt_rev,
        baseline_replay=found.baseline.replay_id,
        candidate=found.candidate.model,
        candidate_rev=found.candidate.prompt_rev,
        candidate_replay=found.candidate.replay_id,
        category=kind,
        limit=limit,
    )
