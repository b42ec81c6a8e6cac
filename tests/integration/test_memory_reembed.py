"""A change of embedder, and vectors that are owed."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from memory_embedder import SIZE, WordEmbedder, vector

import everyturn as et
from everyturn.reembed import Progress, reembed
from everyturn.testing import database


class Wide(WordEmbedder):
    name = "wide"

    async def embed(self, texts: Any, kind: str) -> list[list[float]]:
        made = await super().embed(texts, kind)
        return [[*one, 0.5] for one in made]


async def fill(db: et.Database) -> None:
    conversation = uuid4()
    await db.turns.append(conversation, "a", "user", {"text": "a question"})
    await db.turns.append(conversation, "a", "tool_call", {"toolName": "t", "args": {}})
    await db.turns.append(conversation, "a", "tool_result", {"toolName": "t", "result": "an answer"})
    await db.turns.append(conversation, "a", "model", {"text": " "})
    old = await db.memory.remember("semantic", text="the car is red")
    await db.memory.supersede(old.id, text="the car is blue")
    await db.memory.remember_many("episodic", [{"text": f"event {n}"} for n in range(7)])
    await db.execute("INSERT INTO agent_semantic (text) VALUES ('written by hand')")
    await db.execute("INSERT INTO eval_case (source, prompt, captured_by) VALUES ('test', 'a prompt', 'me')")


async def embedders(db: et.Database) -> set[tuple[str, str | None, int | None]]:
    rows = await db.fetch(
        " UNION ALL ".join(
            f"SELECT '{table}' AS t, embedded_by AS e, vector_dims(embedding) AS n FROM {table}"  # noqa: S608
            for table in ("agent_turns", "agent_episodic", "agent_semantic", "eval_case")
        )
    )
    return {(row["t"], row["e"], row["n"]) for row in rows if row["e"] is not None}


def asked(embedder: WordEmbedder) -> int:
    """How many texts of rows were embedded."""
    return sum(len(call) for call in embedder.calls if call != ["How long is a vector?"])


async def test_what_is_owed_is_paid() -> None:
    """field case 58: the backfill after the embedder was away."""
    words = WordEmbedder()
    words.failing = True
    async with database(embedder=et.Embedder(words, dimensions=SIZE)) as db:
        await fill(db)
        assert await embedders(db) == set()
        words.failing = False
        words.calls.clear()
        told: list[Progress] = []
        done = await reembed(db, et.Embedder(words), batch=4, progress=told.append)
        assert done.vectors == {"agent_turns": 11, "agent_episodic": 7, "agent_semantic": 3, "eval_case": 1}
        assert set(done.owed.values()) == {0}
        assert all(len(call) <= 4 for call in words.calls)
        assert asked(words) == 11 + 1 + 1, "a memory has the vector of its turn"
        assert told[-1] == Progress("eval_case", 1, 1)
        assert {(step.table, step.done) for step in told if step.done == step.total} >= {
            ("agent_turns", 11),
            ("agent_episodic", 7),
            ("agent_semantic", 3),
        }
        assert [one.written + one.removed for one in await db.memory.rebuild()][:1] == [0]
        assert (await db.memory.recall("semantic", "the car"))[0].vector_rank == 1
        words.calls.clear()
        await reembed(db, et.Embedder(words))
        assert asked(words) == 0


async def test_the_dimension_changes_in_one_step() -> None:
    async with database(embedder=WordEmbedder()) as db:
        await fill(db)
        before = await embedders(db)
        with pytest.raises(et.EmbedderError, match="reembed"):
            async with et.connect(db.url, embedder=et.Embedder(Wide(), dimensions=65)):
                pass
        wide = Wide()
        embedder = et.Embedder(wide)
        async with et.connect(db.url, embedder=False) as plain:
            # The provider fails in the middle.
            answers = iter([True, True, False])

            async def breaking(texts: list[str], kind: str) -> list[list[float]]:
                if not next(answers):
                    raise ConnectionError("gone")
                return [[*vector(text), 0.5] for text in texts]

            with pytest.raises(et.EmbedderError, match="gone"):
                await reembed(plain, et.Embedder(breaking, name="wide"), batch=3)
            assert await embedders(plain) == before, "the old vectors are in use until all new ones are there"
            assert [hit.vector_rank for hit in await db.memory.recall("semantic", "car")] == [1]
            done = await reembed(plain, embedder, batch=3)
            assert asked(wide) == 11 + 1 + 1 - 3, "one batch was made before"
            assert done.dimensions == 65
            assert {(name, size) for _, name, size in await embedders(plain)} == {("wide", 65)}
            assert set(done.owed.values()) == {0}
            assert await plain.fetch("SELECT to_regclass('everyturn_reembedding') AS t") == [{"t": None}]
        async with et.connect(db.url, embedder=Wide()) as new:
            [first, *_] = await new.memory.recall("semantic", "car blue")
            assert (first.text, first.vector_rank) == ("the car is blue", 1)
            await new.memory.remember("semantic", text="and on it goes")
            indexes = await new.fetch("SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%hnsw%'")
            assert len(indexes) == 4


async def test_an_abandoned_change_to_another_embedder_is_dropped() -> None:
    async with database(embedder=WordEmbedder()) as db:
        await fill(db)
        await db.execute(
            "CREATE TABLE everyturn_reembedding (relation text, id uuid, embedding vector, PRIMARY KEY (relation, id))"
        )
        await db.execute("COMMENT ON TABLE everyturn_reembedding IS 'yet another'")
        await db.execute("INSERT INTO everyturn_reembedding SELECT 'agent_turns', id, '[1,2]'::vector FROM agent_turns")
        async with et.connect(db.url, embedder=False) as plain:
            await reembed(plain, et.Embedder(Wide()))
            assert {(name, size) for _, name, size in await embedders(plain)} == {("wide", 65)}
