"""Eval hooks: when they are called, in which order, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest
from agent_helpers import call, calls, echo, shape

import everyturn as et
from everyturn.testing import ScriptedModel


@et.tool
async def slow() -> str:
    await asyncio.sleep(0.05)
    return "slow"


def agent(db: et.Database, *steps: Any, **options: Any) -> et.Agent:
    return et.Agent(db, "a", tools=[echo, slow], model=ScriptedModel(steps), **options)


async def test_hooks_are_called_in_log_order_once_the_turn_is_durable(everyturn_db: et.Database) -> None:
    """The hook of a call comes once its outcome is stored, right before the outcome's own."""
    fired: list[et.Turn] = []

    async def turn_complete(turn: et.Turn) -> None:
        assert await everyturn_db.turns.get(turn.id) == turn
        if turn.kind == "tool_call":
            stored = await everyturn_db.turns.load(turn.conversation)
            assert any(
                t.kind != "tool_call" and t.payload.get("toolCallId") == turn.payload["toolCallId"] for t in stored
            )
        await asyncio.sleep(0.002)
        fired.append(turn)

    steps = [calls(call("a", "slow"), call("b"), call("c", "unknown")), "done"]
    result = await agent(everyturn_db, *steps, hooks=et.EvalHooks(turn_complete)).run("x")
    said = [turn.kind + (turn.payload.get("toolCallId") or "") for turn in fired]
    assert said[0:2] == ["user", "model"]
    assert said[-3:] == ["tool_calla", "tool_resulta", "model"]
    assert said.index("tool_resultb") == said.index("tool_callb") + 1
    assert {turn.id for turn in fired} == {turn.id for turn in result.turns}
    outcomes = [turn.seq for turn in fired if turn.kind != "tool_call"]
    assert outcomes == sorted(outcomes)


async def test_one_hook_at_a_time(everyturn_db: et.Database) -> None:
    inside = most = 0

    async def turn_complete(_: et.Turn) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.003)
        inside -= 1

    many = calls(*(call(f"c{n}") for n in range(8)))
    await agent(everyturn_db, many, "done", hooks=et.EvalHooks(turn_complete)).run("x")
    assert most == 1


async def test_verdicts_are_recorded_where_the_hook_is(everyturn_db: et.Database) -> None:
    async def judge(turn: et.Turn) -> None:
        if turn.kind == "model":
            await everyturn_db.evals.record(turn.id, "length", "good", "short", {"score": 1})

    def judge_whole(conversation: et.Conversation) -> None:
        kinds.extend(turn.kind for turn in conversation.turns)

    kinds: list[str] = []
    result = await agent(everyturn_db, calls(call("c")), "done", hooks=et.EvalHooks(judge, judge_whole)).run("x")
    verdicts = await everyturn_db.evals.list(conversation=result.conversation)
    assert [v.verdict for v in verdicts] == ["good", "good"]
    assert {v.turn_id for v in verdicts} == {turn.id for turn in result.turns if turn.kind == "model"}
    assert kinds == ["user", "model", "tool_call", "tool_result", "model"]


async def test_the_whole_conversation_is_given_whatever_was_loaded(everyturn_db: et.Database) -> None:
    whole: list[et.Conversation] = []

    @et.tool
    async def learn(ctx: et.Context) -> str:
        await ctx.memory.remember("semantic", text="a fact")
        return "ok"

    hooks = et.EvalHooks(on_conversation_complete=whole.append)
    bot = et.Agent(
        everyturn_db,
        "a",
        tools=[learn],
        model=ScriptedModel([calls(call("c", "learn")), "done", "again"]),
        hooks=hooks,
        history=et.last_turns(1),
    )
    first = await bot.run("x")
    await bot.run("y", first.conversation)
    turns = await everyturn_db.turns.load(first.conversation)
    assert [len(c.turns) for c in whole] == [6, 8]
    assert whole[1] == et.Conversation(first.conversation, "a", turns)
    assert any(turn.payload.get("toolName") == "memory.remember" for turn in turns)


class Stop(BaseException):
    pass


async def test_a_hook_that_fails_becomes_an_error_turn_and_the_run_goes_on(everyturn_db: et.Database) -> None:
    fired: list[et.Turn] = []
    for error in (ValueError("no"), SystemExit(2), asyncio.CancelledError("x"), Stop("s"), TimeoutError()):

        async def fail_async(turn: et.Turn, error: BaseException = error) -> None:
            fired.append(turn)
            raise error

        def fail_sync(turn: et.Turn, error: BaseException = error) -> None:
            fired.append(turn)
            raise error

        async def fail_whole(_: et.Conversation, error: BaseException = error) -> None:
            raise error

        for hook in (fail_async, fail_sync):
            fired.clear()
            bot = agent(everyturn_db, calls(call("c")), "done", hooks=et.EvalHooks(hook, fail_whole))
            result = await bot.run("x")
            assert result.output == "done"
            turns = await everyturn_db.turns.load(result.conversation)
            failures = [turn for turn in turns if turn.payload.get("stage") == "hook"]
            assert len(failures) == 6
            assert len(fired) == 5, "an error of a hook calls no hook"
            assert all("toolCallId" not in turn.payload for turn in failures)
            assert (await bot.resume(result.conversation)).output == "done"


async def test_a_slow_hook_is_left_behind(everyturn_db: et.Database) -> None:
    async def slow_hook(turn: et.Turn) -> None:
        if turn.kind == "user":
            await asyncio.sleep(60)

    async def stubborn(turn: et.Turn) -> None:
        if turn.kind == "user":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)

    def slow_sync(turn: et.Turn) -> None:
        if turn.kind == "user":
            time.sleep(0.4)

    for hook in (slow_hook, stubborn, slow_sync):
        started = time.perf_counter()
        bot = agent(everyturn_db, "done", hooks=et.EvalHooks(hook), hook_timeout=0.1)
        result = await bot.run("x")
        assert time.perf_counter() - started < 1
        assert await shape(everyturn_db, result.conversation) == ["user", "error/hook", "model"]
        assert "did not end within 0.1 s" in result.turns[1].payload["message"]


async def test_sync_hooks_do_not_hold_up_the_loop_and_objects_and_methods_work(everyturn_db: et.Database) -> None:
    class Judge:
        def __init__(self) -> None:
            self.seen: list[UUID] = []

        async def method(self, turn: et.Turn) -> None:
            self.seen.append(turn.id)

        async def __call__(self, turn: et.Turn) -> None:
            self.seen.append(turn.id)

        def sync(self, turn: et.Turn) -> None:
            time.sleep(0.05)
            self.seen.append(turn.id)

        def gives_an_awaitable(self, turn: et.Turn) -> Any:
            return self.method(turn)

    judge = Judge()
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(heart())
    for hook in (judge.method, judge, judge.sync, judge.gives_an_awaitable):
        await agent(everyturn_db, "done", hooks=et.EvalHooks(hook)).run("x")
    task.cancel()
    assert len(judge.seen) == 8
    assert beats > 5


async def test_hooks_of_a_failed_run(everyturn_db: et.Database) -> None:
    """The error turn is told; a conversation that did not finish is not complete."""
    fired: list[et.Turn] = []
    complete: list[et.Conversation] = []
    bot = agent(everyturn_db, ValueError("x"), hooks=et.EvalHooks(fired.append, complete.append))
    with pytest.raises(et.ModelError):
        await bot.run("x")
    assert [turn.kind for turn in fired] == ["user", "error"]
    assert complete == []
