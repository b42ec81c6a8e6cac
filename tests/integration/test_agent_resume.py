"""Going on with conversations that were left unfinished: from every place where a log can be cut off."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID, uuid4

import pytest
from agent_helpers import assert_every_call_has_one_outcome, call, calls, echo, shape

import everyturn as et
from everyturn.history import INTERRUPTED
from everyturn.testing import ScriptedModel


@et.tool
async def add(a: int, b: int) -> int:
    return a + b


def agent(db: et.Database, *steps: Any, **options: Any) -> et.Agent:
    options.setdefault("tools", [echo, add])
    return et.Agent(db, options.pop("name", "a"), model=ScriptedModel(steps), **options)


def full_script() -> list[Any]:
    """Two answers with parallel calls whose ids come again, one refused, and the end."""
    return [
        calls(call("c0", "add", a=1, b=2), call("c1", value="x"), call("c2", "unknown"), text="first"),
        calls(call("c0", value="again"), call("c1", "add", a="bad", b=1)),
        "done",
    ]


async def copied(db: et.Database, turns: list[et.Turn]) -> UUID:
    """The turns in a new conversation: a log that was cut off after the last of them."""
    conversation = uuid4()
    await db.turns.append_many([et.NewTurn(conversation, "a", turn.kind, turn.payload) for turn in turns])
    return conversation


async def test_resume_from_every_prefix_of_a_run(everyturn_db: et.Database) -> None:
    """field case 36: each has one outcome a call; what had started is interrupted, what had not is run."""
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    assert len(full) == 12
    for cut in range(1, len(full) + 1):
        prefix = full[:cut]
        conversation = await copied(everyturn_db, prefix)
        answers = sum(turn.kind == "model" for turn in prefix)
        model = ScriptedModel(full_script()[answers:])
        result = await et.Agent(everyturn_db, "a", tools=[echo, add], model=model).resume(conversation)
        turns = await everyturn_db.turns.load(conversation)
        assert result.output == "done", cut
        assert_every_call_has_one_outcome(turns)
        assert [turn.payload for turn in turns[:cut]] == [turn.payload for turn in prefix]
        if cut == len(full):
            assert len(turns) == len(full)
            assert model.requests == []
            continue
        assert turns[-1].payload["resumes"] == full[0].payload["runId"]
        assert turns[-1].payload["runId"] == result.run_id != full[0].payload["runId"]
        started = {(t.payload["toolCallId"]) for t in prefix[-4:] if t.kind == "tool_call" and answers}
        for turn in turns[cut:]:
            if turn.payload.get("stage") == "interrupted":
                assert turn.payload["message"] == INTERRUPTED
                assert turn.payload["toolCallId"] in started


async def test_calls_that_never_started_are_run_by_resume(everyturn_db: et.Database) -> None:
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    conversation = await copied(everyturn_db, full[:3])  # user, model, tool_call of the first of three calls
    model = ScriptedModel(["done"])
    bot = et.Agent(everyturn_db, "a", tools=[echo, add], model=model)
    await bot.resume(conversation)
    said = await shape(everyturn_db, conversation)
    assert said[3] == "error/interrupted c0"
    assert set(said[4:-1]) == {"tool_call c1", "tool_result c1", "error/tool c2"}
    told = [m.content for m in model.requests[0].messages if isinstance(m, et.ToolMessage)]
    assert told[:2] == [INTERRUPTED, "x"]
    assert "no tool named 'unknown'" in told[2]


async def test_calls_of_an_earlier_answer_that_never_started_are_interrupted(everyturn_db: et.Database) -> None:
    ran = []

    @et.tool
    async def act(n: int) -> int:
        ran.append(n)
        return n

    conversation = uuid4()
    turns = everyturn_db.turns
    named = {"text": "", "toolCalls": [{"id": "c", "name": "act", "args": {"n": 1}}]}
    await turns.append(conversation, "a", "user", {"text": "x"})
    await turns.append(conversation, "a", "model", named)
    await turns.append(conversation, "a", "user", {"text": "and?"})
    result = await agent(everyturn_db, "ok", tools=[act]).resume(conversation)
    assert (result.output, ran) == ("ok", [])
    assert await shape(everyturn_db, conversation) == ["user", "model", "user", "error/interrupted c", "model"]


async def test_calls_whose_arguments_were_masked_are_not_run_by_resume(everyturn_url: str) -> None:
    """field case 149: what the log holds is not what the model asked for."""
    got = []

    @et.tool
    async def login(password: str) -> str:
        got.append(password)
        return "in"

    def redact(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: "***" if key == "password" else redact(part) for key, part in value.items()}
        return [redact(part) for part in value] if isinstance(value, list) else value

    step = calls(call("c", "login", password="hunter2"), call("d", value="plain"))
    async with et.connect(everyturn_url, embedder=False, redact=redact) as db:
        full = (await agent(db, step, "done", tools=[login, echo]).run("x")).turns
        assert got == ["hunter2"]
        assert "hunter2" not in str(await db.fetch("SELECT payload::text, kind FROM agent_turns"))
        assert "hunter2" not in str(await db.fetch("SELECT event::text FROM agent_events"))
        conversation = await copied(db, full[:2])
        await agent(db, "done", tools=[login, echo]).resume(conversation)
        said = await shape(db, conversation)
        assert got == ["hunter2"]
        assert "error/interrupted c" in said
        assert "tool_result d" in said
    # Masked afterwards, by SQL.
    async with et.connect(everyturn_url, embedder=False) as db:
        conversation = await copied(db, (await agent(db, step, "done", tools=[login, echo]).run("x")).turns[:2])
        rows = await db.fetch("SELECT id FROM agent_turns WHERE conversation = %s", (conversation,))
        await db.fetch("SELECT everyturn_redact(%s, 'hunter2')", ([row["id"] for row in rows],))
        got.clear()
        await agent(db, "done", tools=[login, echo]).resume(conversation)
        assert got == []
        assert "error/interrupted c" in await shape(db, conversation)


async def test_a_finished_conversation_returns_its_stored_result(everyturn_db: et.Database) -> None:
    usage = et.Usage(3, 2)

    async def remember(ctx: et.Context) -> str:
        await ctx.memory.remember("episodic", text="it happened")
        return "ok"

    def fail(_: et.Turn) -> None:
        raise ValueError("hook")

    def answer(*tool_calls: et.ToolCall) -> et.ModelTurn:
        return et.ModelTurn(text="" if tool_calls else "done", tool_calls=tool_calls, usage=usage, cost_usd=1)  # type: ignore[arg-type]

    bot = agent(everyturn_db, answer(call("c", "remember")), answer(), tools=[remember], hooks=et.EvalHooks(fail))
    result = await bot.run("x")
    await everyturn_db.memory.remember("semantic", text="later")
    again = await bot.resume(result.conversation)
    assert (again.output, again.run_id, again.usage) == ("done", result.run_id, usage + usage)
    assert again.cost_usd == result.cost_usd == 2
    assert [t for t in again.turns if t.kind != "error" and t.payload.get("toolCallId", "x")] != []
    said = await shape(everyturn_db, result.conversation)
    assert said[-1] == "error/hook"


async def test_what_resume_refuses(everyturn_db: et.Database) -> None:
    with pytest.raises(et.ConversationNotFound, match="no conversation"):
        await agent(everyturn_db).resume(uuid4())


async def test_resume_gives_the_conversation_back_on_every_path(everyturn_db: et.Database) -> None:
    bot = agent(everyturn_db, "one", ValueError("x"), "three", "four")
    done = (await bot.run("x")).conversation
    missing = uuid4()
    for _ in range(2):
        with pytest.raises(et.ConversationNotFound):
            await bot.resume(missing)
        assert (await bot.resume(done)).output == "one"
    crashed = uuid4()
    with pytest.raises(et.ModelError):
        await bot.run("x", crashed)
    assert (await bot.resume(crashed)).output == "three"
    assert (await bot.run("y", done)).output == "four"
    async with et.connect(everyturn_db.url, embedder=False) as other:
        for conversation in (missing, done, crashed):
            await agent(other, "other").run("z", conversation)


async def test_run_closes_what_a_crash_left_open_before_it_asks(everyturn_db: et.Database) -> None:
    """field case 36"""
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    for cut in range(2, 8):
        for choose in (None, et.last_turns(1)):
            conversation = await copied(everyturn_db, full[:cut])
            model = ScriptedModel(["answer"])
            bot = et.Agent(everyturn_db, "a", tools=[echo, add], model=model, history=choose)
            result = await bot.run("now what", conversation)
            turns = await everyturn_db.turns.load(conversation)
            assert_every_call_has_one_outcome(turns)
            new = turns[cut:]
            assert [turn.kind for turn in new[-2:]] == ["user", "model"]
            assert all(turn.payload["stage"] == "interrupted" for turn in new[:-2])
            assert {turn.payload["runId"] for turn in new} == {result.run_id}
            assert all(turn.kind != "tool_call" for turn in new)


async def test_a_resumed_run_has_its_own_count_of_model_calls(everyturn_db: et.Database) -> None:
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    conversation = await copied(everyturn_db, full[:2])
    assert (await agent(everyturn_db, "done", max_turns=1).resume(conversation)).output == "done"


async def test_another_agent_may_take_a_conversation_over(
    everyturn_db: et.Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Its new turns are its own; that it happened is said once."""
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    conversation = await copied(everyturn_db, full[:2])
    with caplog.at_level(logging.WARNING, "everyturn"):
        result = await agent(everyturn_db, "done", name="b", tools=[echo]).resume(conversation)
    assert "'a'" in caplog.text
    assert "'b'" in caplog.text
    assert {turn.agent for turn in result.turns} == {"b"}
    assert_every_call_has_one_outcome(await everyturn_db.turns.load(conversation))


