"""The log itself: appending, loading, paging, and what is refused before anything is written."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.ids import uuid7


async def test_turns_are_read_in_the_order_of_appending(everyturn_db: et.Database) -> None:
    """field case 18, field case 20: one statement has one clock; imports carry odd times."""
    conversation = uuid4()
    turns = everyturn_db.turns
    now = datetime.now(UTC)
    many = [
        et.NewTurn(conversation, "a", "user", {"n": n}, created_at=now - timedelta(minutes=n) if n % 3 else None)
        for n in range(50)
    ]
    appended = await turns.append_many(many)
    assert [turn.payload["n"] for turn in appended] == list(range(50))
    for _ in range(5):
        assert await turns.load(conversation) == appended
    assert [turn.seq for turn in appended] == sorted(turn.seq for turn in appended)
    assert (await turns.load(conversation, 7)) == appended[-7:]


async def test_first_turns_of_one_conversation_side_by_side(everyturn_db: et.Database) -> None:
    """field case 25"""
    conversation = uuid4()
    await asyncio.gather(*(everyturn_db.turns.append(conversation, "a", "user", {"text": str(n)}) for n in range(8)))
    assert {turn.payload["text"] for turn in await everyturn_db.turns.load(conversation)} == set("01234567")


async def test_what_is_appended_comes_back(everyturn_db: et.Database) -> None:
    """field case 1, field case 4, field case 9, field case 10, field case 11, field case 13, field case 14"""
    payload: dict[str, Any] = {
        "text": "a\x00b\ud83d",
        "at": datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=9))),
        "in": {"d": date(2026, 1, 2), "k\x00ey": [1, math.nan]},
        "img": b"\x89PNG\xff",
        "price": Decimal("1.50"),
        "id": UUID(int=5),
        "set": {1},
        "path": Path("/a/b"),
        "keys": {(1, 2): "a", 1: "x", "1": "y"},
    }
    turn = await everyturn_db.turns.append(uuid4(), "a", "user", payload)
    assert turn.payload["text"] == "a\ufffdb\ufffd"
    assert turn.payload["at"] == "2026-01-02T03:00:00+09:00"
    assert turn.payload["img"] == b"\x89PNG\xff"
    assert turn.payload["keys"] == {(1, 2): "a", 1: "x", "1": "y"}
    stored = (await everyturn_db.turns.get(turn.id)).payload
    assert {key: str(value) for key, value in stored.items()} == {k: str(v) for k, v in turn.payload.items()}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"conversation": "no-uuid"}, "conversation 'no-uuid' is not a UUID"),
    ({"conversation": None}, "conversation None is not a UUID"),
    ({"agent": ""}, "agent '' is not a name"),
    ({"agent": "a\x00"}, "character"),
    ({"agent": "x" * 600}, "600 bytes"),
    ({"agent": 3}, "agent 3"),
    ({"kind": "assistant"}, "kind 'assistant' is not one of error, model, tool_call, tool_result, user"),
    ({"kind": ["user"]}, "kind"),
    ({"payload": "text"}, "JSON object; got a str"),
    ({"payload": None}, "JSON object"),
    ({"payload": {"o": object()}}, "o"),
    ({"payload": {"toolName": "t" * 1025}}, "'toolName'"),
    ({"payload": {"repo": "é" * 1000}}, "'repo'"),
    ({"payload": {"repo": {"long": "x" * 2000}}}, "'repo'"),
    ({"created_at": "2026-01-01"}, "datetime"),
    ({"id": "no-uuid"}, "id 'no-uuid'"),
]


async def test_what_is_refused(everyturn_db: et.Database) -> None:
    """field case 68: nothing is written, and the neighbours in the same instant are."""
    append = everyturn_db.turns.append
    for wrong, said in REFUSED:
        good: dict[str, Any] = {"conversation": uuid4(), "agent": "a", "kind": "user", "payload": {"text": "x"}}
        results = await asyncio.gather(append(**good), append(**(good | wrong)), append(**good), return_exceptions=True)
        assert isinstance(results[1], et.InvalidValue), wrong
        assert said in str(results[1])
        with pytest.raises(et.InvalidValue):
            await everyturn_db.turns.append_many([et.NewTurn(**good), et.NewTurn(**(good | wrong))])
        assert len(await everyturn_db.turns.load(good["conversation"])) == 2
    assert len(await everyturn_db.fetch("SELECT 1 FROM agent_turns")) == 2 * len(REFUSED)


async def test_an_id_that_is_there_is_refused_and_its_neighbours_are_kept(everyturn_db: et.Database) -> None:
    conversation, id = uuid4(), uuid7()
    append = everyturn_db.turns.append
    await append(conversation, "a", "user", {}, id=id)
    results = await asyncio.gather(
        append(conversation, "a", "user", {"n": 1}),
        append(conversation, "a", "user", {"n": 2}, id=id),
        append(conversation, "a", "user", {"n": 3}),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["Turn", "InvalidValue", "Turn"]
    assert len(await everyturn_db.turns.load(conversation)) == 3


async def test_a_naive_time_is_read_as_utc(everyturn_db: et.Database) -> None:
    """field case 89"""
    turn = await everyturn_db.turns.append(uuid4(), "a", "user", {}, created_at=datetime(2026, 1, 2, 3))
    assert turn.created_at == datetime(2026, 1, 2, 3, tzinfo=UTC)
    assert (await everyturn_db.turns.get(turn.id)).created_at == turn.created_at


async def test_appends_inside_a_transaction_are_committed_with_it(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    async with everyturn_db.transaction():
        await everyturn_db.turns.append(conversation, "a", "user", {"n": 1})
        await everyturn_db.turns.append_many([et.NewTurn(conversation, "a", "user", {"n": 2})])
        assert len(await everyturn_db.turns.load(conversation)) == 2
        raise psycopg.Rollback
    assert await everyturn_db.turns.load(conversation) == []


async def test_get_and_conversation(everyturn_db: et.Database) -> None:
    turn = await everyturn_db.turns.append(uuid4(), "a", "user", {"text": "x"})
    assert await everyturn_db.turns.get(str(turn.id)) == turn
    assert await everyturn_db.turns.conversation(turn.conversation) == et.Conversation(turn.conversation, "a", [turn])
    assert await everyturn_db.turns.load(uuid4()) == []
    with pytest.raises(et.TurnNotFound, match="There is no turn"):
        await everyturn_db.turns.get(uuid4())
    with pytest.raises(et.ConversationNotFound):
        await everyturn_db.turns.conversation(uuid4())
    with pytest.raises(et.InvalidValue):
        await everyturn_db.turns.get("x")


async def test_the_last_turns_never_cut_a_call_from_its_outcome(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    kinds = ["user", "model", "tool_call", "tool_call", "tool_result", "error", "model", "user"]
    await everyturn_db.turns.append_many([et.NewTurn(conversation, "a", kind, {}) for kind in kinds])
    for last, loaded in ((1, 1), (2, 2), (3, 7), (6, 7), (7, 7), (8, 8), (99, 8)):
        assert len(await everyturn_db.turns.load(conversation, last)) == loaded, last
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(et.InvalidValue, match="last="):
            await everyturn_db.turns.load(conversation, wrong)  # type: ignore[arg-type]


async def test_calls_that_no_answer_names_keep_their_outcomes_too(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    for call in ("call_0", "call_1", "call_0"):
        for kind in ("tool_call", "tool_result"):
            await everyturn_db.turns.append(conversation, "a", kind, {"toolName": "t", "toolCallId": call})
    kinds = [turn.kind for turn in await everyturn_db.turns.load(conversation, last=1)]
    assert kinds == ["tool_call", "tool_result"]
    assert len(await everyturn_db.turns.load(conversation, last=3)) == 4


async def test_a_long_conversation_is_paged_in_flat_memory(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    await everyturn_db.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload)"
        " SELECT %s, 'a', 'tool_call', jsonb_build_object('n', n, 'pad', repeat('x', 300))"
        "   FROM generate_series(1, 100000) AS n",
        (conversation,),
    )
    seen = 0
    tracemalloc.start()
    try:
        async for page in everyturn_db.turns.pages(conversation, 500):
            assert [turn.payload["n"] for turn in page] == list(range(seen + 1, seen + 1 + len(page)))
            seen += len(page)
            if seen == 20_000:
                break
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == 20_000
    assert peak < 8_000_000
    assert len(await everyturn_db.turns.load(conversation, 10)) >= 10
    for wrong in (0, -5, None):
        with pytest.raises(et.InvalidValue, match="size="):
            await anext(everyturn_db.turns.pages(conversation, wrong))  # type: ignore[arg-type]


async def test_a_payload_that_is_no_object_can_be_read(everyturn_db: et.Database) -> None:
    """Another program may have written it."""
    conversation = uuid4()
    await everyturn_db.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload) VALUES (%s, 'ts', 'user', '[1]')", (conversation,)
    )
    assert [turn.payload for turn in await everyturn_db.turns.load(conversation)] == [{"value": [1]}]


async def test_verdicts(everyturn_db: et.Database) -> None:
    """field case 143"""
    evals = everyturn_db.evals
    turn = await everyturn_db.turns.append(uuid4(), "a", "model", {"text": "x"})
    first = await evals.record(turn.id, "human", "bad", "O'Brien said \x00 no", {"score": 0.5})
    second = await evals.record(str(turn.id), "rubric:v3", "good")
    assert first.rationale == "O'Brien said \ufffd no"
    assert first.conversation == turn.conversation
    assert await evals.list(turn_id=turn.id) == [second, first]
    assert await evals.list(verdict="bad", evaluator="human") == [first]
    assert await evals.list(evaluator="' OR 1=1 --") == []
    assert await evals.list(conversation=uuid4()) == []
    assert await evals.list(limit=1) == [second]
    for wrong, error in (
        (lambda: evals.record(turn.id, "human", "great"), et.InvalidValue),
        (lambda: evals.record(turn.id, "", "good"), et.InvalidValue),
        (lambda: evals.record("x", "human", "good"), et.InvalidValue),
        (lambda: evals.record(turn.id, "human", "good", 3), et.InvalidValue),  # type: ignore[arg-type]
        (lambda: evals.record(uuid4(), "human", "good"), et.TurnNotFound),
    ):
        with pytest.raises(error):
            await wrong()
    assert len(await evals.list()) == 2
