"""Replays: each case and trial once, whatever happens to the process, the model or the judge."""

from __future__ import annotations

import asyncio
import math
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from datasets_helpers import echo, embedder, model, numbers, quick  # noqa: F401
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everyturn as et
from everyturn import testing
from everyturn.datasets.plan import Estimate, choose, read_prompt
from everyturn.datasets.work import Progress
from everyturn.errors import InvalidValue, ReplayConflict, ReplayNotFound
from everyturn.judge import Judge


async def runs(db: et.Database) -> list[dict[str, Any]]:
    return await db.fetch(
        "SELECT r.*, c.prompt FROM eval_run r JOIN eval_case c ON c.id = r.case_id ORDER BY c.id, trial"
    )


async def test_every_case_is_a_row(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 5)
    seen: list[Progress] = []
    done = await db.datasets.replay(
        "core@1", model=model(lambda word: "9" if word == "3" else word), prompt="Be brief.", progress=seen.append
    )
    assert (done.status, done.model) == ("finished", "model")
    rows = await runs(db)
    assert [(row["output"], row["pass"]) for row in rows] == [
        ("0", True),
        ("1", True),
        ("2", True),
        ("9", False),
        ("4", True),
    ]
    row = rows[0]
    assert (row["model"], row["input_tokens"], row["output_tokens"]) == ("model", 10, 2)
    assert (row["cost_usd"], row["judge_score"], row["error"]) == (Decimal("0.001"), Decimal(1), None)
    assert row["scores"] == {"exact": {"pass": True, "score": 1.0, "reason": None}}
    assert rows[3]["judge_reason"] == "The output is not '3'."
    assert (seen[0].done, seen[-1].done, seen[-1].passed, seen[-1].failed) == (0, 5, 4, 1)
    assert seen[-1].pass_rate == 0.8
    [replay] = await db.fetch("SELECT * FROM eval_replay")
    assert (replay["prompt"], replay["status"], replay["scorers"]) == ("Be brief.", "finished", [])
    assert replay["ended_at"] is not None


async def test_the_revision_of_a_prompt_is_gits(everyturn_db: et.Database, tmp_path: Path) -> None:
    file = tmp_path / "system.md"
    file.write_bytes("Sei knapp – bitte.\r\n".encode())
    expected = subprocess.run(  # noqa: ASYNC221
        ["git", "hash-object", "--no-filters", file], capture_output=True, text=True, check=True
    ).stdout.strip()
    await numbers(everyturn_db, 1)
    done = await everyturn_db.datasets.replay("core", model=model(echo), prompt=read_prompt(file))
    assert done.prompt_rev == expected
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidValue):
        read_prompt(file)
    named = await everyturn_db.datasets.replay("core", model=model(echo), prompt_rev="a1b2c3", model_name="claude-x")
    assert (named.model, named.prompt_rev) == ("claude-x", "a1b2c3")


async def test_what_a_model_does_wrong_is_a_row(everyturn_db: et.Database) -> None:
    """Field case 94: an error is no pass, and stays in the denominator."""

    async def leaf(request: et.ModelRequest) -> Any:
        match request.messages[-1].text.split()[-1]:  # type: ignore[union-attr]
            case "0":
                raise RuntimeError("boom \x00")
            case "1":
                await asyncio.sleep(60)
            case "2":
                return et.ModelTurn(tool_calls=[et.ToolCall("c", "look", {})])
            case "3":
                return {"not": "a turn"}
            case "4":
                return ""
            case "5":
                return "5\x00\ud800" + "x" * 100_000
        return "6"

    await numbers(everyturn_db, 7)
    done = await everyturn_db.datasets.replay("core", model=leaf, timeout=0.3)
    rows = await runs(everyturn_db)
    assert [row["outcome"] for row in rows] == ["error"] * 4 + ["fail", "fail", "pass"]
    assert [row["pass"] for row in rows] == [False] * 6 + [True]
    assert [row["output"][:3] for row in rows] == ["", "", "", "", "", "5\ufffd\ufffd", "6"]
    assert "boom" in rows[0]["error"]
    assert "no answer within 0.3 s" in rows[1]["error"]
    assert "look" in rows[2]["error"]
    assert (done.progress.passed, done.progress.errors, done.progress.done) == (1, 4, 7)


