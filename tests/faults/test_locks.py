"""One run at a time per conversation, and a guard that never outlives its run."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import psycopg
import pytest

import everyturn as et
from everyturn import locks
from everyturn.database import Database
from everyturn.errors import ConversationConflict
from everyturn.locks import ConversationLock
from everyturn.rows import TurnRow
from everyturn.testing import ScriptedModel


@pytest.fixture
async def db(everyturn_url: str) -> AsyncIterator[Database]:
    async with et.connect(everyturn_url, embedder=False) as opened:
        yield opened


def held(url: str) -> int:
    with psycopg.connect(url) as conn:
        [n] = conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() or (0,)
    return int(n)


async def freed(url: str, seconds: float = 1.0) -> bool:
    ends = time.monotonic() + seconds
    while held(url):
        if time.monotonic() > ends:
            return False
        await asyncio.sleep(0.002)
    return True


async def test_two_tasks_and_two_databases(db: Database) -> None:
    """field case 23: the second is refused."""
    conversation = uuid4()
    async with et.connect(db.url, embedder=False) as other:
        lock = ConversationLock(db, conversation)
        await lock.acquire()
        for rival in (ConversationLock(db, conversation), ConversationLock(other, conversation)):
            with pytest.raises(ConversationConflict, match=f"{conversation} is being run"):
                await rival.acquire()
        await ConversationLock(other, uuid4()).acquire()
        lock.release()
        await ConversationLock(other, conversation).acquire()
        with pytest.raises(ConversationConflict):
            await ConversationLock(db, conversation).acquire()


async def test_of_many_that_ask_at_once_one_gets_it(db: Database) -> None:
    async with et.connect(db.url, embedder=False) as other:
        for _ in range(5):
            conversation = uuid4()
            rivals = [ConversationLock(each, conversation) for each in (db, other) * 5]
            outcomes = await asyncio.gather(*(rival.acquire() for rival in rivals), return_exceptions=True)
            winners = [lock for lock, outcome in zip(rivals, outcomes, strict=True) if outcome is None]
            assert len(winners) == 1
            winners[0].release()
    assert await freed(db.url)


async def test_runs_one_after_another_never_conflict(db: Database) -> None:
    """A lock that is given back a moment later is not a conflict, here or in another process."""
    async with et.connect(db.url, embedder=False) as other:
        agents = [et.Agent(each, "bot", model=lambda request: et.ModelTurn("hi")) for each in (db, other)]
        conversation = (await agents[0].run("hello")).conversation
        for n in range(20):
            await agents[n % 2].run("hello", conversation)
            await agents[n % 2].run("hello", conversation)
    assert await freed(db.url)


async def test_the_lock_is_given_back_after_every_kind_of_end(db: Database) -> None:
    @et.tool
    async def hang() -> None:
        """Wait."""
        await asyncio.sleep(30)

    def fails(request: et.ModelRequest) -> et.ModelTurn:
        raise ValueError("no")

    with pytest.raises(et.ModelError):
        await et.Agent(db, "bot", model=fails).run("hello")
    assert await freed(db.url)
    calls = ScriptedModel([et.ModelTurn(tool_calls=[et.ToolCall("1", "hang", {})])])
    task = asyncio.create_task(et.Agent(db, "bot", model=calls, tools=[hang]).run("hello"))
    await asyncio.sleep(0.2)
    assert held(db.url) == 1
    task.cancel()
    await asyncio.wait({task})
    assert await freed(db.url)


async def test_a_caller_cancelled_while_asking_keeps_nothing(db: Database) -> None:
    conversation = uuid4()
    await db.writer.append([_row()])
    for pause in (0, 0.0002, 0.0005, 0.001, 0.002):
        task = asyncio.create_task(ConversationLock(db, conversation).acquire())
        await asyncio.sleep(pause)
        if task.done():
            ConversationLock(db, conversation).release()
            continue
        task.cancel()
        await asyncio.wait({task})
    assert await freed(db.url)
    async with et.connect(db.url, embedder=False) as other:
        await ConversationLock(other, conversation).acquire()


async def test_a_new_conversations_lock_rides_with_its_first_append(db: Database) -> None:
    lock = ConversationLock(db, uuid4())
    key = await lock.ride()
    with pytest.raises(et.InvalidValue):
        await db.writer.append([_row("{")], lock=key)
    assert await freed(db.url)
    await db.writer.append([_row()], lock=key)
    assert held(db.url) == 1
    lock.check()
    lock.release()
    await db.writer.append([_row()], lock=await ConversationLock(db, uuid4()).ride())
    assert held(db.url) == 1


def _row(payload: str = "{}") -> TurnRow:
    return TurnRow(uuid4(), uuid4(), "bot", "user", payload)


async def test_a_lost_connection_takes_the_lock_back_unless_another_run_has_it(db: Database) -> None:
    mine, taken = ConversationLock(db, uuid4()), ConversationLock(db, UUID(int=7))
    await mine.acquire()
    await taken.acquire()
    async with et.connect(db.url, embedder=False) as other:
        with psycopg.connect(db.url, autocommit=True) as conn:
            assert db.lock_session._conn is not None
            conn.execute("SELECT pg_terminate_backend(%s, 5000)", (db.lock_session._conn.info.backend_pid,))
        await ConversationLock(other, UUID(int=7)).acquire()
        with pytest.raises(ConversationConflict):
            await db.writer.append([_row()], guard=taken.check)
        await db.writer.append([_row()], guard=mine.check)
        with pytest.raises(ConversationConflict):
            await ConversationLock(other, mine._conversation).acquire()
        mine.release()
    assert await freed(db.url)


HOLDER = """
import asyncio, sys, uuid
import everyturn as et

