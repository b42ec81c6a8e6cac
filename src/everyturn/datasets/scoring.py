"""All scorers of a replay on one output: passed only when every one of them lets it pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from everyturn.judge import JudgeError
from everyturn.payloads import said

from .scorers import Judged, Score, Scorer
from .values import Case


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the scorers found."""

    passed: bool | None = None
    """None where no scorer applied, or one failed."""
    score: float | None = None
    reason: str | None = None
    error: str | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    cost_usd: Decimal | None = None
    unpriced: bool = False
    """Whether a judge was asked whose price is not known."""


def applicable(scorers: Sequence[Scorer], case: Case) -> list[Scorer]:
    """The scorers that can say something about a case."""
    return [scorer for scorer in scorers if scorer.applies(case)]


async def judge(scorers: Sequence[Scorer], case: Case, output: str) -> Judgement:
    """Score an output. An output that is blank, where the reference is not, fails without asking."""
    chosen = applicable(scorers, case)
    if not chosen:
        return Judgement()
    if not output.strip() and not (case.reference is not None and not case.reference.strip()):
        reason = "The output is empty."
        return Judgement(
            False, 0.0, reason, scores={s.name: {"pass": False, "score": 0.0, "reason": reason} for s in chosen}
        )
    scores: dict[str, Any] = {}
    found: list[tuple[Scorer, Score]] = []
    errors: list[str] = []
    costs: list[Decimal | None] = []
    for scorer in chosen:
        try:
            score = await scorer.score(case, output)
        except Exception as error:
            errors.append(f"{scorer.name}: {said(error)}")
            scores[scorer.name] = {"pass": None, "error": said(error)}
            if isinstance(error, JudgeError):
                scores[scorer.name]["raw"] = error.raw
                costs.append(error.cost_usd)
            continue
        found.append((scorer, score))
        scores[scorer.name] = {"pass": score.passed, "score": score.score, "reason": score.reason}
        if isinstance(scorer, Judged):
            costs.append(score.cost_usd)
    priced = [cost for cost in costs if cost is not None]
    return Judgement(
        None if errors else all(score.passed for _, score in found),
        None if errors else _score(found),
        _reason(found),
        "; ".join(errors) or None,
        scores,
        sum(priced, Decimal(0)) if priced else None,
        len(priced) < len(costs),
    )


def _score(found: Sequence[tuple[Scorer, Score]]) -> float | None:
    """The mean of the judges' scores; of all scores where there was no judge."""
    judged = [score.score for scorer, score in found if isinstance(scorer, Judged) and score.score is not None]
    scores = judged or [score.score for _, score in found if score.score is not None]
    return sum(scores) / len(scores) if scores else None


def _reason(found: Sequence[tuple[Scorer, Score]]) -> str | None:
    """Why it failed, or what the judges said of what passed."""
    failed = [score.reason for _, score in found if not score.passed and score.reason]
    said_by_judges = [score.reason for scorer, score in found if isinstance(scorer, Judged) and score.reason]
    return " ".join(failed or said_by_judges) or None
