"""Cohen's kappa, and the interval of a difference of rates."""

from __future__ import annotations

import pytest

from everyturn.agreement import agreement, cohens_kappa
from everyturn.comparing import difference_interval


def test_kappa_of_a_table_worked_by_hand() -> None:
    # p_o = 35/50, p_e = (25 * 30 + 25 * 20) / 2500 = .5
    kappa, error = cohens_kappa({("good", "good"): 20, ("good", "bad"): 5, ("bad", "good"): 10, ("bad", "bad"): 15})
    assert kappa == pytest.approx(0.4)
    assert error == pytest.approx((0.7 * 0.3 / 50) ** 0.5 / 0.5)


def test_kappa_of_three_verdicts() -> None:
    pairs = {("good", "good"): 4, ("partial", "good"): 2, ("bad", "bad"): 3, ("partial", "bad"): 1}
    # p_o = .7; rows 4, 3, 3; columns 6, 0, 4: p_e = (4 * 6 + 3 * 4) / 100
    assert cohens_kappa(pairs)[0] == pytest.approx((0.7 - 0.36) / (1 - 0.36))


def test_the_ends_of_kappa() -> None:
    assert cohens_kappa({("good", "good"): 5, ("bad", "bad"): 5})[0] == 1.0
    assert cohens_kappa({("good", "bad"): 5, ("bad", "good"): 5})[0] == -1.0
    assert cohens_kappa({})[0] is None


@pytest.mark.parametrize("n", [1, 3, 49, 10_000])
def test_kappa_is_not_defined_where_both_say_one_and_the_same(n: int) -> None:
    found = agreement("a", "human", {("good", "good"): n})
    assert (found.kappa, found.kappa_low, found.agreement) == (None, None, 1.0)


def test_the_confusion_table_holds_every_pair() -> None:
    found = agreement("a", "human", {("good", "bad"): 2, ("bad", "bad"): 1})
    assert found.confusion["good"] == {"good": 0, "partial": 0, "bad": 2}
    assert (found.turns, found.agreed) == (3, 1)
    assert found.kappa_low is not None
    assert -1 <= found.kappa_low <= found.kappa_high <= 1  # type: ignore[operator]


def test_the_interval_of_a_difference() -> None:
    # Newcombe (1998), table II, example (a): 56/70 less 48/80 is 0.2, with 0.0524 to 0.3339.
    assert difference_interval(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    low, high = difference_interval(10, 10, 0, 10)
    assert 0 < low < high == 1.0