@et.tool
async def hang() -> None:
    '''Wait.'''
    print("running", flush=True)
    await asyncio.sleep(60)

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        model = lambda request: et.ModelTurn(tool_calls=[et.ToolCall("1", "hang", {})])
        await et.Agent(db, "bot", model=model, tools=[hang]).run("go", uuid.UUID(sys.argv[2]))

asyncio.run(main())
"""


async def test_another_process_and_its_kill(db: Database) -> None:
    """field case 23: refused while it lives, free within milliseconds of its kill."""
    conversation = uuid4()
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, db.url, str(conversation), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"running\n"
    agent = et.Agent(db, "bot", model=ScriptedModel(["done"]))
    for attempt in (agent.run("hello", conversation), agent.resume(conversation)):
        with pytest.raises(ConversationConflict):
            await attempt
    assert len(await db.turns.load(conversation)) == 3
    holder.kill()
    await holder.communicate()
    killed = time.monotonic()
    assert await freed(db.url)
    assert time.monotonic() - killed < 0.5
    assert (await agent.resume(conversation)).output == "done"


async def test_a_second_url_carries_the_locks(everyturn_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = psycopg.conninfo.make_conninfo(everyturn_url, application_name="guard")
    monkeypatch.setenv("EVERYTURN_SESSION_DATABASE", url)
    async with et.connect(everyturn_url, embedder=False) as db:
        await et.Agent(db, "bot", model=ScriptedModel(["hi"])).run("hello")
        lock = ConversationLock(db, uuid4())
        assert await lock.ride() is None
        rows = await db.fetch(
            "SELECT application_name AS name FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory'"
        )
        assert rows == [{"name": "guard"}]
        with pytest.raises(ConversationConflict):
            await ConversationLock(db, lock._conversation).acquire()


async def test_without_sessions_the_guard_is_off_and_says_so_once(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "_said_unguarded", False)
    await db.lock_session.connection()
    monkeypatch.setattr(db.lock_session, "pooled", True)
    conversation = uuid4()
    with caplog.at_level(logging.WARNING, "everyturn"):
        for _ in range(3):
            lock = ConversationLock(db, conversation)
            assert await lock.ride() is None
            with pytest.raises(ConversationConflict):  # this process still guards itself
                await ConversationLock(db, conversation).acquire()
            lock.release()
    assert held(db.url) == 0
    assert len([r for r in caplog.records if "EVERYTURN_SESSION_DATABASE" in r.getMessage()]) == 1
