"""What the tests of agents share."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import everyturn as et
from everyturn.blocks import open_calls


def call(id: str, name: str = "echo", **args: Any) -> et.ToolCall:
    return et.ToolCall(id, name, args)


def calls(*tool_calls: et.ToolCall, text: str = "") -> et.ModelTurn:
    return et.ModelTurn(text=text, tool_calls=tool_calls)


@et.tool
async def echo(value: Any = None) -> Any:
    """Give back the value."""
    return value


async def drain(stream: AsyncIterator[et.StreamEvent]) -> list[et.StreamEvent]:
    """Every event of a stream."""
    return [event async for event in stream]


async def shape(db: et.Database, conversation: UUID) -> list[str]:
    """The conversation as one word a turn: its kind, and the call it is about."""
    return [_word(turn) for turn in await db.turns.load(conversation)]


def _word(turn: et.Turn) -> str:
    about = turn.payload.get("toolCallId")
    stage = f"/{turn.payload['stage']}" if turn.kind == "error" else ""
    return turn.kind + stage + (f" {about}" if about else "")


def assert_every_call_has_one_outcome(turns: Sequence[et.Turn]) -> None:
    """Counted without the pairing under test: as many outcomes of an id as calls of it, started or refused."""
    started = Counter(turn.payload["toolCallId"] for turn in turns if turn.kind == "tool_call")
    ended = Counter(
        turn.payload["toolCallId"]
        for turn in turns
        if turn.kind in ("tool_result", "error") and turn.payload.get("toolCallId")
    )
    named = Counter(c["id"] for turn in turns if turn.kind == "model" for c in turn.payload["toolCalls"])
    assert all(started[id] <= ended[id] <= named[id] for id in started | ended | named), (started, ended, named)
    assert not open_calls(turns)
