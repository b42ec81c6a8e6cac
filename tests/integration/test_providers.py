"""Model strings against local servers that speak the providers' wire formats."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import provider_servers as wire
import pytest
from provider_servers import ProviderServer, Reply

from everyturn import models
from everyturn.errors import ModelError, StreamBroken
from everyturn.models import (
    AssistantMessage,
    ModelRequest,
    ModelTurn,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolMessage,
    UserMessage,
)
from everyturn.values import Usage

ANTHROPIC = "anthropic:claude-opus-4-7"
CHAT = "openai-chat:gpt-5"
RESPONSES = "openai:gpt-5"
KEY = "sk-secret-0123456789"


@dataclasses.dataclass(frozen=True)
class Tool:
    """What a leaf reads of an everyturn tool."""

    name: str
    description: str
    schema: dict[str, Any]


LOOK = Tool(
    "look",
    "Look something up.",
    {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
        # Nothing listens there: a test that forgot its server fails at once.
        monkeypatch.setenv(f"{name}_BASE_URL", "http://127.0.0.1:9/v1")


def serve(monkeypatch: pytest.MonkeyPatch, *replies: Any) -> ProviderServer:
    server = ProviderServer(*replies)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    return server


async def ask(
    model: str,
    *messages: Any,
    streaming: bool = False,
    got: list[Any] | None = None,
    tools: Sequence[Any] = (),
    instructions: str | None = None,
    **settings: Any,
) -> list[Any]:
    request = ModelRequest(messages or (UserMessage("hello"),), tools, instructions, settings)
    items = [] if got is None else got
    async for item in models.resolve(model).stream(request, streaming=streaming):
        items.append(item)
    return items


def refusal(status: int, body: Any) -> Reply:
    return Reply(body, status, headers={"x-should-retry": "false"})


# --- whole answers ----


async def test_anthropic_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    body = wire.anthropic_message(
        wire.text("I look."),
        wire.tool_use("toolu_1", "look", {"what": "a"}),
        wire.tool_use("toolu_2", "look", {}),
        stop="tool_use",
        cache_read_input_tokens=100,
        cache_creation_input_tokens=30,
    )
    with serve(monkeypatch, Reply(body)) as server:
        (turn,) = await ask(
            "anthropic:claude-sonnet-4-6",
            tools=[LOOK],
            instructions="Be brief.",
            temperature=0.25,
            max_tokens=77,
        )
    assert turn == ModelTurn(
        text="I look.",
        tool_calls=[ToolCall("toolu_1", "look", {"what": "a"}), ToolCall("toolu_2", "look", {})],
        usage=Usage(140, 5, cached_input_tokens=100, cache_creation_input_tokens=30),
        model="claude-opus-4-7",
        finish_reason="tool_calls",
    )
    (request,) = server.requests
    assert request.path.startswith("/v1/messages")
    assert KEY in "".join(request.headers.values())
    sent = request.body
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("claude-sonnet-4-6", 0.25, 77)
    assert "Be brief." in json.dumps(sent["system"])
    (tool,) = sent["tools"]
    assert (tool["name"], tool["description"]) == ("look", "Look something up.")
    assert tool["input_schema"]["required"] == ["what"]
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


async def test_openai_chat_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [wire.chat_call("call_a", "look", '{"what": "a"}'), wire.chat_call("call_b", "look", '{"a": 1')]
    with serve(monkeypatch, Reply(wire.chat_completion(None, calls, "tool_calls", "gpt-4o"))) as server:
        (turn,) = await ask("openai-chat:gpt-4o", tools=[LOOK], instructions="Be brief.", temperature=0.5)
    assert turn == ModelTurn(
        tool_calls=[ToolCall("call_a", "look", {"what": "a"}), ToolCall("call_b", "look", '{"a": 1')],
        usage=Usage(20, 7, cached_input_tokens=12),
        model="gpt-4o",
        finish_reason="tool_calls",
    )
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert [message["role"] for message in request.body["messages"]] == ["system", "user"]
    assert request.body["temperature"] == 0.5
    assert request.body["tools"][0]["function"]["name"] == "look"


async def test_openai_responses_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    body = wire.response(
        wire.reasoning_item("I think.", "sealed"),
        wire.output_text("I look."),
        wire.function_call("call_a", "look", '{"what": "a"}'),
    )
    with serve(monkeypatch, Reply(body)) as server:
        (turn,) = await ask(RESPONSES, tools=[LOOK], instructions="Be brief.")
    assert (turn.text, turn.reasoning, turn.finish_reason) == ("I look.", "I think.", "tool_calls")
    assert turn.tool_calls == (ToolCall("call_a", "look", {"what": "a"}),)
    assert turn.usage == Usage(30, 9, cached_input_tokens=20)
    assert turn.model == "gpt-5-2025-08-07"
    assert server.requests[0].path == "/v1/responses"
    assert server.requests[0].body["instructions"] == "Be brief."


@pytest.mark.parametrize(
    ("arguments", "args"),
    [
        ("", {}),
        (" ", {}),
        ("{}", {}),
        ("null", "null"),
        ("[]", "[]"),
        ('{"a": 1', '{"a": 1'),
        ('"x"', '"x"'),
    ],
)
async def test_arguments(monkeypatch: pytest.MonkeyPatch, arguments: str, args: Any) -> None:
    """field case 81: blank is no arguments; what is no JSON object stays the raw string and can be sent."""
    call = wire.chat_call("call_a", "look", arguments)
    with serve(monkeypatch, Reply(wire.chat_completion(None, [call], "tool_calls"))) as server:
        (turn,) = await ask(CHAT)
        assert turn.tool_calls[0].args == args
        back = AssistantMessage("", turn.tool_calls)
        await ask(CHAT, UserMessage("a"), back, ToolMessage("call_a", "look", "no", True))
    sent = server.requests[1].body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("stop_sequence", "stop"), ("refusal", "error")],
)
async def test_finish_reasons(monkeypatch: pytest.MonkeyPatch, stop: str, reason: str) -> None:
    with serve(monkeypatch, wire.anthropic(wire.text("a"), stop=stop)):
        (turn,) = await ask(ANTHROPIC)
    assert turn.finish_reason == reason


async def test_an_answer_without_words_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(monkeypatch, wire.anthropic()):
        (turn,) = await ask(ANTHROPIC)
    assert (turn.text, turn.tool_calls, turn.finish_reason) == ("", (), "stop")


# --- streams ----


def streams() -> list[Any]:
    anthropic = wire.anthropic_events(
        wire.thinking("I think.", "sig"),
        wire.text("I look."),
        wire.tool_use("a", "look", {"what": "x"}),
        wire.tool_use("b", "look", {"what": "y"}),
        stop="tool_use",
    )
    calls = [("a", '{"what": "x"}'), ("b", '{"what": "y"}')]
    chat = wire.chat_events("I look.", [wire.chat_call(call, "look", args) for call, args in calls], "tool_calls")
    responses = wire.response_events(
        wire.reasoning_item("I think.", "sealed"),
        wire.output_text("I look."),
        *(wire.function_call(call, "look", args) for call, args in calls),
    )
    done = "data: [DONE]\n\n"
    return [
        pytest.param(ANTHROPIC, Reply(events=anthropic), "I think.", id="anthropic"),
        pytest.param(CHAT, Reply(events=chat, named=False, ends=done), None, id="chat"),
        pytest.param(RESPONSES, Reply(events=responses), "I think.", id="responses"),
    ]


@pytest.mark.parametrize(("model", "reply", "reasoning"), streams())
async def test_streams(monkeypatch: pytest.MonkeyPatch, model: str, reply: Reply, reasoning: str | None) -> None:
    with serve(monkeypatch, reply):
        items = await ask(model, tools=[LOOK], streaming=True)
    turn = items.pop()
    assert isinstance(turn, ModelTurn)
    assert (turn.text, turn.reasoning, turn.finish_reason) == ("I look.", reasoning, "tool_calls")
    assert turn.tool_calls == (ToolCall("a", "look", {"what": "x"}), ToolCall("b", "look", {"what": "y"}))
    assert turn.usage is not None
    assert turn.usage.output_tokens > 0
    # What streams adds up to what the turn says.
    texts = [item.text for item in items if isinstance(item, TextDelta)]
    assert len(texts) == 2
    assert "".join(texts) == turn.text
    assert "".join(item.text for item in items if isinstance(item, ReasoningDelta)) == (reasoning or "")
    for call in turn.tool_calls:
        deltas = [item for item in items if isinstance(item, ToolCallDelta) and item.id == call.id]
        assert [delta.name for delta in deltas if delta.name] == ["look"]
        assert json.loads("".join(delta.args_delta for delta in deltas)) == call.args


async def test_deltas_come_while_the_answer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    events = wire.anthropic_events(wire.text("ab"))
    with serve(monkeypatch, Reply(events=events, pause=0.08)):
        times = [
            time.monotonic()
            async for _ in models.resolve(ANTHROPIC).stream(ModelRequest([UserMessage("a")]), streaming=True)
        ]
    assert times[-1] - times[0] > 0.15


def broken() -> list[Any]:
    def upto(events: list[Any], kind: str) -> list[Any]:
        last = max(n for n, event in enumerate(events) if kind in json.dumps(event))
        return events[: last + 1]

    anthropic = upto(wire.anthropic_events(wire.text("half an answer")), "text_delta")
    chat = wire.chat_events("half an answer", finish=None)
    responses = upto(wire.response_events(wire.output_text("half an answer"), completed=False), "text.delta")
    overloaded = wire.anthropic_error("overloaded_error", "Overloaded")
    return [
        pytest.param(ANTHROPIC, Reply(events=anthropic, breaks=True), id="anthropic cut"),
        pytest.param(ANTHROPIC, Reply(events=anthropic), id="anthropic no end"),
        pytest.param(ANTHROPIC, Reply(events=[*anthropic, overloaded]), id="anthropic error event"),
        pytest.param(CHAT, Reply(events=chat, named=False, breaks=True), id="chat cut"),
        pytest.param(CHAT, Reply(events=chat, named=False, ends="data: [DONE]\n\n"), id="chat no reason"),
        pytest.param(RESPONSES, Reply(events=responses, breaks=True), id="responses cut"),
        pytest.param(RESPONSES, Reply(events=responses), id="responses no end"),
    ]


@pytest.mark.parametrize(("model", "reply"), broken())
async def test_a_broken_stream_keeps_what_came(monkeypatch: pytest.MonkeyPatch, model: str, reply: Reply) -> None:
    """field case 41: cut in the middle, ended without a finish reason, or ended by an error event."""
    got: list[Any] = []
    with serve(monkeypatch, reply), pytest.raises(StreamBroken, match="incomplete") as caught:
        await ask(model, streaming=True, got=got)
    assert "".join(item.text for item in got) == "half an answer"
    if model == ANTHROPIC:
        assert caught.value.usage is not None
        assert caught.value.usage.input_tokens == 10


async def test_closing_a_stream_early_frees_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 44: the next request is not held up by a stream that was left."""
    long = wire.anthropic_events(*(wire.text("word") for _ in range(200)))
    with serve(monkeypatch, Reply(events=long, pause=0.01), wire.anthropic(wire.text("next"))):
        leaf = models.resolve(ANTHROPIC)
        async with aclosing(leaf.stream(ModelRequest([UserMessage("a")]), streaming=True)) as stream:  # type: ignore[type-var]
            async for _ in stream:
                break
        (turn,) = await asyncio.wait_for(ask(ANTHROPIC), 2)
        assert turn.text == "next"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(ANTHROPIC, streaming=True), 0.0)


