"""Each scorer's one rule."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import everyturn as et
from everyturn.datasets.scorers import resolve, resolve_all
from everyturn.datasets.scoring import judge
from everyturn.errors import InvalidValue
from everyturn.judge import Judge
from everyturn.testing import ScriptedModel


def case(reference: str | None, **fields: Any) -> et.Case:
    return et.Case(
        **{
            "id": uuid4(),
            "source": "s",
            "prompt": "p",
            "context": {},
            "reference": reference,
            "tags": [],
            "captured_at": datetime.now(UTC),
            "captured_by": "me",
            "turn_id": None,
            "content_hash": "",
            **fields,
        }
    )


async def passes(spec: Any, output: str, reference: str | None) -> bool | None:
    return (await judge([resolve(spec)], case(reference), output)).passed


@pytest.mark.parametrize(
    ("output", "passed"),
    [
        ("Paris", True),
        (" Paris\n", True),
        ("paris", False),
        ("Paris.", False),
        ("Paris is", False),
        ("Pari s", False),
        ("Pa\u0301ris", False),
    ],
)
async def test_exact(output: str, passed: bool) -> None:
    """Field case 103: white space at the ends and line ends are normalised, nothing else."""
    assert await passes("exact", output, "Paris") is passed


async def test_exact_normalises_unicode_and_line_ends_and_keeps_the_order_of_words() -> None:
    """Field case 103."""
    assert await passes("exact", "Cafe\u0301\r\nx", "Café\nx")
    assert not await passes("exact", "world hello", "hello world")
    assert not await passes("exact", "hello  world", "hello world")


@pytest.mark.parametrize(
    ("spec", "output", "reference", "passed"),
    [
        ("contains", "It is Paris, I think.", "Paris", True),
        ("contains", "It is Rome.", "Paris", False),
        ("contains:%s", "100 %s", None, True),
        ("regex", "order 66", r"order \d+$", True),
        ("regex:(?i)^PARIS", "paris!", None, True),
        ("regex", "no", r"\d", False),
        ("json", '```json\n{"b": 2.0, "a": [1]}\n```', '{"a": [1.0], "b": 2}', True),
        ("json", '{"a": [2, 1]}', '{"a": [1, 2]}', False),
        ("json", "{'a': 1}", '{"a": 1}', False),
        ("numeric", "First 3, then 1,234.50", "1234.5", True),
        ("numeric:0.5", "about 10.4", "10", True),
        ("numeric:1%", "102", "100", False),
        ("numeric:2%", "102", "100", True),
        ("numeric", "no number", "1", False),
        ("numeric", "-3", "3", False),
        ("numeric", "\u22123", "3", False),
        ("numeric", "x = \u22123", "-3", True),
        ("numeric", "2024-12-05", "5", True),
        ("numeric", "as gpt-4", "4", True),
        ("numeric", "5, or 1e999", "5", False),
        ("contains", "anything", " ", False),
        ("contains", " ", "", True),
        ("contains:", "anything", None, False),
        ("json", "NaN", "null", False),
        ("json", "1e400", "null", False),
    ],
)
async def test_rules(spec: str, output: str, reference: str | None, passed: bool) -> None:
    assert await passes(spec, output, reference) is passed


@pytest.mark.parametrize("output", ["", " \n"])
@pytest.mark.parametrize("spec", ["exact", "regex:.*", "contains:", lambda output, case: True])
async def test_an_empty_output_fails_and_is_flagged(spec: Any, output: str) -> None:
    """Field case 102."""
    found = await judge([resolve(spec)], case("Paris"), output)
    assert found.passed is False
    assert found.reason == "The output is empty."
    assert await passes("exact", output, "") is True


async def test_no_word_is_taken_for_a_refusal() -> None:
    """Field case 102."""
    text = "I'm sorry to hear that. I cannot stress enough: rest."
    assert await passes("exact", text, text)


async def test_a_wrong_reference_is_an_error_not_a_failure() -> None:
    for spec, reference in (
        ("json", "{"),
        ("json", "NaN"),
        ("json", "1e999"),
        ("numeric", "many"),
        ("numeric", "1e999"),
        ("regex", "("),
    ):
        found = await judge([resolve(spec)], case(reference), "x")
        assert found.passed is None
        assert found.error is not None
        assert found.error.startswith(spec)


async def test_a_scorer_that_exits_is_an_error() -> None:
    async def leave(output: str, case: et.Case) -> bool:
        raise SystemExit(0)

    for scorer in (leave, lambda output, case: sys.exit(0)):
        found = await judge([resolve(scorer)], case(None), "p")
        assert found.passed is None
        assert "called sys.exit(0)" in str(found.error)


async def test_functions() -> None:
    async def by_name(reference: str | None, output: str) -> float:
        return 0.7 if reference == output else 0.2

    def given_all(output: str, the_case: et.Case) -> et.Score:
        return et.Score(output == the_case.prompt, 0.5, "because")

    assert await passes(by_name, "a", "a") is True
    assert await passes(by_name, "a", "b") is False
    assert (await judge([resolve(given_all)], case(None), "p")).reason is None
    for wrong in (lambda output, case: None, lambda output, case: 7, lambda output, case: 1 / 0):
        found = await judge([resolve(wrong)], case(None), "p")
        assert (found.passed, found.error is None) == (None, False)


async def test_all_scorers_must_pass_and_each_is_told() -> None:
    scorers = resolve_all(["contains:a", "regex:b"])
    assert (await judge(scorers, case(None), "ab")).passed is True
    found = await judge(scorers, case(None), "a")
    assert found.passed is False
    assert {name: score["pass"] for name, score in found.scores.items()} == {"contains:a": True, "regex:b": False}


async def test_a_judge_error_is_kept_apart() -> None:
    """Field case 96: whatever the other scorers say, the verdict is unknown and the error is kept."""
    judging = Judge(ScriptedModel(['{"reason": "ok"}']))
    found = await judge([resolve("exact"), resolve(judging)], case("x"), "x")
    assert found.passed is None
    assert found.error is not None
    assert found.scores["exact"]["pass"] is True
    assert found.scores["judge:scripted"]["raw"] == '{"reason": "ok"}'


async def test_without_a_reference_only_what_needs_none_applies() -> None:
    found = await judge(resolve_all(["exact", "contains:a"]), case(None), "a")
    assert list(found.scores) == ["contains:a"]
    assert (await judge(resolve_all(["exact"]), case(None), "a")).passed is None


async def test_similarity() -> None:
    async def embed(texts: list[str], kind: str) -> list[list[float]]:
        return [[1.0, float(len(text))] for text in texts]

    scorer = resolve("similarity:0.9", et.Embedder(embed, name="length"))
    assert (await judge([scorer], case("abcd"), "wxyz")).passed is True
    assert (await judge([scorer], case("a"), "a very long text indeed")).passed is False


async def test_python_objects_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scorers.py").write_text("def short(output):\n    return len(output) < 5\n")
    scorer = resolve(f"python:{tmp_path}/my_scorers.py:short")
    assert scorer.name.endswith("my_scorers.py:short")
    assert (await judge([scorer], case(None), "abc")).passed is True


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "exactly",
        "exact:x",
        "numeric:abc",
        "numeric:-1",
        "regex:(",
        "judge",
        "judge:",
        "similarity",
        7,
        "similarity:2",
    ],
)
def test_what_is_no_scorer_is_refused(spec: Any) -> None:
    with pytest.raises(InvalidValue):
        resolve(spec)
    with pytest.raises(InvalidValue, match="twice"):
        resolve_all(["exact", "exact"])
