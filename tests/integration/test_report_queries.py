"""The named queries behind a report: turns by kind, cost by model, slowest tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from everyturn import sqlfiles

Connection = psycopg.Connection[DictRow]


@pytest.fixture
def conn(everyturn_url: str) -> Iterator[Connection]:
    with psycopg.connect(everyturn_url, autocommit=True, row_factory=dict_row) as conn:
        yield conn


def append(conn: Connection, kind: str, agent: str = "a", at: str = "now", **payload: Any) -> None:
    conn.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload, created_at) VALUES (%s, %s, %s, %s, %s)",
        (uuid4(), agent, kind, json.dumps(payload), at),
    )


def ask(conn: Connection, name: str, agent: str | None = "a", since: str | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = conn.execute(sqlfiles.query(name), {"agent": agent, "since": since}).fetchall()
    return rows


def test_turns_by_kind_come_in_the_order_of_a_run(conn: Connection) -> None:
    for kind in ("error", "tool_result", "tool_call", "model", "user", "user"):
        append(conn, kind)
    append(conn, "user", agent="b")
    append(conn, "user", at="2001-01-01")
    rows = ask(conn, "turns_by_kind", since="2002-01-01")
    assert [(row["kind"], row["turns"]) for row in rows] == [
        ("user", 2),
        ("model", 1),
        ("tool_call", 1),
        ("tool_result", 1),
        ("error", 1),
    ]
    assert ask(conn, "turns_by_kind", agent=None)[0]["turns"] == 4


def test_an_unknown_price_is_counted_as_unpriced_and_never_as_free(conn: Connection) -> None:
    """Covers field case 108."""
    usage = {"inputTokens": 10, "outputTokens": 3}
    append(conn, "model", model="m", costUsd=0.25, usage=usage)
    append(conn, "model", model="m", costUsd="0.5", usage=usage)
    append(conn, "model", model="m", usage=usage)
    append(conn, "model", model="my-local-8b", costUsd=None)
    append(conn, "model", text="written by hand")
    rows = {row["model"]: row for row in ask(conn, "cost_by_model")}
    assert (rows["m"]["answers"], rows["m"]["unpriced"], rows["m"]["cost_usd"]) == (3, 1, pytest.approx(0.75))
    assert (rows["m"]["input_tokens"], rows["m"]["output_tokens"]) == (30, 9)
    assert (rows["my-local-8b"]["unpriced"], rows["my-local-8b"]["cost_usd"]) == (1, None)
    assert rows["unknown"]["unpriced"] == 1


def test_costs_and_counts_that_are_no_numbers_are_left_out(conn: Connection) -> None:
    for cost, tokens in (("n/a", "many"), ("NaN", 1.5), (-1, 1e30), ({"a": 1}, None), (0.25, 10)):
        append(conn, "model", model="m", costUsd=cost, usage={"inputTokens": tokens, "outputTokens": tokens})
    [row] = ask(conn, "cost_by_model")
    assert (row["answers"], row["unpriced"], row["cost_usd"]) == (5, 4, pytest.approx(0.25))


def test_the_slowest_tool_comes_first_and_errors_are_counted(conn: Connection) -> None:
    for number in range(1, 11):
        append(conn, "tool_result", toolName="slow", toolCallId=str(number), latencyMs=number * 100)
        append(conn, "tool_result", toolName="fast", toolCallId=str(number), latencyMs=1.5)
    append(conn, "error", toolName="slow", toolCallId="x", stage="tool")
    append(conn, "error", toolName="refused", toolCallId="y", stage="budget")
    append(conn, "tool_result", toolName="odd", toolCallId="z", latencyMs="soon")
    append(conn, "tool_result", toolName="memory.remember", latencyMs=9000)
    append(conn, "error", stage="model")
    rows = ask(conn, "slowest_tools")
    assert [row["tool"] for row in rows] == ["slow", "fast", "odd", "refused"]
    slow, fast, _, refused = rows
    assert (slow["results"], slow["errors"], slow["max_ms"]) == (10, 1, 1000)
    assert slow["median_ms"] == 550
    assert fast["p95_ms"] == 1.5
    assert (refused["results"], refused["errors"], refused["p95_ms"]) == (0, 1, None)