# --- what goes back ----


def validate_anthropic(body: dict[str, Any]) -> None:
    """The rules the Messages API refuses a history for."""
    roles = [message["role"] for message in body["messages"]]
    assert roles[0] == "user"
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in body["messages"]:
        blocks = message["content"]
        assert blocks
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert results == open_calls
        kinds = [block["type"] for block in blocks]
        assert kinds[: len(results)] == ["tool_result"] * len(results)
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert not seen & set(open_calls)
        seen |= set(open_calls)
        for block in blocks:
            if block["type"] == "text":
                assert block["text"].strip()
            if block["type"] == "tool_use":
                assert isinstance(block["input"], dict)
                for key, limit in (("id", 128), ("name", 128)):
                    assert block[key]
                    assert len(block[key]) <= limit
                    assert all(c.isascii() and (c.isalnum() or c in "_-") for c in block[key])
    assert not open_calls


ODD_HISTORY = (
    UserMessage(" "),
    AssistantMessage("\n\n", [ToolCall("call:1/é", "functions.look", {"what": "\ud83d"}), ToolCall("2", "", "{")]),
    ToolMessage("2", "", "", is_error=True),
    ToolMessage("call:1/é", "functions.look", "found\ud83d"),
    ToolMessage("nobody asked", "look", "orphan"),
    AssistantMessage(""),
    UserMessage("and?"),
    AssistantMessage("", [ToolCall("3" * 100, "x" * 200, {})]),
    UserMessage("still there?"),
)


