"""Recall: filters, evidence and its fusion, and the ways in which it must not go wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from memory_embedder import SIZE, WordEmbedder, vector

import everyturn as et
from everyturn.memory import ALL, Kind
from everyturn.testing import database, database_url


@pytest.fixture
async def db() -> AsyncIterator[et.Database]:
    async with database(embedder=WordEmbedder()) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_url() -> Iterator[str]:
    with database_url() as url:
        yield url


@pytest.fixture
async def shared(shared_url: str) -> AsyncIterator[et.Database]:
    """One database for many cases: each uses a scope of its own."""
    async with et.connect(shared_url, embedder=WordEmbedder()) as opened:
        yield opened


@pytest.fixture
def scope() -> str:
    return f"scope {uuid4()}"


async def remember(db: et.Database, *texts: str, **fields: Any) -> None:
    await db.memory.remember_many("semantic", [{"text": text} | fields for text in texts])


async def texts(db: et.Database, *args: Any, **filters: Any) -> list[str | None]:
    return [hit.text for hit in await db.memory.recall("semantic", *args, **filters)]


async def test_a_hit_says_why_it_is_there(db: et.Database) -> None:
    await remember(db, "the car is crimson", "parse_diff is broken", "bananas are yellow")
    hits = await db.memory.recall("semantic", "parse_diff the car")
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    by_text = {hit.text: hit for hit in hits}
    first, car = by_text["parse_diff is broken"], by_text["the car is crimson"]
    assert (first.lexical_rank, first.matched) == (1, ["parse_diff", "diff", "pars"])
    assert (first.score or 0) > (first.similarity or 0) + 0.3
    assert (car.vector_rank, car.lexical_rank, car.matched) == (1, 2, ["car"])
    bananas = by_text["bananas are yellow"]
    assert (bananas.lexical_rank, bananas.matched, bananas.score) == (None, [], bananas.similarity)
    shown = first.as_dict()
    assert {"id", "text", "score", "lexical_rank", "vector_rank", "similarity", "matched"} <= shown.keys()
    assert "cache_key" not in shown


async def test_meaning_leads_and_words_break_ties(db: et.Database) -> None:
    await remember(db, "the vehicle crashed", "an auto is what an auto is", "it is a vehicle")
    found = await texts(db, "car broken")
    assert found[0] == "the vehicle crashed"


async def test_filters_are_and_ed(db: et.Database) -> None:
    await remember(db, "one", subjects=["a", "b"], agent="x", attributes={"line": 3, "path": "a.py"})
    await remember(db, "two", subjects=["a"], agent="y", attributes={"line": 10, "path": "b.py", "tags": ["x", "y"]})
    await remember(db, "three", subjects=["b", "O'Brien"], scope="other", attributes={"line": "10", "gone": None})
    assert await texts(db, subjects=["a"]) == ["two", "one"]
    assert await texts(db, subjects=["a", "b"]) == ["one"]
    assert await texts(db, subjects="a", agent="y") == ["two"]
    assert await texts(db, subjects=["O'Brien"]) == []
    assert await texts(db, subjects=["O'Brien"], scope=ALL) == ["three"]
    assert await texts(db, scope="other") == ["three"]
    assert await texts(db, "two", subjects=["b"], scope=ALL, limit=1) in (["one"], ["three"])


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"line": 3}, {"one"}),
        ({"line": 3.0}, {"one"}),
        ({"line": "10"}, {"three"}),
        ({"line": {">": 3}}, {"two"}),
        ({"line": {">=": 3, "<": 10}}, {"one"}),
        ({"line": {">": -1, "<=": 1e3}}, {"one", "two"}),
        ({"line": {">": "1"}}, {"three"}),
        ({"path": {"in": ["a.py", "c.py"]}}, {"one"}),
        ({"line": {"in": [3, "10", None, True]}}, {"one", "three"}),
        ({"line": {"in": []}}, set()),
        ({"gone": {"exists": True}}, {"three"}),
        ({"gone": {"exists": False}, "path": {"exists": True}}, {"one", "two"}),
        ({"gone": None}, {"three"}),
        ({"tags": ["x", "y"]}, {"two"}),
        ({"tags": ["y", "x"]}, set()),
        ({"tags": ["x"]}, set()),
        ({"meta": {"=": {"a": {"b": 1}}}}, {"one"}),
        ({"meta": {"=": {"a": {}}}}, set()),
        ({"path": "a.py", "line": {"<": 9}}, {"one"}),
        ({"flag": True}, {"two"}),
        ({"flag": {"in": [True]}}, {"two"}),
        ({"flag": 1}, set()),
        ({'q"uo\\te': 1}, {"one"}),
        ({'q"uo\\te': {">=": 1}}, {"one"}),
        ({"grüße 😀": {"in": ["😀"]}}, {"two"}),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
async def test_attribute_operators(
    shared: et.Database, scope: str, attributes: dict[str, Any], expected: set[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "one", "attributes": {"line": 3, "path": "a.py", "meta": {"a": {"b": 1}}, 'q"uo\\te': 1}},
        {"text": "two", "attributes": {"line": 10, "path": "b.py", "tags": ["x", "y"], "flag": True, "grüße 😀": "😀"}},
        {"text": "three", "attributes": {"line": "10", "gone": None}},
    ]
    kinds: tuple[Kind, ...] = ("semantic", "episodic")
    for kind in kinds:
        await shared.memory.remember_many(kind, [row | {"scope": scope} for row in rows])
        found = await shared.memory.recall(kind, attributes=attributes, scope=scope)
        assert {hit.text for hit in found} == expected


@pytest.mark.parametrize(
    "filters",
    [
        {"attributes": {"a": {"$gt": 1}}},
        {"attributes": {"a": {"like": "x"}}},
        {"attributes": {"a": {}}},
        {"attributes": {"a": {"<": [1]}}},
        {"attributes": {"a": {"<": True}}},
        {"attributes": {"a": {"in": "abc"}}},
        {"attributes": {"a": {"in": [{"b": 1}]}}},
        {"attributes": {"a": {"exists": "yes"}}},
        {"attributes": {3: "x"}},
        {"attributes": "a = 1"},
        {"subjects": [1]},
        {"limit": 0},
        {"limit": True},
        {"since": "yesterday"},
        {"half_life": 3},
        {"scope": 3},
        {"agent": ""},
    ],
    ids=str,
)
async def test_unknown_filters_are_errors(shared: et.Database, filters: dict[str, Any]) -> None:
    with pytest.raises(et.InvalidValue):
        await shared.memory.recall("semantic", **filters)
    with pytest.raises(TypeError):
        await shared.memory.recall("semantic", colour="red")  # type: ignore[call-arg]
    with pytest.raises(et.InvalidValue):
        await shared.memory.recall("episodic", as_of=datetime.now(UTC))
    with pytest.raises(et.InvalidValue):
        await shared.memory.recall("episodic", half_life=0)
    with pytest.raises(et.InvalidValue):
        await shared.memory.recall("procedural", attributes={"a": 1})


@pytest.mark.parametrize(
    "odd", ["a' = 'x' OR '1'='1' --", "O'Brien", "x') OR 1=1 --", '") || true || ("', "\\", "$.*", "%", "_", "{}"]
)
async def test_no_filter_becomes_sql(shared: et.Database, scope: str, odd: str) -> None:
    """field case 143: keys and values are data wherever they stand."""
    memory = shared.memory
    await memory.remember("semantic", text="plain", subjects=["s"], attributes={"a": "x"}, scope=scope)
    for filters in (
        {"attributes": {odd: 1}},
        {"attributes": {odd: {">": 1}}},
        {"attributes": {"a": odd}},
        {"attributes": {"a": {"in": [odd]}}},
        {"attributes": {"a": {"=": odd}}},
        {"subjects": [odd]},
        {"agent": odd},
        {"scope": odd},
    ):
        filters = {"scope": scope} | filters
        assert await memory.recall("semantic", **filters) == []  # type: ignore[arg-type]
        assert (await memory.forget("semantic", **filters)).count == 0  # type: ignore[arg-type]
    await memory.remember("semantic", text="odd", subjects=[odd], scope=odd, agent=odd, attributes={odd: odd})
    assert len(await memory.recall("semantic", subjects=[odd], scope=odd, agent=odd, attributes={odd: odd})) == 1
    assert len(await memory.recall("semantic", scope=odd, attributes={odd: {"in": [odd]}})) == 1


@pytest.mark.parametrize(
    "question",
    [
        *("What's up?", '"a" OR', "a & | b", "foo:bar", "J D <j@x.io>", "\\", "'", "50% off", "%s %(x)s", ":'x'"),
        *("the", "", " \n", "\x00", "\udc81", "😀", "word " * 3000, "x" * 100_000, "-" * 100_000),
    ],
    ids=lambda text: repr(text[:12]),
)
async def test_any_question_gives_a_list(shared: et.Database, scope: str, question: str) -> None:
    """field case 60: operators and quotes, field case 50: percent signs, field case 62: long questions."""
    await remember(shared, "the car", "will is a person called Will", "50% off", scope=scope)
    assert isinstance(await shared.memory.recall("semantic", question, scope=scope), list)
    assert isinstance(await shared.memory.recall("episodic", question), list)
    assert isinstance(await shared.memory.recall("procedural", question), list)


async def test_stop_words_are_not_the_absence_of_a_question(everyturn_db: et.Database) -> None:
    """field case 63: without vectors, a question of stop words finds nothing, and never all rows."""
    await remember(everyturn_db, "the car", "Will called", "the end")
    for question in ("the", "will", "", " ", "is it the"):
        assert await texts(everyturn_db, question) == []
    assert await texts(everyturn_db, "the car") == ["the car"], "a filler word does not empty the result"


async def test_a_long_question_keeps_its_words(everyturn_db: et.Database) -> None:
    """field case 62: 3,000 words are cut, and still find."""
    await remember(everyturn_db, "about zebras", "about lions")
    assert await texts(everyturn_db, "zebras " + " ".join(f"word{n}" for n in range(3000))) == ["about zebras"]


async def test_accents_and_cjk_are_recalled(everyturn_db: et.Database) -> None:
    """field case 64: through the whole of recall."""
    await remember(everyturn_db, "今天东京下雨", "Café Zürich", "서울에서 만나요", "東京タワー")
    for question, answer in (
        ("东京", "今天东京下雨"),
        ("cafe", "Café Zürich"),
        ("서울", "서울에서 만나요"),
        ("タワー", "東京タワー"),
    ):
        assert (await texts(everyturn_db, question))[0] == answer


async def test_ties_go_to_the_newer(everyturn_db: et.Database) -> None:
    for number in range(4):
        await everyturn_db.memory.remember(
            "semantic", text="same words", attributes={"n": number}, occurred_at=datetime(2020, 1, 1 + number)
        )
    hits = await everyturn_db.memory.recall("semantic", "words")
    assert [hit.attributes["n"] for hit in hits] == [3, 2, 1, 0]
    assert [hit.lexical_rank for hit in hits] == [1, 1, 1, 1]


async def test_since_and_until_bound_the_time_it_happened(everyturn_db: et.Database) -> None:
    memory = everyturn_db.memory
    for day in (1, 2, 3):
        await memory.remember("episodic", text=f"day {day}", occurred_at=datetime(2024, 5, day, 12, tzinfo=UTC))
    found = await memory.recall("episodic", since=datetime(2024, 5, 2), until=datetime(2024, 5, 3, 12, tzinfo=UTC))
    assert [hit.text for hit in found] == ["day 2"], "from since on, and before until; a naive time is UTC"
    assert [hit.text for hit in await memory.recall("episodic")] == ["day 3", "day 2", "day 1"]


async def test_recency_can_be_weighed(db: et.Database) -> None:
    now = datetime.now(UTC)
    await db.memory.remember("episodic", text="the car is red today", occurred_at=now)
    await db.memory.remember("episodic", text="the car is red", occurred_at=now - timedelta(days=400))
    plain = await db.memory.recall("episodic", "the car is red")
    weighed = await db.memory.recall("episodic", "the car is red", half_life=30)
    assert [hit.text for hit in plain] == ["the car is red", "the car is red today"]
    assert [hit.text for hit in weighed] == ["the car is red today", "the car is red"]
    assert weighed[1].score == pytest.approx((plain[0].score or 0) * 0.5 ** (400 / 30), rel=1e-3)
    await db.memory.recall("episodic", "car", half_life=1e-6)


async def test_a_zero_vector_is_never_first(db: et.Database) -> None:
    """field case 53: whoever stored it, it has no similarity; a question without direction falls back to words."""
    await remember(db, "the car is red", "bananas are yellow")
    zero = "[" + ",".join(["0"] * SIZE) + "]"
    await db.execute(
        "INSERT INTO agent_semantic (text, embedding, embedded_by) VALUES ('nothing', %s::vector, 'words')", (zero,)
    )
    hits = await db.memory.recall("semantic", "red car", limit=3)
    assert hits[0].text == "the car is red"
    assert all(hit.score == hit.score for hit in hits)

    async def no_direction(texts: list[str], kind: str) -> list[list[float]]:
        return [[0.0] * SIZE if kind == "query" else vector(text) for text in texts]

    async with et.connect(db.url, embedder=et.Embedder(no_direction, name="words")) as other:
        assert await texts(other, "bananas") == ["bananas are yellow"]


async def test_vectors_of_different_embedders_are_never_compared(db: et.Database) -> None:
    await remember(db, "the car is red", "other words")

    async def backwards(texts: list[str], kind: str) -> list[list[float]]:
        return [[-x for x in vector(text)] for text in texts]

    async with et.connect(db.url, embedder=et.Embedder(backwards, name="backwards")) as other:
        await remember(other, "the auto is crimson")
        hits = await other.memory.recall("semantic", "the red car")
        assert {hit.text: hit.similarity is not None for hit in hits} == {
            "the auto is crimson": True,
            "the car is red": False,
        }


async def test_filters_and_limits_are_filled() -> None:
    """field case 55: 40 rows of 20,000 in a scope, field case 56: k above the index's search width."""
    async with database() as db:
        await db.execute("ALTER TABLE agent_semantic ALTER COLUMN embedding TYPE vector(3)")
        await db.execute("DROP INDEX agent_semantic_embedding")
        await db.execute(
            "INSERT INTO agent_semantic (text, scope, embedding, embedded_by)"
            " SELECT 'memory ' || n, CASE WHEN n % 500 = 0 THEN 'rare' ELSE 'default' END,"
            "        ARRAY[cos(n), sin(n), (n % 7)::float / 7]::vector, 'three'"
            "   FROM generate_series(1, 20000) AS n"
        )
        await db.execute(
            "CREATE INDEX agent_semantic_embedding ON agent_semantic USING hnsw (embedding vector_cosine_ops)"
        )
        await db.execute("ALTER TABLE agent_turns ALTER COLUMN embedding TYPE vector(3)")

        async def three(texts: list[str], kind: str) -> list[list[float]]:
            return [[1.0, 0.1, 0.2] for _ in texts]

        async with et.connect(db.url, embedder=et.Embedder(three, name="three")) as other:
            # With and without the planner's knowledge of the table.
            for statement in ("SELECT 1", "ANALYZE agent_semantic"):
                await other.execute(statement)
                assert len(await other.memory.recall("semantic", "anything", scope="rare")) == 10
                assert len(await other.memory.recall("semantic", "anything", scope="rare", limit=100)) == 40
                assert len(await other.memory.recall("semantic", "anything", limit=100)) == 100
                assert len(await other.memory.recall("semantic", "anything", limit=500)) == 500


