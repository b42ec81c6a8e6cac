"""Evaluators at work on a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.claims import Claims
from everyturn.evaluating import Evaluation
from everyturn.following import Follower


@pytest.fixture
async def everyturn_db(everyturn_url: str) -> AsyncIterator[et.Database]:
    """Closed in the loop of the test: connections may still be opening when a worker has ended."""
    async with et.connect(everyturn_url, embedder=False) as db:
        yield db


async def turns(db: et.Database, count: int, kind: str = "model", agent: str = "a", **payload: Any) -> list[et.Turn]:
    conversation = uuid4()
    return await db.turns.append_many(
        [et.NewTurn(conversation, agent, kind, {"text": str(n)} | payload) for n in range(count)]
    )


async def test_every_turn_is_judged_once(everyturn_db: et.Database) -> None:
    db = everyturn_db
    judged: list[UUID] = []

    @et.evaluator("rubric:v1", kinds=["model"], agent="a")
    async def rubric(turn: et.Turn) -> et.Verdict:
        judged.append(turn.id)
        return et.Verdict("good" if int(turn.payload["text"]) % 2 else "bad", "\x00odd", score=0.5, payload={"n": {1}})

    model = await turns(db, 600)
    await turns(db, 3, kind="user")
    await turns(db, 3, agent="b")
    assert await Evaluation(db, rubric).count() == 600
    done = await db.evals.run(rubric)
    assert (done.good, done.bad, done.recorded, done.failed) == (300, 300, 600, 0)
    assert sorted(judged) == sorted(turn.id for turn in model)
    assert (await db.evals.run(rubric)).recorded == 0
    one = (await db.evals.list(turn_id=model[0].id))[0]
    assert one.id == rubric.verdict_id(model[0].id)
    assert (one.conversation, one.evaluator, one.verdict) == (model[0].conversation, "rubric:v1", "bad")
    assert one.payload["score"] == 0.5
    assert "\x00" not in (one.rationale or "")
    # A verdict recorded by a hook counts too, whatever its id.
    late = (await turns(db, 1))[0]
    await db.evals.record(late.id, "rubric:v1", "good")
    assert (await db.evals.run(rubric)).recorded == 0


async def test_an_error_leaves_no_verdict_and_is_tried_again_next_time(everyturn_db: et.Database) -> None:
    """Covers field case 94."""
    db = everyturn_db
    broken = True

    @et.evaluator("shaky")
    def shaky(turn: et.Turn) -> Any:
        if int(turn.payload["text"]) % 2:
            if broken:
                raise ValueError("no answer")
            return "partial"
        return "good" if turn.payload["text"] != "0" else "splendid"

    await turns(db, 10)
    done = await db.evals.run(shaky)
    assert (done.good, done.failed, len(done.failures)) == (4, 6, 6)
    assert {type(failure.error) for failure in done.failures} == {ValueError, et.InvalidValue}
    assert len(await db.evals.list()) == 4
    broken = False
    done = await db.evals.run(shaky)
    assert (done.partial, done.failed) == (5, 1)


async def test_no_opinion_leaves_no_verdict(everyturn_db: et.Database) -> None:
    await turns(everyturn_db, 3)
    done = await everyturn_db.evals.run(et.Evaluator("none", lambda turn: None))
    assert (done.abstained, done.recorded) == (3, 0)
    assert await everyturn_db.evals.list() == []


async def test_limit_since_and_agent(everyturn_db: et.Database) -> None:
    db = everyturn_db
    good = et.Evaluator("good", lambda turn: "good")
    await turns(db, 20)
    await turns(db, 5, agent="b")
    old = await db.turns.append(uuid4(), "a", "model", {"text": "old"}, created_at=et_time("2001-01-01"))
    assert (await db.evals.run(good, limit=7, concurrency=3)).recorded == 7
    assert (await db.evals.run(good, agent="b")).recorded == 5
    assert (await db.evals.run(good, since=et_time("2002-01-01"))).recorded == 13
    assert (await db.evals.run(good)).recorded == 1
    assert (await db.evals.list(turn_id=old.id))[0].verdict == "good"
    for bad in ({"concurrency": 0}, {"limit": 0}):
        with pytest.raises(et.InvalidValue):
            await db.evals.run(good, **bad)
    with pytest.raises(et.InvalidValue, match="for the agent"):
        await db.evals.run(et.Evaluator("x", print, agent="a"), agent="b")
    with pytest.raises(et.InvalidValue, match="not an evaluator"):
        await db.evals.run(print)  # type: ignore[arg-type]


def et_time(text: str) -> Any:
    from everyturn.cli.times import parse_time

    return parse_time(text)


async def test_conversations_are_judged_when_they_have_ended(everyturn_db: et.Database) -> None:
    db = everyturn_db
    lengths: dict[UUID, int] = {}

    @et.evaluator("whole:v1")
    def whole(conversation: et.Conversation, db: Any) -> bool:
        lengths[conversation.id] = len(conversation.turns)
        return bool(db.turns.load(conversation.id))

    async def conversation(*said: tuple[str, dict[str, Any]]) -> UUID:
        id = uuid4()
        await db.turns.append_many([et.NewTurn(id, "a", kind, payload) for kind, payload in said])
        return id

    ask, answer = ("user", {"text": "?"}), ("model", {"text": "!"})
    calls = ("model", {"text": "", "toolCalls": [{"id": "1", "name": "t", "args": {}}]})
    over = await conversation(ask, answer)
    hooked = await conversation(
        ask, answer, ("error", {"stage": "hook"}), ("tool_result", {"toolName": "memory.forget"})
    )
    limited = await conversation(
        ask, calls, ("error", {"stage": "tool", "toolCallId": "1"}), ("error", {"stage": "limit"})
    )
    await conversation(ask)
    open_ = await conversation(ask, calls, ("error", {"stage": "tool", "toolCallId": "1"}))
    await conversation(ask, ("model", {"text": "!", "incomplete": True}))
    await conversation(ask, answer, ask)
    assert (await db.evals.run(whole)).good == 3
    assert lengths == {over: 2, hooked: 4, limited: 4}
    found = {one.conversation: one for one in await db.evals.list()}
    assert found[over].payload == {"target": "conversation"}
    assert (await db.turns.get(found[hooked].turn_id)).kind == "model"
    assert (await db.evals.run(whole)).recorded == 0
    # What goes on is judged again.
    await db.turns.append_many(
        [et.NewTurn(id, "a", kind, payload) for id in (over, open_) for kind, payload in (ask, answer)]
    )
    assert (await db.evals.run(whole)).good == 2
    assert lengths[over] == 4
    assert len(await db.evals.list(conversation=over)) == 2


async def test_workers_share_the_work(everyturn_db: et.Database) -> None:
    db = everyturn_db
    calls: list[UUID] = []

    async def slow(turn: et.Turn) -> str:
        calls.append(turn.id)
        await asyncio.sleep(0.005)
        return "good"

    judged = et.Evaluator("slow", slow)
    await turns(db, 120)
    # Two in one process, on one session, and one with a database of its own.
    async with et.connect(db.url, embedder=False) as other:
        done = await asyncio.gather(*(one.evals.run(judged, concurrency=4) for one in (db, db, other)))
    assert sum(one.recorded for one in done) == 120
    assert all(one.recorded for one in done)
    assert sorted(calls) == sorted(set(calls))


async def test_claims_are_given_back(everyturn_db: et.Database) -> None:
    db = everyturn_db
    ids = [uuid4() for _ in range(20)]
    async with et.connect(db.url, embedder=False) as other:
        mine, theirs = Claims(db), Claims(other)
        assert await mine.take(ids[:10]) == set(ids[:10])
        assert await mine.take(ids[:1]) == set()
        assert await theirs.take(ids) == set(ids[10:])
        await mine.free(ids)
        assert await theirs.take(ids[:10]) == set(ids[:10])
        await theirs.free(ids)
        [row] = await db.fetch("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory'")
        assert row["n"] == 0


async def test_behind_a_pooler_every_claim_is_granted_and_it_is_said_once(
    everyturn_db: et.Database, caplog: pytest.LogCaptureFixture
) -> None:
    db = everyturn_db
    await turns(db, 5)
    await db.lock_session.connection()
    db.lock_session.pooled = True
    good = et.Evaluator("good", lambda turn: True)
    done = await asyncio.gather(db.evals.run(good, concurrency=2), db.evals.run(good, concurrency=2))
    assert sum(one.recorded for one in done) == 5
    assert len(await db.evals.list()) == 5
    assert all("pooler" in record.message for record in caplog.records)
    assert 0 < len(caplog.records) <= 2
    assert not db.lock_session.held


async def test_a_cancelled_worker_leaves_nothing_locked(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await turns(db, 5)
    started = asyncio.Event()

    async def forever(turn: et.Turn) -> str:
        started.set()
        await asyncio.sleep(60)
        return "good"

    task = asyncio.create_task(db.evals.run(et.Evaluator("forever", forever)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [row] = await db.fetch("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory'")
    assert row["n"] == 0
    assert (await db.evals.run(et.Evaluator("forever", lambda turn: True))).good == 5


async def test_a_late_commit_is_seen(everyturn_db: et.Database) -> None:
    """Covers field case 27."""
    db = everyturn_db
    insert = (
        "INSERT INTO agent_turns (conversation, agent, kind, payload) VALUES (gen_random_uuid(), 'a', 'model', '{}')"
    )
    follower = Follower(db, grace=0)
    await turns(db, 3)
    async with await psycopg.AsyncConnection.connect(db.url) as early:
        await early.execute(insert)  # seq 4, not committed
        await turns(db, 2)
        await follower.look()
        await follower.look()
        assert follower.known < 4
        await early.commit()
    await follower.look()
    await follower.look()
    assert follower.known == 6


async def test_watching_judges_what_comes_and_tries_again(
    everyturn_db: et.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = everyturn_db
    monkeypatch.setattr("everyturn.evaluating._RETRY", (0.05, 0.1))
    tries: dict[str, int] = {}

    def picky(turn: et.Turn) -> Any:
        text = turn.payload["text"]
        tries[text] = tries.get(text, 0) + 1
        if text == "1" and tries[text] < 3:
            raise ValueError("not yet")
        return None if text == "2" else "good"

    await turns(db, 3)
    evaluation = Evaluation(db, et.Evaluator("picky", picky), limit=4)
    watching = asyncio.create_task(evaluation.watch(0.02))
    await asyncio.sleep(0.2)
    async with db.transaction():  # commits after what is appended meanwhile
        conversation = uuid4()
        await db.turns.append(conversation, "a", "model", {"text": "early"})
        async with et.connect(db.url, embedder=False) as other:
            await other.turns.append(conversation, "a", "model", {"text": "late"})
        await asyncio.sleep(0.1)
    done = await asyncio.wait_for(watching, 20)
    assert (done.good, done.failed, done.abstained) == (4, 2, 1)
    assert tries == {"0": 1, "1": 3, "2": 1, "early": 1, "late": 1}


async def test_failing_in_a_row_slows_down(everyturn_db: et.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    await turns(everyturn_db, 30)

    async def fails(turn: et.Turn) -> str:
        raise ValueError("down")

    monkeypatch.setattr("everyturn.evaluating.asyncio.sleep", noted)
    done = await everyturn_db.evals.run(et.Evaluator("down", fails), concurrency=1)
    monkeypatch.undo()
    assert done.failed == 30
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert max(pauses) == 5.0


async def test_retention_during_an_evaluation(everyturn_db: et.Database) -> None:
    db = everyturn_db

    async def delete(turn: et.Turn, db: et.Database) -> str:
        await db.execute("DELETE FROM agent_turns WHERE id = %s", [turn.id])
        return "good"

    await turns(db, 3)
    done = await db.evals.run(et.Evaluator("late", delete))
    assert (done.recorded, done.failed) == (0, 0)
    assert await db.evals.list() == []


async def test_redaction_reaches_what_a_judge_quotes(everyturn_url: str) -> None:
    def redact(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("sk-1", "***")
        return {key: redact(item) for key, item in value.items()} if isinstance(value, dict) else value

    async with et.connect(everyturn_url, embedder=False, redact=redact) as db:
        [turn] = await turns(db, 1)
        await db.evals.run(et.Evaluator("q", lambda turn: et.Verdict("bad", "leaks sk-1", payload={"quote": "sk-1"})))
        await db.evals.record(turn.id, "human", "bad", "leaks sk-1")
        for one in await db.evals.list():
            assert one.rationale == "leaks ***"
            assert "sk-1" not in str(one.payload)
