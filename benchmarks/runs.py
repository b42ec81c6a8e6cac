"""Running and loading: what the SDK adds to a run, and what reading a conversation costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator
from uuid import uuid4

import everyturn as et

from . import harness
from .harness import Row, Scale, at_most


async def rows(scale: Scale) -> AsyncIterator[Row]:
    async for row in overhead(scale):
        yield row
    yield await load(scale)
    yield await pages(scale)
    for row in start_up():
        yield row


async def overhead(scale: Scale) -> AsyncIterator[Row]:
    """One model call with one tool call, and a closing one: 5 turns and about 10 events."""

    @et.tool
    async def look(repo: str, pr: int) -> str:
        """Look at a pull request."""
        return "nothing to see"

    async def model(request: et.ModelRequest) -> et.ModelTurn:
        if len(request.messages) == 1:
            return et.ModelTurn(tool_calls=[et.ToolCall("call_1", "look", {"repo": "o/r", "pr": 7})])
        return et.ModelTurn(text="Nothing to say.")

    async with harness.database() as db, harness.raw(db) as conn:
        agent = et.Agent(db, "bench", tools=[look], model=model)
        await agent.register()
        conversation = uuid4()

        async def run() -> None:
            await agent.run("Review PR o/r#7")

        async def raw() -> None:
            await conn.execute(harness.INSERT_TURN, harness.turn_values(conversation), prepare=True)

        runs = scale(500, 50)
        ours, commit = await harness.side_by_side([run, raw], runs)
        yield Row("one run: 5 turns, 10 events", f"{ours:.2f} ms", "", None, "≤ 3 ms", ours <= 3)
        yield at_most("one run: 5 turns, 10 events", ours, commit, 8, "ms", "async commit")
        before = await commits(db)
        for _ in range(runs):
            await run()
        each = (await commits(db) - before) / runs
        yield Row("commits of one run", f"{each:.2f}", "pg_stat_database", None, "≤ 4", each <= 4.05)


async def commits(db: et.Database) -> int:
    """What Postgres counted of this database's commits, all of them; asking adds a few, the same each time."""
    # A backend reports its count when a transaction ends and a second has passed since it last did.
    await asyncio.sleep(1.1)
    await db.turns.append(uuid4(), "bench", "user", harness.PAYLOAD)
    await asyncio.sleep(0.2)
    [row] = await db.fetch("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return int(row["xact_commit"])


async def load(scale: Scale) -> Row:
    async with harness.database() as db, harness.raw(db) as conn:
        conversation = uuid4()
        await db.turns.append_many([et.NewTurn(conversation, "bench", "user", harness.PAYLOAD) for _ in range(1000)])
        await db.execute("VACUUM ANALYZE agent_turns")

        async def ours() -> None:
            assert len(await db.turns.load(conversation)) == 1000

        async def raw() -> None:
            cursor = await conn.execute(
                "SELECT id, seq, conversation, agent, kind, payload, created_at FROM agent_turns"
                " WHERE conversation = %s ORDER BY seq",
                (conversation,),
                prepare=True,
            )
            assert len(await cursor.fetchall()) == 1000

        mine, select = await harness.side_by_side([ours, raw], scale(100, 20), warm=5)
    return at_most("load a conversation of 1,000 turns", mine, select, 1.2, "ms", "raw SELECT")


async def pages(scale: Scale) -> Row:
    count = scale(100_000, 5_000)
    async with harness.database() as db:
        conversation = uuid4()
        await db.execute(
            "INSERT INTO agent_turns (conversation, agent, kind, payload)"
            " SELECT %s, 'bench', 'tool_result', jsonb_build_object('body', repeat(md5(n::text), 12))"
            " FROM generate_series(1, %s) AS n",
            (conversation, count),
        )
        tracemalloc.start()
        seen = 0
        async for page in db.turns.pages(conversation):
            seen += len(page)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == count
    megabytes = peak / 1e6
    return Row(f"memory to page through {count:,} turns", f"{megabytes:.1f} MB", "", None, "≤ 20 MB", megabytes <= 20)


def start_up() -> list[Row]:
    """Best of seven, as the machine may be busy."""
    executable = os.path.join(os.path.dirname(sys.executable), "everyturn")
    result = []
    for what, command, limit in (
        ("import everyturn", [sys.executable, "-c", "import everyturn"], 150),
        ("everyturn --help", [executable, "--help"], 300),
    ):
        taken = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            taken.append((time.perf_counter() - start) * 1000)
        bare = min(_bare() for _ in range(5))
        figure = min(taken) - (bare if what.startswith("import") else 0)
        result.append(Row(what, f"{figure:.0f} ms", "", None, f"≤ {limit} ms", figure <= limit))
    return result


def _bare() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, capture_output=True)
    return (time.perf_counter() - start) * 1000
