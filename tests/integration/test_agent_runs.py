"""Runs of agents: the loop, its tools, and what goes wrong with both."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from agent_helpers import assert_every_call_has_one_outcome, call, calls, drain, echo, shape

import everyturn as et
from everyturn.testing import ScriptedModel


def agent(db: et.Database, *steps: Any, **options: Any) -> et.Agent:
    options.setdefault("tools", [echo])
    return et.Agent(db, options.pop("name", "a"), model=ScriptedModel(steps), **options)


async def outcome_of(db: et.Database, tool: Any, args: dict[str, Any] | str | None = None) -> et.Turn:
    """The outcome of one call of this tool."""
    tool = et.tool(tool) if not isinstance(tool, et.Tool) else tool
    asked = et.ToolCall("c1", tool.name, args or {})
    result = await agent(db, calls(asked), "done", tools=[tool]).run("go")
    assert result.output == "done"
    assert_every_call_has_one_outcome(result.turns)
    return result.turns[-2]


async def test_a_run_leaves_one_turn_for_every_step(everyturn_db: et.Database) -> None:
    usage = et.Usage(10, 5, 2, 1)
    steps = [
        et.ModelTurn(
            text="let me see",
            tool_calls=[call("c1", value={"repo": "o/r", "n": 1})],
            usage=usage,
            cost_usd=Decimal("0.25"),
            reasoning="hm",
            provider={"sig": "x"},
            model="m-1",
        ),
        et.ModelTurn(text="done", usage=usage, cost_usd=Decimal("0.5"), finish_reason="length"),
    ]
    bot = agent(everyturn_db, *steps, instructions="Be kind.")
    result = await bot.run("hello", attributes={"user": "u1"})
    assert (result.output, result.usage, result.cost_usd) == ("done", usage + usage, Decimal("0.75"))
    turns = await everyturn_db.turns.load(result.conversation)
    assert result.turns == turns
    assert [turn.kind for turn in turns] == ["user", "model", "tool_call", "tool_result", "model"]
    assert {turn.payload["runId"] for turn in turns} == {result.run_id}
    user, first, started, ended, last = (turn.payload for turn in turns)
    assert user == {"text": "hello", "runId": result.run_id, "attributes": {"user": "u1"}}
    assert first["toolCalls"] == [{"id": "c1", "name": "echo", "args": {"value": {"repo": "o/r", "n": 1}}}]
    assert (first["text"], first["reasoning"], first["provider"]) == ("let me see", "hm", {"sig": "x"})
    assert (first["model"], first["finishReason"], first["costUsd"]) == ("m-1", "tool_calls", 0.25)
    assert first["usage"] == {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 15,
        "cachedInputTokens": 2,
        "cacheCreationInputTokens": 1,
    }
    assert first["promptRev"] == hashlib.sha1(b"blob 8\0Be kind.").hexdigest()
    assert set(started) == {"toolName", "toolCallId", "args", "implHash", "runId"}
    assert started["implHash"] == ended["implHash"] == echo.impl_hash
    assert ended["result"] == {"repo": "o/r", "n": 1}
    assert (ended["repo"], ended["n"]) == ("o/r", 1)
    assert (last["finishReason"], last["costUsd"]) == ("length", 0.5)
    assert "resumes" not in last


async def test_a_conversation_goes_on(everyturn_db: et.Database) -> None:
    model = ScriptedModel(["one", "two"])
    bot = et.Agent(everyturn_db, "a", model=model)
    first = await bot.run("first")
    second = await bot.run("second", str(first.conversation))
    assert second.conversation == first.conversation
    assert [m.text for m in model.requests[1].messages] == ["first", "one", "second"]
    assert len(second.turns) == 2
    third = uuid4()
    assert (await et.Agent(everyturn_db, "a", model=ScriptedModel(["x"])).run("new", third)).conversation == third


async def test_an_unknown_price_makes_the_cost_unknown(everyturn_db: et.Database) -> None:
    """field case 108"""
    step = et.ModelTurn(tool_calls=[call("c1")], usage=et.Usage(5, 5), cost_usd=Decimal(1))
    result = await agent(everyturn_db, step, et.ModelTurn(text="x", usage=et.Usage(1, 1), model="my-local-8b")).run("x")
    assert result.cost_usd is None
    assert "costUsd" not in result.turns[-1].payload


async def test_settings_of_the_run_win_over_those_of_the_agent(everyturn_db: et.Database) -> None:
    model = ScriptedModel(["x"])
    await et.Agent(everyturn_db, "a", model=model, settings={"a": 1, "b": 1}).run("x", settings={"b": 2})
    assert model.requests[0].settings == {"a": 1, "b": 2}


async def test_a_handler_is_given_its_context(everyturn_db: et.Database) -> None:
    seen = []

    @et.tool
    async def look(ctx: et.Context) -> str:
        seen.append(ctx)
        return "x"

    result = await agent(everyturn_db, calls(call("c1", "look")), "done", tools=[look]).run("x", deps={"k": 1})
    [ctx] = seen
    assert (ctx.db, ctx.deps, ctx.agent) == (everyturn_db, {"k": 1}, "a")
    assert (ctx.conversation, ctx.run_id, ctx.tool_call_id) == (result.conversation, result.run_id, "c1")
    assert ctx.memory is not None


# Calls that do not reach their handler


async def test_an_unknown_tool_is_told_to_the_model(everyturn_db: et.Database) -> None:
    bot = agent(everyturn_db, calls(call("c1", "ehco"), call("c2", "выборка" * 300)), "done")
    result = await bot.run("x")
    assert await shape(everyturn_db, result.conversation) == [
        "user",
        "model",
        "error/tool c1",
        "error/tool c2",
        "model",
    ]
    assert "no tool named 'ehco'" in result.turns[2].payload["message"]
    assert "The tools are: echo" in result.turns[2].payload["message"]


async def test_bad_arguments_never_reach_the_handler(everyturn_db: et.Database) -> None:
    """field case 81"""

    @et.tool
    async def need(n: int) -> None:
        raise AssertionError("it ran")

    for args in ('{"a": 1', "[]", "null", "7", '"text"', "{}", '{"n": "many"}'):
        outcome = await outcome_of(everyturn_db, need, args)
        assert (outcome.kind, outcome.payload["stage"], outcome.payload["toolCallId"]) == ("error", "tool", "c1"), args
        assert "need" in outcome.payload["message"]


async def test_arguments_given_as_text_are_stored_and_hoisted_as_an_object(everyturn_db: et.Database) -> None:
    @et.tool
    async def find(repo: str) -> str:
        return "found"

    outcome = await outcome_of(everyturn_db, find, '{"repo": "o/r"}')
    assert (outcome.payload["repo"], outcome.payload["result"]) == ("o/r", "found")
    turns = await everyturn_db.turns.load(outcome.conversation)
    assert turns[1].payload["toolCalls"][0]["args"] == turns[2].payload["args"] == {"repo": "o/r"}
    outcome = await outcome_of(everyturn_db, echo, "  ")
    assert outcome.kind == "tool_result"


async def test_ids_of_one_answer_are_made_distinct(everyturn_db: et.Database) -> None:
    """field case 28"""
    asked = [call("x", value=1), call("x", value=2), call("", value=3), call(" ", value=4), call("a\x1fb", value=5)]
    result = await agent(everyturn_db, calls(*asked), "done").run("x")
    assert_every_call_has_one_outcome(result.turns)
    results = {t.payload["toolCallId"]: t.payload["result"] for t in result.turns if t.kind == "tool_result"}
    assert sorted(results.values()) == [1, 2, 3, 4, 5]
    assert results["x"] == 1
    assert results["x_2"] == 2


async def test_ids_reused_in_every_answer_keep_their_own_results(everyturn_db: et.Database) -> None:
    """field case 28"""
    model = ScriptedModel([calls(call("call_0", value="one")), calls(call("call_0", value="two")), "done"])
    await et.Agent(everyturn_db, "a", tools=[echo], model=model).run("x")
    told = [m.content for m in model.requests[2].messages if isinstance(m, et.ToolMessage)]
    assert told == ["one", "two"]


# Parallel calls


async def test_parallel_results_are_logged_as_they_come_and_sent_in_call_order(everyturn_db: et.Database) -> None:
    """field case 30, field case 78"""

    @et.tool
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "slow"

    @et.tool(rate_budget=et.RateBudget(60, 0))
    async def never() -> str:
        raise AssertionError("it ran")

    model = ScriptedModel([calls(call("a", "slow"), call("b", value="fast"), call("c", "never")), "done"])
    started = time.perf_counter()
    result = await et.Agent(everyturn_db, "a", tools=[slow, echo, never], model=model).run("x")
    assert time.perf_counter() - started < 1
    said = await shape(everyturn_db, result.conversation)
    assert said[:4] == ["user", "model", "tool_call a", "tool_call b"]
    assert said[-2:] == ["tool_result a", "model"]
    assert sorted(said[4:-2]) == ["error/budget c", "tool_result b"]
    told = [(m.tool_call_id, m.is_error) for m in model.requests[1].messages if isinstance(m, et.ToolMessage)]
    assert told == [("a", False), ("b", False), ("c", True)]


async def test_a_call_is_durable_before_its_handler_runs(everyturn_db: et.Database) -> None:
    """field case 21: a handler that returns at once, seen from another connection, with and without a budget."""
    seen: list[list[str]] = []

    async def check(ctx: et.Context) -> str:
        rows = await everyturn_db.fetch(
            "SELECT payload ->> 'toolCallId' AS id FROM agent_turns WHERE conversation = %s AND kind = 'tool_call'",
            (ctx.conversation,),
        )
        seen.append([row["id"] for row in rows])
        return "x"

    free = et.tool(name="free")(check)
    counted = et.tool(name="counted", rate_budget=et.RateBudget(60, 5))(check)
    bot = agent(everyturn_db, calls(call("c1", "free")), calls(call("c2", "counted")), "done", tools=[free, counted])
    await bot.run("x")
    assert seen == [["c1"], ["c1", "c2"]]


async def test_a_refusal_by_the_budget_says_how_long_to_wait_and_costs_nothing(everyturn_db: et.Database) -> None:
    ran = []

    @et.tool(rate_budget=et.RateBudget(30, 2))
    async def limited(n: int) -> int:
        ran.append(n)
        return n

    steps = [calls(*(call(f"c{n}", "limited", n=n) for n in range(4))), calls(call("d", "limited", n=9)), "done"]
    result = await agent(everyturn_db, *steps, tools=[limited]).run("x")
    assert len(ran) == 2
    assert_every_call_has_one_outcome(result.turns)
    refused = [turn.payload for turn in result.turns if turn.kind == "error"]
    assert [payload["stage"] for payload in refused] == ["budget"] * 3
    assert all("2 times in 30 s" in payload["message"] and "Wait " in payload["message"] for payload in refused)
    rows = await everyturn_db.fetch("SELECT count(*) AS n FROM agent_turns WHERE kind = 'tool_call'")
    assert rows == [{"n": 2}]


# Handlers that fail, and odd results


class Stop(BaseException):
    pass


ERRORS: list[tuple[BaseException, str, str | None]] = [
    (ValueError("no such file"), "ValueError", "no such file"),
    (KeyError(), "KeyError", "KeyError"),
    (asyncio.CancelledError("inner"), "CancelledError", "inner"),
    (Stop("stop"), "Stop", "stop"),
    (SystemExit(3), "RuntimeError", "The handler called sys.exit(3)."),
    (StopIteration("x"), "RuntimeError", None),
    (TimeoutError(), "TimeoutError", "TimeoutError"),
    (ValueError("x" * 100_000), "ValueError", None),
    (ValueError("a\x00b\udc81"), "ValueError", "a\ufffdb\ufffd"),
]


async def test_an_exception_of_a_handler_is_told_to_the_model(everyturn_db: et.Database) -> None:
    async def fail_async(ctx: et.Context) -> None:
        raise ctx.deps

    def fail_sync(ctx: et.Context) -> None:
        raise ctx.deps

    for error, type_, message in ERRORS:
        for handler in (fail_async, fail_sync):
            bot = agent(everyturn_db, calls(call("c1", handler.__name__)), "done", tools=[handler])
            result = await bot.run("x", deps=error)
            outcome = result.turns[-2]
            assert (outcome.kind, outcome.payload["stage"], outcome.payload["type"]) == ("error", "tool", type_)
            assert len(outcome.payload["message"]) < 30_000
            if message is not None:
                assert outcome.payload["message"] == message


def generator() -> Iterator[int]:
    yield 1


class Odd:
    def __repr__(self) -> str:
        raise ValueError("no repr")


CYCLE: dict[str, Any] = {}
CYCLE["me"] = CYCLE


ODD_RESULTS: list[Any] = [
    {"p": math.nan, "hi": math.inf},
    b"\x89PNG\xff",
    CYCLE,
    {(1, 2): "a", 1: "x", "1": "y"},
    generator(),
    Odd(),
    object(),
    {"s": {1, 2}, "d": Decimal("1.5"), "u": UUID(int=1)},
    "a\x00b\ud83d",
    None,
    "",
    [],
    len,
]


async def test_any_result_of_a_handler_is_kept(everyturn_db: et.Database) -> None:
    """field case 6, field case 10, field case 11, field case 13, field case 14: the model gets it, the log holds it."""
    for value in ODD_RESULTS:

        async def give_async(ctx: et.Context) -> Any:
            return ctx.deps

        def give_sync(ctx: et.Context) -> Any:
            return ctx.deps

        for handler in (give_async, give_sync):
            name = handler.__name__
            bot = agent(everyturn_db, calls(call("c1", name)), "done", tools=[handler])
            outcome = (await bot.run("x", deps=value)).turns[-2]
            assert outcome.kind == "tool_result"
            [row] = await everyturn_db.fetch(
                "SELECT (payload -> 'result')::text AS text FROM agent_turns WHERE id = %s", (outcome.id,)
            )
            json.loads(row["text"])


async def test_a_large_result_is_kept(everyturn_db: et.Database) -> None:
    """field case 16"""
    text = "0123456789abcdef" * (20 << 16)
    outcome = await outcome_of(everyturn_db, et.tool(name="big")(lambda: text))
    rows = await everyturn_db.fetch(
        "SELECT length(payload ->> 'result') AS n FROM agent_turns WHERE id = %s", (outcome.id,)
    )
    assert rows[0]["n"] == len(text)
    assert "text" not in outcome.payload


async def test_scalars_are_hoisted_and_own_keys_win(everyturn_db: et.Database) -> None:
    async def post(**fields: Any) -> Any:
        return {
            "body": "from the result",
            "url": "u",
            "flag": True,
            "ratio": 1.5,
            "none": None,
            "list": [1],
            "object": {"a": 1},
            "big": "x" * 8193,
            "fits": "y" * 8192,
            "wide": "é" * 5000,
            "toolName": "evil",
            "result": "evil",
            "runId": "evil",
            "implHash": "evil",
            "latencyMs": "evil",
            "toolCallId": "evil",
            "odd": math.nan,
        }

    tool = et.Tool("post", {"type": "object", "additionalProperties": True}, post)
    args = {"body": "from the args", "path": "a.py", "line": 3, "toolCallId": "evil", "repo": "r" * 1025}
    outcome = await outcome_of(everyturn_db, tool, args)
    payload = outcome.payload
    assert (payload["toolName"], payload["toolCallId"], payload["implHash"]) == ("post", "c1", tool.impl_hash)
    assert (payload["body"], payload["path"], payload["line"]) == ("from the result", "a.py", 3)
    assert (payload["flag"], payload["ratio"], payload["fits"]) == (True, 1.5, "y" * 8192)
    assert not {"none", "list", "object", "big", "wide", "odd", "repo"} & payload.keys()
    assert isinstance(payload["latencyMs"], int)
    assert payload["result"]["toolName"] == "evil"


async def test_a_repo_of_the_indexable_size_is_hoisted(everyturn_db: et.Database) -> None:
    @et.tool
    async def review(repo: str) -> str:
        return "x"

    outcome = await outcome_of(everyturn_db, review, {"repo": "r" * 1024})
    assert outcome.payload["repo"] == "r" * 1024


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def test_sync_handlers_run_side_by_side_with_the_callers_context_and_a_blocking_face(
    everyturn_db: et.Database,
) -> None:
    """field case 35, field case 78"""

    @et.tool
    def work(ctx: et.Context) -> dict[str, Any]:
        time.sleep(0.3)
        turns = ctx.db.turns.load(ctx.conversation)
        with ctx.db.transaction():
            ctx.db.turns.append(ctx.conversation, "note", "error", {"message": "a note", "stage": "hook"})
        return {"variable": variable.get(), "seen": [turn.kind for turn in turns]}

    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.02)

    token = variable.set("mine")
    heartbeat = asyncio.create_task(heart())
    started = time.perf_counter()
    bot = agent(everyturn_db, calls(call("a", "work"), call("b", "work")), "done", tools=[work])
    result = await bot.run("x")
    took = time.perf_counter() - started
    heartbeat.cancel()
    variable.reset(token)
    assert took < 0.6 + 0.4
    assert beats > 5
    for turn in result.turns:
        if turn.kind == "tool_result":
            assert turn.payload["result"]["variable"] == "mine"
            assert turn.payload["result"]["seen"][:4] == ["user", "model", "tool_call", "tool_call"]


# The model


async def test_the_cap_on_model_calls(everyturn_db: et.Database) -> None:
    bot = agent(everyturn_db, *(calls(call("c", value=n)) for n in range(5)), max_turns=2)
    with pytest.raises(et.MaxTurnsExceeded, match="asked the model 2 times") as caught:
        await bot.run("x")
    [row] = await everyturn_db.fetch("SELECT DISTINCT conversation FROM agent_turns")
    conversation = row["conversation"]
    assert str(conversation) in str(caught.value)
    said = await shape(everyturn_db, conversation)
    assert said.count("model") == 2
    assert said[-2:] == ["tool_result c", "error/limit"]
    assert_every_call_has_one_outcome(await everyturn_db.turns.load(conversation))
    # A raised cap takes it up where it stopped.
    assert (await agent(everyturn_db, "done", max_turns=1).resume(conversation)).output == "done"


@pytest.mark.parametrize("at", [0, 1])
async def test_a_model_that_fails(everyturn_db: et.Database, at: int) -> None:
    cause = ConnectionError("no route")
    bot = agent(everyturn_db, *[calls(call("c1"))][:at], cause)
    with pytest.raises(et.ModelError, match="scripted failed: no route") as caught:
        await bot.run("x")
    assert caught.value.__cause__ is cause
    [row] = await everyturn_db.fetch("SELECT DISTINCT conversation FROM agent_turns")
    turns = await everyturn_db.turns.load(row["conversation"])
    assert (turns[-1].kind, turns[-1].payload["stage"]) == ("error", "model")
    assert (turns[-1].payload["type"], turns[-1].payload["message"]) == ("ConnectionError", "no route")
    events = await everyturn_db.events.load(turns[-1].payload["runId"])
    assert events[-1].event["type"] == "error"
    assert events[-1].event["error"] == {"name": "ConnectionError", "message": "no route"}
    assert events[-1].event["runId"] == turns[-1].payload["runId"]
    assert (await agent(everyturn_db, "better").resume(row["conversation"])).output == "better"


@pytest.mark.parametrize("error", [et.MaxTurnsExceeded("x"), et.ConversationConflict("x"), et.DatabaseUnavailable("x")])
async def test_errors_of_everyturn_inside_a_leaf_are_errors_of_the_model(
    everyturn_db: et.Database, error: Exception
) -> None:
    """A leaf may run another agent: what goes wrong there is no reason to leave this run without an end."""
    with pytest.raises(et.ModelError) as caught:
        await agent(everyturn_db, error).run("x")
    assert caught.value.__cause__ is error
    rows = await everyturn_db.fetch("SELECT payload ->> 'stage' AS stage FROM agent_turns WHERE kind = 'error'")
    assert rows == [{"stage": "model"}]


async def broken(request: et.ModelRequest) -> AsyncIterator[Any]:
    for word in ("once ", "upon ", "a"):
        yield et.TextDelta(word)
    raise OSError("line down")


async def unfinished(request: et.ModelRequest) -> AsyncIterator[Any]:
    for word in ("once ", "upon ", "a"):
        yield et.TextDelta(word)


@pytest.mark.parametrize("model", [broken, unfinished])
@pytest.mark.parametrize("streaming", [True, False])
async def test_what_came_of_a_broken_stream_is_kept(everyturn_db: et.Database, model: Any, streaming: bool) -> None:
    """field case 41"""
    bot = et.Agent(everyturn_db, "a", model=model)
    conversation = uuid4()
    with pytest.raises(et.ModelError):
        await (drain(bot.run_stream("tell", conversation)) if streaming else bot.run("tell", conversation))
    assert await shape(everyturn_db, conversation) == ["user", "model", "error/model"]
    answer = (await everyturn_db.turns.load(conversation))[1].payload
    assert (answer["text"], answer["incomplete"], answer["finishReason"]) == ("once upon a", True, "error")
    events = await everyturn_db.events.load(answer["runId"])
    assert "".join(e.event["delta"] for e in events if e.event["type"] == "text_delta") == "once upon a"
    assert events[-1].event["type"] == "error"
    follow = ScriptedModel(["a time"])
    result = await et.Agent(everyturn_db, "a", model=follow).resume(conversation)
    assert result.output == "a time"
    assert follow.requests[0].messages == [et.UserMessage("tell")]


async def test_usage_of_a_broken_stream_is_counted(everyturn_db: et.Database) -> None:
    """field case 40"""
    from everyturn.errors import StreamBroken

    def fail(_: et.ModelRequest) -> None:
        raise StreamBroken("cut", et.Usage(7, 3))

    with pytest.raises(et.ModelError):
        await agent(everyturn_db, fail).run("x")
    rows = await everyturn_db.fetch("SELECT event FROM agent_events ORDER BY id DESC LIMIT 1")
    assert rows[0]["event"]["usage"]["totalTokens"] == 10
    rows = await everyturn_db.fetch("SELECT payload FROM agent_turns WHERE kind = 'model'")
    assert rows[0]["payload"]["usage"]["inputTokens"] == 7


async def test_what_only_the_deltas_said_is_part_of_the_answer(everyturn_db: et.Database) -> None:
    async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
        yield et.ReasoningDelta("hm")
        yield et.TextDelta("hel")
        yield et.TextDelta("lo")
        yield et.ModelTurn(text="")

    result = await et.Agent(everyturn_db, "a", model=model).run("x")
    assert result.output == "hello"
    assert result.turns[-1].payload["reasoning"] == "hm"


async def test_a_delta_that_is_no_text_is_refused(everyturn_db: et.Database) -> None:
    async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
        yield et.TextDelta("ok")
        yield et.TextDelta(None)  # type: ignore[arg-type]

    conversation = uuid4()
    with pytest.raises(et.ModelError, match="piece of text"):
        await et.Agent(everyturn_db, "a", model=model).run("x", conversation)
    assert (await everyturn_db.turns.load(conversation))[1].payload["text"] == "ok"


@pytest.mark.parametrize(
    "delta",
    [et.ToolCallDelta(None, "look"), et.ToolCallDelta("c", 5), et.ToolCallDelta("c", "look", {"a": 1})],  # type: ignore[arg-type]
)
async def test_a_delta_of_a_call_holds_strings(everyturn_db: et.Database, delta: et.ToolCallDelta) -> None:
    async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
        yield delta
        yield et.ModelTurn(text="ok")

    with pytest.raises(et.ModelError, match="delta of a tool call holds strings"):
        await et.Agent(everyturn_db, "a", model=model).run("x")


async def test_a_cancellation_of_the_models_own_is_a_failure_of_the_model(everyturn_db: et.Database) -> None:
    """Nobody cancelled the run: without an error nobody would see why it ended."""

    async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
        yield et.TextDelta("ok")
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    conversation = uuid4()
    with pytest.raises(et.ModelError, match="CancelledError"):
        await et.Agent(everyturn_db, "a", model=model).run("x", conversation)
    _, partial, error = await everyturn_db.turns.load(conversation)
    assert (partial.payload["incomplete"], error.payload["stage"]) == (True, "model")


async def test_odd_usage_in_an_error_of_the_model_loses_nothing(everyturn_db: et.Database) -> None:
    async def model(request: et.ModelRequest) -> str:
        raise et.StreamBroken("cut", et.Usage("5"))  # type: ignore[arg-type]

    conversation = uuid4()
    with pytest.raises(et.StreamBroken, match="cut"):
        await et.Agent(everyturn_db, "a", model=model).run("x", conversation)
    assert [turn.kind for turn in await everyturn_db.turns.load(conversation)] == ["user", "error"]


async def test_an_empty_answer_ends_the_run(everyturn_db: et.Database) -> None:
    model = ScriptedModel([et.ModelTurn(text=""), "now"])
    bot = et.Agent(everyturn_db, "a", model=model)
    result = await bot.run("x")
    assert result.output == ""
    await bot.run("y", result.conversation)
    assert model.requests[1].messages == [et.UserMessage("x\n\ny")]


async def test_a_leaf_may_keep_what_it_is_given(everyturn_db: et.Database) -> None:
    seen: list[Any] = []

    async def model(request: et.ModelRequest) -> et.ModelTurn:
        seen.append(request.messages)
        return calls(call(f"c{len(seen)}")) if len(seen) < 3 else et.ModelTurn(text="done")

    await et.Agent(everyturn_db, "a", tools=[echo], model=model).run("x")
    assert [len(messages) for messages in seen] == [1, 3, 5]


async def test_a_price_that_cannot_be_had_loses_no_answer(everyturn_db: et.Database) -> None:
    class Priced:
        name = "priced"

        async def stream(self, request: et.ModelRequest, *, streaming: bool = True) -> AsyncIterator[Any]:
            yield et.ModelTurn(text="ok", usage=et.Usage(1, 1))

        def cost(self, usage: et.Usage, model: str | None = None) -> Decimal | None:
            raise LookupError("no price list")

    result = await et.Agent(everyturn_db, "a", model=Priced()).run("x")
    assert (result.output, result.cost_usd) == ("ok", None)


# History


async def test_a_history_function_decides_what_is_sent(everyturn_db: et.Database) -> None:
    """The pairs stay together; the question and the newest answer are always there."""
    for choose in (et.last_turns(1), et.token_budget(1), lambda turns: [], lambda turns: turns[-1:], _later):
        model = ScriptedModel([calls(call("a"), call("b")), calls(call("a")), calls(call("a")), "done"])
        bot = et.Agent(everyturn_db, "a", tools=[echo], model=model, history=choose)
        result = await bot.run("question")
        assert result.output == "done"
        for request in model.requests:
            assert request.messages[0] == et.UserMessage("question")
        assert len(model.requests[3].messages) == 3
        assert_every_call_has_one_outcome(result.turns)


async def _later(turns: list[et.Turn]) -> list[et.Turn]:
    await asyncio.sleep(0)
    return turns[-2:]


async def test_the_question_is_found_however_long_ago_it_was_asked(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    rows = [et.NewTurn(conversation, "a", "user", {"text": "the question"})]
    for n in range(150):
        named = {"text": "", "toolCalls": [{"id": f"c{n}", "name": "echo", "args": {}}]}
        rows.append(et.NewTurn(conversation, "a", "model", named))
        rows.append(et.NewTurn(conversation, "a", "tool_call", {"toolName": "echo", "toolCallId": f"c{n}", "args": {}}))
        rows.append(
            et.NewTurn(conversation, "a", "tool_result", {"toolName": "echo", "toolCallId": f"c{n}", "result": n})
        )
    await everyturn_db.turns.append_many(rows)
    model = ScriptedModel(["done"])
    await et.Agent(everyturn_db, "a", model=model, history=et.last_turns(6)).run("more", conversation)
    assert [m.text for m in model.requests[0].messages if isinstance(m, et.UserMessage)] == ["the question", "more"]


async def test_a_history_function_that_fails_ends_the_run_in_the_log(everyturn_db: et.Database) -> None:
    conversation = uuid4()
    with pytest.raises(et.InvalidValue, match="history function"):
        await agent(everyturn_db, "x", history=lambda turns: None).run("x", conversation)
    assert await shape(everyturn_db, conversation) == ["user", "error/model"]


# Conversations and transactions


async def test_a_second_run_of_a_conversation_is_refused_and_writes_nothing(everyturn_db: et.Database) -> None:
    """field case 23"""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(request: et.ModelRequest) -> str:
        entered.set()
        await leave.wait()
        return "first"

    conversation = uuid4()
    running = asyncio.create_task(agent(everyturn_db, wait).run("x", conversation))
    await entered.wait()
    before = await shape(everyturn_db, conversation)
    async with et.connect(everyturn_db.url, embedder=False) as other:
        for db in (everyturn_db, other):
            with pytest.raises(et.ConversationConflict, match=str(conversation)):
                await agent(db, "second").run("y", conversation)
            with pytest.raises(et.ConversationConflict):
                await agent(db, "second").resume(conversation)
        refused = asyncio.create_task(agent(other, "second").run("y", conversation))
        await asyncio.sleep(0.02)
        refused.cancel()
        with pytest.raises(asyncio.CancelledError):
            await refused
    assert await shape(everyturn_db, conversation) == before
    leave.set()
    assert (await running).output == "first"
    assert await shape(everyturn_db, conversation) == ["user", "model"]


async def test_a_run_inside_a_transaction_does_not_join_it(everyturn_db: et.Database) -> None:
    """field case 47"""

    @et.tool
    async def note(ctx: et.Context) -> str:
        await ctx.db.turns.append(ctx.conversation, "note", "user", {"text": "kept"})
        return "x"

    @et.tool(rate_budget=et.RateBudget(60, 9))
    async def counted() -> str:
        return "x"

    bot = agent(everyturn_db, calls(call("a", "note"), call("b", "counted")), "done", tools=[note, counted])
    rolled_back = uuid4()
    async with everyturn_db.transaction():
        await everyturn_db.turns.append(rolled_back, "a", "user", {"text": "goes"})
        result = await bot.run("x")
        raise psycopg.Rollback
    turns = await everyturn_db.turns.load(result.conversation)
    assert len(turns) == len(result.turns) + 1
    assert await everyturn_db.turns.load(rolled_back) == []
    async with everyturn_db.transaction():
        events = [e.type async for e in agent(everyturn_db, "ok").run_stream("x")]
    assert events[-1] == "final"


async def test_wrong_options_are_refused_with_a_sentence(everyturn_db: et.Database) -> None:
    def make(**options: Any) -> et.Agent:
        return et.Agent(options.pop("db", everyturn_db), options.pop("name", "a"), model=ScriptedModel([]), **options)

    for wrong, said in (
        ({"db": "postgres://x"}, "open database"),
        ({"name": " "}, "agent name"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_turns": True}, "max_turns"),
        ({"include": "some"}, "include"),
        ({"instructions": 3}, "instructions"),
        ({"hook_timeout": 0}, "hook_timeout"),
        ({"hooks": {"on_turn_complete": print}}, "EvalHooks"),
        ({"history": 5}, "history"),
        ({"settings": "x"}, "settings"),
        ({"scope": ""}, "scope"),
    ):
        with pytest.raises(et.InvalidValue, match=said):
            make(**wrong)  # type: ignore[arg-type]
    bot = make()
    for call_ in (
        lambda: bot.run(3),  # type: ignore[arg-type]
        lambda: bot.run("x", "no-uuid"),
        lambda: bot.run("x", attributes=["a"]),  # type: ignore[arg-type]
        lambda: bot.run("x", settings=["a"]),  # type: ignore[arg-type]
        lambda: bot.resume("no-uuid"),
    ):
        with pytest.raises(et.InvalidValue):
            await call_()
    assert await everyturn_db.fetch("SELECT 1 FROM agent_turns") == []


# Blocking


async def test_a_sync_handlers_transaction_holds_for_its_memory(everyturn_db: et.Database) -> None:
    @et.tool
    def note(text: str, ctx: et.Context) -> str:
        """Note something, then think better of it."""
        try:
            with ctx.db.transaction():
                ctx.memory.remember("semantic", text=text)
                raise ValueError("not after all")
        except ValueError:
            return "undone"

    call = et.ModelTurn(tool_calls=[et.ToolCall("1", "note", {"text": "a fact"})])
    agent = et.Agent(everyturn_db, "noter", tools=[note], model=ScriptedModel([call, "done"]))
    await agent.run("note a fact")
    assert await everyturn_db.fetch("SELECT 1 AS one FROM agent_semantic") == []


def test_run_sync_out_of_and_inside_a_running_loop(everyturn_url: str) -> None:
    """field case 33, field case 35"""

    @et.tool
    async def later() -> str:
        await asyncio.sleep(0)
        return "async"

    @et.tool
    def now() -> str:
        return "sync"

    steps = [calls(call("a", "later"), call("b", "now")), "done"]

    async def inside() -> str:
        async with et.connect(everyturn_url, embedder=False) as db:
            bot = et.Agent(db, "a", tools=[later, now], model=ScriptedModel(steps * 2))
            output = bot.run_sync("x").output
            assert (await bot.run("y")).output == "done"
            return output

    assert asyncio.run(inside()) == "done"
    assert asyncio.run(inside()) == "done"
    with et.connect(everyturn_url, embedder=False) as db:
        bot = et.Agent(db, "a", tools=[later, now], model=ScriptedModel(steps * 2))
        assert bot.register_sync() == ["later", "now"]
        result = bot.run_sync("x")
        assert [turn.kind for turn in db.turns.load(result.conversation)] == [turn.kind for turn in result.turns]
        assert bot.resume_sync(result.conversation).output == "done"
        with db.transaction():
            assert bot.run_sync("y").output == "done"


async def test_an_answer_is_kept_whatever_its_vector(everyturn_url: str) -> None:
    """An embedder whose vectors change their size in the middle of a run costs a vector, not the answer."""
    sizes = iter([3, 4, 4, 4])

    async def embed(texts: Any, kind: str) -> list[list[float]]:
        size = next(sizes)
        return [[1.0] * size for _ in texts]

    async with et.connect(everyturn_url, embedder=embed) as db:
        result = await et.Agent(db, "a", model=ScriptedModel(["answer"])).run("x")
        assert result.output == "answer"
        rows = await db.fetch("SELECT kind, embedding IS NULL AS owed FROM agent_turns ORDER BY seq")
    assert rows == [{"kind": "user", "owed": False}, {"kind": "model", "owed": True}]
