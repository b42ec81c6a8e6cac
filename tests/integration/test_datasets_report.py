"""Reports, comparisons and gates over runs, also those that other programs wrote."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from datasets_helpers import echo, model, numbers, quick  # noqa: F401

import everyturn as et
from everyturn.datasets.compare import CATEGORIES, changed_cases
from everyturn.datasets.report import by_tag
from everyturn.errors import InvalidValue, NotEnoughData


def failing(*words: str) -> Any:
    return lambda word: "wrong" if word in words else word


async def by_hand(db: et.Database, dataset: et.Dataset, name: str, outcomes: str, rev: str = "a1b2c3") -> None:
    """Runs as another program writes them: t, f, or - for a case without a run."""
    for case, outcome in zip(dataset.case_ids, outcomes, strict=True):
        if outcome != "-":
            await db.execute(
                "INSERT INTO eval_run (dataset_id, case_id, model, prompt_rev, output, pass, latency_ms, input_tokens,"
                " output_tokens, cost_usd) VALUES (%s, %s, %s, %s, %s, %s, 5, 1, 1, 0.5)",
                (dataset.id, case, name, rev, f"{name} says", {"t": True, "f": False}.get(outcome)),
            )


async def test_a_report(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 4)
    await db.datasets.replay("core", model=model(failing("1"), name="old"), prompt="One.")
    await db.datasets.replay("core", model=model(failing("1", "2"), name="new"), prompt="One.")
    await db.datasets.replay("core", model=model(echo, name="new"), prompt="Two.", trials=2)
    lines = await db.datasets.report("core")
    assert [(line.model, line.pass_rate, line.n, line.cases) for line in lines] == [
        ("new", 1.0, 8, 4),
        ("old", 0.75, 4, 4),
        ("new", 0.5, 4, 4),
    ]
    best, old, worst = lines
    assert old.label == "old"
    assert best.label.startswith("new@")
    assert best.label != worst.label
    assert old.low < 0.75 < old.high
    assert (best.majority, best.pass_all) == (1.0, 1.0)
    assert (old.cost_usd, old.input_tokens, old.output_tokens) == (Decimal("0.004"), 40, 8)
    tags = await by_tag(db, await db.datasets.get("core"), model="old")
    assert [(row["tag"], row["pass_rate"]) for row in tags] == [("odd", 0.5), ("even", 1.0)]
    named = await db.query("pass_rate", name="core", version=1)
    assert [(row["model"], float(row["pass_rate"])) for row in named] == [("new", 1.0), ("old", 0.75), ("new", 0.5)]


async def test_the_newest_replay_counts_once(everyturn_db: et.Database) -> None:
    """Field case 91, 105: a second replay of a model replaces the first in reports; none is counted twice."""
    db = everyturn_db
    await numbers(db, 4)
    first = await db.datasets.replay("core", model=model(failing("1")))
    await db.datasets.replay("core", model=model(echo))
    [line] = await db.datasets.report("core")
    assert (line.n, line.passed) == (4, 4)
    [earlier] = await db.datasets.report("core", replay=first.id)
    assert (earlier.n, earlier.passed) == (4, 3)
    [seed] = await db.fetch("SELECT count(*) AS n, avg(pass::int)::numeric(4,3) AS rate FROM eval_run")
    assert (seed["n"], seed["rate"]) == (8, Decimal("0.875"))


async def test_percentiles(everyturn_db: et.Database) -> None:
    db = everyturn_db
    dataset = await numbers(db, 20)
    await by_hand(db, dataset, "m", "t" * 20)
    await db.execute(
        "UPDATE eval_run r SET latency_ms = 100 * n.place FROM (SELECT id, row_number() OVER (ORDER BY id) AS place"
        " FROM eval_run) AS n WHERE n.id = r.id"
    )
    [line] = await db.datasets.report("core")
    assert (line.p50_ms, line.p95_ms) == (1000, 1900)


async def test_runs_written_by_hand_take_part(everyturn_db: et.Database) -> None:
    """The newest of a case counts; a model that was also replayed is judged by its replay."""
    db = everyturn_db
    dataset = await numbers(db, 4)
    await by_hand(db, dataset, "claude-opus-4-6", "fftt")
    await by_hand(db, dataset, "claude-opus-4-6", "ttt-")
    await by_hand(db, dataset, "claude-opus-4-7", "tft-")
    old, new = sorted(await db.datasets.report("core"), key=lambda line: line.model)
    assert (old.n, old.passed, old.replay_id) == (4, 4, None)
    assert (new.n, new.planned, new.passed) == (3, 4, 2)
    found = await db.datasets.diff("core", baseline="claude-opus-4-6", candidate="claude-opus-4-7")
    assert (found.counts["regressed"], found.counts["removed"], found.counts["unchanged"]) == (1, 1, 2)
    [row] = await db.query("regressions", name="core", baseline="claude-opus-4-6", candidate="claude-opus-4-7")
    assert (row["id"], row["output"], row["old_output"]) == (
        dataset.case_ids[1],
        "claude-opus-4-7 says",
        "claude-opus-4-6 says",
    )
    await db.datasets.replay("core", model=model(echo), model_name="claude-opus-4-7", prompt_rev="a1b2c3")
    assert all(line.passed == 4 for line in await db.datasets.report("core"))


async def test_every_category(everyturn_db: et.Database) -> None:
    db = everyturn_db
    dataset = await numbers(db, 8)
    await by_hand(db, dataset, "old", "tftft--t")
    await by_hand(db, dataset, "new", "ftt-ut" + "ft")
    found = await db.datasets.diff("core", baseline="old", candidate="new")
    assert {name: count for name, count in found.counts.items() if count} == {
        "regressed": 1,
        "improved": 1,
        "unchanged": 2,
        "removed": 1,
        "unjudged": 1,
        "new": 1,
        "new_failure": 1,
    }
    assert (found.paired, found.baseline_rate, found.candidate_rate) == (4, 0.75, 0.75)
    for kind in CATEGORIES:
        rows = await changed_cases(db, dataset, found, kind=kind)
        assert len(rows) == found.counts[kind], kind
        assert {row["category"] for row in rows} <= {kind}
    rows = await changed_cases(db, dataset, found)
    assert [row["category"] for row in rows][:2] == ["regressed", "new_failure"]
    assert len(await changed_cases(db, dataset, found, limit=2)) == 2
    with pytest.raises(InvalidValue):
        await changed_cases(db, dataset, found, kind="nonsense")


async def test_trials_are_taken_by_majority(everyturn_db: et.Database) -> None:
    db = everyturn_db
    dataset = await numbers(db, 4)
    asked: dict[str, int] = {}

    def unsteady(word: str) -> str:
        asked[word] = asked.get(word, 0) + 1
        wrong = {"0": 1, "1": 2, "2": 3}.get(word, 0)
        return "wrong" if asked[word] <= wrong else word

    await db.datasets.replay("core", model=model(echo, name="old"), trials=3)
    await db.datasets.replay("core", model=model(unsteady, name="new"), trials=3, concurrency=1)
    found = await db.datasets.diff("core", baseline="old", candidate="new")
    assert (found.counts["flaky"], found.counts["regressed"], found.counts["unchanged"]) == (1, 2, 1)
    assert found.candidate_rate == pytest.approx((2 / 3 + 1 / 3 + 0 + 1) / 4)
    line = next(line for line in await db.datasets.report(dataset) if line.model == "new")
    assert (line.majority, line.pass_all) == (0.5, 0.25)


async def test_an_error_is_a_failure_in_a_comparison(everyturn_db: et.Database) -> None:
    """Field case 94."""

    def broken(word: str) -> str:
        raise RuntimeError("boom")

    db = everyturn_db
    dataset = await numbers(db, 3)
    await db.datasets.replay("core", model=model(echo, name="old"))
    await db.datasets.replay("core", model=model(broken, name="new"))
    found = await db.datasets.diff("core")
    assert (found.baseline.model, found.candidate.model) == ("old", "new")
    assert found.counts["regressed"] == 3
    rows = await changed_cases(db, dataset, found)
    assert all("boom" in row["error"] for row in rows)


async def test_noise_and_too_little_are_told_from_a_difference(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 60)
    lost = [str(n) for n in range(12)]
    await db.datasets.replay("core", model=model(echo, name="old"))
    await db.datasets.replay("core", model=model(failing(*lost), name="worse"))
    await db.datasets.replay("core", model=model(failing("1", "2"), name="nearly"))
    await db.datasets.replay("core", model=model(echo, name="same"))
    worse = await db.datasets.diff("core", baseline="old", candidate="worse")
    assert worse.verdict == "worse"
    assert worse.p_value is not None
    assert worse.p_value < 0.001
    assert worse.high is not None
    assert worse.high < 0
    assert (await db.datasets.diff("core", baseline="worse", candidate="old")).verdict == "better"
    assert (await db.datasets.diff("core", baseline="old", candidate="nearly")).verdict == "not enough data"
    assert (await db.datasets.diff("core", baseline="old", candidate="same")).verdict == "no difference shown"


async def test_sides_are_named_by_model_revision_or_replay(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 2)
    one = await db.datasets.replay("core", model=model(failing("1")), prompt="One.")
    two = await db.datasets.replay("core", model=model(echo), prompt="Two.")
    with pytest.raises(InvalidValue, match="several") as caught:
        await db.datasets.diff("core", baseline="model", candidate=str(two.id))
    assert one.prompt_rev[:12] in str(caught.value)
    found = await db.datasets.diff("core", baseline=f"model@{one.prompt_rev[:7]}", candidate=f"model@{two.prompt_rev}")
    assert (found.counts["improved"], found.baseline.label) == (1, f"model@{one.prompt_rev[:12]}")
    same = await db.datasets.diff("core", baseline=str(one.id), candidate=str(two.id))
    assert same.counts == found.counts
    with pytest.raises(InvalidValue, match="same"):
        await db.datasets.diff("core", baseline=str(one.id), candidate=str(one.id))
    for unknown in ("nobody", "model@ffffffff", str(UUID(int=9))):
        with pytest.raises(NotEnoughData):
            await db.datasets.diff("core", baseline=unknown)


async def test_a_gate_tells_pass_fail_and_not_yet(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 10)
    assert (await db.datasets.gate("core", min_pass_rate=0.9)).status == "insufficient_data"
    with pytest.raises(NotEnoughData):
        await db.datasets.diff("core")
    await db.datasets.replay("core", model=model(echo, name="old"))
    assert (await db.datasets.gate("core", max_regressions=0)).status == "insufficient_data"
    await db.datasets.replay("core", model=model(failing("1"), name="new"))

    async def status(**limits: Any) -> str:
        return (await db.datasets.gate("core", candidate="new", **limits)).status

    assert await status(min_pass_rate=0.9) == "pass"
    assert await status(min_pass_rate=0.91) == "fail"
    assert await status(max_regressions=1, baseline="old") == "pass"
    assert await status(max_regressions=0) == "fail"
    assert await status(max_cost_usd=0.01) == "pass"
    assert await status(max_cost_usd=0.009) == "fail"
    assert await status(max_p95_ms=60_000) == "pass"
    assert await status(min_pass_rate=0.9, baseline="nobody") == "insufficient_data"
    assert (await db.datasets.gate("core", candidate="nobody", min_pass_rate=0)).status == "insufficient_data"
    for wrong in ({}, {"min_pass_rate": 1.5}, {"max_regressions": -1}, {"min_pass_rate": 0.5, "max_errors": -1}):
        with pytest.raises(InvalidValue):
            await status(**wrong)


async def test_a_gate_does_not_open_on_half_a_replay(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 10)
    await db.datasets.replay("core", model=model(echo, name="old"))

    async def stuck(word: str) -> str:
        if int(word) >= 6:
            await asyncio.sleep(60)
        return "wrong" if word == "1" else word

    task = asyncio.create_task(db.datasets.replay("core", model=model(stuck, name="new"), concurrency=2))
    while (await db.fetch("SELECT count(*) AS n FROM eval_run"))[0]["n"] < 16:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate = await db.datasets.gate("core", candidate="new", min_pass_rate=0.5)
    assert gate.status == "insufficient_data"
    assert any("4 of 10 runs are not made" in check.said for check in gate.checks)
    assert (await db.datasets.gate("core", candidate="new", min_pass_rate=0.95)).status == "fail"
    assert (await db.datasets.gate("core", candidate="new", max_regressions=0, baseline="old")).status == "fail"
    assert (await db.datasets.gate("core", candidate="new", max_regressions=1, baseline="old")).status == (
        "insufficient_data"
    )
