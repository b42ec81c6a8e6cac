"""Intervals and tests against figures worked out by hand, in tables, or by brute force."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyturn.statistics import binomial, majority, mcnemar, paired_bootstrap, pass_all, wilson


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_against_published_figures(passed: int, n: int, low: float, high: float) -> None:
    """The last: R. Newcombe, Statistics in Medicine 17 (1998), table I."""
    assert wilson(passed / n, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_rate_and_stays_within_bounds(n: int, data: st.DataObject) -> None:
    rate = data.draw(st.integers(0, n)) / n
    low, high = wilson(rate, n)
    assert 0 <= low <= rate <= high <= 1
    assert low < high


def test_no_cases_say_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_the_two_sided_sign_test(regressed: int, improved: int) -> None:
    n = regressed + improved
    extreme = min(regressed, improved)
    outcomes = [sum(flips) for flips in itertools.product((0, 1), repeat=n)] if n <= 10 else None
    if outcomes is None:
        tail = sum(math.comb(n, k) for k in range(extreme + 1)) / 2**n
        assert mcnemar(regressed, improved) == pytest.approx(min(1.0, 2 * tail))
        return
    tail = sum(flips <= extreme for flips in outcomes) / len(outcomes)
    assert mcnemar(regressed, improved) == pytest.approx(min(1.0, 2 * tail))


def test_mcnemar_of_many_cases() -> None:
    assert mcnemar(0, 5) == pytest.approx(0.0625)
    assert mcnemar(0, 6) < 0.05
    assert mcnemar(5000, 5000) == 1.0
    assert 0 < mcnemar(4500, 5500) < 1e-20


def test_the_bootstrap_is_the_same_for_the_same_seed() -> None:
    differences = {-1.0: 10, 0.0: 80, 1.0: 10}
    assert paired_bootstrap(differences, seed=3) == paired_bootstrap(differences, seed=3)


def test_the_bootstrap_is_as_wide_as_theory_says() -> None:
    n, p = 400, 0.3
    low, high = paired_bootstrap({0.0: int(n * (1 - p)), 1.0: int(n * p)}, seed=1, resamples=4000)
    half = 1.96 * math.sqrt(p * (1 - p) / n)
    assert (low, high) == pytest.approx((p - half, p + half), abs=0.006)
    assert paired_bootstrap({}) == (0.0, 0.0)
    assert paired_bootstrap({0.5: 7}) == (0.5, 0.5)


@pytest.mark.parametrize(("n", "p"), [(5, 0.2), (21, 0.5), (300, 0.05), (1000, 0.9), (10**6, 0.4)])
def test_binomial_draws_have_the_mean_and_spread_of_the_distribution(n: int, p: float) -> None:
    rng = random.Random(11)
    draws = [binomial(rng, n, p) for _ in range(4000)]
    assert all(0 <= draw <= n for draw in draws)
    deviation = math.sqrt(n * p * (1 - p))
    assert statistics.mean(draws) == pytest.approx(n * p, abs=4 * deviation / math.sqrt(4000))
    assert statistics.stdev(draws) == pytest.approx(deviation, rel=0.08)


def test_trials() -> None:
    assert pass_all(3, 3, 3) == 1.0
    assert pass_all(2, 3, 3) == 0.0
    assert pass_all(2, 3, 2) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="trials"):
        pass_all(1, 2, 3)
    assert not majority(1, 2)
    assert majority(2, 3)