async def test_a_judge_that_fails_is_kept_apart(everyturn_db: et.Database) -> None:
    """Field case 94, 96, 99: 5 pass, 5 raise in the judge; the gate does not open."""
    await numbers(everyturn_db, 10)
    verdicts = ['{"score": 1}'] * 5 + [RuntimeError("judge is down"), '{"reason": "ok"}', "", '{"score": 85}', "{}"]
    judging = Judge(testing.ScriptedModel(verdicts))
    done = await everyturn_db.datasets.replay("core", model=model(echo), scorers=[judging], concurrency=1)
    assert (done.progress.passed, done.progress.errors, done.progress.pass_rate) == (5, 5, 0.5)
    rows = await runs(everyturn_db)
    assert [row["pass"] for row in rows] == [True] * 5 + [None] * 5
    assert all(row["error"] and row["output"] for row in rows[5:])
    [line] = await everyturn_db.datasets.report("core")
    assert (line.n, line.passed, line.errors, line.pass_rate) == (10, 5, 5, 0.5)
    gate = await everyturn_db.datasets.gate("core", min_pass_rate=0.4)
    assert gate.status == "fail"
    assert (await everyturn_db.datasets.gate("core", min_pass_rate=0.4, max_errors=5)).status == "pass"


async def test_without_a_reference_an_output_waits_for_its_judge(everyturn_db: et.Database) -> None:
    """Field case 93: only the judge runs when one is added."""
    await everyturn_db.cases.capture("say hello")
    await everyturn_db.cases.capture("say 1", reference="1")
    await everyturn_db.datasets.publish("core")
    asked = Counter[str]()

    def answer(word: str) -> str:
        asked[word] += 1
        return word

    done = await everyturn_db.datasets.replay("core", model=model(answer))
    assert (done.status, done.progress.passed, done.progress.unjudged) == ("finished", 1, 1)
    assert (await everyturn_db.datasets.gate("core", min_pass_rate=0.9)).status == "insufficient_data"
    judging = Judge(testing.ScriptedModel([et.ModelTurn(text='{"score": 0.7}', cost_usd="0.01")]))
    again = await everyturn_db.datasets.resume(done.id, model=model(answer), scorers=[judging])
    assert (again.progress.passed, again.progress.unjudged, again.progress.done) == (2, 0, 2)
    assert again.progress.judge_cost_usd == Decimal("0.01")
    assert asked == {"hello": 1, "1": 1}
    with pytest.raises(InvalidValue, match="comparable"):
        await everyturn_db.datasets.resume(done.id, model=model(answer), scorers=["exact"])


class Stop(Exception):
    """What ends a replay half way."""


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_stopped_anywhere_and_resumed_each_case_and_trial_is_run_once(everyturn_url: str, data: st.DataObject) -> None:
    """Field case 91, 93: rows, costs and totals of both parts; no answer is paid twice but those under way."""
    trials, concurrency = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    stops = data.draw(st.lists(st.integers(0, 12), max_size=3))

    async def run() -> None:
        async with et.connect(everyturn_url, embedder=False) as db:
            if not await db.datasets.list():
                await numbers(db, 4)
            asked = Counter[str]()
            judged = 0

            def answer(word: str) -> str:
                asked[word] += 1
                return word

            async def scorer(output: str, case: et.Case) -> bool:
                nonlocal judged
                judged += 1
                await asyncio.sleep(0)
                return True

            async def part(limit: int | None, replay_id: Any) -> Any:
                count = 0

                def progress(now: Progress) -> None:
                    nonlocal count
                    count += 1
                    if limit is not None and count > limit:
                        raise Stop

                options: dict[str, Any] = {
                    "model": model(answer),
                    "scorers": [scorer],
                    "concurrency": concurrency,
                    "progress": progress,
                }
                try:
                    if replay_id is None:
                        await db.datasets.replay("core@1", trials=trials, **options)
                    else:
                        await db.datasets.resume(replay_id, **options)
                except Stop:
                    return None

            replay_id = None
            for limit in [*stops, None]:
                await part(limit, replay_id)
                [row] = await db.fetch("SELECT id, status FROM eval_replay ORDER BY started_at DESC, id DESC LIMIT 1")
                replay_id = row["id"]
            assert row["status"] == "finished"
            rows = await db.fetch("SELECT * FROM eval_run WHERE replay_id = %s", (replay_id,))
            assert Counter((r["case_id"], r["trial"]) for r in rows) == Counter(
                {(r["case_id"], trial): 1 for r in rows for trial in range(1, trials + 1)}
            )
            assert len(rows) == 4 * trials
            assert all(r["outcome"] == "pass" for r in rows)
            assert sum(r["cost_usd"] for r in rows) == Decimal("0.001") * len(rows)
            # At most what was under way when it was stopped is asked again.
            assert sum(asked.values()) <= len(rows) + len(stops) * concurrency
            assert judged <= len(rows) + len(stops) * concurrency

    asyncio.run(run())


