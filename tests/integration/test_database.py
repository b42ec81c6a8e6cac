"""The database object: loops, transactions, statements, closing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn import pool
from everyturn.database import Database
from everyturn.errors import DatabaseUnavailable, InvalidValue, QueryNotFound
from everyturn.testing import database_url

SECRET = "pässw0rd-%-x"


@pytest.fixture
async def db(everyturn_url: str) -> AsyncIterator[Database]:
    async with et.connect(everyturn_url, embedder=False) as opened:
        yield opened


async def add(db: Database, text: str = "hello", **more: object) -> et.Turn:
    return await db.turns.append(uuid4(), "bot", "user", {"text": text, **more})


async def count(db: Database) -> int:
    [row] = await db.fetch("SELECT count(*) AS n FROM agent_turns")
    return int(row["n"])


# Loops, threads, processes


def test_one_database_serves_event_loop_after_event_loop(everyturn_db: Database) -> None:
    """field case 33"""
    for n in range(4):

        async def work() -> int:
            async with asyncio.timeout(10):
                await add(everyturn_db)
                async with everyturn_db.transaction():
                    await add(everyturn_db)
                return await count(everyturn_db)

        assert asyncio.run(work()) == 2 * n + 2


def test_a_loop_that_ends_at_any_instant_ends(everyturn_url: str) -> None:
    """field case 33: nothing hangs, also when it ends while a connection is being opened."""

    async def work(db: Database, seconds: float) -> None:
        tasks = [asyncio.ensure_future(use(db)) for use in (add, count) for _ in range(3)]
        await asyncio.sleep(seconds)
        assert tasks

    began = time.monotonic()
    db = Database(everyturn_url)
    for n in range(40):
        asyncio.run(work(db, n * 0.0004))
    asyncio.run(db.close())
    assert time.monotonic() - began < 20


async def test_no_more_connections_than_the_pool_holds(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = await asyncio.gather(*(db.fetch("SELECT pg_backend_pid() AS pid, pg_sleep(0.02)") for _ in range(40)))
    assert len({rows[0]["pid"] for rows in seen}) == 8
    monkeypatch.setattr(pool, "_PATIENCE", 0.2)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(db.own_connection())
        with pytest.raises(DatabaseUnavailable, match="All 8 connections were in use"):
            await db.fetch("SELECT 1")
    assert await db.fetch("SELECT 1 AS one") == [{"one": 1}]


async def test_a_transaction_left_open_by_hand_is_rolled_back(db: Database) -> None:
    """field case 47"""
    await db.execute("BEGIN")
    for _ in range(3):
        async with asyncio.timeout(5):
            await add(db)
            assert await db.fetch("SELECT pg_current_xact_id_if_assigned() IS NULL AS none") == [{"none": True}]
    open_ones = await db.fetch("SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
                               " AND datname = current_database()")  # fmt: skip
    assert open_ones == []


async def test_connections_that_nobody_uses_are_closed(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 49: an idle program does not keep what others need."""
    monkeypatch.setattr(pool, "_IDLE", 0.1)
    await asyncio.gather(*(db.fetch("SELECT pg_sleep(0.02)") for _ in range(8)))
    await asyncio.sleep(0.3)
    with psycopg.connect(db.url) as conn:
        [left] = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchone() or (None,)
    assert left == 0
    assert await count(db) == 0


def test_a_loop_that_was_stopped_but_not_closed_does_not_hold_up_the_end(everyturn_url: str) -> None:
    db = Database(everyturn_url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(add(db))
    began = time.monotonic()
    asyncio.run(db.close())
    assert time.monotonic() - began < 2
    loop.run_until_complete(asyncio.sleep(0))
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}))
    loop.close()


def test_threads_with_loops_of_their_own_share_a_database(everyturn_db: Database) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        async def appends() -> None:
            await asyncio.gather(*(add(everyturn_db) for _ in range(25)))

        try:
            asyncio.run(appends())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert asyncio.run(count(everyturn_db)) == 100


