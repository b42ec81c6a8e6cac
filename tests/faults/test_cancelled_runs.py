"""Runs that are cancelled, interrupted or left by their reader: the log stays whole, and resume finishes them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

import everyturn as et
from everyturn.blocks import open_calls
from everyturn.provider_rules import check_messages


@et.tool
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@et.tool(rate_budget=et.RateBudget(60, 100_000))
async def counted(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "counted"


@et.tool
def blocking_nap(ctx: et.Context) -> int:
    return len(ctx.db.turns.load(ctx.conversation))


def call(id: str, name: str, **args: Any) -> et.ToolCall:
    return et.ToolCall(id, name, args)


async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
    """Two answers that call tools, then the end; streamed, with pauses to be cancelled in."""
    check_messages(request.messages)
    answered = sum(isinstance(m, et.AssistantMessage) for m in request.messages)
    yield et.TextDelta("so ")
    await asyncio.sleep(0.001)
    yield et.TextDelta("far")
    if answered >= 2:
        yield et.ModelTurn(text="so far")
        return
    yield et.ModelTurn(
        text="so far",
        tool_calls=[
            call("c0", "nap", seconds=0.002),
            call("c1", "counted", seconds=0.001),
            call("c2", "blocking_nap"),
            call("c3", "unknown"),
        ],
    )


async def noticed(_: et.Turn) -> None:
    await asyncio.sleep(0.0003)


def agent(db: et.Database, **options: Any) -> et.Agent:
    return et.Agent(db, "a", tools=[nap, counted, blocking_nap], model=model, **options)


async def until(holds: Callable[[list[et.Turn]], Any], db: et.Database, conversation: UUID) -> None:
    """Wait until this is true of the conversation, at most five seconds."""
    for _ in range(1000):
        if holds(await db.turns.load(conversation)):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


async def assert_whole(db: et.Database, conversation: UUID) -> str | None:
    """The log of a run that was cut short: outcomes of what had started, one end, events that agree."""
    turns = await db.turns.load(conversation)
    if not turns:
        return None
    assert not [one for _, one in open_calls(turns) if one.started is not None]
    outcomes = sum(t.kind in ("tool_result", "error") and bool(t.payload.get("toolCallId")) for t in turns)
    assert outcomes <= sum(len(t.payload["toolCalls"]) for t in turns if t.kind == "model")
    run_id = turns[-1].payload["runId"]
    events = [record.event for record in await db.events.load(run_id)]
    ends = [event["type"] for event in events if event["type"] in ("final", "error")]
    assert ends == [events[-1]["type"]], [event["type"] for event in events]
    if ends == ["error"]:
        assert turns[-1].kind == "error"
        assert turns[-1].payload["stage"] == "cancelled"
    return str(ends[0])


@pytest.mark.parametrize("hooks", [None, et.EvalHooks(noticed)], ids=["plain", "hooks"])
async def test_a_run_cancelled_anywhere_can_be_resumed(everyturn_db: et.Database, hooks: Any) -> None:
    """field case 40: at a hundred instants; what was streamed is durable, and the log says that it was cancelled."""
    bot = agent(everyturn_db, hooks=hooks)
    chance = random.Random(7)
    ends: list[str | None] = []
    await bot.run("warm")
    for round_ in range(50):
        conversation = uuid4()
        seen: list[et.StreamEvent] = []

        async def consume(conversation: UUID = conversation, seen: list[et.StreamEvent] = seen) -> None:
            async for event in bot.run_stream("go", conversation):
                seen.append(event)

        task: asyncio.Task[Any] = asyncio.create_task(consume() if round_ % 2 else bot.run("go", conversation))
        # Some by time, some by turns of the event loop, which hits every await.
        if round_ % 3:
            await asyncio.sleep(chance.random() * 0.02)
        else:
            for _ in range(chance.randrange(150)):
                await asyncio.sleep(0)
        task.cancel()
        if chance.random() < 0.3:
            await asyncio.sleep(0.001)
            task.cancel()
        await asyncio.wait({task})
        end = await assert_whole(everyturn_db, conversation)
        ends.append(end)
        if seen:
            run = await _run_of(everyturn_db, conversation)
            stored = [record.event for record in await everyturn_db.events.load(run)]
            assert stored[: len(seen)] == seen
        if end is not None:
            result = await bot.resume(conversation)
            assert result.output == "so far"
            assert not open_calls(await everyturn_db.turns.load(conversation))
    assert ends.count("error") > 10, ends


async def _run_of(db: et.Database, conversation: UUID) -> str:
    return str((await db.turns.load(conversation))[0].payload["runId"])


async def test_a_reader_that_leaves_cancels_the_run_and_one_that_saw_the_end_does_not(
    everyturn_db: et.Database,
) -> None:
    """field case 40"""
    completed: list[et.Conversation] = []

    async def complete(conversation: et.Conversation) -> None:
        await asyncio.sleep(0.05)
        completed.append(conversation)

    bot = agent(everyturn_db, hooks=et.EvalHooks(on_conversation_complete=complete))
    for leave_at in ("turn_start", "text_delta", "tool_call", "turn_end", "tool_result", "final"):
        conversation = uuid4()
        stream = bot.run_stream("go", conversation)
        async for event in stream:
            if event.type == leave_at:
                break
        await stream.aclose()
        end = await assert_whole(everyturn_db, conversation)
        assert end == ("final" if leave_at == "final" else "error"), leave_at
        assert len(completed) == (leave_at == "final")
    # Without a word, too.
    conversation = uuid4()
    async for _ in bot.run_stream("go", conversation):
        break
    await until(lambda turns: turns[-1:] and turns[-1].payload.get("stage") == "cancelled", everyturn_db, conversation)
    assert (await bot.resume(conversation)).output == "so far"


async def test_a_stream_that_is_never_read_runs_nothing(everyturn_db: et.Database) -> None:
    stream = agent(everyturn_db).run_stream("go")
    await stream.aclose()
    started = agent(everyturn_db).run_stream("go")
    reader = asyncio.ensure_future(anext(started))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait({reader})
    await started.aclose()
    assert await everyturn_db.fetch("SELECT 1 FROM agent_turns WHERE kind = 'model'") == []


async def test_a_viewer_that_goes_away_does_not_disturb_the_run(everyturn_db: et.Database) -> None:
    """field case 43: viewers read the events from the table; what they do is nothing to the run."""
    conversation = uuid4()
    running = asyncio.create_task(agent(everyturn_db).run("go", conversation))

    async def view() -> None:
        async with et.connect(everyturn_db.url, embedder=False) as db:
            after = 0
            while True:
                for record in await db.events.load(await _run_of(db, conversation), after=after):
                    after = record.id or after
                await asyncio.sleep(0.001)

    await until(bool, everyturn_db, conversation)
    viewer = asyncio.create_task(view())
    await asyncio.sleep(0.02)
    viewer.cancel()
    await asyncio.wait({viewer})
    assert (await running).output == "so far"
    assert await assert_whole(everyturn_db, conversation) == "final"


async def test_cancelling_while_the_outcome_is_stored_gives_a_call_one_outcome(everyturn_db: et.Database) -> None:
    """The statement is under way when the run is cancelled: its row counts, and no second outcome is written."""
    bot = agent(everyturn_db)
    submit = everyturn_db.writer.submit
    for at in range(2, 9):
        conversation = uuid4()
        task = asyncio.create_task(bot.run("go", conversation))
        count = itertools.count(1)

        def watched(*args: Any, _at: int = at, _task: Any = task, _count: Any = count, **kwargs: Any) -> Any:
            if next(_count) == _at:
                asyncio.get_running_loop().call_soon(_task.cancel)
            return submit(*args, **kwargs)

        everyturn_db.writer.submit = watched  # type: ignore[method-assign]
        await asyncio.wait({task})
        everyturn_db.writer.submit = submit  # type: ignore[method-assign]
        assert task.cancelled()
        assert await assert_whole(everyturn_db, conversation) == "error"
        assert (await bot.resume(conversation)).output == "so far"


SCRIPT = """
import asyncio, sys
import everyturn as et