async def test_a_cancelled_replay_is_stopped_and_finished_later(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 6)
    gate = asyncio.Event()

    async def slow(word: str) -> str:
        if word in "45":
            await gate.wait()
        return word

    task = asyncio.create_task(db.datasets.replay("core", model=model(slow), concurrency=2))
    while len(await runs(db)) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    [row] = await db.fetch("SELECT id FROM eval_replay")
    with pytest.raises(ReplayConflict):
        await db.datasets.resume(row["id"], model=model(slow))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [row] = await db.fetch("SELECT id, status, ended_at FROM eval_replay")
    assert row["status"] == "stopped"
    gate.set()
    done = await db.datasets.resume(row["id"], model=model(slow))
    assert (done.status, done.progress.passed) == ("finished", 6)


async def test_a_limit_on_the_cost_is_kept_judges_included(everyturn_db: et.Database) -> None:
    await numbers(everyturn_db, 20)
    verdict = et.ModelTurn(text='{"score": 1}', cost_usd="0.004")
    options: dict[str, Any] = {
        "model": model(echo, cost="0.001"),
        "scorers": [Judge(lambda request: verdict)],
        "concurrency": 3,
    }
    done = await everyturn_db.datasets.replay("core", max_cost=0.042, **options)
    assert done.status == "stopped"
    assert done.stopped_because is not None
    spent = done.progress.cost_usd + done.progress.judge_cost_usd
    assert Decimal("0.02") <= spent <= Decimal("0.042")
    again = await everyturn_db.datasets.resume(done.id, **{**options, "max_cost": 1})
    assert (again.status, again.progress.done) == ("finished", 20)
    for nothing in ("max_cost", 0), ("max_cost", math.nan), ("timeout", 0), ("timeout", math.nan):
        with pytest.raises(InvalidValue):
            await everyturn_db.datasets.replay("core", **{**options, nothing[0]: nothing[1]})


async def test_a_limit_is_kept_before_it_is_known_what_an_answer_costs(everyturn_db: et.Database) -> None:
    await numbers(everyturn_db, 20)
    verdict = et.ModelTurn(text='{"score": 1}', cost_usd="0.004")

    async def slow(request: et.ModelRequest) -> et.ModelTurn:
        await asyncio.sleep(0.01)
        return et.ModelTurn(text="x", cost_usd="0.001")

    done = await everyturn_db.datasets.replay(
        "core", model=slow, scorers=[Judge(lambda request: verdict)], concurrency=16, max_cost="0.011"
    )
    assert (done.status, done.progress.done) == ("stopped", 2)
    assert done.progress.cost_usd + done.progress.judge_cost_usd == Decimal("0.010")


async def test_an_unknown_price_is_unknown(everyturn_db: et.Database) -> None:
    """Field case 108."""
    await numbers(everyturn_db, 4)
    done = await everyturn_db.datasets.replay("core", model=model(echo, name="my-local-8b", cost=None))
    assert {row["cost_usd"] for row in await runs(everyturn_db)} == {None}
    assert done.progress.unpriced == 4
    [line] = await everyturn_db.datasets.report("core")
    assert (line.cost_usd, line.unpriced, line.n) == (None, 4, 4)
    assert (await everyturn_db.datasets.gate("core", max_cost_usd=1)).status == "insufficient_data"
    capped = await everyturn_db.datasets.replay("core", model=model(echo, cost=None), max_cost=1, concurrency=1)
    assert capped.status == "stopped"


async def test_a_sample_is_the_same_for_the_same_seed(everyturn_db: et.Database) -> None:
    dataset = await numbers(everyturn_db, 30)
    one, _ = choose(dataset.case_ids, 7, 5)
    assert one == choose(dataset.case_ids, 7, 5)[0] != choose(dataset.case_ids, 7, 6)[0]
    assert one == [id for id in dataset.case_ids if id in set(one)]
    done = await everyturn_db.datasets.replay("core", model=model(echo), sample=7)
    [row] = await everyturn_db.fetch("SELECT seed, case_ids FROM eval_replay WHERE id = %s", (done.id,))
    assert row["case_ids"] == choose(dataset.case_ids, 7, row["seed"])[0]
    assert (await everyturn_db.datasets.gate("core", min_pass_rate=1)).status == "pass"


async def test_errors_are_made_again_only_when_asked(everyturn_db: et.Database) -> None:
    await numbers(everyturn_db, 3)
    broken = True

    def answer(word: str) -> str:
        if broken and word == "1":
            raise ConnectionError("away")
        return word

    done = await everyturn_db.datasets.replay("core", model=model(answer))
    broken = False
    assert (await everyturn_db.datasets.resume(done.id, model=model(answer))).progress.errors == 1
    again = await everyturn_db.datasets.resume(done.id, model=model(answer), retry_errors=True)
    assert (again.progress.errors, again.progress.passed, again.progress.done) == (0, 3, 3)


