"""The statistics of reports: intervals of rates, and whether two models differ by more than noise.

Plain Python: the exact test and the interval are a few lines each, and a library for them weighs a hundred megabytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

Z95 = 1.959963984540054
"""The 97.5 % point of the normal distribution."""


def wilson(rate: float, n: int, z: float = Z95) -> tuple[float, float]:
    """The score interval of a rate over n cases, at 95 %.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), 209–212. It
    stays within 0 and 1, and is right for few cases and for rates near the ends, where the usual interval is not.
    """
    if n <= 0:
        return 0.0, 1.0
    rate = min(max(rate, 0.0), 1.0)
    denominator = 1 + z * z / n
    middle = (rate + z * z / (2 * n)) / denominator
    half = z / denominator * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends the interval touches them exactly; rounding must not take that away.
    low = 0.0 if rate == 0 else max(0.0, middle - half)
    return low, 1.0 if rate == 1 else min(1.0, middle + half)


def mcnemar(regressed: int, improved: int) -> float:
    """The exact two-sided p of as many changes one way and the other, if neither way were likelier.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947), 153–157; exact: the sign test on the cases that changed.
    """
    n = regressed + improved
    if n == 0:
        return 1.0
    fewer = min(regressed, improved)
    tail = 0
    term = 1
    for k in range(fewer + 1):
        tail += term
        term = term * (n - k) // (k + 1)
    # A ratio of whole numbers: 2 ** -n alone is no float from about a thousand cases up.
    return min(1.0, 2 * tail / (1 << n))


SMALLEST_DISCORDANT = 6
"""With fewer changed cases than this no outcome of the exact test is below 0.05."""


def paired_bootstrap(
    differences: Mapping[float, int], *, seed: int = 0, resamples: int = 1000, level: float = 0.95
) -> tuple[float, float]:
    """The percentile interval of the mean difference per case, from resampling cases with replacement.

    `differences` counts the cases by the candidate's pass rate less the baseline's. B. Efron and R. Tibshirani, "An
    Introduction to the Bootstrap" (1993), chapter 13. A resample of n cases is drawn as the counts of each
    difference, one multinomial draw.
    """
    n = sum(differences.values())
    if n == 0:
        return 0.0, 0.0
    # The commonest first: what is left to draw from is soon small.
    values = sorted(differences, key=lambda value: (-differences[value], value))
    rng = random.Random(seed)
    means = sorted(_resampled(rng, values, [differences[value] for value in values], n) / n for _ in range(resamples))
    tail = (1 - level) / 2
    low = means[math.floor(tail * (resamples - 1))]
    return low, means[math.ceil((1 - tail) * (resamples - 1))]


def _resampled(rng: random.Random, values: Sequence[float], counts: Sequence[int], n: int) -> float:
    total, left, weight = 0.0, n, n
    for value, count in zip(values, counts, strict=True):
        if left == 0:
            break
        drawn = left if count == weight else binomial(rng, left, count / weight)
        total += value * drawn
        left -= drawn
        weight -= count
    return total


def binomial(rng: random.Random, n: int, p: float) -> int:
    """One draw of how many of n trials succeed, in about log n steps; exact but where the normal curve is as good.

    D. A. Relles, "A simple algorithm for generating binomial random variables when N is large", JASA 67 (1972),
    612–613: the middle one of n uniform numbers is a beta variable, and tells which half is left to look at.
    """
    if n * p * (1 - p) > 1000:
        return min(n, max(0, round(rng.gauss(n * p, math.sqrt(n * p * (1 - p))))))
    found = 0
    while n > 20:
        middle = n // 2 + 1
        split = rng.betavariate(middle, n + 1 - middle)
        if split <= p:
            found += middle
            n -= middle
            p = min(1.0, (p - split) / (1 - split)) if split < 1 else 0.0
        else:
            n = middle - 1
            p = min(1.0, p / split)
    return found + sum(rng.random() < p for _ in range(n))


def pass_all(passed: int, trials: int, k: int) -> float:
    """The chance that k trials of a case all pass, estimated from those there were: C(passed, k) / C(trials, k).

    "pass^k" of S. Yao et al., "τ-bench: a benchmark for tool-agent-user interaction in real-world domains" (2024).
    """
    if not 1 <= k <= trials:
        raise ValueError(f"pass^{k} cannot be told from {trials} trials.")
    return math.comb(passed, k) / math.comb(trials, k)


def majority(passed: int, trials: int) -> bool:
    """Whether more than half of a case's trials passed."""
    return 2 * passed > trials
