"""The tool registry, and the columns that hold vectors."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.embed import Embedder
from everyturn.errors import EmbedderError, InvalidValue, ToolDefinitionError


def made(size: int, name: str = "test") -> Embedder:
    async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
        return [[math.sin(len(text) + n) for n in range(size)] for text in texts]

    return Embedder(embed, name=name, dimensions=size)


async def dimension(db: et.Database) -> int:
    [row] = await db.fetch("SELECT atttypmod AS n FROM pg_attribute WHERE attrelid = 'agent_turns'::regclass"
                           " AND attname = 'embedding'")  # fmt: skip
    return int(row["n"])


# Vectors


@pytest.mark.parametrize("size", [3, 384, 768, 1536, 2000])
async def test_an_empty_database_takes_the_size_of_its_embedder(everyturn_url: str, size: int) -> None:
    """field case 51"""
    async with et.connect(everyturn_url, embedder=made(size)) as db:
        assert await dimension(db) == size
        turn = await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
        await db.memory.remember("semantic", text="a fact")
        assert [hit.turn.id for hit in await db.turns.search("hello", mode="vector", kind="user")] == [turn.id]
    async with et.connect(everyturn_url, embedder=made(size)) as db:
        assert await dimension(db) == size


async def test_the_size_of_a_function_is_learnt_from_its_first_vectors(everyturn_url: str) -> None:
    async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
        return [[1.0, 0.5] for _ in texts]

    async with et.connect(everyturn_url, embedder=embed) as db:
        assert await dimension(db) == 1024
        await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
        assert await dimension(db) == 2


async def test_another_size_than_the_stored_vectors_names_both(everyturn_url: str) -> None:
    """field case 51: nothing is half stored."""
    async with et.connect(everyturn_url, embedder=made(1024)) as db:
        await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
    with pytest.raises(
        EmbedderError, match=r"other makes vectors of 768 .* holds vectors of 1024.*everyturn db reembed"
    ):
        await et.connect(everyturn_url, embedder=made(768, "other"))

    async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
        return [[1.0] * 768 for _ in texts]

    async with et.connect(everyturn_url, embedder=embed) as db:
        with pytest.raises(EmbedderError, match=r"768 .* 1024"):
            await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
        with pytest.raises(EmbedderError, match=r"768 .* 1024"):
            await db.memory.remember("semantic", text="a fact")
        assert await db.fetch("SELECT count(*) AS n FROM agent_turns") == [{"n": 1}]
        assert await db.fetch("SELECT count(*) AS n FROM agent_semantic") == [{"n": 0}]


async def test_more_dimensions_than_can_be_indexed(everyturn_url: str) -> None:
    with pytest.raises(EmbedderError, match="3072 dimensions; pgvector indexes up to 2000"):
        await et.connect(everyturn_url, embedder=made(3072))


BROKEN: dict[str, Callable[[int], list[float]]] = {
    "zeros": lambda size: [0.0] * size,
    "NaN": lambda size: [math.nan] * size,
    "infinity": lambda size: [math.inf] * size,
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_vector_without_a_direction_is_never_stored_nor_searched_with(
    everyturn_url: str, broken: Callable[[int], list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    """field case 53: the row is kept and found by its words; the query falls back to words."""
    bad = {"document": False, "query": False}

    async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
        return [broken(4) if bad[kind] else [1.0, float(len(text)), 0.5, 0.1] for text in texts]

    async with et.connect(everyturn_url, embedder=Embedder(embed, name="flaky", dimensions=4)) as db:
        for word in ("apple", "banana", "cherry"):
            await db.turns.append(uuid4(), "bot", "user", {"text": word})
            await db.memory.remember("semantic", text=word)
        bad["document"] = True
        with caplog.at_level(logging.WARNING, "everyturn"):
            await db.turns.append(uuid4(), "bot", "user", {"text": "damson"})
            await db.memory.remember("semantic", text="damson")
        assert "flaky" in caplog.text
        assert await db.fetch(
            "SELECT payload ->> 'text' AS t FROM agent_turns WHERE kind = 'user' AND embedding IS NULL"
        ) == [{"t": "damson"}]
        for query_is_bad in (False, True):
            bad["query"] = query_is_bad
            assert "damson" in [hit.turn.payload["text"] for hit in await db.turns.search("damson")]
            hits = await db.memory.recall("semantic", "banana", limit=3)
            assert hits[0].text == "banana" if query_is_bad else "banana" in [hit.text for hit in hits]
            assert all(math.isfinite(hit.score) for hit in hits)


async def test_processes_with_two_embedders_agree_on_one(everyturn_url: str) -> None:
    """field case 32: whichever came first; the other is told."""
    outcomes = await asyncio.gather(
        *(_open_and_append(everyturn_url, size) for size in (8, 16) * 4), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, EmbedderError)]
    assert len(refused) + sum(outcome is None for outcome in outcomes) == 8, outcomes
    with psycopg.connect(everyturn_url) as conn:
        [sizes] = conn.execute("SELECT array_agg(DISTINCT vector_dims(embedding)) FROM agent_turns").fetchone() or ([],)
    assert len(sizes) == 1


async def _open_and_append(url: str, size: int) -> None:
    async with et.connect(url, embedder=made(size, f"of {size}")) as db:
        try:
            await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
        except InvalidValue as error:  # the other came between
            raise EmbedderError(str(error)) from error


async def test_the_columns_are_not_changed_under_an_open_transaction(
    everyturn_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One's own included: a sentence comes instead of a deadlock."""

    async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
        return [[1.0, 0.5] for _ in texts]

    from everyturn import vectors

    monkeypatch.setattr(vectors, "_LONGEST_WAIT", "100ms")
    async with et.connect(everyturn_url, embedder=embed) as db, asyncio.timeout(10):
        with pytest.raises(EmbedderError, match="other transactions use the tables"):  # noqa: PT012
            async with db.transaction():
                await db.turns.append(uuid4(), "bot", "tool_call", {"toolName": "x"})
                await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
        await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
        assert await dimension(db) == 2


