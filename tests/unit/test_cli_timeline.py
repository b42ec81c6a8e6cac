"""Stream events as a timeline; rows of other programs included."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everyturn.cli.event import as_text
from everyturn.cli.timeline import Line, timeline

FIXTURE = Path(__file__).parent.parent / "fixtures" / "anvia-events.jsonl"
START = datetime(2026, 11, 30, 21, tzinfo=UTC)


def rows_of(*events: Any, agent: str = "Desk") -> list[dict[str, Any]]:
    return [
        {
            "agent_id": "desk",
            "agent_name": agent,
            "turn": event.get("turn") if isinstance(event, dict) else None,
            "event": event,
            "created_at": START + timedelta(milliseconds=10 * n),
        }
        for n, event in enumerate(events)
    ]


def lines_of(*events: Any) -> list[Line]:
    return list(timeline(rows_of(*events)))


def test_deltas_are_joined_up_to_the_next_event() -> None:
    lines = lines_of(
        {"type": "text_delta", "turn": 1, "delta": "Che"},
        {"type": "text_delta", "turn": 1, "delta": "cking"},
        {"type": "reasoning_delta", "turn": 1, "delta": "hm"},
        {"type": "text_delta", "turn": 1, "delta": " now"},
        {"type": "turn_end", "turn": 1, "response": {"usage": {"inputTokens": 3, "outputTokens": 1}}},
    )
    assert [(line.what, line.text) for line in lines] == [
        ("text", "Checking"),
        ("reasoning", "hm"),
        ("text", " now"),
        ("turn_end", "3 tokens in, 1 out"),
    ]
    assert lines[3].elapsed_ms == 40


def test_the_last_delta_of_a_run_that_was_cut_off_is_shown() -> None:
    assert [line.text for line in lines_of({"type": "text_delta", "delta": "half"})] == ["half"]


def test_nested_agents_are_indented_and_told_apart() -> None:
    def wrapped(call: str, event: Any) -> dict[str, Any]:
        return {
            "type": "agent_tool_event",
            "turn": 1,
            "toolName": "ask",
            "internalCallId": call,
            "agentId": "child",
            "event": event,
        }

    grandchild = wrapped("c", {"type": "tool_call", "turn": 2, "toolCall": {"function": {"name": "look"}}})
    lines = lines_of(
        wrapped("a", {"type": "text_delta", "turn": 1, "delta": "x"}),
        wrapped("b", {"type": "text_delta", "turn": 1, "delta": "y"}),
        wrapped("a", grandchild),
        wrapped("a", "a plain string"),
        wrapped("a", None),
    )
    assert [(line.depth, line.agent, line.what, line.text) for line in lines] == [
        (1, "child", "text", "x"),
        (1, "child", "text", "y"),
        (2, "child", "tool_call", ""),
        (1, "child", "event", "a plain string"),
        (1, "child", "event", ""),
    ]
    assert "    child: text  x" in as_text(lines[0])


def test_errors_are_shown_in_full() -> None:
    long = "the model said no " * 40
    [line] = lines_of({"type": "error", "error": {"name": "ModelError", "message": long, "stack": "at a\nat b"}})
    assert line.failed
    text = as_text(line)
    assert f"ModelError: {long}" in text
    assert text.endswith("at b")
    javascript = {"name": "Error", "message": "down", "stack": "Error: down\n    at x"}
    assert lines_of({"type": "error", "error": javascript})[0].text == "Error: down\n    at x"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("gone", "gone"),
        (None, ""),
        ({"custom": True}, '{"custom": true}'),
        ({"message": "x"}, "x"),
        ([1], "[1]"),
    ],
)
def test_errors_of_any_shape(error: Any, text: str) -> None:
    [line] = lines_of({"type": "error", "error": error})
    assert line.text == text


@pytest.mark.parametrize(
    ("event", "what", "text"),
    [
        ({"type": "compaction", "turn": 3, "kept": 4}, "compaction", '{"kept": 4}'),
        ({"kept": 4}, "event", '{"kept": 4}'),
        ({"type": 7}, "7", ""),
        ([1, 2], "event", "[1, 2]"),
        ("text", "event", "text"),
        (None, "event", ""),
        ({"type": "turn_end"}, "turn_end", ""),
        ({"type": "tool_call"}, "tool_call", ""),
        ({"type": "turn_start", "prompt": {"role": "system", "content": "rules"}}, "turn_start", "rules"),
        ({"type": "final", "result": {"status": "blocked"}}, "final", "blocked"),
        ({"type": "tool_result", "toolCallId": "c", "output": {"a": 1}}, "tool_result", '{"a": 1}'),
    ],
)
def test_unknown_types_and_missing_keys_are_kept(event: Any, what: str, text: str) -> None:
    [line] = lines_of(event)
    assert (line.what, line.text) == (what, text)


def test_every_row_of_another_program_is_read() -> None:
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for text in FIXTURE.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        row = json.loads(text)
        row["created_at"] = datetime.fromisoformat(row["created_at"])
        runs[row["run_id"]].append(row)
    assert len(runs) >= 17
    for rows in runs.values():
        lines = list(timeline(rows))
        assert lines
        for line in lines:
            assert line.what not in ("", "event") or line.depth
            assert as_text(line)
        deltas = sum(row["event"]["type"].endswith("_delta") for row in rows)
        assert len(rows) - deltas <= len(lines) <= len(rows)
        end = rows[-1]["event"]
        if end["type"] == "final":
            assert lines[-1].text.startswith(end["output"])