async def test_a_dry_run_estimates_and_does_nothing(everyturn_db: et.Database) -> None:
    await numbers(everyturn_db, 4)
    first = await everyturn_db.datasets.replay("core", model=model(echo), trials=3, dry_run=True)
    assert isinstance(first, Estimate)
    assert (first.calls, first.cost_usd) == (12, None)
    assert await everyturn_db.fetch("SELECT 1 FROM eval_replay") == []
    await everyturn_db.datasets.replay("core", model=model(echo))
    second = await everyturn_db.datasets.replay("core", model=model(echo), trials=3, dry_run=True)
    assert isinstance(second, Estimate)
    assert (second.input_tokens, second.output_tokens, second.cost_usd) == (120, 24, Decimal("0.012"))


async def test_history_is_sent(everyturn_db: et.Database) -> None:
    scripted = testing.ScriptedModel(["one", "two"])
    turns = [
        {"kind": "user", "payload": {"text": "Hi"}},
        {"kind": "model", "payload": {"text": "", "toolCalls": [{"id": "call_1", "name": "look", "args": {"a": 1}}]}},
        {"kind": "tool_call", "payload": {"toolName": "look", "toolCallId": "call_1", "args": {"a": 1}}},
        {"kind": "tool_result", "payload": {"toolName": "look", "toolCallId": "call_1", "result": "seen"}},
        {"kind": "model", "payload": {"text": "Hello"}},
    ]
    await everyturn_db.cases.capture("and now?", context={"history": turns}, reference="one")
    spoken = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    await everyturn_db.cases.capture("and then?", context={"history": spoken}, reference="two")
    await everyturn_db.cases.capture("broken", context={"history": [{"role": "system", "content": "x"}]}, reference="")
    await everyturn_db.datasets.publish("core")
    done = await everyturn_db.datasets.replay("core", model=scripted, concurrency=1)
    assert (done.progress.passed, done.progress.errors) == (2, 1), [row["error"] for row in await runs(everyturn_db)]
    assert [type(message).__name__ for message in scripted.requests[0].messages] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
        "UserMessage",
    ]
    assert [message.text for message in scripted.requests[1].messages] == ["Hi", "Hello", "and then?"]  # type: ignore[union-attr]


async def test_what_cannot_be_replayed_is_said_before_anything_is_written(everyturn_db: et.Database) -> None:
    await numbers(everyturn_db, 2)
    for wrong in (
        {},
        {"model": "nonsense"},
        {"model": model(echo), "scorers": ["nonsense"]},
        {"model": model(echo), "scorers": "exact"},
        {"model": model(echo), "trials": 0},
        {"model": model(echo), "sample": 0},
        {"model": model(echo), "queue": True},
        {"model": model(echo), "model_name": "x" * 3000},
        {"model": model(echo), "prompt_rev": " "},
        {"model": model(echo), "scorers": ["similarity"]},
    ):
        with pytest.raises((InvalidValue, et.ModelError)):
            await everyturn_db.datasets.replay("core", **wrong)
    assert await everyturn_db.fetch("SELECT 1 FROM eval_replay") == []
    with pytest.raises(ReplayNotFound):
        await everyturn_db.datasets.resume(uuid4(), model=model(echo))
    done = await everyturn_db.datasets.replay("core", model=model(echo))
    with pytest.raises(InvalidValue, match="Python object"):
        await everyturn_db.datasets.resume(done.id)
    with pytest.raises(InvalidValue, match="go on with is other"):
        await everyturn_db.datasets.resume(done.id, model=model(echo, name="other"))


async def test_similarity_needs_the_embedder_of_the_database() -> None:
    async with testing.database(embedder=embedder()) as db:
        await db.cases.capture("say hello", reference="hello there")
        await db.datasets.publish("core")
        done = await db.datasets.replay("core", model=lambda request: "there hello", scorers=["similarity:0.99"])
        assert done.progress.passed == 1


async def test_a_frozen_dataset_shows_the_same_results_for_ever(everyturn_db: et.Database) -> None:
    """Field case 106: publish, run, supersede one case, publish again; the first report is as it was."""
    db = everyturn_db
    dataset = await numbers(db, 3)
    await db.datasets.replay("core@1", model=model(echo))
    before = await db.datasets.report("core@1")
    replacement = await db.cases.capture("say two", reference="two")
    await db.cases.supersede(dataset.case_ids[2], replacement.id)
    await db.datasets.publish("core")
    assert await db.datasets.report("core@1") == before
    assert await db.datasets.report("core@2") == []