async def test_a_role_that_may_not_change_the_columns(everyturn_url: str) -> None:
    role = f"app_{uuid4().hex[:8]}"
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN")
        conn.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO {role}")
        try:
            with pytest.raises(EmbedderError, match=r"may not change them\. Connect once as the owner"):
                await et.connect(psycopg.conninfo.make_conninfo(everyturn_url, user=role), embedder=made(8))
        finally:
            conn.execute(f"DROP OWNED BY {role}")
            conn.execute(f"DROP ROLE {role}")


# The registry


def tools_of(db_text: str = "one") -> list[et.Tool]:
    def first(a: int) -> int:
        """Do the first thing."""
        return a

    def second(b: str = db_text) -> str:
        """Do the second thing."""
        return b

    return [et.tool(first), et.tool(rate_budget=et.RateBudget(60, 5))(second)]


async def test_a_row_is_touched_only_when_something_changed(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        assert sorted(await db.tools.register("bot", tools_of())) == ["first", "second"]
        before = await db.tools.list("bot")
        assert await db.tools.register("bot", tools_of()) == []
        assert await db.tools.list("bot") == before
        assert await db.tools.register("bot", tools_of("two")) == ["second"]
        after = {row["name"]: row for row in await db.tools.list("bot")}
        assert after["second"]["impl_hash"] != next(row for row in before if row["name"] == "second")["impl_hash"]
        assert after["first"] == next(row for row in before if row["name"] == "first")
        budgets = await db.fetch("SELECT name, rate_budget, description FROM agent_tools ORDER BY name")
        assert budgets == [
            {"name": "first", "rate_budget": {}, "description": "Do the first thing."},
            {
                "name": "second",
                "rate_budget": {"window_seconds": 60, "max_calls": 5},
                "description": "Do the second thing.",
            },
        ]


async def test_agents_do_not_overwrite_each_others_tools(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        await db.tools.register("one", tools_of())
        await db.tools.register("two", tools_of("two"))
        assert len(await db.tools.list()) == 4
        assert await db.tools.register("one", tools_of()) == []
        assert await db.tools.register("nobody", []) == []


async def test_many_register_at_once(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        changed = await asyncio.gather(*(db.tools.register("bot", tools_of()[:: (1, -1)[n % 2]]) for n in range(20)))
        assert sorted(name for names in changed for name in names) == ["first", "second"]


async def test_duplicates_and_bad_names_are_refused(everyturn_url: str) -> None:
    """field case 82: neither replaces the other silently. field case 68: a name too long for the index."""
    async with et.connect(everyturn_url, embedder=False) as db:
        with pytest.raises(ToolDefinitionError, match="Two tools are named 'first'"):
            await db.tools.register("bot", [*tools_of(), *tools_of()])
        for agent in ("", "x" * 3000, "a\x00b"):
            with pytest.raises(InvalidValue, match="agent"):
                await db.tools.register(agent, tools_of())
            with pytest.raises(InvalidValue, match="agent"):
                await db.turns.append(uuid4(), agent, "user", {})
        assert await db.tools.list() == []
