"""The stream of a run: shapes, columns, order, durability, and agents inside agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from agent_helpers import call, calls, drain, echo

import everyturn as et
from everyturn.testing import ScriptedModel

FIXTURE = Path(__file__).parent.parent / "fixtures" / "anvia-events.jsonl"

# Keys of each type, as programs in other languages read them.
KEYS = {
    "turn_start": {"type", "turn", "prompt", "history", "conversation"},
    "generation_start": {"type", "turn", "request", "modelInfo"},
    "text_delta": {"type", "turn", "delta"},
    "reasoning_delta": {"type", "turn", "delta"},
    "tool_call_delta": {"type", "turn", "id", "name", "argumentsDelta", "argumentsMode"},
    "tool_call": {"type", "turn", "toolCall"},
    "turn_end": {"type", "turn", "response", "firstDeltaMs"},
    "tool_result": {"type", "turn", "toolName", "toolCallId", "internalCallId", "args", "result", "isError"},
    "agent_tool_event": {
        "type",
        "turn",
        "toolName",
        "toolCallId",
        "internalCallId",
        "agentId",
        "agentName",
        "event",
    },
    "error": {"type", "runId", "error", "usage"},
    "final": {"type", "runId", "output", "usage", "messages"},
}
USAGE = {"inputTokens", "outputTokens", "totalTokens", "cachedInputTokens", "cacheCreationInputTokens"}


async def streaming(request: et.ModelRequest) -> AsyncIterator[Any]:
    usage = et.Usage(4, 2)
    if isinstance(request.messages[-1], et.ToolMessage):
        yield et.TextDelta("do")
        yield et.TextDelta("ne")
        yield et.ModelTurn(text="done", usage=usage)
        return
    yield et.ReasoningDelta("hm")
    yield et.TextDelta("let me")
    yield et.ToolCallDelta("c1", "echo", '{"value"')
    yield et.ToolCallDelta("c1", args_delta=":1}")
    tool_calls = [call("c1", value=1), call("c2", "unknown")]
    yield et.ModelTurn(text="let me", reasoning="hm", tool_calls=tool_calls, usage=usage)


def streaming_agent(db: et.Database, **options: Any) -> et.Agent:
    return et.Agent(db, "bot", tools=[echo], model=streaming, **options)


def types(events: Any) -> list[str]:
    return [event["type"] for event in events]


async def test_the_shape_and_the_columns_of_every_event(everyturn_db: et.Database) -> None:
    events = await drain(streaming_agent(everyturn_db).run_stream("hello"))
    said = types(events)
    assert said[:8] == [
        "turn_start",
        "generation_start",
        "reasoning_delta",
        "text_delta",
        "tool_call_delta",
        "tool_call_delta",
        "tool_call",
        "tool_call",
    ]
    assert said[8:13] == ["turn_end", "tool_result", "tool_result", "turn_start", "generation_start"]
    assert said[13:] == ["text_delta", "text_delta", "turn_end", "final"]
    rows = await everyturn_db.fetch("SELECT * FROM agent_events ORDER BY id")
    assert [row["event"] for row in rows] == events
    run_id = events[-1].runId
    assert {(row["run_id"], row["agent_id"], row["agent_name"]) for row in rows} == {(run_id, "bot", "bot")}
    for row in rows:
        event = row["event"]
        assert set(event) <= KEYS[event["type"]]
        assert None not in event.values()
        assert row["turn"] == event.get("turn")
        if event["type"] == "tool_call":
            assert row["tool_name"] == event["toolCall"]["function"]["name"]
            assert row["tool_call_id"] == event["toolCall"]["callId"]
        elif event["type"] == "tool_result":
            assert row["tool_name"] == event["toolName"]
            assert row["tool_call_id"] == event["toolCallId"]
            assert UUID(row["internal_call_id"]) == UUID(event["internalCallId"])
            assert isinstance(event["args"], str)
            assert isinstance(event["result"], str)
        else:
            assert (row["tool_name"], row["tool_call_id"], row["internal_call_id"]) == (None, None, None)
    starts = [event for event in events if event.type == "turn_start"]
    assert starts[0].prompt == {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert starts[1].prompt["role"] == "tool"
    assert [part["id"] for part in starts[1].prompt["content"]] == ["c1", "c2"]
    assert [event.history for event in starts] == [[], []]
    results = {event.toolCallId: event for event in events if event.type == "tool_result"}
    assert (json.loads(results["c1"].args), results["c1"].result) == ({"value": 1}, "1")
    assert results["c2"].isError is True
    ends = [event.response for event in events if event.type == "turn_end"]
    assert [part["type"] for part in ends[0]["choice"]] == ["reasoning", "text", "tool_call", "tool_call"]
    assert set(ends[0]["usage"]) == set(events[-1].usage) == USAGE
    assert (events[-1].output, events[-1].usage["totalTokens"]) == ("done", 12)
    with pytest.raises(AttributeError, match="final event has no 'turn'"):
        _ = events[-1].turn


async def test_run_stores_the_sequence_that_run_stream_streams(everyturn_db: et.Database) -> None:
    bot = streaming_agent(everyturn_db)
    streamed = types(await drain(bot.run_stream("x")))
    result = await bot.run("x")
    stored = await everyturn_db.events.load(result.run_id)
    assert types(record.event for record in stored) == streamed


async def test_each_event_is_durable_when_it_is_received(everyturn_db: et.Database) -> None:
    """Seen from another connection at that very moment; also one that is not kept is at least not early."""
    received = 0
    with psycopg.connect(everyturn_db.url, autocommit=True) as other:
        async for event in streaming_agent(everyturn_db).run_stream("x"):
            received += 1
            rows = other.execute("SELECT event FROM agent_events ORDER BY id LIMIT %s", (received,)).fetchall()
            assert len(rows) == received
            assert rows[-1][0] == event
            if event.type == "turn_end":
                turns = other.execute("SELECT kind FROM agent_turns ORDER BY seq DESC").fetchall()
                assert ("model",) in turns


async def test_a_failing_run_ends_with_its_error(everyturn_db: et.Database) -> None:
    bot = et.Agent(everyturn_db, "bot", tools=[echo], model=ScriptedModel([calls(call("c")), OSError("down")]))
    seen: list[et.StreamEvent] = []

    async def read() -> None:
        async for event in bot.run_stream("x"):
            seen.append(event)

    with pytest.raises(et.ModelError, match="down"):
        await read()
    assert seen[-1] == {
        "type": "error",
        "runId": seen[-1].runId,
        "error": {"name": "OSError", "message": "down"},
        "usage": dict.fromkeys(USAGE, 0),
    }
    assert [record.event for record in await everyturn_db.events.load(seen[-1].runId)] == seen


async def test_include_agent_tool_events_keeps_those_and_the_end(everyturn_db: et.Database) -> None:
    child = et.Agent(everyturn_db, "child", model=ScriptedModel(["yes", "yes"]))
    steps = [calls(call("c", "child", input="?")), "done"]
    few = et.Agent(
        everyturn_db, "few", tools=[child.as_tool()], model=ScriptedModel(steps), include="agent_tool_events"
    )
    events = await drain(few.run_stream("x"))
    stored = [record.event for record in await everyturn_db.events.load(events[-1].runId)]
    assert stored == [event for event in events if event.type in ("agent_tool_event", "final")]
    assert len(stored) > 2
    failing = et.Agent(everyturn_db, "few", model=ScriptedModel([OSError("x")]), include="agent_tool_events")
    with pytest.raises(et.ModelError):
        await failing.run("x")
    rows = await everyturn_db.fetch("SELECT event ->> 'type' AS type FROM agent_events ORDER BY id DESC LIMIT 1")
    assert rows == [{"type": "error"}]


# Agents inside agents


async def test_a_child_agent_has_its_own_run_and_its_events_are_stored_once(everyturn_db: et.Database) -> None:
    child = et.Agent(everyturn_db, "child", tools=[echo], model=ScriptedModel([calls(call("i", value=5)), "five"]))
    steps = [calls(call("p", "ask_child", input="how many?")), "done"]
    parent = et.Agent(everyturn_db, "parent", tools=[child.as_tool("ask_child", "Counts.")], model=ScriptedModel(steps))
    events = await drain(parent.run_stream("x", deps="shared"))
    run_id = events[-1].runId
    rows = await everyturn_db.fetch("SELECT * FROM agent_events ORDER BY id")
    assert {row["run_id"] for row in rows} == {run_id}
    assert [row["event"] for row in rows] == events
    wrapped = [row for row in rows if row["event"]["type"] == "agent_tool_event"]
    for row in wrapped:
        event = row["event"]
        assert set(event) == KEYS["agent_tool_event"]
        columns = (row["turn"], row["tool_name"], row["tool_call_id"], row["internal_call_id"])
        assert columns == (event["turn"], event["toolName"], event["toolCallId"], event["internalCallId"])
        assert (row["agent_id"], row["agent_name"]) == (event["agentId"], event["agentName"]) == ("child", "child")
        assert (row["tool_name"], row["tool_call_id"], row["turn"]) == ("ask_child", "p", 1)
    inner = [row["event"]["event"] for row in wrapped]
    assert types(inner)[0] == "turn_start"
    assert types(inner)[-1] == "final"
    assert inner[-1]["runId"] != run_id
    [result] = [event for event in events if event.type == "tool_result"]
    assert (result.result, result.internalCallId) == ("five", wrapped[0]["internal_call_id"])
    turns = await everyturn_db.fetch("SELECT * FROM agent_turns WHERE agent = 'child' ORDER BY seq")
    assert [turn["kind"] for turn in turns] == ["user", "model", "tool_call", "tool_result", "model"]
    assert {turn["payload"]["runId"] for turn in turns} == {inner[-1]["runId"]}
    about = turns[0]["payload"]["attributes"]["parent"]
    assert (about["runId"], about["toolCallId"], about["agent"]) == (run_id, "p", "parent")


async def test_a_grandchild_is_wrapped_twice(everyturn_db: et.Database) -> None:
    leaf = et.Agent(everyturn_db, "leaf", model=ScriptedModel(["deep"]))
    middle = et.Agent(
        everyturn_db,
        "middle",
        tools=[leaf.as_tool()],
        model=ScriptedModel([calls(call("m", "leaf", input="?")), "mid"]),
    )
    steps = [calls(call("r", "middle", input="?")), "done"]
    root = et.Agent(everyturn_db, "root", tools=[middle.as_tool()], model=ScriptedModel(steps))
    result = await root.run("x")
    records = await everyturn_db.events.load(result.run_id)
    rows = await everyturn_db.fetch("SELECT count(*) AS n FROM agent_events")
    assert rows[0]["n"] == len(records)
    deep = [
        r for r in records if r.event["type"] == "agent_tool_event" and r.event["event"]["type"] == "agent_tool_event"
    ]
    assert deep
    assert {(r.agent_id, r.tool_name, r.tool_call_id) for r in deep} == {("middle", "middle", "r")}
    assert {(r.event["event"]["agentId"], r.event["event"]["toolCallId"]) for r in deep} == {("leaf", "m")}
    assert "deep" in {r.event["event"]["event"].get("output") for r in deep}


async def test_a_child_that_fails_is_an_outcome_of_the_parents_call(everyturn_db: et.Database) -> None:
    child = et.Agent(everyturn_db, "child", model=ScriptedModel([OSError("child model down")]))
    steps = [calls(call("c", "child", input="?")), "so be it"]
    parent = et.Agent(everyturn_db, "parent", tools=[child.as_tool()], model=ScriptedModel(steps))
    result = await parent.run("x")
    assert result.output == "so be it"
    assert result.turns[-2].kind == "error"
    assert "child model down" in result.turns[-2].payload["message"]
    inner = [
        record.event["event"]["type"]
        for record in await everyturn_db.events.load(result.run_id)
        if record.event["type"] == "agent_tool_event"
    ]
    assert inner[-1] == "error"


async def test_children_side_by_side_are_told_apart(everyturn_db: et.Database) -> None:
    async def answer(request: et.ModelRequest) -> str:
        await asyncio.sleep(0.01)
        return request.messages[0].text.upper()  # type: ignore[union-attr]

    child = et.Agent(everyturn_db, "child", model=answer)
    steps = [calls(call("c", "child", input="one"), call("d", "child", input="two")), "done"]
    parent = et.Agent(everyturn_db, "parent", tools=[child.as_tool()], model=ScriptedModel(steps))
    result = await parent.run("x")
    outputs: dict[str, list[Any]] = {}
    for record in await everyturn_db.events.load(result.run_id):
        if record.event["type"] == "agent_tool_event" and record.event["event"]["type"] == "final":
            outputs.setdefault(record.tool_call_id or "", []).append(record.event["event"]["output"])
    assert outputs == {"c": ["ONE"], "d": ["TWO"]}


async def test_a_child_in_another_database(everyturn_db: et.Database) -> None:
    from everyturn.testing import database

    async with database() as other:
        child = et.Agent(other, "child", model=ScriptedModel(["yes"]))
        steps = [calls(call("c", "child", input="?")), "done"]
        parent = et.Agent(everyturn_db, "parent", tools=[child.as_tool()], model=ScriptedModel(steps))
        result = await parent.run("x")
        assert len(await other.fetch("SELECT 1 FROM agent_turns")) == 2
        assert await other.fetch("SELECT 1 FROM agent_events") == []
        stored = await everyturn_db.events.load(result.run_id)
        assert sum(record.event["type"] == "agent_tool_event" for record in stored) == 5


async def test_an_agent_tool_changes_its_hash_with_the_agent(everyturn_db: et.Database) -> None:
    def hash_of(**options: Any) -> str:
        return et.Agent(everyturn_db, "a", **({"model": ScriptedModel([])} | options)).as_tool().impl_hash

    assert hash_of() == hash_of()
    assert len({hash_of(), hash_of(instructions="x"), hash_of(tools=[echo])}) == 3
    unknown = et.Tool("u", {"type": "object"}, len)
    if unknown.impl_hash == "v1:unknown":  # of a built-in there is neither source nor bytecode
        assert hash_of(tools=[unknown]) == "v1:unknown"
    bot = et.Agent(everyturn_db, "выборка", model=ScriptedModel([]))
    assert bot.as_tool().name == "_______"


# The store


async def test_rows_of_another_framework_load_unchanged(everyturn_db: et.Database) -> None:
    """All scenarios, written by SQL and by `append`; a reader keeps unknown types and missing keys."""
    rows = [json.loads(line) for line in FIXTURE.read_text().split("\n") if line]
    columns = ("run_id", "agent_id", "agent_name", "turn", "tool_name", "tool_call_id", "internal_call_id")
    for row in rows:
        await everyturn_db.execute(
            "INSERT INTO agent_events (run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id,"
            " event, created_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [*(row[c] for c in columns), json.dumps(row["event"]), row["created_at"]],
        )
        copy = {c: row[c] for c in columns} | {"run_id": "copy-" + row["run_id"]}
        await everyturn_db.events.append(et.EventRecord(event=row["event"], **copy))
    runs = list(dict.fromkeys(row["run_id"] for row in rows))
    for run in runs:
        wanted = [row for row in rows if row["run_id"] == run]
        for prefix in ("", "copy-"):
            loaded = await everyturn_db.events.load(prefix + run)
            assert [record.event for record in loaded] == [row["event"] for row in wanted]
            for record, row in zip(loaded, wanted, strict=True):
                assert all(getattr(record, c) == row[c] for c in columns[1:])
        first = (await everyturn_db.events.load(run))[0]
        assert first.created_at == datetime.fromisoformat(wanted[0]["created_at"])


async def test_load_and_clear(everyturn_db: et.Database) -> None:
    """field case 122, field case 153: all by default, or from a place on; clearing takes one run."""
    store = everyturn_db.events
    assert isinstance(store, et.EventStore)
    for n in range(250):
        await store.append(et.EventRecord("r1", "a", {"type": "odd" if n % 2 else "even", "n": n}))
    await store.append(et.EventRecord("r2", "a", "a plain string"))
    every = await store.load("r1")
    assert [record.event["n"] for record in every] == list(range(250))
    page = await store.load("r1", after=every[9].id or 0, limit=5)
    assert [record.event["n"] for record in page] == [10, 11, 12, 13, 14]
    assert len(await store.load("r1", types=["odd"])) == 125
    await store.clear("r1")
    assert await store.load("r1") == []
    assert [record.event for record in await store.load("r2")] == ["a plain string"]


async def test_odd_records(everyturn_db: et.Database) -> None:
    """field case 1, field case 4"""
    store = everyturn_db.events
    await store.append(et.EventRecord("r\x00\udc81", "a\x1f", {"x": "a\x00", "n": float("nan")}, tool_name="t" * 5000))
    [record] = await store.load("r\x00\udc81")
    assert record.event["x"] == "a\ufffd"
    await store.clear("r\x00\udc81")
    assert await store.load("r\x00\udc81") == []
    for wrong in (
        et.EventRecord("", "a", {}),
        et.EventRecord("r", "", {}),
        et.EventRecord("r", "a", {}, turn="1,2"),  # type: ignore[arg-type]
        et.EventRecord("r", "a", {}, turn=-1),
        et.EventRecord("r" * 3000, "a", {}),
        et.EventRecord(3, "a", {}),  # type: ignore[arg-type]
    ):
        with pytest.raises(et.InvalidValue):
            await store.append(wrong)
    for wrong_run in ("", None):
        with pytest.raises(et.InvalidValue):
            await store.clear(wrong_run)  # type: ignore[arg-type]
    async with everyturn_db.transaction():
        await store.append(et.EventRecord("t", "a", {"type": "x"}))
        raise psycopg.Rollback
    assert await store.load("t") == []


async def test_a_redaction_rule_sees_what_spans_two_deltas(everyturn_url: str) -> None:
    """field case 149: neither pieces of a secret nor JSON inside text reach the disk."""

    def redact(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("hunter2", "***")
        if isinstance(value, dict):
            return {key: "***" if key == "password" else redact(part) for key, part in value.items()}
        return [redact(part) for part in value] if isinstance(value, list) else value

    async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
        yield et.TextDelta("it is hun")
        yield et.TextDelta("ter2, ")
        yield et.ToolCallDelta("c", "echo", '{"password": "swordfi')
        if len(request.messages) > 1:
            raise OSError("cut hunter2")
        yield et.ModelTurn(text="it is hunter2, ", tool_calls=[call("c", value={"password": "swordfish"})])

    conversation = uuid4()
    async with et.connect(everyturn_url, embedder=False, redact=redact) as db:
        bot = et.Agent(db, "bot", tools=[echo], model=model)
        with pytest.raises(et.ModelError):
            await drain(bot.run_stream("x", conversation))
        for table in ("agent_events", "agent_turns"):
            text = str(await db.fetch(f"SELECT t::text FROM {table} AS t"))  # noqa: S608
            assert "***" in text
            for secret in ("hunter2", "hun", "ter2", "swordfi"):
                assert secret not in text, (table, secret)