@pytest.mark.parametrize("model", [ANTHROPIC, CHAT, RESPONSES])
async def test_an_odd_history_is_valid_on_the_wire(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """field cases 30 and 36: outcomes in call order, one for each call, whatever else is odd.

    field case 30; field case 36; field case 4
    """
    whole = {
        ANTHROPIC: wire.anthropic(wire.text("a")),
        CHAT: Reply(wire.chat_completion("a")),
        RESPONSES: Reply(wire.response(wire.output_text("a"))),
    }[model]
    with serve(monkeypatch, whole) as server:
        await ask(model, *ODD_HISTORY)
    body = server.requests[0].body
    if model == ANTHROPIC:
        validate_anthropic(body)
        results = [
            (block["is_error"], block["content"][0]["text"])
            for message in body["messages"]
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        assert results == [
            (False, "found\ufffd"),
            (True, "(empty result)"),
            (True, "This call was interrupted and has no result."),
        ]
    elif model == CHAT:
        calls: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                assert message["tool_call_id"] == calls.pop(0)
            else:
                assert not calls
            calls += [call["id"] for call in message.get("tool_calls", ())]
            assert all(len(call) <= 64 for call in calls)
        assert not calls
    else:
        asked = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
        told = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
        assert asked == told


async def test_thinking_goes_back_with_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        wire.thinking("First I think.", "sig-1"),
        {"type": "redacted_thinking", "data": "sealed"},
        wire.text("I look."),
        wire.tool_use("toolu_1", "look", {"what": "a"}),
        wire.text("And more."),
    ]
    for streaming in (False, True):
        first = wire.anthropic(*blocks, stop="tool_use")
        with serve(monkeypatch, first, wire.anthropic(wire.text("done"))) as server:
            *deltas, turn = await ask(ANTHROPIC, streaming=streaming)
            assert (turn.text, turn.reasoning) == ("I look.\n\nAnd more.", "First I think.")
            if streaming:
                shown = "".join(item.text for item in deltas if isinstance(item, TextDelta))
                assert shown == turn.text
            # As it comes out of the log: JSON, and no word of the answer twice.
            provider = json.loads(json.dumps(turn.provider))
            assert "think." not in json.dumps(provider)
            back = AssistantMessage(turn.text, turn.tool_calls, turn.reasoning, provider)
            await ask(ANTHROPIC, UserMessage("hello"), back, ToolMessage("toolu_1", "look", "it"))
            sent = server.requests[1].body["messages"][1]["content"]
            assert [{k: v for k, v in block.items() if k != "cache_control"} for block in sent] == blocks

            # Words that a redaction changed do not fit their signature: then no thinking goes back.
            for changed in (
                dataclasses.replace(back, reasoning="First I ****."),
                dataclasses.replace(back, reasoning="First I *****."),
                dataclasses.replace(back, text="I ****.\n\nAnd more."),
                dataclasses.replace(back, tool_calls=[]),
                dataclasses.replace(back, provider={"parts": [{"part_kind": "new"}]}),
                dataclasses.replace(back, provider={**provider, "provider_name": "other"}),
                dataclasses.replace(back, provider={**provider, "parts": [{}, 3]}),
                dataclasses.replace(back, provider="opaque"),
            ):
                await ask(ANTHROPIC, UserMessage("hello"), changed, ToolMessage("toolu_1", "look", "it"))
                validate_anthropic(server.requests[-1].body)
                if changed.reasoning != back.reasoning:
                    assert "hinking" not in json.dumps(server.requests[-1].body["messages"])


async def test_reasoning_items_go_back_to_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    output = [
        wire.reasoning_item("I think.", "sealed"),
        wire.output_text("I look."),
        wire.function_call("call_a", "look", "{}"),
    ]
    with serve(monkeypatch, Reply(wire.response(*output))) as server:
        (turn,) = await ask(RESPONSES)
        provider = json.loads(json.dumps(turn.provider))
        back = AssistantMessage(turn.text, turn.tool_calls, turn.reasoning, provider)
        messages = (UserMessage("hello"), back, ToolMessage("call_a", "look", "it"))
        await ask(RESPONSES, *messages)
    sent = server.requests[1].body["input"]
    reasoning = next(item for item in sent if item.get("type") == "reasoning")
    assert (reasoning["id"], reasoning["encrypted_content"]) == ("rs_7", "sealed")
    assert [item["call_id"] for item in sent if item.get("type") == "function_call_output"] == ["call_a"]

    # The same log under another provider: the words, not the sealed data.
    with serve(monkeypatch, wire.anthropic(wire.text("a"))) as server:
        await ask(ANTHROPIC, *messages)
    validate_anthropic(server.requests[0].body)
    assert "sealed" not in json.dumps(server.requests[0].body)


async def test_a_plain_answer_needs_no_provider_data(monkeypatch: pytest.MonkeyPatch) -> None:
    call = wire.tool_use("toolu_1", "look", {})
    answer = wire.anthropic(wire.text("I look."), call, call | {"id": "toolu_2"}, stop="tool_use")
    with serve(monkeypatch, answer):
        (turn,) = await ask(ANTHROPIC)
    assert turn.provider is None


# --- what goes wrong ----


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, "authentication_error", "answered 401: .*Check the key"),
        (404, "not_found_error", "answered 404: .*Check the model's name"),
        (429, "rate_limit_error", "answered 429: .*try again later"),
        (500, "api_error", "answered 500: .*Try again later"),
        (529, "overloaded_error", "answered 529: .*Try again later"),
    ],
)
async def test_refusals_are_sentences(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: str, words: str, streaming: bool
) -> None:
    for model, body in (
        (ANTHROPIC, wire.anthropic_error(kind, f"No {kind} for {KEY}")),
        (CHAT, {"error": {"message": f"No {kind} for {KEY}", "type": kind, "code": kind}}),
    ):
        with (
            serve(monkeypatch, refusal(status, body)) as server,
            pytest.raises(ModelError, match=words) as caught,
        ):
            await ask(model, streaming=streaming)
        assert not isinstance(caught.value, StreamBroken)
        assert KEY not in str(caught.value)
        assert kind in str(caught.value)
        assert len(server.requests) == 1


