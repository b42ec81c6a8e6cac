"""Memory: recall over 100,000 memories, how well it finds, remembering, rebuilding, and texts of any size."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import everyturn as et
from everyturn import sqlfiles, testing
from everyturn.ids import uuid7
from everyturn.vectors import literal

from . import recall_data, recall_quality
from .harness import Row, Scale, at_least, at_most, raw, side_by_side

_EXACT = """
SELECT m.id
  FROM agent_semantic m
 WHERE (%(subjects)s::text[] IS NULL OR m.subjects @> %(subjects)s::text[])
 ORDER BY (m.embedding <=> %(vector)s::vector) + 0
 LIMIT 10
"""
_NEAR = """
SELECT m.id
  FROM agent_semantic m
 WHERE (%(subjects)s::text[] IS NULL OR m.subjects @> %(subjects)s::text[])
   AND m.superseded_by IS NULL
   AND (m.expires_at IS NULL OR m.expires_at > now())
   AND m.embedded_by = %(embedded_by)s
 ORDER BY m.embedding <=> %(vector)s::vector
 LIMIT 50
"""
_RAW_INSERT = """
INSERT INTO agent_semantic (id, scope, agent, subjects, text, attributes, embedding, embedded_by)
VALUES (%s, 'raw', 'bench', %s, %s, '{}', %s::vector, %s)
"""


async def rows(scale: Scale) -> AsyncIterator[Row]:
    """The rows of the table about memory."""
    async with testing.database(embedder="local") as db:
        count = scale(100_000, least=2_000)
        vectors = await recall_data.fill(db, count)
        async for row in _recall(db, count, vectors):
            yield row
        yield await _remembering(db, vectors)
    async for row in _quality():
        yield row
    async for row in _sizes():
        yield row
    yield await _rebuilding(scale)


async def _recall(db: et.Database, count: int, vectors: Any) -> AsyncIterator[Row]:
    questions = [(question, await db.vectors.question(question)) for question in recall_data.QUESTIONS]
    plain = dict.fromkeys(sqlfiles.parameters("recall_semantic")) | {
        "embedded_by": db.vectors.embedded_by,
        "candidates": 50,
        "row_limit": 10,
    }
    for share, subjects, limit in recall_data.FILTERS:
        times: list[float] = []
        shares: list[float] = []
        short = 0
        for again in range(4):
            for question, vector in questions:
                start = time.perf_counter()
                hits = await db.query(
                    "recall_semantic", **plain | {"text": question, "vector": vector, "subjects": subjects}
                )
                if again:
                    times.append((time.perf_counter() - start) * 1000)
                short += len(hits) < 10
        for _, vector in questions:
            asked = {"subjects": subjects, "vector": vector, "embedded_by": db.vectors.embedded_by}
            exact = [row["id"] for row in await db.fetch(_EXACT, asked)]
            near = [row["id"] for row in (await db.fetch(_NEAR, asked))[:10]]
            shares.append(len(set(exact) & set(near)) / max(1, len(exact)))
        p95 = sorted(times)[int(len(times) * 0.95)]
        what = f"hybrid recall of {count:,}, {share}"
        filled = "" if not short else f", {short} SHORT"
        figure = f"p50 {statistics.median(times):.1f}, p95 {p95:.1f} ms{filled}"
        yield Row(what, figure, "", None, f"p95 ≤ {limit} ms", p95 <= limit and not short)
        least = 0.95 if subjects is None else 0.90
        mean = statistics.mean(shares)
        yield Row(f"  of the exact top 10, {share}", f"{mean:.3f}", "", None, f"≥ {least}", mean >= least)


async def _quality() -> AsyncIterator[Row]:
    figures = await recall_quality.table()
    for name, modes in figures.items():
        lexical, vector, hybrid = (modes[mode] for mode in recall_quality.MODES)
        pairs = recall_quality.SETS[name]
        slack = 1 / len(pairs)
        good = all(
            mine >= max(one, other) - slack - 1e-9
            for mine, one, other in (
                (hybrid.first, lexical.first, vector.first),
                (hybrid.five, lexical.five, vector.five),
                (hybrid.mrr, lexical.mrr, vector.mrr),
            )
        )
        yield Row(
            f"R@1 R@5 MRR, {len(pairs)} {name}",
            str(hybrid),
            f"words {lexical}, vectors {vector}",
            None,
            "no worse than the better",
            good,
        )


async def _remembering(db: et.Database, vectors: Any) -> Row:
    """`remember` against an INSERT of the same row, the making of the vector apart."""
    made = recall_data.noisy(vectors, random.Random(11))
    name = db.vectors.embedded_by

    async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
        return [next(made) for _ in texts]

    numbers = iter(range(10**6))
    async with raw(db) as conn, et.connect(db.url, embedder=et.Embedder(embed, name=name)) as other:

        async def ours() -> None:
            number = next(numbers)
            await other.memory.remember(
                "semantic", text=f"The exporter fails with code {number}", subjects=[f"u:{number}"], scope="ours"
            )

        async def plain() -> None:
            number = next(numbers)
            vector = literal(next(made))
            await conn.execute(
                _RAW_INSERT, (uuid7(), [f"u:{number}"], f"The exporter fails with code {number}", vector, name)
            )

        mine, theirs = await side_by_side([ours, plain], 150)
    return at_most("remember beside 100 k memories", mine, theirs, 2.5, "ms", "INSERT")


async def _sizes() -> AsyncIterator[Row]:
    async with testing.database(embedder="local") as db:
        for name, text in recall_data.big_texts():
            start = time.perf_counter()
            await db.memory.remember("semantic", text=text)
            taken = time.perf_counter() - start
            yield Row(f"remember {name}", f"{taken * 1000:.0f} ms", "", None, "≤ 1 s", taken <= 1)
        words = " ".join(f"word{number}" for number in range(20_000))[:100_000]
        vector = await db.vectors.question(words)
        params = dict.fromkeys(sqlfiles.parameters("recall_semantic")) | {
            "text": words[:2000],
            "vector": vector,
            "embedded_by": db.vectors.embedded_by,
            "candidates": 50,
            "row_limit": 10,
        }
        await db.query("recall_semantic", **params)
        start = time.perf_counter()
        await db.query("recall_semantic", **params)
        taken = (time.perf_counter() - start) * 1000
        yield Row("recall with 100,000 characters", f"{taken:.0f} ms", "", None, "≤ 100 ms", taken <= 100)


async def _rebuilding(scale: Scale) -> Row:
    async with testing.database() as db:
        count = scale(100_000, least=2_000)
        await recall_data.remember_lines(db, count)
        await db.execute("DELETE FROM agent_semantic")
        await db.execute("VACUUM ANALYZE agent_semantic")
        start = time.perf_counter()
        await db.memory.rebuild()
        speed = count / (time.perf_counter() - start)
        return at_least(f"rebuild of {count:,} without vectors", speed, 20_000, 1, "rows/s", "target")
