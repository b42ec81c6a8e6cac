"""How well recall finds: R@1, R@5 and the mean reciprocal rank, by words only, by vectors only, and by both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import everyturn as et
from everyturn import sqlfiles, testing

from .data.retrieval import DISTRACTORS, IDENTIFIERS, NAMES, PARAPHRASES, TRAPS

MODES = ("lexical", "vector", "hybrid")
SETS = {"paraphrases": PARAPHRASES, "identifiers": IDENTIFIERS, "names in sentences": NAMES, "traps": TRAPS}


@dataclass(frozen=True)
class Quality:
    """The figures of one way of searching over one set of questions."""

    first: float
    five: float
    mrr: float

    def __str__(self) -> str:
        return f"{self.first:.2f} {self.five:.2f} {self.mrr:.3f}"


async def found(db: et.Database, question: str, mode: str) -> list[str]:
    """The texts that one way of searching finds, best first."""
    if mode == "hybrid":
        return [hit.text or "" for hit in await db.memory.recall("semantic", question)]
    vector = await db.vectors.question(question)
    if mode == "vector":
        rows = await db.fetch("SELECT text FROM agent_semantic ORDER BY embedding <=> %s::vector LIMIT 10", (vector,))
        return [row["text"] for row in rows]
    params = dict.fromkeys(sqlfiles.parameters("recall_semantic")) | {
        "text": question,
        "candidates": 50,
        "row_limit": 10,
    }
    return [row["text"] for row in await db.query("recall_semantic", **params)]


async def quality(db: et.Database, pairs: Sequence[tuple[str, str]], mode: str) -> Quality:
    """The figures for these questions."""
    ranks: list[int] = []
    for question, answer in pairs:
        texts = await found(db, question, mode)
        ranks.append(texts.index(answer) + 1 if answer in texts else 0)
    return Quality(
        statistics.mean(rank == 1 for rank in ranks),
        statistics.mean(0 < rank <= 5 for rank in ranks),
        statistics.mean(1 / rank if rank else 0 for rank in ranks),
    )


async def table() -> dict[str, dict[str, Quality]]:
    """For each set of questions and each way of searching, how well it finds."""
    async with testing.database(embedder="local") as db:
        memories = [answer for pairs in SETS.values() for _, answer in pairs] + DISTRACTORS
        await db.memory.remember_many("semantic", [{"text": text} for text in memories])
        return {name: {mode: await quality(db, pairs, mode) for mode in MODES} for name, pairs in SETS.items()}
