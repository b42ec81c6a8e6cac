"""Reading a run while it is written: nothing is missed, and nothing comes twice."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.testing import ScriptedModel, database, event_store_conformance

INSERT = "INSERT INTO agent_events (run_id, agent_id, event) VALUES (%s, 'other', %s::jsonb) RETURNING id"


def note(run: str, n: int) -> et.EventRecord:
    return et.EventRecord(run, "bot", {"type": "text_delta", "delta": str(n)}, turn=1)


def final(run: str) -> et.EventRecord:
    return et.EventRecord(run, "bot", {"type": "final", "runId": run, "output": "done"})


async def collect(db: et.Database, run: str, after: int = 0) -> list[et.EventRecord]:
    return [record async for record in db.events.follow(run, after=after)]


async def started(db: et.Database, run: str, after: int = 0) -> asyncio.Task[list[et.EventRecord]]:
    """A follower that is listening."""
    task = asyncio.create_task(collect(db, run, after))
    for _ in range(500):
        await asyncio.sleep(0.005)
        if any(member.run_id == run for member in db.events._feed()._members):
            return task
    raise AssertionError("the follower does not listen")


async def test_the_store_conforms(everyturn_db: et.Database) -> None:
    assert isinstance(everyturn_db.events, et.EventStore)
    await event_store_conformance(everyturn_db.events)


async def test_what_is_stored_comes_first_then_what_happens(everyturn_db: et.Database) -> None:
    db = everyturn_db
    for n in range(3):
        await db.events.append(note("r", n))
    following = await started(db, "r")
    for n in range(3, 6):
        await db.events.append(note("r", n))
        await db.events.append(note("another", n))
    await db.events.append(final("r"))
    await db.events.append(note("r", 99))
    got = await asyncio.wait_for(following, 5)
    assert [record.event.get("delta") for record in got] == ["0", "1", "2", "3", "4", "5", None]
    assert [record.id for record in got] == sorted({record.id for record in got})
    rest = await collect(db, "r", after=got[2].id or 0)
    assert rest == got[3:]


async def test_a_reader_that_had_everything_is_let_go_at_once(everyturn_db: et.Database) -> None:
    await everyturn_db.events.append(final("r"))
    [record] = await collect(everyturn_db, "r")
    began = time.monotonic()
    assert await collect(everyturn_db, "r", after=record.id or 0) == []
    assert time.monotonic() - began < 1


async def test_an_event_that_commits_late_is_given_in_its_place(everyturn_db: et.Database) -> None:
    """field case 27"""
    db = everyturn_db
    run = "late"
    await db.events.append(note(run, 0))
    following, everything = await started(db, run), []

    async def all_of_them() -> None:
        async for record in db.events.follow_all():
            everything.append(record.id)

    watching = asyncio.create_task(all_of_them())
    async with await psycopg.AsyncConnection.connect(db.url) as slow:
        await asyncio.sleep(0.1)
        [first] = await (await slow.execute(INSERT, (run, '{"type": "a"}'))).fetchone() or [0]
        await db.events.append(note(run, 1))
        fresh = asyncio.create_task(collect(db, run))
        await asyncio.sleep(0.3)
        await slow.commit()
    await db.events.append(final(run))
    got = await asyncio.wait_for(following, 5)
    assert [record.type for record in got] == ["text_delta", "a", "text_delta", "final"]
    # Also for one that began to read in between.
    assert await asyncio.wait_for(fresh, 5) == got
    await asyncio.sleep(0.1)
    watching.cancel()
    assert everything == [record.id for record in got[1:]]
    assert first in everything


async def test_a_row_that_is_rolled_back_holds_nobody_up(everyturn_db: et.Database) -> None:
    following = await started(everyturn_db, "r")
    async with await psycopg.AsyncConnection.connect(everyturn_db.url) as conn:
        await conn.execute(INSERT, ("r", "{}"))
        await conn.rollback()
    began = time.monotonic()
    await everyturn_db.events.append(final("r"))
    assert len(await asyncio.wait_for(following, 5)) == 1
    assert time.monotonic() - began < 1.5


async def test_a_writer_that_stays_open_is_waited_for_no_longer_than_it_takes_to_settle(
    everyturn_db: et.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """field case 27: later than that it is still given, once."""
    monkeypatch.setattr("everyturn.event_feed.SETTLE", 0.4)
    got: list[str | None] = []

    async def watch() -> None:
        async for record in everyturn_db.events.follow_all():
            got.append(record.type)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.1)
    async with await psycopg.AsyncConnection.connect(everyturn_db.url) as slow:
        await slow.execute(INSERT, ("r", '{"type": "very late"}'))
        await everyturn_db.events.append(note("r", 1))
        await asyncio.sleep(0.2)
        assert got == []
        await asyncio.sleep(0.5)
        assert got == ["text_delta"]
        await slow.commit()
    await asyncio.sleep(0.3)
    watching.cancel()
    assert got == ["text_delta", "very late"]


async def test_a_reader_that_comes_and_goes_sees_what_an_undisturbed_one_sees(everyturn_db: et.Database) -> None:
    """field case 43: leaving at a hundred points touches no run, and loses nothing."""
    db = everyturn_db
    chance = random.Random(7)
    undisturbed = await started(db, "main")

    async def write(run: str, count: int) -> None:
        for n in range(count):
            await db.events.append(note(run, n))
            await asyncio.sleep(chance.random() * 0.004)
        await db.events.append(final(run))

    writing = [asyncio.create_task(write(run, 400)) for run in ("main", "a", "b", "c", "d")]
    seen: list[et.EventRecord] = []
    left = 0
    while not (seen and seen[-1].ends):
        stay = chance.randint(1, 4) if left < 100 else 10_000
        events = db.events.follow("main", after=(seen[-1].id or 0) if seen else 0)
        async for record in events:
            seen.append(record)
            stay -= 1
            if stay == 0:
                left += 1
                break
        await events.aclose()  # type: ignore[attr-defined]
    await asyncio.gather(*writing)
    assert left == 100
    assert seen == await asyncio.wait_for(undisturbed, 10)
    assert len(seen) == 401
    assert seen == await db.events.load("main")


async def test_a_slow_reader_falls_back_on_the_table(
    everyturn_db: et.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everyturn.event_feed._MOST_QUEUED", 20)
    got: list[int | None] = []

    async def slowly() -> None:
        async for record in everyturn_db.events.follow("r"):
            got.append(record.id)
            if len(got) == 1:
                await asyncio.sleep(0.5)

    reading = asyncio.create_task(slowly())
    await asyncio.sleep(0.1)
    for n in range(200):
        await everyturn_db.events.append(note("r", n))
    await everyturn_db.events.append(final("r"))
    await asyncio.wait_for(reading, 10)
    assert got == [record.id for record in await everyturn_db.events.load("r")]


async def test_follow_all_from_an_id_by_agent_and_type(everyturn_db: et.Database) -> None:
    for n in range(4):
        await everyturn_db.events.append(note(f"r{n}", n))
    await everyturn_db.events.append(et.EventRecord("r9", "other", {"type": "note"}))
    got = []
    async for record in everyturn_db.events.follow_all(after=1, agent="bot", types=["text_delta"]):
        got.append(record.run_id)
        if len(got) == 3:
            break
    assert got == ["r1", "r2", "r3"]


async def test_everything_is_loaded_and_in_pages(everyturn_db: et.Database) -> None:
    """field case 122"""
    await everyturn_db.execute(
        "INSERT INTO agent_events (run_id, agent_id, event) SELECT 'long', 'a', jsonb_build_object('type', 't', 'n', n)"
        " FROM generate_series(1, 2500) AS n"
    )
    assert [record.event["n"] for record in await everyturn_db.events.load("long")] == list(range(1, 2501))
    sizes = [len(page) async for page in everyturn_db.events.pages("long")]
    assert sizes == [1000, 1000, 500]
    some = await everyturn_db.events.load("long", after=10, limit=5, types=["t"])
    assert [record.event["n"] for record in some] == [11, 12, 13, 14, 15]
    assert await everyturn_db.events.load("long", types=["other"]) == []


async def test_how_runs_stand(everyturn_db: et.Database) -> None:
    """field case 36: a run whose process is gone is told from one that is going."""
    db = everyturn_db
    asked, answer = asyncio.Event(), asyncio.Event()

    async def wait(request: et.ModelRequest) -> et.ModelTurn:
        asked.set()
        await answer.wait()
        return et.ModelTurn(text="done")

    good = await et.Agent(db, "good", model=ScriptedModel(["yes"])).run("x")
    with pytest.raises(et.ModelError):
        await et.Agent(db, "bad", model=ScriptedModel([RuntimeError("no")])).run("x")
    going = asyncio.create_task(et.Agent(db, "going", model=ScriptedModel([wait])).run("x"))
    await asked.wait()
    # Another process began a run, and died: its events name a conversation that nobody holds.
    dead = uuid4()
    start = {"type": "turn_start", "turn": 1, "conversation": str(dead)}
    await db.events.append(et.EventRecord("dead", "gone", start, turn=1))
    # Rows of other programs tell only their age.
    await db.execute("INSERT INTO agent_events (run_id, agent_id, event) VALUES ('young', 'node', '{\"type\": \"x\"}')")
    await db.execute(
        "INSERT INTO agent_events (run_id, agent_id, event, created_at)"
        " VALUES ('old', 'node', '{\"type\": \"x\"}', now() - interval '1 hour')"
    )
    status = {run.agent_id + " " + run.run_id[:5]: run.status for run in await db.events.runs()}
    assert sorted(status.values()) == ["cut off", "cut off", "failed", "finished", "running", "running"]
    assert {run.run_id for run in await db.events.runs(status="cut-off")} == {"dead", "old"}
    [finished] = await db.events.runs(status="finished")
    assert (finished.run_id, finished.output, finished.turns) == (good.run_id, "yes", 1)
    assert finished.conversation == str(good.conversation)
    [running] = await db.events.runs("going", status="running")
    assert await db.events.status(running.run_id) == "running"
    answer.set()
    await going
    assert await db.events.status(running.run_id) == "finished"
    with pytest.raises(et.RunNotFound):
        await db.events.status("nothing")
    with pytest.raises(et.InvalidValue):
        await db.events.runs(status="done")
    # A follower of a run that was cut off is not kept waiting.
    assert len(await asyncio.wait_for(collect(db, "dead"), 5)) == 1


async def test_a_run_that_is_taken_up_is_cut_off_itself(everyturn_db: et.Database) -> None:
    db = everyturn_db
    agent = et.Agent(db, "bot", model=ScriptedModel([RuntimeError("power"), "there"]))
    with pytest.raises(et.ModelError):
        await agent.run("x")
    [turn] = await db.fetch("SELECT conversation FROM agent_turns WHERE kind = 'user'")
    [old] = await db.events.runs()
    done = await agent.resume(turn["conversation"])
    [new] = await db.events.runs(status="finished")
    assert (new.run_id, new.resumes) == (done.run_id, old.run_id)


async def test_calls_with_their_results(everyturn_db: et.Database) -> None:
    @et.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    calls = [et.ToolCall("same", "add", {"a": n, "b": n}) for n in range(3)]
    agent = et.Agent(
        everyturn_db,
        "bot",
        tools=[add],
        model=ScriptedModel([et.ModelTurn(tool_calls=calls), et.ModelTurn(tool_calls=calls[:1]), "ok"]),
    )
    done = await agent.run("x")
    found = await everyturn_db.events.calls(done.run_id)
    assert [(call.turn, call.args["a"], call.output) for call in found] == [
        (1, 0, "0"),
        (1, 1, "2"),
        (1, 2, "4"),
        (2, 0, "0"),
    ]


async def test_following_survives_a_lost_connection() -> None:
    """field case 46, for readers."""
    async with database() as db, await psycopg.AsyncConnection.connect(db.url, autocommit=True) as admin:
        following = await started(db, "r")
        for n in range(30):
            await db.events.append(note("r", n))
            if n % 10 == 5:
                await admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        await db.events.append(final("r"))
        got = await asyncio.wait_for(following, 15)
        assert [record.event.get("delta") for record in got] == [*map(str, range(30)), None]


async def test_it_is_quick(everyturn_db: et.Database) -> None:
    arrived: dict[int, float] = {}

    async def watch() -> None:
        async for record in everyturn_db.events.follow("r"):
            arrived[int(record.event.get("delta", -1))] = time.monotonic()

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.1)
    stored = {}
    for n in range(40):
        await everyturn_db.events.append(note("r", n))
        stored[n] = time.monotonic()
        await asyncio.sleep(0.01)
    await everyturn_db.events.append(final("r"))
    await asyncio.wait_for(watching, 5)
    delays = sorted(arrived[n] - stored[n] for n in stored)
    assert delays[len(delays) // 2] < 0.1


def test_a_blocking_follow(everyturn_url: str) -> None:
    with et.connect(everyturn_url, embedder=False) as db:
        blocking: Any = db
        blocking.events.append(note("r", 1))
        blocking.events.append(final("r"))
        assert [record.type for record in blocking.events.follow("r")] == ["text_delta", "final"]


async def test_odd_arguments_are_refused_and_one_type_is_no_list_of_letters(everyturn_db: et.Database) -> None:
    events = everyturn_db.events
    for kind in ("x", "note", "text_delta"):
        await events.append(et.EventRecord("r", "a", {"type": kind}))
    wrong: list[Any] = [{"limit": -1}, {"limit": 1 << 70}, {"after": 1 << 70}, {"after": "3"}, {"types": [1]}]
    for options in wrong:
        with pytest.raises(et.InvalidValue):
            await events.load("r", **options)
    wrong = [{"limit": -1}, {"since": "1d"}, {"since": timedelta(days=10**6)}]
    for options in wrong:
        with pytest.raises(et.InvalidValue):
            await events.runs(**options)
    with pytest.raises(et.InvalidValue):
        await anext(events.pages("r", size=0))
    assert [record.type for record in await events.load("r", types="text_delta")] == ["text_delta"]
    assert (await events.expire(timedelta(0), types="text_delta")).events == 1
    assert [record.type for record in await events.load("r")] == ["x", "note"]
