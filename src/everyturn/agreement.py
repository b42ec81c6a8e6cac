"""Judging the judge: how far two evaluators agree about the turns that both judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .statistics import Z95

VERDICTS_IN_ORDER = ("good", "partial", "bad")

Confusion: TypeAlias = Mapping[tuple[str, str], int]
"""How many turns got this verdict from the one evaluator, and that from the other."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two evaluators compare. Only turns that both judged count, each by the evaluator's latest verdict."""

    evaluator: str
    against: str
    turns: int
    agreed: int
    agreement: float | None
    """The share of turns with the same verdict; None without turns."""
    kappa: float | None
    """Cohen's kappa; None where chance alone would make them agree always."""
    kappa_low: float | None
    kappa_high: float | None
    """The 95 % interval of kappa, of use from some dozens of turns up."""
    confusion: dict[str, dict[str, int]]
    """Turns by the evaluator's verdict, then by the other's."""


def agreement(evaluator: str, against: str, pairs: Confusion) -> Agreement:
    """The figures for a confusion table."""
    turns = sum(pairs.values())
    agreed = sum(count for (one, other), count in pairs.items() if one == other)
    kappa, error = cohens_kappa(pairs)
    low = high = None
    if kappa is not None and error is not None:
        low, high = max(-1.0, kappa - Z95 * error), min(1.0, kappa + Z95 * error)
    confusion = {one: {other: pairs.get((one, other), 0) for other in VERDICTS_IN_ORDER} for one in VERDICTS_IN_ORDER}
    return Agreement(evaluator, against, turns, agreed, agreed / turns if turns else None, kappa, low, high, confusion)


def cohens_kappa(pairs: Confusion) -> tuple[float | None, float | None]:
    """Cohen's kappa and its standard error.

    kappa = (p_o - p_e) / (1 - p_e), where p_o is the share of equal verdicts and p_e the share to be expected if each
    gave its verdicts as often as it did, but at random; SE = sqrt(p_o (1 - p_o) / (n (1 - p_e)^2)). J. Cohen, "A
    coefficient of agreement for nominal scales", Educational and Psychological Measurement 20 (1960), 37–46.
    None without turns, and where p_e is 1: both gave one and the same verdict to all.
    """
    n = sum(pairs.values())
    if n == 0:
        return None, None
    rows: dict[str, int] = {}
    columns: dict[str, int] = {}
    for (one, other), count in pairs.items():
        rows[one] = rows.get(one, 0) + count
        columns[other] = columns.get(other, 0) + count
    # In whole numbers, so that certain agreement by chance is found exactly.
    by_chance = sum(count * columns.get(verdict, 0) for verdict, count in rows.items())
    if by_chance == n * n:
        return None, None
    observed = sum(count for (one, other), count in pairs.items() if one == other) / n
    expected = by_chance / (n * n)
    kappa = (observed - expected) / (1 - expected)
    return kappa, math.sqrt(observed * (1 - observed) / n) / (1 - expected)