async def test_what_another_program_left_open_is_closed(everyturn_db: et.Database) -> None:
    """field case 36, field case 38: calls no answer names, payloads that are no objects, outcomes without a call."""
    conversation = uuid4()
    turns = everyturn_db.turns
    await turns.append(conversation, "ts", "user", {"text": "x"})
    await turns.append(conversation, "ts", "tool_call", {"toolName": "grep", "toolCallId": "z", "args": {}})
    await turns.append(conversation, "ts", "tool_result", {"toolName": "grep", "toolCallId": "nobody", "result": 1})
    await everyturn_db.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload) VALUES (%s, 'ts', 'model', '[1, \"a\"]'),"
        " (%s, 'ts', 'tool_call', '\"text\"')",
        (conversation, conversation),
    )
    result = await agent(everyturn_db, "done").resume(conversation)
    assert result.output == "done"
    said = await shape(everyturn_db, conversation)
    assert said.count("error/interrupted z") == 1
    assert (await agent(everyturn_db, "more").run("y", conversation)).output == "more"


async def test_crashed_conversations_are_listed_until_they_are_resumed(everyturn_db: et.Database) -> None:
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    conversations = [await copied(everyturn_db, full[:cut]) for cut in (1, 2, 4, 9)]

    async def crashed() -> set[UUID]:
        rows = await everyturn_db.query("conversations_by_status", status="crashed", agent="", before="", limit=None)
        return {row["id"] for row in rows}

    assert await crashed() == set(conversations)
    for conversation in conversations:
        await agent(everyturn_db, "done").resume(conversation)
    assert await crashed() == set()


async def test_hooks_are_not_called_again_for_what_was_there(everyturn_db: et.Database) -> None:
    full = (await agent(everyturn_db, *full_script()).run("go")).turns
    conversation = await copied(everyturn_db, full[:3])
    fired: list[et.Turn] = []
    complete: list[et.Conversation] = []
    hooks = et.EvalHooks(fired.append, complete.append)
    await agent(everyturn_db, "done", hooks=hooks).resume(conversation)
    turns = await everyturn_db.turns.load(conversation)
    # The call that had started was never told to the hook: it is told with its outcome, before it.
    assert [(t.kind, t.payload.get("toolCallId")) for t in fired[:2]] == [("tool_call", "c0"), ("error", "c0")]
    assert {turn.id for turn in fired} == {turn.id for turn in turns[2:]}
    assert len(fired) == len(turns) - 2
    assert [c.turns for c in complete] == [turns]
