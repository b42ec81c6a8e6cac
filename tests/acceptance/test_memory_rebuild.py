"""Facts remembered by tools, in runs; the tables emptied with SQL; the same rows after `everyturn memory rebuild`."""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg
import pytest

import everyturn as et
from everyturn.cli import main
from everyturn.testing import ScriptedModel

FACTS = 1000
A_RUN = 250


@et.tool
async def learn(number: int, ctx: et.Context) -> str:
    """Remember a fact.

    Args:
        number: which one
    """
    made = await ctx.memory.remember(
        "semantic", text=f"fact {number} about Ünïcode", subjects=[f"n:{number}"], attributes={"n": number, "x": [None]}
    )
    if number % 10 == 0:
        await ctx.memory.supersede(made.id, text=f"newer fact {number}")
    return str(made.id)


@et.tool
def look_up(number: int, ctx: et.Context) -> list[str]:
    """Recall facts, from a thread.

    Args:
        number: which one
    """
    ctx.memory.remember("procedural", cache_key=f"asked {number}", value={"asked": True})
    return [hit.text for hit in ctx.memory.recall("semantic", "which fact?", subjects=[f"n:{number}"])]


def contents(url: str) -> dict[str, str]:
    """A hash of every byte of each table, as Postgres prints it."""
    found = {}
    with psycopg.connect(url) as conn:
        for table in ("agent_episodic", "agent_semantic", "agent_procedural"):
            digest = hashlib.sha256()
            with conn.cursor().copy(f"COPY (SELECT * FROM {table} ORDER BY id) TO STDOUT".encode()) as copy:  # noqa: S608
                for part in copy:
                    digest.update(part)
            found[table] = digest.hexdigest()
    return found


async def remember_in_runs(url: str) -> None:
    async def embed(texts: list[str], kind: str) -> list[list[float]]:
        return [[float(byte) + 1 for byte in hashlib.sha256(text.encode()).digest()] for text in texts]

    async with et.connect(url, embedder=et.Embedder(embed, name="hash")) as db:
        for start in range(0, FACTS, A_RUN):
            calls = [et.ToolCall(f"c{n}", "learn", {"number": n}) for n in range(start, start + A_RUN)]
            question = et.ToolCall("q", "look_up", {"number": start})
            model = ScriptedModel([et.ModelTurn(tool_calls=calls), et.ModelTurn(tool_calls=[question]), "done"])
            agent = et.Agent(db, "learner", tools=[learn, look_up], model=model, scope="acme")
            result = await agent.run("Learn.")
            assert result.output == "done"
            results = [turn.payload for turn in result.turns if turn.kind == "tool_result"]
            [looked_up] = [payload for payload in results if payload.get("toolCallId") == "q"]
            assert looked_up["result"] == [f"newer fact {start}"]


def test_a_thousand_facts_come_back_byte_for_byte(everyturn_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    asyncio.run(remember_in_runs(everyturn_url))
    before = contents(everyturn_url)
    with psycopg.connect(everyturn_url) as conn:
        counted: Any = conn.execute(
            "SELECT count(*), count(*) FILTER (WHERE superseded_by IS NULL), count(embedding) FROM agent_semantic"
        ).fetchone()
        assert counted == (FACTS + FACTS // 10, FACTS, FACTS + FACTS // 10)
        for table in ("agent_episodic", "agent_semantic", "agent_procedural"):
            conn.execute(f"DELETE FROM {table}")  # noqa: S608
    assert contents(everyturn_url) != before
    assert main(["-q", "-d", everyturn_url, "memory", "rebuild"]) == 0
    assert f"semantic\t0 removed\t{FACTS + FACTS // 10} written" in capsys.readouterr().out
    assert contents(everyturn_url) == before