async def test_a_limit_may_be_as_large_as_one_likes(db: et.Database) -> None:
    await db.memory.remember("semantic", text="a fact")
    assert len(await db.memory.recall("semantic", "fact", limit=10**30)) == 1
    assert len(await db.memory.recall("semantic", limit=10**30)) == 1


async def test_scopes_and_agents_are_kept_apart(everyturn_db: et.Database) -> None:
    """field case 145: one scope never sees or forgets another's."""
    memory = everyturn_db.memory
    await memory.remember("semantic", text="the fact", scope="A", agent="x")
    await memory.remember("semantic", text="the fact", scope="B", agent="y")
    await memory.remember("semantic", text="the fact", agent="y")
    assert [hit.scope for hit in await memory.recall("semantic", "fact")] == ["default"]
    assert [hit.scope for hit in await memory.recall("semantic", "fact", scope="A")] == ["A"]
    assert {hit.scope for hit in await memory.recall("semantic", "fact", scope=ALL)} == {"A", "B", "default"}
    assert {hit.scope for hit in await memory.recall("semantic", "fact", scope=ALL, agent="y")} == {"B", "default"}
    await memory.forget("semantic", scope="A")
    assert {hit.scope for hit in await memory.recall("semantic", "fact", scope=ALL)} == {"B", "default"}


async def test_a_question_behind_much_white_space_is_the_same_question(everyturn_db: et.Database) -> None:
    """field case 62"""
    await everyturn_db.memory.remember("semantic", text="parse_diff is slow")
    [hit] = await everyturn_db.memory.recall("semantic", " \n" * 3000 + "parse_diff")
    assert hit.text == "parse_diff is slow"


async def test_arguments_of_the_wrong_kind_are_refused_in_a_sentence(everyturn_db: et.Database) -> None:
    with pytest.raises(et.InvalidValue, match="half_life='x'"):
        await everyturn_db.memory.recall("episodic", "car", half_life="x")  # type: ignore[arg-type]
    for items in (None, "text", {"text": "one"}):
        with pytest.raises(et.InvalidValue, match="items must be a list"):
            await everyturn_db.memory.remember_many("semantic", items)  # type: ignore[arg-type]
