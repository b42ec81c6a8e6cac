"""Rate budgets hold across processes, exactly."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from uuid import uuid4

import psycopg
import pytest
from budget_calls import call_once

import everyturn as et
from everyturn.database import Database
from everyturn.testing import ScriptedModel


def test_20_processes_against_a_budget_of_5(everyturn_url: str) -> None:
    """field case 87: exactly 5 handlers run, and the others are told how long to wait."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["budget_calls", "everyturn.agent", "everyturn.database"])
    barrier, ran = context.Barrier(20), context.Semaphore(0)
    processes = [context.Process(target=call_once, args=(everyturn_url, barrier, ran)) for _ in range(20)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 20
    assert ran.get_value() == 5
    with psycopg.connect(everyturn_url) as conn:
        counts = conn.execute("SELECT kind, count(*) FROM agent_turns GROUP BY 1 ORDER BY 1").fetchall()
        assert counts == [("error", 15), ("model", 40), ("tool_call", 5), ("tool_result", 5), ("user", 20)]
        refusals = conn.execute(
            "SELECT payload ->> 'stage', payload ->> 'toolCallId', payload ->> 'message' FROM agent_turns"
            " WHERE kind = 'error'"
        ).fetchall()
    assert {(stage, call) for stage, call, _ in refusals} == {("budget", "1")}
    assert all("5 times in 60 s" in message and "Wait " in message for _, _, message in refusals)


async def ask(
    db: Database, window: float = 60, most: int = 5, agent: str = "bot", tool: str = "limited"
) -> float | None:
    [row] = await db.query(
        "call_within_budget",
        id=uuid4(),
        conversation=uuid4(),
        agent=agent,
        tool=tool,
        payload=f'{{"toolName": "{tool}"}}',
        window_seconds=window,
        max_calls=most,
    )
    assert (row["seq"] is None) == (row["retry_after"] is not None)
    return None if row["retry_after"] is None else float(row["retry_after"])


async def test_many_connections_at_once(everyturn_db: Database) -> None:
    """field case 87"""
    for _ in range(3):
        tool = uuid4().hex
        answers = await asyncio.gather(*(ask(everyturn_db, tool=tool) for _ in range(40)))
        assert answers.count(None) == 5
        assert all(answer is None or 55 < answer <= 60 for answer in answers)


async def test_the_window_slides_and_the_wait_is_what_was_said(everyturn_db: Database) -> None:
    db = everyturn_db
    assert await ask(db, window=0.4, most=2) is None
    await asyncio.sleep(0.2)
    assert await ask(db, window=0.4, most=2) is None
    wait = await ask(db, window=0.4, most=2)
    assert wait is not None
    assert 0 < wait < 0.2
    await asyncio.sleep(wait + 0.005)
    assert await ask(db, window=0.4, most=2) is None
    assert await ask(db, window=0.4, most=2) is not None


async def test_refusals_cost_nothing_and_agents_and_tools_count_apart(everyturn_db: Database) -> None:
    db = everyturn_db
    for agent, tool in (("a", "x"), ("a", "y"), ("b", "x")):
        assert await ask(db, most=1, agent=agent, tool=tool) is None
        for _ in range(5):
            assert await ask(db, most=1, agent=agent, tool=tool) is not None
    assert await ask(db, most=0, tool="never") is not None
    assert await db.fetch("SELECT count(*) AS n FROM agent_turns") == [{"n": 3}]


async def test_the_clients_clock_does_not_matter(everyturn_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 89: the database's clock counts."""
    assert await ask(everyturn_db, most=1) is None
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert await ask(everyturn_db, most=1) is not None


async def test_an_isolation_level_that_would_count_wrongly_is_refused(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET default_transaction_isolation = 'repeatable read'")

    @et.tool(rate_budget=et.RateBudget(60, 5))
    def limited() -> str:
        """Called at most five times a minute."""
        return "ok"

    async with et.connect(everyturn_url, embedder=False) as db:
        with pytest.raises(psycopg.Error, match="READ COMMITTED"):
            await ask(db)
        model = ScriptedModel([et.ModelTurn(tool_calls=[et.ToolCall("1", "limited", {})]), "done"])
        with pytest.raises(et.EveryturnError, match="READ COMMITTED"):
            await et.Agent(db, "bot", tools=[limited], model=model).run("go")
