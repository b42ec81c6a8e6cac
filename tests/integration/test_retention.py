"""What goes with time, and what must not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import everyturn as et
from everyturn.testing import ScriptedModel

OLD = datetime(2020, 1, 1, tzinfo=UTC)


async def age(db: et.Database, run: str) -> None:
    await db.execute("UPDATE agent_events SET created_at = '2020-01-01' WHERE run_id = %s", (run,))


async def kinds(db: et.Database, conversation: UUID) -> list[str]:
    return [turn.kind for turn in await db.turns.load(conversation)]


async def exchange(
    db: et.Database, conversation: UUID, n: int, when: datetime | None = OLD, agent: str = "bot"
) -> list[et.Turn]:
    call = {"toolName": "look", "toolCallId": f"c{n}"}
    turns: list[tuple[str, dict[str, Any]]] = [
        ("user", {"text": f"question {n}"}),
        ("model", {"text": "", "toolCalls": [{"id": f"c{n}", "name": "look", "args": {}}]}),
        ("tool_call", {**call, "args": {}}),
        ("tool_result", {**call, "result": "seen"}),
        ("model", {"text": f"answer {n}"}),
    ]
    return await db.turns.append_many(
        [et.NewTurn(conversation, agent, kind, {**payload, "runId": f"run{n}"}, when) for kind, payload in turns]
    )


async def test_old_events_expire_by_type_and_run(everyturn_db: et.Database) -> None:
    """field case 153: of one run, only that run."""
    db = everyturn_db
    for run in ("good", "bad", "cut", "young"):
        for kind in ("turn_start", "text_delta", "text_delta", "turn_end"):
            await db.events.append(et.EventRecord(run, "bot", {"type": kind}))
    await db.events.append(et.EventRecord("good", "bot", {"type": "final"}))
    await db.events.append(et.EventRecord("bad", "bot", {"type": "error"}))
    for run in ("good", "bad", "cut"):
        await age(db, run)

    async def left() -> dict[str, int]:
        return {run.run_id: run.events for run in await db.events.runs()}

    everything = {"good": 5, "bad": 5, "cut": 4, "young": 4}
    tried = await db.events.expire(timedelta(days=14), dry_run=True)
    assert (tried.events, await left()) == (14, everything)
    assert tried.bytes > 14 * 100
    assert (await db.events.expire(timedelta(days=14), agent="nobody")).events == 0
    assert (await db.events.expire(timedelta(days=14), run_id="cut", types=["text_delta"])).events == 2
    assert await left() == {**everything, "cut": 2}
    seen: list[float] = []
    gone = await db.events.expire(
        datetime(2021, 1, 1), keep_failed=True, progress=lambda so_far, share: seen.append(share)
    )
    assert (gone.events, await left()) == (5, {"bad": 5, "cut": 2, "young": 4})
    assert seen[-1] == 1.0
    assert (await db.events.expire(timedelta(days=14))).events == 7
    assert await left() == {"young": 4}
    assert (await db.events.expire(timedelta(days=14))).events == 0
    for wrong in (timedelta(days=-1), "14d"):
        with pytest.raises(et.InvalidValue):
            await db.events.expire(wrong)  # type: ignore[arg-type]


async def test_a_pass_that_is_stopped_goes_on(everyturn_db: et.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyturn.retention._EVENT_WINDOW", 10)
    monkeypatch.setattr("everyturn.retention._TURNS", 7)
    monkeypatch.setattr("everyturn.retention._CONVERSATIONS", 1)
    db = everyturn_db
    await db.execute(
        "INSERT INTO agent_events (run_id, agent_id, event, created_at)"
        " SELECT 'r', 'a', '{\"type\": \"t\"}', '2020-01-01' FROM generate_series(1, 55)"
    )
    conversations = [uuid4() for _ in range(3)]
    for conversation in conversations:
        for n in range(4):
            await exchange(db, conversation, n)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await db.events.expire(timedelta(1), progress=stop)
    assert (await db.events.expire(timedelta(1))).events == 45
    with pytest.raises(KeyboardInterrupt):
        await db.turns.prune(older_than=timedelta(1), progress=stop)
    done = await db.turns.prune(older_than=timedelta(1))
    assert (done.turns, done.conversations) == (53, 3)
    assert await db.fetch("SELECT count(*) AS n FROM agent_turns") == [{"n": 0}]


async def test_turns_go_by_whole_exchanges(everyturn_db: et.Database) -> None:
    db = everyturn_db
    one, two, other = uuid4(), uuid4(), uuid4()
    for n in range(3):
        await exchange(db, one, n)
    await exchange(db, two, 0)
    await exchange(db, two, 1, None)
    await exchange(db, other, 0, agent="other")
    everything = 30

    tried = await db.turns.prune(keep_last=7, dry_run=True)
    assert (tried.turns, tried.conversations) == (5, 3)
    assert await db.fetch("SELECT count(*) AS n FROM agent_turns") == [{"n": everything}]
    # The seventh from the end is a tool's call: its exchange is kept whole.
    assert (await db.turns.prune(keep_last=7)).turns == 5
    assert [turn.payload.get("text") for turn in await db.turns.load(one) if turn.kind == "user"] == [
        "question 1",
        "question 2",
    ]
    # Only what is old goes, and only of that agent.
    gone = await db.turns.prune(older_than=timedelta(days=1), agent="bot")
    assert gone.turns == 15
    assert await kinds(db, one) == []
    assert len(await kinds(db, two)) == len(await kinds(db, other)) == 5
    # Both conditions must hold.
    assert (await db.turns.prune(older_than=timedelta(days=1), keep_last=5)).turns == 0
    assert (await db.turns.prune(conversation=two)).turns == 5
    assert len(await kinds(db, other)) == 5
    for wrong in ({}, {"agent": "bot"}, {"keep_last": 0}, {"run_id": " "}):
        with pytest.raises(et.InvalidValue):
            await db.turns.prune(**wrong)  # type: ignore[arg-type]


async def test_one_run_only(everyturn_db: et.Database) -> None:
    """field case 153"""
    conversation = uuid4()
    for n in range(3):
        await exchange(everyturn_db, conversation, n)
    assert (await everyturn_db.turns.prune(run_id="run1")).turns == 5
    assert {turn.payload["runId"] for turn in await everyturn_db.turns.load(conversation)} == {"run0", "run2"}


async def test_verdicts_go_and_datasets_stay(everyturn_db: et.Database) -> None:
    """field case 151"""
    db = everyturn_db
    conversation = uuid4()
    turns = await exchange(db, conversation, 0)
    await db.evals.record(turns[-1].id, "human", "bad")
    await db.evals.record(turns[0].id, "human", "good")
    case = await db.cases.capture(turn=turns[-1].id)
    published = await db.datasets.publish("kept", case_ids=[case.id])
    before = await db.fetch("SELECT d::text AS d FROM eval_dataset d UNION ALL SELECT c::text FROM eval_case c")
    tried = await db.turns.prune(older_than=timedelta(1), dry_run=True)
    done = await db.turns.prune(older_than=timedelta(1))
    assert (done.turns, done.verdicts) == (tried.turns, tried.verdicts) == (5, 2)
    assert done.bytes > 5 * 100
    assert await db.fetch("SELECT count(*) AS n FROM agent_evals") == [{"n": 0}]
    assert await db.fetch("SELECT d::text AS d FROM eval_dataset d UNION ALL SELECT c::text FROM eval_case c") == before
    assert published is not None


async def memory_rows(db: et.Database) -> list[str]:
    rows = await db.fetch(
        "SELECT id::text || text AS m FROM agent_episodic"
        " UNION ALL SELECT id::text || text || coalesce(superseded_by::text, '') FROM agent_semantic"
        " UNION ALL SELECT id::text || value::text FROM agent_procedural"
    )
    return sorted(row["m"] for row in rows)


async def test_memory_that_exists_keeps_its_turns(everyturn_db: et.Database) -> None:
    """What is forgotten or expired goes with its turns, and nothing comes back when memory is made again."""
    db = everyturn_db
    kept = await db.memory.remember("episodic", text="kept")
    old = await db.memory.remember("semantic", text="was true")
    await db.memory.supersede(old.id, text="is true")
    for value in (1, 2, 3):
        await db.memory.remember("procedural", cache_key="k", value=value)
    forgotten = await db.memory.remember("semantic", text="to be forgotten")
    await db.memory.forget("semantic", ids=[forgotten.id])
    await db.memory.remember("episodic", text="expired", expires_at=datetime.now(UTC) + timedelta(milliseconds=200))
    await db.fetch("SELECT pg_sleep(0.3)")
    before = [row for row in await memory_rows(db) if not row.endswith("expired")]
    [count] = await db.fetch("SELECT count(*) AS n FROM agent_turns")
    assert count["n"] == 9
    done = await db.turns.prune(older_than=timedelta(0))
    # The forgotten and its end, the expired one, and two values that were replaced.
    assert (done.turns, done.memories) == (5, 1)
    assert await memory_rows(db) == before
    assert all((row.removed, row.written) == (0, 0) for row in await db.memory.rebuild())
    assert await memory_rows(db) == before
    assert [hit.id for hit in await db.memory.recall("episodic")] == [kept.id]


async def test_a_run_goes_on_after_its_past_was_pruned(everyturn_db: et.Database) -> None:
    db = everyturn_db
    agent = et.Agent(db, "bot", model=ScriptedModel(["one", "two", "three"]))
    first = await agent.run("1")
    await agent.run("2", first.conversation)
    await db.turns.prune(conversation=first.conversation, keep_last=2)
    done = await agent.run("3", first.conversation)
    assert done.output == "three"
    assert await kinds(db, first.conversation) == ["user", "model", "user", "model"]
