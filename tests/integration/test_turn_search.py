"""Searching the log: by words, by meaning, by both, with and without an embedder."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

import everyturn as et
from everyturn.testing import database

TOPICS = ("database postgres row table", "cat kitten feline animal", "rain weather storm sky")


async def embed(texts: Sequence[str], kind: str) -> list[list[float]]:
    """Three dimensions, one a topic; a text is near those that share its topics."""
    vectors = []
    for text in texts:
        words = text.lower().split()
        vector = [sum(word in topic.split() for word in words) + 0.01 for topic in TOPICS]
        length = math.sqrt(sum(x * x for x in vector))
        vectors.append([x / length for x in vector])
    return vectors


async def fill(db: et.Database) -> dict[str, et.Turn]:
    made = {}
    for key, kind, payload in (
        ("row", "user", {"text": "a row of the table", "repo": "o/r", "pr": 7}),
        ("cat", "model", {"text": "The kitten is called Postgres", "flag": True}),
        ("storm", "tool_result", {"toolName": "look", "toolCallId": "c", "result": "a storm in the sky"}),
        ("percent", "user", {"text": "50% off, 100%_sure, HttpClient.get failed", "repo": "O'Brien"}),
        ("path", "user", {"text": "open C:\\temp\\new and src/a.py:10"}),
        ("will", "user", {"text": "Will said that the cafe in 東京 is closed"}),
        ("call", "tool_call", {"toolName": "look", "args": {"text": "row"}}),
    ):
        made[key] = await db.turns.append(uuid4(), "a" if kind != "model" else "b", kind, payload)
    return made


@pytest.fixture
async def embedded() -> AsyncIterator[et.Database]:
    async with database(embedder=embed) as db:
        yield db


def found(hits: list[et.TurnHit], made: dict[str, et.Turn]) -> list[str]:
    names = {turn.id: key for key, turn in made.items()}
    return [names[hit.turn.id] for hit in hits]


async def test_three_ways_to_search(embedded: et.Database) -> None:
    made = await fill(embedded)
    search = embedded.turns.search
    by_words = await search("postgres", mode="lexical")
    assert found(by_words, made) == ["cat"]
    assert (by_words[0].similarity, by_words[0].lexical) == (None, 1.0)
    by_meaning = await search("feline animal", mode="vector")
    assert found(by_meaning, made)[0] == "cat"
    assert by_meaning[0].similarity == pytest.approx(0.71, abs=0.01)
    assert found(await search("weather", mode="vector"), made)[0] == "storm"
    both = await search("HttpClient.get animal")
    assert "percent" in found(both, made)[:2]
    assert [hit.score for hit in both] == sorted((hit.score for hit in both), reverse=True)
    assert all(math.isfinite(hit.score) for hit in both)
    assert "call" not in found(both, made)


async def test_without_an_embedder_search_goes_by_words(everyturn_db: et.Database) -> None:
    made = await fill(everyturn_db)
    search = everyturn_db.turns.search
    assert found(await search("table row"), made) == ["row"]
    assert found(await search("table row", mode="lexical"), made) == ["row"]
    with pytest.raises(et.InvalidValue, match="no embedder"):
        await search("x", mode="vector")


async def test_filters(embedded: et.Database) -> None:
    """field case 143"""
    made = await fill(embedded)
    search = embedded.turns.search

    async def names(text: str = "row kitten storm off", **filters: Any) -> set[str]:
        return set(found(await search(text, **filters), made))

    every = await names(limit=100)
    assert every >= {"row", "cat", "storm", "percent"}
    assert await names(agent="b") == {"cat"}
    assert await names(kind="tool_result") == {"storm"}
    assert await names(conversation=made["row"].conversation) == {"row"}
    assert await names(where={"repo": "o/r"}) == {"row"}
    assert await names(where={"repo": "O'Brien"}) == {"percent"}
    assert await names(where={"pr": 7}) == await names(where={"pr": "7"}) == {"row"}
    assert await names(where={"flag": True}) == {"cat"}
    assert await names(where={"repo": None, "flag": True}) == {"cat"}
    assert await names(where={"a' = 'x' OR '1'='1' --": "x"}) == set()
    assert await names(where={"repo": "x') OR 1=1 --"}) == set()
    assert await names(agent="b' OR '1'='1") == await names(agent="\x00") == set()
    assert await names(since=datetime(2100, 1, 1, tzinfo=UTC)) == set()
    assert await names(until=datetime(2000, 1, 1)) == set()
    assert await names(since=datetime(2000, 1, 1), until=datetime(2100, 1, 1), limit=100) == every


ANY_TEXT = [
    "What's up?",
    '"a" OR',
    "a & | b",
    "foo:bar",
    "J D <j@x.io>",
    "\\",
    "'\\''",
    "a\\b:*",
    "C:\\temp\\new",
    "!!! & (",
    "50% off",
    "%s %b %(x)s",
    "\x00",
    "\ud83d",
    "",
    " \n",
    "word " * 3000,
    " ".join(f"w{n}" for n in range(3000)),
    "_a" * 5000,
    "x" * 100_000,
    "'; DROP TABLE agent_turns; --",
    "东京下雨",
]


async def test_any_text_can_be_searched_for(embedded: et.Database) -> None:
    """field case 50, field case 60, field case 62, field case 64"""
    await fill(embedded)
    for text in ANY_TEXT:
        started = time.perf_counter()
        for mode in ("hybrid", "lexical", "vector"):
            assert isinstance(await embedded.turns.search(text, mode=mode), list)
        assert time.perf_counter() - started < 2, text[:40]


async def test_what_the_words_find(everyturn_db: et.Database) -> None:
    """field case 50, field case 60, field case 63, field case 64"""
    made = await fill(everyturn_db)

    async def names(text: str) -> list[str]:
        return found(await everyturn_db.turns.search(text), made)

    assert await names("50% off") == ["percent"]
    assert await names("HttpClient.get") == ["percent"]
    assert await names("src/a.py:10") == ["path"]
    assert await names("café") == ["will"]
    assert await names("東京") == ["will"]
    assert await names("the") == []
    assert await names("zzz") == []
    assert (await names("row " + "padding " * 3000)) == ["row"]


async def test_a_rare_word_is_found_among_many_common_ones(everyturn_db: et.Database) -> None:
    """field case 56: the limit is filled, and the row that has both words comes first."""
    conversation = uuid4()
    await everyturn_db.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload)"
        " SELECT %s, 'a', 'user', jsonb_build_object('text', 'an error in the database number ' || n)"
        "   FROM generate_series(1, 3000) AS n",
        (conversation,),
    )
    both = await everyturn_db.turns.append(conversation, "a", "user", {"text": "error: database deadlock"})
    hits = await everyturn_db.turns.search("database deadlock", limit=150)
    assert hits[0].turn == both
    assert len(hits) == 150


async def test_the_row_that_has_all_words_is_found_though_each_is_common(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    await everyturn_db.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload)"
        " SELECT %s, 'a', 'user', jsonb_build_object('text', CASE n WHEN 2000 THEN 'alpha beta'"
        "            WHEN n / 2 * 2 THEN 'alpha ' || n ELSE 'beta ' || n END)"
        "   FROM generate_series(1, 4000) AS n",
        (conversation,),
    )
    [hit] = await everyturn_db.turns.search("alpha beta", limit=1)
    assert hit.turn.payload["text"] == "alpha beta"


async def test_rows_that_are_owed_a_vector_are_found_by_their_words(everyturn_url: str) -> None:
    """field case 58"""
    failing = True

    async def shaky(texts: Sequence[str], kind: str) -> list[list[float]]:
        if failing:
            raise OSError("embedder down")
        return await embed(texts, kind)

    async with et.connect(everyturn_url, embedder=shaky) as db:
        made = await fill(db)
        rows = await db.fetch("SELECT count(*) AS n FROM agent_turns WHERE embedding IS NULL")
        assert rows == [{"n": len(made)}]
        assert found(await db.turns.search("kitten"), made) == ["cat"]
        failing = False
        assert found(await db.turns.search("kitten"), made) == ["cat"]


async def test_blank_texts_are_never_embedded(everyturn_url: str) -> None:
    """field case 57"""
    seen: list[str] = []

    async def watched(texts: Sequence[str], kind: str) -> list[list[float]]:
        seen.extend(texts)
        return await embed(texts, kind)

    async with et.connect(everyturn_url, embedder=watched) as db:
        texts = ["", " \n", "a row", "\t"]
        rows = [et.NewTurn(uuid4(), "a", "user", {"text": text}) for text in texts]
        await db.turns.append_many([*rows, et.NewTurn(uuid4(), "a", "error", {"message": "row"})])
        await db.turns.search(" ")
    assert seen == ["a row"]


async def test_what_is_refused(everyturn_db: et.Database) -> None:
    for wrong in (
        {"text": None},
        {"mode": "fuzzy"},
        {"kind": "assistant"},
        {"limit": 0},
        {"limit": 1 << 40},
        {"conversation": "x"},
        {"since": "yesterday"},
    ):
        options: dict[str, Any] = {"text": "x"} | wrong
        with pytest.raises(et.InvalidValue):
            await everyturn_db.turns.search(**options)
