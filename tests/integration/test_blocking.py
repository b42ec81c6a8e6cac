"""The blocking face: scripts, threads, notebooks, and sync tool handlers."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.blocking import Portal
from everyturn.errors import EveryturnError, InvalidValue
from everyturn.testing import ScriptedModel


@pytest.fixture
def db(everyturn_url: str) -> Iterator[Any]:
    with et.connect(everyturn_url, embedder=False) as opened:
        yield opened


def add(db: Any, text: str = "hello") -> et.Turn:
    turn: et.Turn = db.turns.append(uuid4(), "bot", "user", {"text": text})
    return turn


def count(db: Any) -> int:
    [row] = db.fetch("SELECT count(*) AS n FROM agent_turns")
    return int(row["n"])


def test_the_same_names_block(db: Any) -> None:
    turn = add(db)
    assert db.turns.get(turn.id) == turn
    assert db.fetch("SELECT %s::int AS a", (1,)) == [{"a": 1}]
    assert db.execute("SELECT 1") == 1
    assert db.evals.record(turn.id, "human", "good").verdict == "good"
    assert db.memory.remember("semantic", text="a fact").action
    assert db.embedder is None
    assert db.url in repr(db) or "Database" in repr(db)
    assert "turns" in dir(db)
    db.redact = lambda value: {"text": "gone"}
    assert db.turns.get(add(db).id).payload == {"text": "gone"}


def test_iterators_block_and_can_be_left(db: Any) -> None:
    conversation = uuid4()
    db.turns.append_many([et.NewTurn(conversation, "bot", "user", {"n": n}) for n in range(5)])
    assert [turn.payload["n"] for page in db.turns.pages(conversation, size=2) for turn in page] == [0, 1, 2, 3, 4]
    for page in db.turns.pages(conversation, size=2):
        assert len(page) == 2
        break
    assert count(db) == 5


def test_errors_are_those_of_the_async_face(db: Any) -> None:
    with pytest.raises(InvalidValue, match="is not one of"):
        db.turns.append(uuid4(), "bot", "shout", {})
    with pytest.raises(psycopg.errors.SyntaxError):
        db.fetch("SELEC")
    with pytest.raises(et.TurnNotFound):
        db.turns.get(uuid4())


def test_transactions_commit_roll_back_and_nest(db: Any) -> None:
    with db.transaction():
        add(db)
        db.memory.remember("semantic", text="a fact")
        with pytest.raises(ZeroDivisionError), db.transaction():  # noqa: PT012
            add(db)
            raise ZeroDivisionError
        assert count(db) == 2
    assert count(db) == 2
    with pytest.raises(ZeroDivisionError), db.transaction():  # noqa: PT012
        add(db)
        raise ZeroDivisionError
    assert count(db) == 2


def test_a_transaction_is_its_threads_own(db: Any) -> None:
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError), db.transaction():  # noqa: PT012
        add(db)
        thread = threading.Thread(target=lambda: (add(db), seen.append(count(db))))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert seen == [1]
    assert count(db) == 1


def test_many_threads(db: Any) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                add(db)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert count(db) == 320


async def test_inside_a_running_event_loop(everyturn_url: str) -> None:
    """field case 35: a notebook or a web handler may call it."""
    with et.connect(everyturn_url, embedder=False) as db:
        add(db)
        assert count(db) == 1
        agent = et.Agent(db, "bot", model=ScriptedModel(["hi"]))
        assert agent.run_sync("hello").output == "hi"
    async with et.connect(everyturn_url, embedder=False) as db:
        assert await db.fetch("SELECT 1 AS one") == [{"one": 1}]


async def test_blocking_the_loop_that_would_do_the_work_is_a_sentence(everyturn_url: str) -> None:
    """field case 35"""
    async with et.connect(everyturn_url, embedder=False) as db:
        face = Portal(asyncio.get_running_loop()).face(db)
        with pytest.raises(EveryturnError, match="Await the asynchronous method"):
            face.fetch("SELECT 1")


def test_after_closing_every_use_is_a_sentence(everyturn_url: str) -> None:
    with et.connect(everyturn_url, embedder=False) as db:
        pages = db.turns.pages(db.turns.append(uuid4(), "b", "user", {}).conversation, size=1)
        assert next(pages)
    with pytest.raises(EveryturnError, match="closed"):
        add(db)
    with pytest.raises(EveryturnError, match="closed"):
        db.fetch("SELECT 1")
    with pytest.raises(EveryturnError, match="closed"), db.transaction():
        pass
    with pytest.raises(EveryturnError, match="closed"):
        next(pages)
    gc.collect()


def test_an_error_while_opening_leaves_no_thread(everyturn_url: str) -> None:
    before = threading.active_count()
    with pytest.raises(et.EveryturnError), et.connect("postgresql://127.0.0.1:1/nope", embedder=False):
        pass
    with pytest.raises(ZeroDivisionError), et.connect(everyturn_url, embedder=False):
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_call_under_way_while_it_is_closed_ends_with_a_sentence(everyturn_url: str) -> None:
    outcomes: list[BaseException] = []

    def work(db: Any) -> None:
        try:
            db.fetch("SELECT pg_sleep(20)")
        except BaseException as error:
            outcomes.append(error)

    with et.connect(everyturn_url, embedder=False) as db:
        thread = threading.Thread(target=work, args=(db,))
        thread.start()
        while not db.fetch("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
            time.sleep(0.01)
        began = time.monotonic()
    thread.join(10)
    assert time.monotonic() - began < 8
    assert [isinstance(outcome, EveryturnError) for outcome in outcomes] == [True], outcomes


def test_context_variables_of_the_thread_are_seen(everyturn_url: str) -> None:
    """field case 78: also what is set between two calls."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    async def embed(texts: list[str], kind: str) -> list[list[float]]:
        seen.append(variable.get())
        return [[1.0] * 8 for _ in texts]

    with et.connect(everyturn_url, embedder=embed) as db:
        add(db)
        variable.set("first")
        add(db)
        with db.transaction():
            variable.set("second")
            add(db)
    assert seen == ["unset", "first", "second"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tool_handlers_of_both_kinds_from_both_faces(everyturn_url: str, kind: str) -> None:
    """field case 35: an async handler from sync code, a sync handler from async code."""

    @et.tool
    def sync_tool(ctx: et.Context) -> int:
        """Count in a thread."""
        with ctx.db.transaction():
            ctx.db.turns.append(uuid4(), "note", "user", {"text": "from a thread"})
        ctx.memory.remember("semantic", text="seen")
        rows = ctx.db.fetch("SELECT count(*) AS n FROM agent_turns WHERE agent = 'note'")
        return int(rows[0]["n"])

    @et.tool
    async def async_tool(ctx: et.Context) -> int:
        """Count on the loop."""
        await ctx.db.turns.append(uuid4(), "note", "user", {"text": "from the loop"})
        rows = await ctx.db.fetch("SELECT count(*) AS n FROM agent_turns WHERE agent = 'note'")
        return int(rows[0]["n"])

    chosen = sync_tool if kind == "sync" else async_tool

    def steps() -> ScriptedModel:
        return ScriptedModel([et.ModelTurn(tool_calls=[et.ToolCall("1", chosen.name, {})]), "done"])

    with et.connect(everyturn_url, embedder=False) as db:
        result = et.Agent(db, "bot", tools=[chosen], model=steps()).run_sync("go")
        assert [t.payload["result"] for t in result.turns if t.kind == "tool_result" and "result" in t.payload] == [1]

    async def from_async() -> list[Any]:
        async with et.connect(everyturn_url, embedder=False) as db:
            result = await et.Agent(db, "bot", tools=[chosen], model=steps()).run("go")
            return [turn.payload["result"] for turn in result.turns if turn.kind == "tool_result"]

    assert asyncio.run(from_async()) == [2]


INTERRUPTED = """
import sys, uuid
import everyturn as et
with et.connect(sys.argv[1], embedder=False) as db:
    db.turns.append(uuid.UUID(int=1), "bot", "user", {"text": "before"})
    print("ready", flush=True)
    try:
        db.fetch("SELECT pg_sleep(30)")
    except KeyboardInterrupt:
        db.turns.append(uuid.UUID(int=1), "bot", "user", {"text": "after"})
        raise
"""


def test_ctrl_c_ends_the_call_and_the_database_still_closes(everyturn_url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", INTERRUPTED, everyturn_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=15)
    assert process.returncode == -signal.SIGINT
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in error
    with psycopg.connect(everyturn_url) as conn:
        assert conn.execute("SELECT payload ->> 'text' FROM agent_turns ORDER BY seq").fetchall() == [
            ("before",),
            ("after",),
        ]
        assert conn.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").fetchone() == (0,)


def test_a_forked_child_is_told_instead_of_left_waiting(db: Any) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            db.fetch("SELECT 1")
        except EveryturnError:
            os.write(writer, b"told")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"told"
    os.waitpid(child, 0)
    assert count(db) == 0
