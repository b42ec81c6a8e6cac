"""Agents on provider models, through the log and back onto the wire."""

from __future__ import annotations

import json
from typing import Any

import provider_servers as wire
import pytest
from provider_servers import ProviderServer, Reply, Request

import everyturn as et
from everyturn.errors import StreamBroken


@et.tool
async def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


BLOCKS = [
    wire.thinking("I should look.", "signature-1"),
    wire.text("I look."),
    wire.tool_use("toolu_1", "look", {"what": "a"}),
    wire.tool_use("toolu_2", "look", {"what": "b"}),
]


def serve(monkeypatch: pytest.MonkeyPatch, *replies: Any) -> ProviderServer:
    server = ProviderServer(*replies)
    for name, url in (("ANTHROPIC", server.url), ("OPENAI", f"{server.url}/v1")):
        monkeypatch.setenv(f"{name}_API_KEY", "sk-0123456789")
        monkeypatch.setenv(f"{name}_BASE_URL", url)
    return server


async def test_thinking_survives_the_log(monkeypatch: pytest.MonkeyPatch, everyturn_db: et.Database) -> None:
    done = wire.anthropic(wire.text("done"))
    with serve(monkeypatch, wire.anthropic(*BLOCKS, stop="tool_use"), done) as server:
        agent = et.Agent(everyturn_db, "thinker", tools=[look], model="anthropic:claude-opus-4-7")
        first = await agent.run("look")
        second = await agent.run("again", conversation=first.conversation)
    assert (first.output, second.output) == ("done", "done")
    assert first.cost_usd is not None
    stored = next(turn.payload for turn in first.turns if turn.kind == "model")
    assert (stored["model"], stored["reasoning"], stored["finishReason"]) == (
        "claude-opus-4-7",
        "I should look.",
        "tool_calls",
    )
    # The third request is built from the rows.
    asked, results = server.requests[2].body["messages"][1:3]
    assert asked["content"] == BLOCKS
    assert [block["tool_use_id"] for block in results["content"]] == ["toolu_1", "toolu_2"]


async def test_a_broken_stream_is_kept_and_does_not_break_the_conversation(
    monkeypatch: pytest.MonkeyPatch, everyturn_db: et.Database
) -> None:
    """field case 41"""
    cut = wire.anthropic_events(wire.text("half an answer"))[:-3]

    def answer(request: Request) -> Reply:
        return wire.anthropic(wire.text("whole"))(request)

    with serve(monkeypatch, Reply(events=cut, breaks=True), answer) as server:
        agent = et.Agent(everyturn_db, "broken", model="anthropic:claude-opus-4-7")
        with pytest.raises(StreamBroken):
            [event async for event in agent.run_stream("hello")]
        [row] = await everyturn_db.fetch(
            "SELECT conversation, payload FROM agent_turns WHERE agent = 'broken' AND kind = 'model'"
        )
        assert row["payload"]["incomplete"] is True
        assert row["payload"]["text"] == "half an answer"
        result = await agent.run("and now?", conversation=row["conversation"])
    assert result.output == "whole"
    sent = json.dumps(server.requests[-1].body["messages"])
    assert "and now?" in sent


async def test_one_conversation_under_two_providers(monkeypatch: pytest.MonkeyPatch, everyturn_db: et.Database) -> None:
    done = wire.anthropic(wire.text("done"))
    with serve(monkeypatch, wire.anthropic(*BLOCKS, stop="tool_use"), done):
        agent = et.Agent(everyturn_db, "mover", tools=[look], model="anthropic:claude-opus-4-7")
        first = await agent.run("look")
    whole = wire.response(wire.output_text("moved"))

    def answer(request: Request) -> Reply:
        if request.body.get("stream"):
            return Reply(events=wire.response_events(wire.output_text("moved")))
        return Reply(whole)

    with serve(monkeypatch, answer) as server:
        agent = et.Agent(everyturn_db, "mover", tools=[look], model="openai:gpt-5")
        result = await agent.run("and?", conversation=first.conversation)
    assert result.output == "moved"
    sent = server.requests[0].body["input"]
    assert [item["call_id"] for item in sent if item.get("type") == "function_call_output"] == ["toolu_1", "toolu_2"]
    assert "signature-1" not in json.dumps(sent)
