"""Forgetting, and the tables made again from the log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from memory_embedder import WordEmbedder

import everyturn as et
from everyturn.memory import ALL, Memory
from everyturn.testing import database

TABLES = ("agent_episodic", "agent_semantic", "agent_procedural")


@pytest.fixture
async def db() -> AsyncIterator[et.Database]:
    async with database(embedder=WordEmbedder()) as opened:
        yield opened


async def tables(db: et.Database) -> list[list[dict[str, Any]]]:
    return [await db.fetch(f"SELECT * FROM {table} ORDER BY id") for table in TABLES]  # noqa: S608


async def fill(db: et.Database) -> None:
    """A history with everything in it: kinds, scopes, agents, supersession, upserts, removals, expiry."""
    memory = db.memory
    for number in range(6):
        fields: dict[str, Any] = {"scope": f"s{number % 2}", "agent": f"a{number % 3}", "subjects": [f"n{number}"]}
        await memory.remember(
            "episodic", text=f"event {number}", occurred_at=datetime(2024, 1, 1 + number, tzinfo=UTC), **fields
        )
        fact = await memory.remember("semantic", text=f"fact {number}", attributes={"n": [number, None]}, **fields)
        if number % 2:
            newer = await memory.supersede(fact.id, text=f"newer fact {number}")
            await memory.supersede(newer.id, attributes={"n": -number}, expires_at=timedelta(days=number))
        await memory.remember("procedural", cache_key=f"k{number % 4}", value={"n": number}, **fields)
        await memory.remember("procedural", cache_key=f"k{number % 4}", value=None, **fields)
    await memory.remember("semantic", text="")
    await memory.remember("semantic", text="expired", expires_at=datetime(2024, 1, 1, tzinfo=UTC))
    await Memory(db, agent="bot", scope="s1", conversation=uuid4(), run_id="r").remember("episodic", text="in a run")
    await memory.forget("semantic", subjects=["n3"], scope=ALL)
    await memory.forget("procedural", subjects=["k1"], scope=ALL)
    await memory.remember("procedural", cache_key="k1", value="again", scope="s1", agent="a1")


async def test_the_tables_are_made_again_from_the_log(db: et.Database) -> None:
    await fill(db)
    before = await tables(db)
    assert all(len(rows) > 1 for rows in before)
    assert [(done.removed, done.written) for done in await db.memory.rebuild()] == [(0, 0)] * 3
    for table in TABLES:
        await db.execute(f"DELETE FROM {table}")  # noqa: S608
    done = await db.memory.rebuild()
    assert [(one.removed, one.written) for one in done] == [(0, len(rows)) for rows in before]
    assert await tables(db) == before


async def test_rebuilding_tells_how_far_it_has_come(db: et.Database) -> None:
    await db.memory.remember_many("procedural", [{"cache_key": f"k{n}", "value": n} for n in range(2500)])
    await db.execute("DELETE FROM agent_procedural")
    told: list[tuple[str, int]] = []
    await db.memory.rebuild(progress=lambda table: told.append((table.kind, table.written)))
    assert [written for kind, written in told if kind == "procedural"] == [0, 1000, 2000, 2500]

    def refuse(table: Any) -> None:
        if table.written == 1000:
            raise RuntimeError("stop")

    await db.execute("DELETE FROM agent_procedural")
    with pytest.raises(RuntimeError, match="stop"):
        await db.memory.rebuild(progress=refuse)
    assert not await db.fetch("SELECT 1 FROM agent_procedural"), "all or nothing"


async def test_rebuilding_mends_what_was_changed_by_hand(db: et.Database) -> None:
    await fill(db)
    before = await tables(db)
    await db.execute("UPDATE agent_semantic SET text = 'tampered' WHERE text = 'newer fact 5'")
    await db.execute("UPDATE agent_semantic SET superseded_by = NULL, valid_until = NULL")
    await db.execute("DELETE FROM agent_episodic WHERE scope = 's0'")
    await db.execute("INSERT INTO agent_procedural (cache_key, value) VALUES ('not in the log', '1')")
    assert sum(one.removed + one.written for one in await db.memory.rebuild()) > 0
    assert await tables(db) == before


async def test_rebuilding_one_scope_or_agent_leaves_the_others(db: et.Database) -> None:
    await fill(db)
    for table in TABLES:
        await db.execute(f"DELETE FROM {table}")  # noqa: S608
    await db.memory.rebuild(scope="s1", agent="a1")
    for rows in await tables(db):
        assert rows
        assert {(row["scope"], row["agent"]) for row in rows} == {("s1", "a1")}


async def test_forgotten_means_gone(db: et.Database) -> None:
    """field case 147: not found any more, at once, from another connection either, and logged in the same commit."""
    made = await db.memory.remember("semantic", text="the car is red", subjects=["car"])
    async with et.connect(db.url, embedder=WordEmbedder()) as other:
        assert len(await other.memory.recall("semantic", "car")) == 1
        gone = await db.memory.forget("semantic", subjects=["car"])
        assert (gone.count, gone.ids) == (1, [made.id])
        for mine in (db, other):
            assert await mine.memory.recall("semantic", "car") == []
            assert await mine.memory.recall("semantic", subjects=["car"]) == []
    [turn] = await db.fetch("SELECT * FROM agent_turns WHERE payload ->> 'toolName' = 'memory.forget'")
    assert (turn["payload"]["ids"], turn["payload"]["count"]) == ([str(made.id)], 1)
    await db.memory.rebuild()
    assert await db.memory.recall("semantic", "car") == []
    again = await db.memory.forget("semantic", subjects=["car"])
    assert (again.count, again.ids) == (0, [])
    assert len(await db.fetch("SELECT 1 FROM agent_turns")) == 2, "nothing went, so nothing was logged"


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"subjects": None},
        {"subjects": []},
        {"agent": None, "scope": None, "ids": None},
        {"scope": ALL},
        {"attributes": {}},
        {"from_log": True},
    ],
    ids=str,
)
async def test_an_empty_filter_is_refused(everyturn_db: et.Database, filters: dict[str, Any]) -> None:
    """field case 145: forget with no filter, or only empty ones."""
    await everyturn_db.memory.remember("semantic", text="kept")
    for memory in (everyturn_db.memory, Memory(everyturn_db, agent="a", scope="default")):
        with pytest.raises(et.InvalidValue, match="everything"):
            await memory.forget("semantic", **filters)
    assert len(await everyturn_db.memory.recall("semantic")) == 1


async def test_only_the_filtered_are_forgotten(everyturn_db: et.Database) -> None:
    """field case 145: A's memories go and B's stay; ids of another scope are no way in."""
    memory = everyturn_db.memory
    mine = await memory.remember("semantic", text="of A", scope="A", attributes={"n": 1})
    await memory.remember("semantic", text="of A too", scope="A", agent="x", attributes={"n": 2})
    other = await memory.remember("semantic", text="of B", scope="B", attributes={"n": 1})
    assert (await memory.forget("semantic", ids=[other.id], scope="A")).count == 0
    assert (await Memory(everyturn_db, scope="A").forget("semantic", ids=[other.id])).count == 0
    assert (await memory.forget("semantic", ids=[])).count == 0
    assert (await memory.forget("semantic", attributes={"n": {">": 1}}, scope="A")).count == 1
    assert (await memory.forget("semantic", ids=[str(mine.id), other.id], scope="A")).ids == [mine.id]
    assert [hit.text for hit in await memory.recall("semantic", scope=ALL)] == ["of B"]
    assert (await memory.forget("semantic", agent="nobody", scope="B")).count == 0
    assert (await memory.forget("semantic", scope="B")).count == 1


async def test_the_old_are_forgotten_by_age(everyturn_db: et.Database) -> None:
    memory = everyturn_db.memory
    now = datetime.now(UTC)
    for days in (1, 10, 100):
        await memory.remember("episodic", text=f"{days} days ago", occurred_at=now - timedelta(days=days))
    assert (await memory.forget("episodic", older_than=timedelta(days=50))).count == 1
    assert (await memory.forget("episodic", until=now - timedelta(days=5))).count == 1
    assert [hit.text for hit in await memory.recall("episodic")] == ["1 days ago"]


async def test_superseded_facts_are_forgotten_as_well(everyturn_db: et.Database) -> None:
    memory = everyturn_db.memory
    old = await memory.remember("semantic", text="lives in Rome", subjects=["ann"])
    new = await memory.supersede(old.id, text="lives in Oslo")
    assert (await memory.forget("semantic", ids=[new.id])).count == 1
    assert await memory.recall("semantic", "lives") == [], "what was replaced does not come back"
    await memory.rebuild()
    assert await memory.recall("semantic", "lives") == []
    assert (await memory.forget("semantic", subjects=["ann"])).ids == [old.id]


async def test_many_are_forgotten_in_batches(everyturn_db: et.Database) -> None:
    memory = everyturn_db.memory
    await memory.remember_many("semantic", [{"text": f"line {n}", "subjects": ["bulk"]} for n in range(4500)])
    await memory.remember("semantic", text="kept", subjects=["other"])
    told: list[int] = []
    gone = await memory.forget("semantic", subjects=["bulk"], progress=told.append)
    assert (gone.count, len(set(gone.ids))) == (4500, 4500)
    assert told == [2000, 4000, 4500]
    turns = await everyturn_db.fetch(
        "SELECT jsonb_array_length(payload -> 'ids') AS n FROM agent_turns"
        " WHERE payload ->> 'toolName' = 'memory.forget' ORDER BY seq"
    )
    assert [turn["n"] for turn in turns] == [2000, 2000, 500]
    assert [one.written for one in await memory.rebuild()] == [0, 0, 0]


async def test_erasure_takes_the_text_out_of_the_log(db: et.Database) -> None:
    secret = 'Ann\'s number is "555-0199"\nand \\ more ' + "x" * 5000
    short = "yes"
    conversation = uuid4()
    await db.turns.append(conversation, "a", "user", {"text": f"note this: {secret}!"})
    await db.turns.append(conversation, "a", "tool_call", {"toolName": "note", "args": {"deep": [{"t": secret}]}})
    await db.turns.append(conversation, "a", "user", {"text": "unrelated, yes"})
    bound = Memory(db, agent="a", conversation=uuid4(), run_id="r")
    fact = await bound.remember("semantic", text=secret, subjects=["ann"], attributes={"phone": "555-0199"})
    await bound.supersede(fact.id, text=short)
    await bound.remember("procedural", cache_key="ann's number", subjects=["ann"], value={"phone": "555-0199"})
    gone = await db.memory.forget("semantic", subjects=["ann"], from_log=True)
    assert gone.count == 2
    assert gone.redacted_turns >= 4
    await db.memory.forget("procedural", subjects=["ann"], from_log=True)
    left = await db.fetch("SELECT payload::text AS p, embedding::text AS e FROM agent_turns ORDER BY seq")
    assert [row["p"] for row in left if "555-0199" in row["p"] or "xxxxx" in row["p"]] == []
    assert [row["p"] for row in left if '"ann' in row["p"]] == []
    assert left[0]["e"] is None, "the vector goes with the text"
    assert left[2]["e"] is not None
    assert "unrelated, yes" in left[2]["p"], "a short text is not looked for everywhere"
    assert [one.written for one in await db.memory.rebuild()] == [0, 0, 0]


async def test_erasure_reaches_what_was_forgotten_before(everyturn_db: et.Database) -> None:
    memory = everyturn_db.memory
    made = await memory.remember("semantic", text="a distinctive secret")
    await memory.forget("semantic", ids=[made.id])
    assert await everyturn_db.fetch("SELECT 1 FROM agent_turns WHERE payload::text LIKE '%distinctive%'")
    gone = await memory.forget("semantic", ids=[made.id], from_log=True)
    assert (gone.count, gone.redacted_turns) == (0, 1)
    assert not await everyturn_db.fetch("SELECT 1 FROM agent_turns WHERE payload::text LIKE '%distinctive%'")


async def test_erasure_reaches_memories_that_quote_it(db: et.Database) -> None:
    memory = db.memory
    await memory.remember("semantic", text="lives at 12 Elm Street", subjects=["ann"])
    quoting = await memory.remember("episodic", text="wrote down: lives at 12 Elm Street", subjects=["bob"])
    await memory.forget("semantic", subjects=["ann"], from_log=True)
    [hit] = await memory.recall("episodic", subjects=["bob"])
    assert (hit.id, hit.text, hit.embedded_by) == (quoting.id, "wrote down: [forgotten]", None)
    assert [(one.removed, one.written) for one in await memory.rebuild()] == [(0, 0)] * 3


@pytest.mark.parametrize("text", ["semantic", "memory.remember", "episodic", "default", "tool_result", "e", "1", "m"])
async def test_erasure_leaves_what_turns_are(db: et.Database, text: str) -> None:
    memory = db.memory
    conversation = uuid4()
    for number in range(2):
        await memory.remember("semantic", text=f"fact {number} in me", subjects=["kept"], attributes={"semantic": 1})
        await memory.remember("episodic", text=f"event {number}", subjects=["kept"])
        await memory.remember("procedural", cache_key=f"key {number}", value={"semantic": number, "m": "n"})
    await db.turns.append(conversation, "default", "tool_call", {"toolName": text, "toolCallId": text, "args": {}})
    before = await tables(db)
    for kind in ("semantic", "episodic"):
        await memory.remember(kind, text=text, subjects=["gone"])
        await memory.forget(kind, subjects=["gone"], from_log=True)
        assert await tables(db) == before
        assert [(one.removed, one.written) for one in await memory.rebuild()] == [(0, 0)] * 3
    [turn] = await db.turns.load(conversation)
    assert (turn.payload["toolName"], turn.payload["toolCallId"]) == (text, text)


async def test_erasure_leaves_the_memories_of_another_scope(db: et.Database) -> None:
    text = "lives at 12 Elm Street"
    for scope in ("ann", "bob"):
        await db.memory.remember("semantic", text=text, scope=scope)
    before = await db.fetch("SELECT * FROM agent_semantic WHERE scope = 'bob'")
    gone = await db.memory.forget("semantic", scope="ann", from_log=True)
    assert (gone.count, gone.redacted_turns) == (1, 1)
    assert await db.fetch("SELECT * FROM agent_semantic") == before
    assert [(one.removed, one.written) for one in await db.memory.rebuild()] == [(0, 0)] * 3
    await db.memory.forget("semantic", subjects=["nothing"], scope=ALL, from_log=True)
    await db.memory.forget("semantic", ids=[before[0]["id"]], scope=ALL, from_log=True)
    assert not await db.fetch("SELECT 1 FROM agent_turns WHERE payload::text LIKE '%Elm%'")


async def test_erasure_leaves_a_row_that_has_no_turn(db: et.Database) -> None:
    await db.execute("INSERT INTO agent_semantic (text) VALUES ('written by hand')")
    for subject in ("ann", "bob"):
        await db.memory.remember("semantic", text="lives at 12 Elm Street", subjects=[subject])
    await db.memory.forget("semantic", subjects=["ann"], from_log=True)
    assert {hit.text for hit in await db.memory.recall("semantic")} == {"written by hand", "[forgotten]"}


async def test_erased_keys_stay_apart(db: et.Database) -> None:
    for who in ("ann@example.com", "bob@example.com"):
        await db.memory.remember("semantic", text=who, subjects=["gone"])
        await db.memory.remember("procedural", cache_key=who, value={who: 1, f"{who}!": 2})
    await db.memory.forget("semantic", subjects=["gone"], from_log=True)
    assert len(await db.memory.recall("procedural")) == 2
    assert not await db.fetch("SELECT 1 FROM agent_turns WHERE payload::text LIKE '%example%'")
    assert not await db.fetch("SELECT 1 FROM agent_procedural p WHERE p::text LIKE '%example%'")
    assert [(one.removed, one.written) for one in await db.memory.rebuild()] == [(0, 0)] * 3


async def test_erasure_reaches_the_streams_of_runs(db: et.Database) -> None:
    secret = 'Ann "Annie" Müller,\nborn 1 May'

    @et.tool
    async def note(text: str, ctx: et.Context) -> dict[str, str]:
        """Remember a text."""
        await ctx.memory.remember("semantic", text=text, subjects=["ann"])
        await ctx.memory.remember("procedural", cache_key="k", value={"phone": "555-0199-22"}, subjects=["ann"])
        return {"noted": text, "phone": "555-0199-22"}

    calls = 0

    async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            args = json.dumps({"text": secret})
            for start in range(0, len(args), 5):
                yield et.ToolCallDelta("c1", "note", args[start : start + 5])
            yield et.ModelTurn(tool_calls=[et.ToolCall("c1", "note", {"text": secret})])
        else:
            said = f"I noted {secret}: 555-0199-22."
            for start in range(0, len(said), 3):
                yield et.TextDelta(said[start : start + 3])
            yield et.ModelTurn(text=said)

    agent = et.Agent(db, "a", tools=[note], model=model)
    result = await agent.run(f"note that {secret}")
    assert secret in result.output
    shape = "SELECT id, event ->> 'type' AS type, event ->> 'toolCallId' AS call FROM agent_events ORDER BY id"
    before = await db.fetch(shape)
    for kind in ("semantic", "procedural"):
        await db.memory.forget(kind, subjects=["ann"], from_log=True, scope=ALL)
    events = await db.fetch("SELECT event FROM agent_events ORDER BY id")
    said = "".join(row["event"].get("delta", "") for row in events)
    assert said == "I noted [forgotten]: [forgotten]."
    everything = json.dumps([events, await db.fetch("SELECT payload FROM agent_turns")], ensure_ascii=False)
    for part in ("Müller", "Annie", "1 May", "0199"):
        assert part not in everything, part
        assert json.dumps(part)[1:-1] not in everything
    arguments = "".join(row["event"].get("argumentsDelta", "") for row in events)
    assert json.loads(arguments) == {"text": "[forgotten]"}
    assert await db.fetch(shape) == before
    assert (await agent.resume(result.conversation)).output == "I noted [forgotten]: [forgotten]."


async def test_retention_keeps_what_memory_is_made_of(db: et.Database) -> None:
    await fill(db)
    expired = await db.memory.expire()
    assert {kind: gone.count for kind, gone in expired.items()} == {"episodic": 0, "semantic": 1, "procedural": 0}
    before = await tables(db)
    for _ in range(3):
        await db.execute("DELETE FROM agent_turns t WHERE NOT everyturn_memory_needs(t.id, t.seq, t.payload)")
        assert [(one.removed, one.written) for one in await db.memory.rebuild()] == [(0, 0)] * 3
    assert await tables(db) == before
    left = await db.fetch("SELECT payload ->> 'text' AS text FROM agent_turns")
    assert "expired" not in [turn["text"] for turn in left]
    for table in TABLES:
        await db.execute(f"DELETE FROM {table}")  # noqa: S608
    await db.execute("DELETE FROM agent_turns t WHERE NOT everyturn_memory_needs(t.id, t.seq, t.payload)")
    assert await db.fetch("SELECT 1 FROM agent_turns WHERE payload ->> 'toolName' <> 'memory.forget'") == []


async def test_tools_named_like_memory_are_not_memory(everyturn_db: et.Database) -> None:
    await everyturn_db.turns.append(
        uuid4(), "a", "tool_result", {"toolName": "memory.remember", "toolCallId": "1", "kind": "semantic", "id": "x"}
    )
    assert [one.written for one in await everyturn_db.memory.rebuild()] == [0, 0, 0]


async def test_shown_a_thousand_facts_through_tools_come_back(db: et.Database) -> None:
    """Facts remembered by tools in runs; the rows dropped by SQL; the same rows after a rebuild."""
    bound = Memory(db, agent="writer", scope="acme", conversation=uuid4(), run_id="r1")
    await bound.remember_many(
        "semantic", [{"text": f"fact {n} about things", "subjects": [f"s{n}"]} for n in range(1000)]
    )
    before = await db.fetch("SELECT * FROM agent_semantic ORDER BY id")
    await db.execute("DELETE FROM agent_semantic")
    await db.memory.rebuild()
    assert await db.fetch("SELECT * FROM agent_semantic ORDER BY id") == before
