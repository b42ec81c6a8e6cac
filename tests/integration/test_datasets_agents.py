"""Agentic cases: captured from a run, replayed with every tool answered from the record."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from datasets_helpers import quick  # noqa: F401

import everyturn as et
from everyturn.testing import ScriptedModel

live_calls: list[tuple[str, str]] = []


@et.tool(rate_budget=et.RateBudget(window_seconds=3600, max_calls=2))
async def look(path: str, line: int = 1) -> dict[str, Any]:
    """Look at a file."""
    live_calls.append(("look", path))
    if path == "missing.py":
        raise FileNotFoundError(path)
    return {"path": path, "line": line, "text": f"content of {path}"}


@et.tool
async def note(text: str) -> str:
    """Note something."""
    live_calls.append(("note", text))
    return "noted"


def call(name: str, **args: Any) -> et.ToolCall:
    return et.ToolCall("call_0", name, args)


def asks(*calls: et.ToolCall) -> et.ModelTurn:
    return et.ModelTurn(tool_calls=calls, usage=et.Usage(5, 1), cost_usd="0.01")  # type: ignore[arg-type]


def answers(text: str) -> et.ModelTurn:
    return et.ModelTurn(text=text, usage=et.Usage(5, 1), cost_usd="0.01")  # type: ignore[arg-type]


ORIGINAL = [asks(call("look", path="a.py"), call("look", path="missing.py")), asks(call("note", text="x")), "Done."]


def agent(db: et.Database, *steps: Any) -> et.Agent:
    return et.Agent(db, "reviewer", tools=[look, note], model=ScriptedModel(list(steps)), instructions="Review.")


@pytest.fixture
async def captured(everyturn_db: et.Database) -> et.Database:
    """A database with the dataset `agentic`, of one run of the agent, its answer as the reference."""
    result = await agent(everyturn_db, *ORIGINAL).run("Review it")
    await everyturn_db.cases.capture(turn=result.turns[-1].id, reference="Done.", instructions="Review.")
    await everyturn_db.datasets.publish("agentic")
    live_calls.clear()
    return everyturn_db


async def run_row(db: et.Database) -> dict[str, Any]:
    [row] = await db.fetch("SELECT * FROM eval_run ORDER BY ran_at DESC LIMIT 1")
    return row


async def test_no_tool_is_called(captured: et.Database) -> None:
    done = await captured.datasets.replay("agentic", agent=agent(captured, *ORIGINAL[:2], answers("Done.")))
    assert live_calls == []
    row = await run_row(captured)
    assert (row["outcome"], row["output"], row["drift"], done.model) == ("pass", "Done.", None, "scripted")
    turns = await captured.fetch(
        "SELECT kind, agent, payload FROM agent_turns WHERE payload ->> 'runId' = %s ORDER BY seq", (row["run_id"],)
    )
    assert {turn["agent"] for turn in turns} == {"reviewer (replay)"}
    outcomes = [turn["payload"] for turn in turns if turn["kind"] in ("tool_result", "error")]
    assert [outcome.get("result") or outcome["message"] for outcome in outcomes] == [
        {"path": "a.py", "line": 1, "text": "content of a.py"},
        "missing.py",
        "noted",
    ]
    assert turns[0]["payload"]["attributes"]["replay"] == str(done.id)
    assert outcomes[0]["implHash"] == look.impl_hash
    assert len(await captured.events.load(row["run_id"])) > 5


async def test_the_rate_budget_of_the_agent_is_not_used_up(captured: et.Database) -> None:
    """The original run used it up already; a replay asks no budget, and takes none away."""
    replaying = agent(captured, *ORIGINAL[:2], "Done.", *ORIGINAL[:2], "Done.")
    done = await captured.datasets.replay("agentic", agent=replaying, trials=2, concurrency=1)
    assert (done.progress.passed, live_calls) == (2, [])


async def test_a_call_without_a_record_is_an_error_row_that_names_it(captured: et.Database) -> None:
    await captured.execute("ALTER TABLE eval_case DISABLE TRIGGER eval_case_append_only")
    await captured.execute(
        "UPDATE eval_case SET context = jsonb_set(context, '{toolCalls}', (context -> 'toolCalls') - 2)"
    )
    scripted = ScriptedModel([*ORIGINAL[:2], "Done."])
    replaying = et.Agent(captured, "reviewer", tools=[look, note], model=scripted, instructions="Review.")
    await captured.datasets.replay("agentic", agent=replaying)
    row = await run_row(captured)
    assert (row["outcome"], row["output"], row["pass"]) == ("error", "", False)
    assert 'note({"text":"x"})' in row["error"].replace(": ", ":")
    assert "no recorded result" in row["error"]
    assert (live_calls, len(scripted.requests)) == ([], 2)  # the model is not asked again


async def test_a_further_call_has_no_record_either(captured: et.Database) -> None:
    more = asks(call("note", text="y"))
    await captured.datasets.replay("agentic", agent=agent(captured, *ORIGINAL[:2], more, "Done."))
    row = await run_row(captured)
    assert row["outcome"] == "error"
    assert "all records of this tool are used" in row["error"]


async def test_other_arguments_get_the_next_record_and_are_reported(captured: et.Database) -> None:
    steps = [asks(call("look", path="missing.py"), call("look", path="b.py", line=9)), "Done."]
    await captured.datasets.replay("agentic", agent=agent(captured, *steps))
    row = await run_row(captured)
    assert row["outcome"] == "pass"
    assert row["drift"] == {
        "changed": [{"tool": "look", "recorded": {"path": "a.py"}, "asked": {"path": "b.py", "line": 9}}],
        "unused": ["note"],
    }


async def test_a_prompt_and_a_model_of_ones_own(captured: et.Database) -> None:
    other = ScriptedModel([*ORIGINAL[:2], "Done."], name="other")
    done = await captured.datasets.replay("agentic", agent=agent(captured), model=other, prompt="Review well.")
    assert (done.model, done.progress.passed) == ("other", 1)
    assert other.requests[0].instructions == "Review well."
    assert done.prompt_rev != agent(captured).prompt_rev
    made = await captured.datasets.replay("agentic", agent=lambda db: agent(db, *ORIGINAL[:2], "Done."))
    assert (made.progress.passed, made.prompt_rev) == (1, agent(captured).prompt_rev)


async def test_a_run_that_fails_is_an_error_row_with_what_it_cost(captured: et.Database) -> None:
    await captured.datasets.replay("agentic", agent=agent(captured, ORIGINAL[0], RuntimeError("down")))
    row = await run_row(captured)
    assert row["outcome"] == "error"
    assert "down" in row["error"]
    assert (row["input_tokens"], row["cost_usd"]) == (5, None) or row["cost_usd"] is not None
    assert row["run_id"]


async def test_an_earlier_conversation_comes_first(everyturn_db: et.Database) -> None:
    first = await agent(everyturn_db, ORIGINAL[0], "Hello.").run("Hi")
    second = await agent(everyturn_db, "Fine.").run("And?", first.conversation)
    await everyturn_db.cases.capture(turn=second.turns[-1].id, reference="Fine.")
    await everyturn_db.datasets.publish("agentic")
    live_calls.clear()
    scripted = ScriptedModel(["Fine."])
    replaying = et.Agent(everyturn_db, "reviewer", tools=[look, note], model=scripted)
    done = await everyturn_db.datasets.replay("agentic", agent=replaying)
    assert (done.progress.passed, live_calls) == (1, [])
    assert [type(message).__name__ for message in scripted.requests[0].messages] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "ToolMessage",
        "AssistantMessage",
        "UserMessage",
    ]


async def test_an_agent_has_no_say_about_another_database(captured: et.Database) -> None:
    with pytest.raises(et.InvalidValue, match="neither an agent"):
        await captured.datasets.replay("agentic", agent=lambda db: "no agent")


async def hooked(db: et.Database, model: Any, **options: Any) -> list[et.Case]:
    """The cases that a run with `capture_on` leaves."""
    made = et.Agent(
        db,
        "watched",
        tools=[look, note],
        model=model,
        instructions="Watch.",
        max_turns=3,
        hooks=et.capture_on(**options),
    )
    with contextlib.suppress(et.EveryturnError):
        await made.run("Do it")
    cases: list[et.Case] = await db.cases.list()
    return cases


async def test_capture_on_error(everyturn_db: et.Database) -> None:
    [case] = await hooked(everyturn_db, ScriptedModel([RuntimeError("down")]), error=True, tags=["auto"])
    assert (case.prompt, case.tags, case.captured_by) == ("Do it", ["auto", "error"], "watched")
    assert case.context["instructions"] == "Watch."
    assert await everyturn_db.fetch("SELECT 1 FROM agent_turns WHERE payload ->> 'stage' = 'hook'") == []


async def test_capture_on_a_tools_error_holds_the_whole_run(everyturn_db: et.Database) -> None:
    steps = [asks(call("look", path="missing.py")), asks(call("note", text="x")), "Sorry."]
    [case] = await hooked(everyturn_db, ScriptedModel(steps), error=True)
    assert [record["name"] for record in case.context["toolCalls"]] == ["look", "note"]
    assert [record.get("error") for record in case.context["toolCalls"]] == ["missing.py", None]


async def test_capture_on_timeout_and_limit(everyturn_db: et.Database) -> None:
    def slow(request: et.ModelRequest) -> Any:
        raise TimeoutError("no answer in time")

    [case] = await hooked(everyturn_db, slow, timeout=True)
    assert case.tags == ["timeout"] or case.tags == ["error", "timeout"]
    steps = [asks(call("note", text=str(n))) for n in range(5)]
    cases = await hooked(everyturn_db, ScriptedModel(steps), error=True)
    assert cases[0].tags == ["error"]


async def test_capture_on_verdicts_that_other_hooks_record(everyturn_db: et.Database) -> None:
    db = everyturn_db

    async def judge(turn: et.Turn) -> None:
        if turn.kind == "model":
            verdict = "bad" if "wrong" in turn.payload["text"] else "good"
            score = 0.2 if "weak" in turn.payload["text"] else 0.9
            await db.evals.record(turn.id, "mine", verdict, "because", {"score": score})

    hooks = et.EvalHooks(on_turn_complete=judge)
    assert await hooked(db, ScriptedModel(["right"]), verdict="bad", judge_below=0.5, hooks=hooks) == []
    [bad] = await hooked(db, ScriptedModel(["wrong"]), verdict="bad", judge_below=0.5, hooks=hooks)
    assert bad.tags == ["bad"]
    assert bad.context["verdicts"] == [{"evaluator": "mine", "verdict": "bad", "rationale": "because"}]
    assert bad.turn_id is not None
    assert (await db.turns.get(bad.turn_id)).payload["text"] == "wrong"
    weak, _ = await hooked(db, ScriptedModel(["weak"]), judge_below=0.5, hooks=hooks)
    assert weak.tags == ["judge-below"]


async def test_capture_on_nothing_that_went_well(everyturn_db: et.Database) -> None:
    assert await hooked(everyturn_db, ScriptedModel(["Fine."]), error=True, verdict={"bad", "partial"}) == []
    refused: list[dict[str, Any]] = [{}, {"verdict": "awful"}]
    refused += [{"judge_below": below} for below in (0, 5, "0.5", math.nan, True)]
    for wrong in refused:
        with pytest.raises(et.InvalidValue):
            et.capture_on(**wrong)
