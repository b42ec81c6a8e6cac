"""Memory: remembering, near-duplicates, superseding, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest
from memory_embedder import WordEmbedder

import everyturn as et
from everyturn.errors import MemoryNotFound
from everyturn.memory import ALL, Memory
from everyturn.testing import database


@pytest.fixture
async def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
async def db(embedder: WordEmbedder) -> AsyncIterator[et.Database]:
    async with database(embedder=embedder) as opened:
        yield opened


async def texts(db: et.Database, *args: Any, **filters: Any) -> list[str | None]:
    return [hit.text for hit in await db.memory.recall("semantic", *args, **filters)]


async def test_a_memory_is_a_row_and_a_turn_in_one_commit(db: et.Database) -> None:
    before = datetime.now(UTC)
    made = await db.memory.remember(
        "semantic", text="The car is crimson", subjects=["car", "car"], attributes={"at": before, "n": 3}
    )
    assert (made.action, made.nearest, made.similarity) == ("added", None, None)
    [row] = await db.fetch("SELECT *, embedding::text AS vector FROM agent_semantic")
    assert (row["id"], row["scope"], row["agent"], row["subjects"]) == (made.id, "default", "default", ["car"])
    assert row["attributes"] == {"at": before.isoformat(), "n": 3}
    assert row["embedded_by"] == "words"
    [turn] = await db.fetch("SELECT *, embedding::text AS vector FROM agent_turns")
    assert turn["id"] == row["source_turn"]
    assert (turn["kind"], turn["agent"], turn["payload"]["toolName"]) == ("tool_result", "default", "memory.remember")
    assert turn["conversation"] == uuid5(NAMESPACE_URL, "everyturn:memory:default")
    assert "toolCallId" not in turn["payload"]
    assert (turn["vector"], turn["embedded_by"], turn["created_at"]) == (row["vector"], "words", row["created_at"])


async def test_a_bound_memory_writes_for_its_agent_scope_and_run(db: et.Database) -> None:
    conversation = uuid4()
    bound = Memory(db, agent="reviewer", scope="acme", conversation=conversation, run_id="r1")
    await bound.remember("episodic", text="A review was posted")
    [row] = await db.fetch("SELECT scope, agent, conversation FROM agent_episodic")
    assert row == {"scope": "acme", "agent": "reviewer", "conversation": conversation}
    [turn] = await db.fetch("SELECT agent, conversation, payload FROM agent_turns")
    assert (turn["agent"], turn["conversation"], turn["payload"]["runId"]) == ("reviewer", conversation, "r1")
    assert len(await bound.recall("episodic", "review")) == 1
    assert await db.memory.recall("episodic", "review") == []
    assert len(await db.memory.recall("episodic", "review", scope=ALL)) == 1


async def test_remembering_joins_a_transaction(db: et.Database) -> None:
    async def changing_ones_mind() -> None:
        async with db.transaction():
            await db.memory.remember("semantic", text="never mind")
            assert len(await db.memory.recall("semantic", "never")) == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await changing_ones_mind()
    assert await db.memory.recall("semantic", "never") == []
    assert await db.fetch("SELECT 1 FROM agent_turns") == []


async def test_near_duplicates_are_reported_kept_skipped_or_superseded(db: et.Database) -> None:
    first = await db.memory.remember("semantic", text="the car is crimson", subjects=["car"])
    kept = await db.memory.remember("semantic", text="the auto is red", subjects=["car"])
    assert (kept.action, kept.nearest, kept.similarity) == ("added", first.id, pytest.approx(1))
    other = await db.memory.remember("semantic", text="the car is crimson", subjects=["another car"])
    assert other.nearest is None, "about something else"
    skipped = await db.memory.remember("semantic", text="the vehicle is red", subjects=["car"], on_duplicate="skip")
    assert (skipped.action, skipped.id) == ("skipped", skipped.nearest)
    assert skipped.id in {first.id, kept.id}
    new = await db.memory.remember("semantic", text="the car is red", subjects=["car"], on_duplicate="supersede")
    assert new.action == "superseded"
    assert new.nearest in {first.id, kept.id}
    added = await db.memory.remember("semantic", text="bananas are yellow", subjects=["car"], on_duplicate="skip")
    assert (added.action, added.nearest) == ("added", None)


async def test_without_an_embedder_the_same_text_is_a_duplicate() -> None:
    async with database() as db:
        first = await db.memory.remember("semantic", text="x = 1")
        again = await db.memory.remember("semantic", text="x = 1", on_duplicate="skip")
        assert (again.id, again.action, again.similarity) == (first.id, "skipped", 1.0)


async def test_a_superseded_fact_is_history(db: et.Database) -> None:
    old = await db.memory.remember("semantic", text="The limit is 30", subjects=["limit"], attributes={"n": 30})
    then = datetime.now(UTC)
    new = await db.memory.supersede(old.id, text="The limit is 60", attributes={"n": 60})
    assert (new.action, new.nearest) == ("superseded", old.id)
    assert await texts(db, "limit") == ["The limit is 60"]
    assert await texts(db, "limit", as_of=then) == ["The limit is 30"]
    assert await texts(db, "limit", as_of=then - timedelta(days=1)) == []
    [row] = await db.fetch("SELECT * FROM agent_semantic WHERE id = %s", (old.id,))
    [next] = await db.fetch("SELECT * FROM agent_semantic WHERE id = %s", (new.id,))
    assert (row["superseded_by"], row["valid_until"]) == (new.id, next["valid_from"])
    assert next["subjects"] == ["limit"], "taken over"
    turn = (await db.fetch("SELECT payload FROM agent_turns ORDER BY seq"))[-1]["payload"]
    assert (turn["toolName"], turn["supersedes"]) == ("memory.supersede", str(old.id))
    with pytest.raises(et.InvalidValue, match=str(new.id)):
        await db.memory.supersede(old.id, text="The limit is 90")
    with pytest.raises(MemoryNotFound):
        await db.memory.supersede(uuid4(), text="x")
    with pytest.raises(et.InvalidValue, match="what is new"):
        await db.memory.supersede(new.id)


async def test_superseding_stays_in_its_scope(db: et.Database) -> None:
    made = await db.memory.remember("semantic", text="secret", scope="b")
    with pytest.raises(MemoryNotFound):
        await Memory(db, scope="a").supersede(made.id, text="mine now")
    with pytest.raises(MemoryNotFound):
        await db.memory.supersede(made.id, text="mine now", scope="a")
    assert (await db.memory.supersede(made.id, attributes={"seen": True})).action == "superseded"
    [hit] = await db.memory.recall("semantic", scope="b")
    assert (hit.text, hit.attributes, hit.embedded_by) == ("secret", {"seen": True}, "words")


async def test_supersession_with_a_time_of_its_own(db: et.Database) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    old = await db.memory.remember("semantic", text="Ann leads", occurred_at=start)
    await db.memory.supersede(old.id, text="Bob leads", occurred_at=datetime(2022, 1, 1))
    assert await texts(db, "leads", as_of=datetime(2021, 6, 1)) == ["Ann leads"]
    assert await texts(db, "leads", as_of=datetime(2022, 1, 1)) == ["Bob leads"]
    assert await texts(db, "leads", as_of=datetime(2019, 1, 1)) == []


async def test_procedural_memory_is_an_upsert_by_key(db: et.Database) -> None:
    first = await db.memory.remember("procedural", cache_key="gh:o/r#7", value={"diff": b"\x00\xff"}, subjects=["o/r"])
    again = await db.memory.remember("procedural", cache_key="gh:o/r#7", value=[1, None], subjects=["o/r", "pr"])
    assert (first.action, again.action, first.id) == ("added", "updated", again.id)
    for found in (
        await db.memory.recall("procedural", "gh:o/r#7"),
        await db.memory.recall("procedural", subjects=["gh:o/r#7"]),
        await db.memory.recall("procedural", subjects=["pr", "gh:o/r#7"]),
    ):
        assert [hit.value for hit in found] == [[1, None]]
    assert await db.memory.recall("procedural", "gh:o/r") == []
    await db.memory.remember("procedural", cache_key="nothing", value=None)
    assert (await db.memory.recall("procedural", "nothing"))[0].value is None
    await db.memory.remember("procedural", cache_key="bytes", value=b"\x89PNG")
    assert (await db.memory.recall("procedural", "bytes"))[0].value == b"\x89PNG"


async def test_expired_memories_are_never_returned(db: et.Database) -> None:
    past, soon = datetime.now(UTC) - timedelta(seconds=1), timedelta(hours=1)
    await db.memory.remember("procedural", cache_key="k", value=1, expires_at=past)
    await db.memory.remember("semantic", text="gone by now", expires_at=past)
    await db.memory.remember("episodic", text="gone by now", expires_at=past)
    await db.memory.remember("semantic", text="still here now", expires_at=soon)
    assert await db.memory.recall("procedural", "k") == []
    assert await db.memory.recall("episodic", "gone") == []
    assert await texts(db, "gone by now") == ["still here now"]
    assert await texts(db, as_of=past) == []
    await db.memory.remember("procedural", cache_key="k", value=2, expires_at=soon)
    assert (await db.memory.recall("procedural", "k"))[0].value == 2


async def test_many_are_remembered_with_one_call_and_one_commit(db: et.Database, embedder: WordEmbedder) -> None:
    done = await db.memory.remember_many(
        "semantic", [{"text": f"fact number {n}", "subjects": [f"s{n}"], "attributes": {"n": n}} for n in range(1200)]
    )
    assert len(done) == len({one.id for one in done}) == 1200
    assert len(embedder.calls) == 1
    rows = await db.fetch("SELECT xmin::text AS x, count(*) AS n FROM agent_semantic GROUP BY 1")
    assert [row["n"] for row in rows] == [1200]
    order = await db.fetch("SELECT payload -> 'attributes' -> 'n' AS n FROM agent_turns ORDER BY seq")
    assert [row["n"] for row in order] == list(range(1200))
    done = await db.memory.remember_many("procedural", [{"cache_key": f"k{n % 3}", "value": n} for n in range(8)])
    assert [one.action for one in done] == ["added"] * 3 + ["updated"] * 5
    assert {hit.cache_key: hit.value for hit in await db.memory.recall("procedural")} == {"k0": 6, "k1": 7, "k2": 5}


async def test_a_bad_item_among_many_writes_nothing(db: et.Database) -> None:
    for bad in ({"text": None}, {"text": "x", "colour": "red"}, {"text": "x", "subjects": [""]}, {"cache_key": "k"}):
        with pytest.raises(et.InvalidValue, match="Item 1"):
            await db.memory.remember_many("semantic", [{"text": "fine"}, bad])
    assert await db.fetch("SELECT 1 FROM agent_turns UNION ALL SELECT 1 FROM agent_semantic") == []


async def test_blanks_are_kept_and_never_embedded(db: et.Database, embedder: WordEmbedder) -> None:
    """field case 57: blank text is stored; the embedder is not called for it."""
    for blank in ("", " \n"):
        await db.memory.remember("semantic", text=blank)
    assert embedder.calls == []
    await db.memory.remember_many("semantic", [{"text": f"line {n}" if n != 4 else "\t"} for n in range(10)])
    assert [len(call) for call in embedder.calls] == [9]
    rows = await db.fetch("SELECT count(*) AS all, count(embedding) AS with_vector FROM agent_semantic")
    assert rows == [{"all": 12, "with_vector": 9}]


async def test_a_failing_embedder_leaves_the_row_owed(db: et.Database, embedder: WordEmbedder) -> None:
    """field case 58: the memory is kept, marked, and found by its words, beside others that have vectors."""
    await db.memory.remember_many("semantic", [{"text": f"the car is nice {n}"} for n in range(20)])
    embedder.failing = True
    await db.memory.remember("semantic", text="zebras crossing parse_diff")
    [row] = await db.fetch("SELECT embedding, embedded_by FROM agent_semantic WHERE text LIKE 'zebra%'")
    assert row == {"embedding": None, "embedded_by": None}
    assert (await texts(db, "zebras"))[0] == "zebras crossing parse_diff", "while the embedder is away"
    embedder.failing = False
    assert (await texts(db, "zebras crossing"))[0] == "zebras crossing parse_diff", "and when it is back"
    assert (await texts(db, "parse_diff"))[0] == "zebras crossing parse_diff"


async def test_a_vector_of_another_size_is_refused_by_name(db: et.Database) -> None:
    """field case 51: both sizes are named, and nothing is stored."""
    await db.memory.remember("semantic", text="first")

    async def wide(texts: list[str], kind: str) -> list[list[float]]:
        return [[0.1] * 96 for _ in texts]

    async with et.connect(db.url, embedder=wide) as other:
        with pytest.raises(et.EmbedderError, match=r"96.*64"):
            await other.memory.remember("semantic", text="second")
    assert await texts(db) == ["first"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("fact", {"text": "x"}),
        ("semantic", {}),
        ("semantic", {"text": 3}),
        ("semantic", {"text": "x", "value": 1}),
        ("semantic", {"text": "x", "cache_key": "k"}),
        ("semantic", {"text": "x", "scope": ALL}),
        ("semantic", {"text": "x", "scope": " "}),
        ("semantic", {"text": "x", "attributes": ["a"]}),
        ("semantic", {"text": "x", "subjects": 3}),
        ("semantic", {"text": "x", "subjects": [b"a"]}),
        ("semantic", {"text": "x", "occurred_at": "yesterday"}),
        ("semantic", {"text": "x", "expires_at": 60}),
        ("semantic", {"text": "x", "on_duplicate": "drop"}),
        ("semantic", {"text": "x", "threshold": 2}),
        ("episodic", {"text": "x", "on_duplicate": "supersede"}),
        ("procedural", {"cache_key": "k"}),
        ("procedural", {"value": 1}),
        ("procedural", {"cache_key": "k", "value": 1, "text": "x"}),
        ("procedural", {"cache_key": "k", "value": 1, "attributes": {"a": 1}}),
        ("procedural", {"cache_key": "k", "value": 1, "on_duplicate": "skip"}),
    ],
)
async def test_what_cannot_be_remembered_is_refused_before_anything_is_written(
    everyturn_db: et.Database, kind: Any, fields: dict[str, Any]
) -> None:
    with pytest.raises(et.InvalidValue):
        await everyturn_db.memory.remember(kind, **fields)
    assert await everyturn_db.fetch("SELECT 1 FROM agent_turns") == []


async def test_keys_that_no_index_takes_are_refused(everyturn_db: et.Database) -> None:
    """field case 68: a name, a subject or a key of 3,000 random characters."""
    long = "".join(chr(33 + n * 7919 % 90) for n in range(3000))
    memory = everyturn_db.memory
    for fields in ({"subjects": [long]}, {"scope": long}, {"agent": long}):
        with pytest.raises(et.InvalidValue, match="3000 bytes"):
            await memory.remember("semantic", text="x", **fields)  # type: ignore[arg-type]
    with pytest.raises(et.InvalidValue, match="3000 bytes"):
        await memory.remember("procedural", cache_key=long, value=1)
    edge = {"subjects": ["é" * 512], "scope": long[:512], "agent": long[:512]}
    await memory.remember("semantic", text=long * 10, **edge)  # type: ignore[arg-type]
    await memory.remember("procedural", cache_key="é" * 512, value=1, **edge)  # type: ignore[arg-type]


async def test_odd_text_is_stored_readable(db: et.Database) -> None:
    """field case 1: NUL, field case 4: a lone surrogate, field case 50: percent signs, in every text of a memory."""
    odd = "a\x00b \udc81 50% off %s %(x)s :'y' $1 \x1e \x1f"
    await db.memory.remember("semantic", text=odd, subjects=[odd], attributes={odd: odd})
    await db.memory.remember_many("episodic", [{"text": odd}, {"text": "fine"}])
    await db.memory.remember("procedural", cache_key=odd, value=odd)
    clean = odd.replace("\x00", "\ufffd").replace("\udc81", "\ufffd")
    [hit] = await db.memory.recall("semantic", odd, subjects=[odd], attributes={odd: odd})
    assert (hit.text, hit.subjects, hit.attributes) == (clean, [clean], {clean: clean})
    assert {hit.text for hit in await db.memory.recall("episodic", "50% off")} == {clean, "fine"}
    assert (await db.memory.recall("procedural", odd))[0].value == clean


async def test_a_redaction_rule_holds_for_memory() -> None:
    """field case 149: what the rule masks reaches neither table nor log."""

    def mask(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: mask(part) for key, part in value.items()}
        if isinstance(value, list):
            return [mask(part) for part in value]
        return value.replace("hunter2", "***") if isinstance(value, str) else value

    async with database(redact=mask) as db:
        made = await db.memory.remember(
            "semantic", text="pw hunter2", subjects=["hunter2"], attributes={"p": "hunter2"}
        )
        await db.memory.supersede(made.id, text="now hunter2 again")
        await db.memory.remember("procedural", cache_key="k", value={"p": ["hunter2"]})
        rows = await db.fetch(
            "SELECT t::text FROM agent_turns t UNION ALL SELECT s::text FROM agent_semantic s"
            " UNION ALL SELECT p::text FROM agent_procedural p"
        )
        assert len(rows) == 6
        assert not any("hunter2" in row["t"] for row in rows)


async def test_memory_has_a_blocking_face(everyturn_url: str) -> None:
    import asyncio

    def work() -> list[Any]:
        with et.connect(everyturn_url, embedder=False) as db:
            db.memory.remember("semantic", text="said from a thread")
            return db.memory.recall("semantic", "thread")

    assert [hit.text for hit in await asyncio.to_thread(work)] == ["said from a thread"]