@et.tool
async def nap() -> str:
    print("napping", flush=True)
    await asyncio.sleep(60)

def model(request):
    return et.ModelTurn(tool_calls=[et.ToolCall("c", "nap", {}), et.ToolCall("d", "nap", {})])

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        await et.Agent(db, "a", tools=[nap], model=model).run("go", sys.argv[2])

if sys.argv[3] == "async":
    asyncio.run(main())
else:
    with et.connect(sys.argv[1], embedder=False) as db:
        et.Agent(db, "a", tools=[nap], model=model).run_sync("go", sys.argv[2])
"""


@pytest.mark.parametrize("face", ["async", "blocking"])
def test_ctrl_c_ends_the_run_in_the_log(everyturn_url: str, face: str) -> None:
    """field case 36"""
    conversation = uuid4()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), everyturn_url, str(conversation), face],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "napping\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said

    async def check() -> None:
        async with et.connect(everyturn_url, embedder=False) as db:
            assert await assert_whole(db, conversation) == "error"

    asyncio.run(check())


async def test_a_keyboard_interrupt_inside_a_handler_is_the_runs(everyturn_url: str) -> None:
    conversation = uuid4()

    @et.tool
    async def press() -> None:
        raise KeyboardInterrupt

    def ask(request: et.ModelRequest) -> et.ModelTurn:
        return et.ModelTurn(tool_calls=[et.ToolCall("c", "press", {}), et.ToolCall("d", "nap", {"seconds": 30})])

    async def main() -> None:
        async with et.connect(everyturn_url, embedder=False) as db:
            await et.Agent(db, "a", tools=[press, nap], model=ask).run("go", conversation)

    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(asyncio.run, main())
    async with et.connect(everyturn_url, embedder=False) as db:
        assert await assert_whole(db, conversation) == "error"


async def test_cancelling_a_run_cancels_the_agents_inside_it(everyturn_db: et.Database) -> None:
    entered = asyncio.Event()

    async def think(request: et.ModelRequest) -> str:
        entered.set()
        await asyncio.sleep(30)
        return "too late"

    child = et.Agent(everyturn_db, "child", model=think)
    for count in (1, 2):
        entered.clear()
        asked = [call(f"c{n}", "child", input="?") for n in range(count)]
        parent = et.Agent(
            everyturn_db,
            "parent",
            tools=[child.as_tool()],
            model=lambda request, asked=asked: et.ModelTurn(tool_calls=asked),
        )
        conversation = uuid4()
        task = asyncio.create_task(parent.run("go", conversation))
        await entered.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert await assert_whole(everyturn_db, conversation) == "error"
        rows = await everyturn_db.fetch(
            "SELECT conversation FROM agent_turns WHERE agent = 'child' AND kind = 'user' ORDER BY seq DESC LIMIT %s",
            (count,),
        )
        for row in rows:
            turns = await everyturn_db.turns.load(row["conversation"])
            assert [turn.kind for turn in turns] == ["user", "error"]
            assert turns[-1].payload["stage"] == "cancelled"


async def test_a_handler_that_swallows_the_cancellation_does_not_keep_the_run_alive(everyturn_db: et.Database) -> None:
    entered = asyncio.Event()
    asked = 0

    @et.tool
    async def stubborn() -> str:
        entered.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return "never mind"

    def ask(request: et.ModelRequest) -> et.ModelTurn:
        nonlocal asked
        asked += 1
        return et.ModelTurn(tool_calls=[call("c", "stubborn")])

    conversation = uuid4()
    task = asyncio.create_task(et.Agent(everyturn_db, "a", tools=[stubborn], model=ask).run("go", conversation))
    await entered.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert asked == 1
    assert await assert_whole(everyturn_db, conversation) == "error"
    turns = await everyturn_db.turns.load(conversation)
    assert [turn.kind for turn in turns] == ["user", "model", "tool_call", "tool_result", "error"]


async def test_a_time_limit_around_a_run_or_inside_a_handler(everyturn_db: et.Database) -> None:
    @et.tool
    async def limited() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "in time"
        return "never"

    def ask(request: et.ModelRequest) -> et.ModelTurn:
        if isinstance(request.messages[-1], et.ToolMessage):
            return et.ModelTurn(text=request.messages[-1].content)
        return et.ModelTurn(tool_calls=[call("c", "limited")])

    bot = et.Agent(everyturn_db, "a", tools=[limited], model=ask)
    assert (await bot.run("go")).output == "in time"
    conversation = uuid4()
    slow = et.Agent(
        everyturn_db, "a", tools=[nap], model=lambda r: et.ModelTurn(tool_calls=[call("c", "nap", seconds=9)])
    )
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slow.run("go", conversation), 0.1)
    assert await assert_whole(everyturn_db, conversation) == "error"