@pytest.mark.parametrize("model", [ANTHROPIC, CHAT, RESPONSES])
async def test_answers_that_are_none(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    for reply in (Reply("<html>gateway</html>"), Reply({"surprise": True})):
        with serve(monkeypatch, reply), pytest.raises(ModelError, match=model):
            await ask(model, max_retries=0)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"failed: Connection error"):
        await ask(model, max_retries=0)


async def test_a_missing_key_is_said_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    for model, name in ((ANTHROPIC, "ANTHROPIC_API_KEY"), (RESPONSES, "OPENAI_API_KEY")):
        models.resolve(model)
        with pytest.raises(ModelError, match=f"needs a key: set the environment variable {name}"):
            await ask(model)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with serve(monkeypatch, wire.anthropic(wire.text("now"))):
        (turn,) = await ask(ANTHROPIC)
    assert turn.text == "now"


async def test_missing_packages_and_unknown_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="'antropic:claude-opus-4-7' cannot be used: Unknown model"):
        await ask("antropic:claude-opus-4-7")
    with pytest.raises(ModelError, match=r"pip install 'pydantic-ai-slim\[groq\]'"):
        await ask("groq:llama")
    found = importlib.util.find_spec
    monkeypatch.setattr("everyturn.providers.find_spec", lambda name: None if name == "anthropic" else found(name))
    with pytest.raises(ModelError, match=r"pip install 'everyturn\[anthropic\]'"):
        models.resolve(ANTHROPIC)


