"""Python callables as model leaves, and the values that go in and out."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import threading
import time
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import pytest

from everyturn import models
from everyturn.errors import ModelError, StreamBroken
from everyturn.models import (
    ModelRequest,
    ModelTurn,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    UserMessage,
)
from everyturn.values import Usage

REQUEST = ModelRequest([UserMessage("hello")])


async def ask(model: Any, got: list[Any] | None = None) -> list[Any]:
    got = [] if got is None else got
    async for item in models.resolve(model).stream(REQUEST):
        got.append(item)
    return got


async def test_a_sync_function_runs_in_a_thread_with_the_callers_context() -> None:
    where = contextvars.ContextVar("where", default="outside")
    seen: list[Any] = []

    def leaf(request: ModelRequest) -> ModelTurn:
        seen.extend([threading.current_thread(), where.get()])
        return ModelTurn(text=request.messages[0].text.upper())  # type: ignore[union-attr]

    where.set("inside")
    assert await ask(leaf) == [ModelTurn(text="HELLO")]
    assert seen[0] is not threading.main_thread()
    assert seen[1] == "inside"


async def test_blocking_leaves_run_side_by_side() -> None:
    def leaf(request: ModelRequest) -> str:
        time.sleep(0.2)
        return "done"

    start = time.monotonic()
    await asyncio.gather(*(ask(leaf) for _ in range(32)))
    assert time.monotonic() - start < 1.5


async def test_async_function_partial_method_and_callable_object() -> None:
    async def answer(prefix: str, request: ModelRequest) -> ModelTurn:
        return ModelTurn(text=prefix + request.messages[0].text)  # type: ignore[union-attr]

    class Echo:
        async def __call__(self, request: ModelRequest) -> ModelTurn:
            return ModelTurn(text="object")

        async def ask(self, request: ModelRequest) -> ModelTurn:
            return ModelTurn(text="method")

        @staticmethod
        def plain(request: ModelRequest) -> str:
            return "static"

    assert await ask(functools.partial(answer, "> ")) == [ModelTurn(text="> hello")]
    assert await ask(Echo()) == [ModelTurn(text="object")]
    assert await ask(Echo().ask) == [ModelTurn(text="method")]
    assert await ask(Echo.plain) == [ModelTurn(text="static")]
    assert await ask(lambda request: answer("λ ", request)) == [ModelTurn(text="λ hello")]


async def test_an_async_generator_gives_its_deltas_and_then_its_turn() -> None:
    async def leaf(request: ModelRequest) -> Any:
        yield ReasoningDelta("hm")
        yield TextDelta("a")
        yield ToolCallDelta("call_0", "look", "{}")
        yield ModelTurn(text="a", tool_calls=[ToolCall("call_0", "look", {})])

    items = await ask(leaf)
    assert [type(item) for item in items] == [ReasoningDelta, TextDelta, ToolCallDelta, ModelTurn]
    assert items[-1].finish_reason == "tool_calls"


async def test_a_blocking_generator_is_stepped_in_threads() -> None:
    threads: set[threading.Thread] = set()

    def leaf(request: ModelRequest) -> Any:
        for word in ("a", "b"):
            threads.add(threading.current_thread())
            yield TextDelta(word)
        yield ModelTurn(text="ab")

    assert await ask(leaf) == [TextDelta("a"), TextDelta("b"), ModelTurn(text="ab")]
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_stream_that_breaks_off_keeps_what_came(blocking: bool) -> None:
    """field case 41: deltas, then no ModelTurn, or an exception: both are told, after the deltas."""

    async def ends(request: ModelRequest) -> Any:
        for word in "abc":
            yield TextDelta(word)

    async def raises(request: ModelRequest) -> Any:
        yield TextDelta("a")
        raise ConnectionResetError("gone")

    def ends_blocking(request: ModelRequest) -> Any:
        yield from (TextDelta(word) for word in "abc")

    def raises_blocking(request: ModelRequest) -> Any:
        yield TextDelta("a")
        raise ConnectionResetError("gone")

    got: list[Any] = []
    with pytest.raises(StreamBroken, match="after 3 deltas without a ModelTurn"):
        await ask(ends_blocking if blocking else ends, got=got)
    assert got == [TextDelta("a"), TextDelta("b"), TextDelta("c")]

    got.clear()
    with pytest.raises(ConnectionResetError):
        await ask(raises_blocking if blocking else raises, got=got)
    assert got == [TextDelta("a")]


async def test_wrong_answers_are_named() -> None:
    async def two(request: ModelRequest) -> Any:
        yield ModelTurn(text="a")
        yield ModelTurn(text="b")

    async def late(request: ModelRequest) -> Any:
        yield ModelTurn(text="a")
        yield TextDelta("b")

    async def odd(request: ModelRequest) -> Any:
        yield "just text"

    async def nothing(request: ModelRequest) -> Any:
        return
        yield

    for leaf, words in (
        (two, "'two' yielded a second ModelTurn after its ModelTurn"),
        (late, "'late' yielded a TextDelta after its ModelTurn"),
        (odd, "'odd' yielded str 'just text'"),
        (nothing, "'nothing' ended after 0 deltas"),
        (lambda request: None, "returned None"),
        (lambda request: 7, "returned int 7"),
        (lambda request: ModelTurn(), "needs text or tool_calls"),
    ):
        with pytest.raises(ModelError, match=words):
            await ask(leaf)


async def test_errors_of_a_leaf_come_as_they_are() -> None:
    def fails(request: ModelRequest) -> str:
        raise KeyError("mine")

    def stops(request: ModelRequest) -> str:
        raise StopIteration

    with pytest.raises(KeyError, match="mine"):
        await ask(fails)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await ask(stops)


async def test_closing_or_cancelling_closes_the_generator() -> None:
    closed: list[str] = []

    async def endless(request: ModelRequest) -> Any:
        try:
            while True:
                yield TextDelta("a")
                await asyncio.sleep(0.005)
        finally:
            closed.append("async")

    def blocking(request: ModelRequest) -> Any:
        try:
            while True:
                yield TextDelta("a")
                time.sleep(0.05)
        finally:
            closed.append("sync")

    for leaf in (endless, blocking):
        async with aclosing(models.resolve(leaf).stream(REQUEST)) as stream:  # type: ignore[type-var]
            async for _ in stream:
                break
    assert closed == ["async", "sync"]

    for leaf in (endless, blocking):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(leaf), 0.08)
    await asyncio.sleep(0.2)
    assert closed == ["async", "sync", "async", "sync"]


async def test_cancelling_a_blocking_call_returns_at_once() -> None:
    release = threading.Event()

    def leaf(request: ModelRequest) -> str:
        release.wait(5)
        return "late"

    start = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ask(leaf), 0.05)
    assert time.monotonic() - start < 1
    release.set()


def test_leaf_names() -> None:
    def plain(request: ModelRequest) -> str:
        return ""

    class Named:
        name = "offline:rules"

        def __call__(self, request: ModelRequest) -> str:
            return ""

    class Unnamed(Named):
        name = None  # type: ignore[assignment]

    assert models.resolve(plain).name == "plain"
    assert models.resolve(functools.partial(plain)).name == "plain"
    assert models.resolve(Named()).name == "offline:rules"
    assert models.resolve(functools.partial(Named())).name == "offline:rules"
    assert models.resolve(Unnamed()).name == "Unnamed"
    leaf = models.resolve(plain)
    assert models.resolve(leaf) is leaf


def test_what_is_no_model_is_refused() -> None:
    for wrong in ("claude-opus-4-7", "", ":x", "anthropic:", "python:app:leaf", None, 7, [plain_turn]):
        with pytest.raises(ModelError):
            models.resolve(wrong)  # type: ignore[arg-type]


def plain_turn(request: ModelRequest) -> ModelTurn:
    return ModelTurn(text="")


def test_a_model_turn_needs_text_or_tool_calls() -> None:
    with pytest.raises(ModelError, match="needs text or tool_calls"):
        ModelTurn()
    with pytest.raises(ModelError, match="needs text or tool_calls"):
        ModelTurn(text=None, reasoning="hm")  # type: ignore[arg-type]
    empty = ModelTurn(text="")
    assert (empty.text, type(empty.text), empty.finish_reason) == ("", str, "stop")
    calls = ModelTurn(tool_calls=[ToolCall("1", "look")])
    assert (calls.text, calls.tool_calls, calls.finish_reason) == (
        "",
        (ToolCall("1", "look", {}),),
        "tool_calls",
    )
    assert dataclasses.replace(calls, model="m").text == ""


def test_values_of_the_wrong_type_are_named() -> None:
    """field case 81: arguments that were not a JSON object stay the raw string."""
    assert ToolCall("1", "look", '{"a": 1').args == '{"a": 1'
    assert ToolCall("1", "look", None).args == {}  # type: ignore[arg-type]
    wrong: list[tuple[Any, str]] = [
        (lambda: ModelTurn(text=b"x"), "text of a ModelTurn must be a string, not bytes"),  # type: ignore[arg-type]
        (lambda: ModelTurn(tool_calls="look"), "must be a list of ToolCall"),  # type: ignore[arg-type]
        (lambda: ModelTurn(tool_calls=[{"name": "look"}]), "must be a ToolCall; got dict"),  # type: ignore[list-item]
        (lambda: ModelTurn(tool_calls=3), "must be a list of ToolCall"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", finish_reason="end_turn"), "one of stop, tool_calls, length, error"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", usage={"input": 1}), "must be an everyturn.Usage, not dict"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", usage=Usage(-1)), "input_tokens of a Usage must be a number of tokens from 0 up"),
        (lambda: ModelTurn(text="", usage=Usage(1, "5")), "output_tokens of a Usage must be .* not str '5'"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", usage=Usage(1, float("nan"))), "output_tokens of a Usage"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", usage=Usage(1, 10**30)), "output_tokens of a Usage"),
        (lambda: ModelTurn(text="", model=5), "model of a ModelTurn must be a string or None"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", reasoning=["hm"]), "reasoning of a ModelTurn must be a string or None"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", cost_usd="much"), "must be a number"),  # type: ignore[arg-type]
        (lambda: ModelTurn(text="", cost_usd=float("nan")), "finite number"),  # type: ignore[arg-type]
        (lambda: ToolCall("1", "look", [1]), "must be a dict, or the raw string"),  # type: ignore[arg-type]
        (lambda: ToolCall(1, "look"), "id must be a string, not int 1"),  # type: ignore[arg-type]
        (lambda: ToolCall("1", None), "name must be a string, not None"),  # type: ignore[arg-type]
    ]
    for make, words in wrong:
        with pytest.raises(ModelError, match=words):
            make()
    counted = ModelTurn(text="", usage=Usage(None, 3.0)).usage  # type: ignore[arg-type]
    assert counted == Usage(0, 3)
    assert ModelTurn(text="", cost_usd=0.25).cost_usd == Decimal("0.25")  # type: ignore[arg-type]


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelTurn(text="a").text = "b"  # type: ignore[misc]


def test_cost_counts_cached_tokens_at_their_own_price() -> None:
    """field case 108: a model nobody knows has no price, not the price 0."""
    leaf = models.resolve(plain_turn)
    usage = Usage(1_000, 100, cached_input_tokens=500, cache_creation_input_tokens=100)
    assert leaf.cost(usage, "claude-opus-4-7") == Decimal("0.005375")
    assert leaf.cost(usage, "gpt-4o-2024-08-06") is not None
    for unknown in ("my-local-8b", "claude-9-nova", "gpt-4-mine", "", None):
        assert leaf.cost(usage, unknown) is None
    assert leaf.cost(Usage(), "gpt-4o") == 0
    impossible = Usage(10, 1, cached_input_tokens=500)
    assert leaf.cost(impossible, "claude-opus-4-7") is None
