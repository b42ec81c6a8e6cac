"""Calls paired with results, in rows of any program."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from everyturn.event_calls import pair_calls
from everyturn.event_records import EventRecord

FIXTURE = Path(__file__).parent.parent / "fixtures" / "anvia-events.jsonl"


def call(turn: int, name: str, args: Any, call_id: str | None = None, id: str | None = None) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "tool_call", "function": {"name": name, "arguments": args}}
    return {
        "type": "tool_call",
        "turn": turn,
        "toolCall": said | {k: v for k, v in (("callId", call_id), ("id", id)) if v},
    }


def result(turn: int, name: str, args: Any, output: str, call_id: str | None = None) -> dict[str, Any]:
    event = {"type": "tool_result", "turn": turn, "toolName": name, "args": json.dumps(args), "result": output}
    return event | ({"toolCallId": call_id} if call_id else {})


def pairs(*events: Any) -> list[tuple[Any, ...]]:
    records = [EventRecord("r", "a", event, id=n) for n, event in enumerate(events, 1)]
    return [(c.turn, c.tool, c.args, c.output) for c in pair_calls(records)]


def test_ids_used_again_in_the_next_turn() -> None:
    """field case 28"""
    assert pairs(
        call(1, "add", {"x": 1}, "call_0"),
        result(1, "add", {"x": 1}, "one", "call_0"),
        call(2, "add", {"x": 2}, "call_0"),
        result(2, "add", {"x": 2}, "two", "call_0"),
    ) == [(1, "add", {"x": 1}, "one"), (2, "add", {"x": 2}, "two")]


def test_results_that_come_in_another_order_and_name_no_id() -> None:
    assert pairs(
        call(1, "add", {"x": 1}),
        call(1, "add", {"x": 2}),
        result(1, "add", {"x": 2}, "two"),
        result(1, "add", {"x": 1}, "one"),
    ) == [(1, "add", {"x": 1}, "one"), (1, "add", {"x": 2}, "two")]


def test_a_call_that_is_open_and_a_result_without_a_call() -> None:
    assert pairs(call(1, "slow", {}, "c1"), result(2, "ghost", {"a": 1}, "boo", "c9"), None, "text", {"type": 7}) == [
        (1, "slow", {}, None),
        (2, "ghost", {"a": 1}, "boo"),
    ]


def test_a_result_that_names_the_calls_own_id_and_no_tool() -> None:
    told = [
        {"type": "tool_result", "turn": 1, "toolCallId": own, "output": own, "callId": f"call_{own}"} for own in "ba"
    ]
    assert pairs(call(1, "f", {}, "call_a", "a"), call(1, "f", {}, "call_b", "b"), *told) == [
        (1, "f", {}, "a"),
        (1, "f", {}, "b"),
    ]


def test_every_result_of_the_other_program_finds_its_call() -> None:
    runs: dict[str, list[EventRecord]] = defaultdict(list)
    for line in FIXTURE.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        row = json.loads(line)
        runs[row["run_id"]].append(EventRecord(**{k: v for k, v in row.items() if k not in ("scenario", "created_at")}))
    results = 0
    for records in runs.values():
        calls = pair_calls(records)
        assert sum(c.result is not None for c in calls) == sum(r.type == "tool_result" for r in records)
        for c in calls:
            if c.result is not None and c.called is not None:
                results += 1
                assert c.result.event["toolName"] == c.tool
        for child in (r for r in records if r.type == "agent_tool_event"):
            owners = [c for c in calls if child in c.children]
            assert len(owners) <= 1
    assert results == 15