def test_closing_reaches_the_loops_of_other_threads(everyturn_url: str) -> None:
    db = Database(everyturn_url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(add(db), loop).result(10)
        asyncio.run(db.close())
        with psycopg.connect(everyturn_url) as conn:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )
            for _ in range(100):
                left = conn.execute(query).fetchone()
                if left == (0,):
                    break
                time.sleep(0.02)
            assert left == (0,)
        with pytest.raises(DatabaseUnavailable, match="was closed"):
            asyncio.run_coroutine_threadsafe(add(db), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _child(db: Database, results: multiprocessing.Queue[int]) -> None:
    async def work() -> int:
        await add(db, "child")
        return await count(db)

    results.put(asyncio.run(work()))


def test_a_forked_child_has_connections_of_its_own(everyturn_url: str) -> None:
    db = Database(everyturn_url)

    async def before() -> None:
        await add(db)
        await count(db)

    async def both() -> tuple[int, int]:
        await add(db)
        results: multiprocessing.Queue[int] = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(target=_child, args=(db, results))
        child.start()
        theirs = await asyncio.to_thread(results.get, timeout=20)
        await asyncio.to_thread(child.join)
        await add(db)
        return theirs, await count(db)

    asyncio.run(before())
    pids = asyncio.run(_backends(db))
    assert asyncio.run(both()) == (3, 4)
    asyncio.run(db.close())
    assert pids


async def _backends(db: Database) -> list[int]:
    rows = await db.fetch("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    return [row["pid"] for row in rows]


async def test_after_closing_every_use_is_a_sentence(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        await add(db)
    for use in (add(db), count(db), db.query("turns_by_kind"), db.turns.load(uuid4()), db.tools.list()):
        with pytest.raises(DatabaseUnavailable, match=r"was closed; open it again with et\.connect"):
            await use
    with pytest.raises(DatabaseUnavailable, match="was closed"):
        async with db.transaction():
            pass
    await db.close()


async def test_the_sentence_comes_to_those_who_wait_while_it_closes(everyturn_url: str) -> None:
    db = await et.connect(everyturn_url, embedder=False)
    waiting = [asyncio.ensure_future(count(db)) for _ in range(30)]
    await asyncio.sleep(0.005)
    await db.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(outcome == 0 or isinstance(outcome, DatabaseUnavailable) for outcome in outcomes), outcomes


async def test_a_server_that_is_not_there_is_a_sentence_at_once(caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://me:{SECRET.replace('%', '%25')}@127.0.0.1:1/db"
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(DatabaseUnavailable) as caught:
        await et.connect(url, embedder=False)
    assert time.monotonic() - began < 5
    assert "me@127.0.0.1:1/db cannot be reached" in str(caught.value)
    said = "".join([repr(caught.value), str(caught.value.__cause__), caplog.text, repr(Database(url))])
    assert "ssw0rd" not in said


async def test_which_database_is_used_is_logged_once(everyturn_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "everyturn"):
        async with et.connect(everyturn_url, embedder=False):
            pass
    assert len([r for r in caplog.records if r.getMessage().startswith("using database")]) == 1


# Statements


async def test_sql_of_ones_own(db: Database) -> None:
    assert await db.fetch("SELECT 1 AS a, '{\"b\": [1.5]}'::jsonb AS j") == [{"a": 1, "j": {"b": [1.5]}}]
    assert await db.fetch("SELECT %s::int AS a, %s::text AS b", (1, None)) == [{"a": 1, "b": None}]
    assert await db.fetch("SELECT %(x)s::text AS x", {"x": "%s %b %(x)s"}) == [{"x": "%s %b %(x)s"}]
    assert await db.execute("CREATE TABLE mine (a int)") == -1
    assert await db.execute("INSERT INTO mine SELECT * FROM generate_series(1, 3)") == 3
    assert await db.fetch("DELETE FROM mine WHERE a > 5") == []


async def test_percent_signs_are_plain_text(db: Database) -> None:
    """field case 50"""
    assert await db.fetch("SELECT '50%' AS a, 'x%s' LIKE 'x%' AS b, 7 % 4 AS c") == [{"a": "50%", "b": True, "c": 3}]
    turn = await add(db, "50% off %s %b %(x)s", **{"100%": "%%"})
    assert (await db.turns.get(turn.id)).payload == {"text": "50% off %s %b %(x)s", "100%": "%%"}
    await db.turns.append(uuid4(), "100% agent %s", "user", {"text": "a_b"})
    assert [hit.turn.id for hit in await db.turns.search("50% off")] == [turn.id]
    assert await db.turns.search("%") == []


async def test_a_mistake_in_ones_sql_is_psycopgs_own_error(db: Database) -> None:
    with pytest.raises(psycopg.errors.SyntaxError):
        await db.fetch("SELEC 1")
    with pytest.raises(psycopg.ProgrammingError):
        await db.fetch("SELECT %s", (1, 2))
    assert await count(db) == 0


async def test_named_queries(db: Database) -> None:
    await add(db)
    assert await db.query("turns_by_kind") == [{"kind": "user", "turns": 1}] or await db.query("turns_by_kind")
    with pytest.raises(InvalidValue, match="has no parameter 'agnet'"):
        await db.query("turns_by_kind", agnet="x")
    with pytest.raises(QueryNotFound, match="There is no query named 'nope'"):
        await db.query("nope")


# Transactions


async def test_appends_and_fetches_join_the_transaction(db: Database) -> None:
    async with db.transaction() as conn:
        turn = await add(db)
        await db.events.append(et.EventRecord("run", "bot", {"type": "x"}))
        await db.evals.record(turn.id, "human", "good")
        assert await count(db) == 1
        assert db.ambient is conn
        with_psycopg = await conn.execute("SELECT count(*) AS n FROM agent_turns")
        assert await with_psycopg.fetchone() == {"n": 1}
        async with et.connect(db.url, embedder=False) as other:
            assert await count(other) == 0
    assert db.ambient is None
    assert await count(db) == 1
    assert len(await db.events.load("run")) == 1


async def test_an_error_rolls_everything_back(db: Database) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with db.transaction():
            await add(db)
            await db.events.append(et.EventRecord("run", "bot", {"type": "x"}))
            raise ZeroDivisionError
    assert await count(db) == 0
    assert await db.events.load("run") == []
    await add(db)
    assert await count(db) == 1


async def test_memory_and_appends_in_one_transaction(db: Database) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with db.transaction():
            await add(db)
            await db.memory.remember("semantic", text="the sky is blue")
            raise ZeroDivisionError
    assert await count(db) == 0
    assert await db.memory.recall("semantic") == []
    async with db.transaction():
        await add(db)
        await db.memory.remember("semantic", text="the sky is blue")
    assert await count(db) == 2
    assert len(await db.memory.recall("semantic")) == 1


async def test_nested_transactions_are_savepoints(db: Database) -> None:
    async with db.transaction():
        await add(db, "kept")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with db.transaction():
                await add(db, "dropped")
                raise ZeroDivisionError
        with pytest.raises(InvalidValue):
            async with db.transaction():
                await db.evals.record((await add(db, "dropped too")).id, "h", "perfect")
        await add(db, "kept")
    assert {row["t"] for row in await db.fetch("SELECT payload ->> 'text' AS t FROM agent_turns")} == {"kept"}


async def test_tasks_started_inside_join_and_their_savepoints_take_turns(db: Database) -> None:
    async def nested(n: int) -> None:
        async with db.transaction():
            await add(db, str(n))
            await asyncio.sleep(0.001)
            if n % 2:
                raise ZeroDivisionError

    with pytest.raises(KeyError):  # noqa: PT012
        async with db.transaction():
            await asyncio.gather(*(add(db) for _ in range(10)))
            raise KeyError
    assert await count(db) == 0
    async with db.transaction():
        outcomes = await asyncio.gather(*(nested(n) for n in range(6)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), ZeroDivisionError] * 3
    rows = await db.fetch("SELECT payload ->> 'text' AS t FROM agent_turns ORDER BY seq")
    assert [row["t"] for row in rows] == ["0", "2", "4"]


async def test_a_task_that_outlives_the_transaction_appends_on_its_own(db: Database) -> None:
    ended = asyncio.Event()

    async def later() -> et.Turn:
        await ended.wait()
        return await add(db)

    with pytest.raises(KeyError):  # noqa: PT012
        async with db.transaction():
            async with db.transaction():
                task = asyncio.create_task(later())
            raise KeyError
    ended.set()
    turn = await task
    assert (await db.turns.get(turn.id)).seq == turn.seq


async def test_the_transaction_of_another_database_is_not_joined(db: Database) -> None:
    with database_url() as url:
        async with et.connect(url, embedder=False) as other:
            with pytest.raises(KeyError):  # noqa: PT012
                async with db.transaction():
                    assert other.ambient is None
                    await add(other)
                    async with other.transaction():
                        await add(other)
                        await add(db)
                    raise KeyError
            assert await count(other) == 2
    assert await count(db) == 0


async def test_other_tasks_do_not_join(db: Database) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await started.wait()
        await add(db)
        go.set()

    task = asyncio.create_task(other())
    with pytest.raises(KeyError):  # noqa: PT012
        async with db.transaction():
            started.set()
            await go.wait()
            raise KeyError
    await task
    assert await count(db) == 1


async def test_a_lost_connection_ends_the_transaction_with_a_sentence(db: Database) -> None:
    with pytest.raises(DatabaseUnavailable):  # noqa: PT012
        async with db.transaction():
            await add(db)
            with psycopg.connect(db.url, autocommit=True) as conn:
                conn.execute("SELECT pg_terminate_backend(%s)", [await _own_pid(db)])
            await add(db)
    assert await count(db) == 0


async def _own_pid(db: Database) -> int:
    [row] = await db.fetch("SELECT pg_backend_pid() AS pid")
    return int(row["pid"])


# Values and order


async def test_insertion_order_whatever_the_clock_says(db: Database) -> None:
    """field case 18: one call, one now(). field case 20: odd times do not put a result before its call."""
    for _ in range(10):
        conversation = uuid4()
        await db.turns.append_many([et.NewTurn(conversation, "bot", "user", {"n": n}) for n in range(20)])
        assert [turn.payload["n"] for turn in await db.turns.load(conversation)] == list(range(20))
    conversation = uuid4()
    late, early = datetime(2031, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)
    await db.turns.append(conversation, "bot", "tool_call", {"toolCallId": "1"}, created_at=late)
    await db.turns.append(conversation, "bot", "tool_result", {"toolCallId": "1"}, created_at=early)
    assert [turn.kind for turn in await db.turns.load(conversation)] == ["tool_call", "tool_result"]
    assert [turn.kind for page in [p async for p in db.turns.pages(conversation, 1)] for turn in page] == [
        "tool_call",
        "tool_result",
    ]


async def test_a_naive_time_is_utc(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 89: on every write path and in every filter."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        naive, aware = datetime(2026, 1, 1, 12), datetime(2026, 1, 1, 12, tzinfo=UTC)
        conversation = uuid4()
        one = await db.turns.append(conversation, "bot", "user", {"text": "one word"}, created_at=naive)
        many = await db.turns.append_many(
            [et.NewTurn(conversation, "bot", "user", {"text": "one word"}, naive) for _ in range(3)]
        )
        async with db.transaction():
            inside = await db.turns.append(conversation, "bot", "user", {"text": "one word"}, created_at=naive)
        for turn in [one, *many, inside]:
            assert turn.created_at == aware
            assert (await db.turns.get(turn.id)).created_at == aware
        assert len(await db.turns.search("word", since=naive)) == 5
        assert await db.turns.search("word", until=datetime(2026, 1, 1, 11, 59)) == []
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_what_append_returns_is_what_is_stored(db: Database) -> None:
    conversation = uuid4()
    turns = [await db.turns.append(conversation, "bot", "user", {"text": str(n)}) for n in range(3)]
    turns += await asyncio.gather(*(db.turns.append(conversation, "bot", "user", {"text": "g"}) for _ in range(30)))
    turns += await db.turns.append_many([et.NewTurn(conversation, "bot", "model", {"text": "m"}) for _ in range(3)])
    async with db.transaction():
        turns.append(await db.turns.append(conversation, "bot", "user", {"text": "t"}))
    stored = await db.turns.load(conversation)
    assert sorted(turns, key=lambda turn: turn.seq) == stored
    assert await db.turns.append_many([]) == []


# No transaction is left open


async def test_a_setting_does_not_reach_whoever_borrows_the_connection_next(
    everyturn_db: et.Database, caplog: pytest.LogCaptureFixture
) -> None:
    await everyturn_db.fetch("SET search_path = nowhere")
    assert "SET LOCAL" in caplog.text
    for _ in range(5):
        await everyturn_db.fetch("SELECT count(*) FROM agent_turns")
    async with everyturn_db.transaction():
        await everyturn_db.fetch("SET LOCAL work_mem = '5MB'")
        assert (await everyturn_db.fetch("SHOW work_mem"))[0]["work_mem"] == "5MB"
    assert (await everyturn_db.fetch("SHOW work_mem"))[0]["work_mem"] != "5MB"


async def test_no_transaction_is_open_while_user_code_runs(everyturn_url: str) -> None:
    """field case 47: the server kills sessions that are idle in a transaction, and no tool, model or hook notices."""
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '150ms'")
        open_transactions: list[object] = []

        def look() -> None:
            time.sleep(0.3)
            query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"
            open_transactions.extend(conn.execute(query).fetchall())

        @et.tool(rate_budget=et.RateBudget(60, 5))
        def slow() -> str:
            """Take a while."""
            look()
            return "done"

        def model(request: et.ModelRequest) -> et.ModelTurn:
            look()
            if len(request.messages) > 1:
                return et.ModelTurn("done")
            return et.ModelTurn(tool_calls=[et.ToolCall("1", "slow", {})])

        async def hook(turn: et.Turn) -> None:
            if turn.kind == "tool_result":
                await asyncio.to_thread(look)

        async with et.connect(everyturn_url, embedder=False) as db:
            agent = et.Agent(db, "bot", tools=[slow], model=model, hooks=et.EvalHooks(on_turn_complete=hook))
            assert (await agent.run("go")).output == "done"
        assert open_transactions == []