# --- around the calls ----


def test_names_and_prices() -> None:
    """field case 108: unknown stays unknown, and cached tokens have their own price."""
    leaf = models.resolve(ANTHROPIC)
    assert leaf.name == "claude-opus-4-7"
    usage = Usage(1_000, 100, cached_input_tokens=500, cache_creation_input_tokens=100)
    assert leaf.cost(usage) == leaf.cost(usage, "claude-opus-4-7") == Decimal("0.005375")
    assert leaf.cost(usage, "my-local-8b") is None
    for model in (RESPONSES, CHAT):
        assert models.resolve(model).cost(Usage(1_000_000, 0), "gpt-5-2025-08-07") == Decimal("1.25")
    assert models.resolve("ollama:gpt-5").cost(usage) is None
    assert models.resolve("anthropic:claude-9-nova").cost(usage) is None


async def test_pydantic_ai_models_are_leaves() -> None:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.test import TestModel

    leaf = models.resolve(TestModel(custom_output_text="fine"))  # type: ignore[arg-type]
    for streaming in (False, True):
        *_, turn = [item async for item in leaf.stream(ModelRequest([UserMessage("a")]), streaming=streaming)]
        assert (turn.text, turn.finish_reason) == ("fine", "stop")  # type: ignore[union-attr]

    def answer(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse([TextPart("a"), ToolCallPart("look", '{"what": 1}', tool_call_id="7")])

    leaf = models.resolve(FunctionModel(answer))  # type: ignore[arg-type]
    (turn,) = [item async for item in leaf.stream(ModelRequest([UserMessage("a")]), streaming=False)]
    assert turn.tool_calls == (ToolCall("7", "look", {"what": 1}),)  # type: ignore[union-attr]


async def test_leaves_of_one_model_share_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(monkeypatch, wire.anthropic(wire.text("a"))) as server:
        for _ in range(3):
            await ask(ANTHROPIC)
        assert server.connections == 1


def test_two_event_loops_leave_nothing_open() -> None:
    """field case 33: one leaf, asyncio.run twice, warnings as errors, and no other host than the server's."""
    script = textwrap.dedent(
        """
        import asyncio, gc, os, socket, sys
        sys.path.insert(0, sys.argv[1])
        import provider_servers as wire
        from everyturn import models
        looked_up = set()
        find = socket.getaddrinfo
        def recording(host, *args, **kwargs):
            looked_up.add(host)
            return find(host, *args, **kwargs)
        socket.getaddrinfo = recording
        bad = []
        sys.unraisablehook = lambda broken: bad.append(broken)
        whole = wire.anthropic(wire.text("a"))
        with wire.ProviderServer(whole) as server:
            os.environ.update(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="k")
            leaf = models.resolve("anthropic:claude-opus-4-7")
            async def ask():
                request = models.ModelRequest([models.UserMessage("a")])
                return [item async for item in leaf.stream(request, streaming=False)]
            for _ in range(2):
                (turn,) = asyncio.run(ask())
                assert turn.text == "a"
                gc.collect()
        assert leaf.cost(turn.usage) is not None
        assert not bad, bad
        assert looked_up <= {"127.0.0.1", None, b"127.0.0.1"}, looked_up
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
