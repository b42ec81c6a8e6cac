"""What an evaluator may be, and what it may say."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest

import everyturn as et
from everyturn.claims import claim_key
from everyturn.evaluators import Evaluator, Verdict, as_verdict, evaluator


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("good", Verdict("good")),
        (True, Verdict("good")),
        (False, Verdict("bad")),
        (("partial", "half of it"), Verdict("partial", "half of it")),
        ((False, "no"), Verdict("bad", "no")),
        (Verdict("bad", score=0.25), Verdict("bad", score=0.25)),
        (None, None),
    ],
)
def test_what_an_evaluator_may_say(said: Any, verdict: Verdict | None) -> None:
    assert as_verdict(said) == verdict


@pytest.mark.parametrize(
    "said", ["Good", "pass", "", 1, 0.7, {"verdict": "good"}, ("good",), ("good", 1), (None, "x"), []]
)
def test_anything_else_is_no_verdict(said: Any) -> None:
    """Covers field case 96."""
    with pytest.raises(et.InvalidValue):
        as_verdict(said)


@pytest.mark.parametrize("score", [10, 85, 9.995, -1, float("nan"), float("inf"), "0.5", True])
def test_a_score_is_from_0_to_1(score: Any) -> None:
    """Covers field case 99."""
    with pytest.raises(et.InvalidValue, match="0 to 1"):
        Verdict("good", score=score)


def test_which_turns_it_is_for() -> None:
    def turn(turn: et.Turn) -> bool:
        return True

    def annotated(conversation: et.Conversation, db: Any) -> bool:
        return True

    assert Evaluator("a", turn).kinds is None
    assert Evaluator("a", turn, kinds="model").kinds == ["model"]
    assert not Evaluator("a", turn).whole
    assert Evaluator("a", turn, kinds="conversation").whole
    assert Evaluator("a", turn, kinds=["conversation"]).whole
    assert Evaluator("a", annotated).whole
    for kinds in (["models"], ["model", "conversation"], []):
        with pytest.raises(et.InvalidValue, match="kind"):
            Evaluator("a", turn, kinds=kinds)
    for name in ("", " ", "a\nb", None):
        with pytest.raises(et.InvalidValue):
            evaluator(name)(turn)  # type: ignore[arg-type]


def test_it_can_still_be_called() -> None:
    @et.evaluator("length")
    def length(turn: str) -> bool:
        return len(turn) < 3

    assert length("ab")
    assert not length("abc")


def test_the_id_of_a_verdict_is_made_of_turn_and_evaluator() -> None:
    turn = UUID("01a22f11-34b7-7478-a5e7-85ba0ae5c99d")
    one, other = Evaluator("rubric:v3", print), Evaluator("rubric:v4", print)
    assert one.verdict_id(turn) == uuid5(turn, "rubric:v3") != other.verdict_id(turn)


def test_claims_are_signed_and_told_apart() -> None:
    keys = {claim_key(uuid4()) for _ in range(1000)}
    assert len(keys) == 1000
    assert all(-(2**63) <= key < 2**63 for key in keys)


async def test_an_evaluator_that_exits_has_failed() -> None:
    async def leave(turn: et.Turn) -> bool:
        raise SystemExit(0)

    for function in (leave, lambda turn: sys.exit(0)):
        with pytest.raises(RuntimeError, match=r"called sys.exit\(0\)"):
            await Evaluator("a", function).judge(None, None)  # type: ignore[arg-type]


async def test_a_synchronous_evaluator_runs_in_a_thread_and_a_slow_one_ends() -> None:
    import threading
    import time

    here = threading.get_ident()
    judged = Evaluator("a", lambda turn: threading.get_ident() != here)
    assert await judged.judge(None, None) == Verdict("good")  # type: ignore[arg-type]
    slow = Evaluator("a", lambda turn: time.sleep(0.3), timeout=0.05)
    with pytest.raises(TimeoutError, match="did not end within"):
        await slow.judge(None, None)  # type: ignore[arg-type]
