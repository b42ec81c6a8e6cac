"""From turns to messages: whatever the log holds, what is sent is valid."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyturn as et
from everyturn import history
from everyturn.blocks import blocks, finished, open_calls
from everyturn.ids import uuid7
from everyturn.provider_rules import check_messages

CONVERSATION = UUID(int=7)
_seq = itertools.count(1)


def turn(kind: str, **payload: Any) -> et.Turn:
    return et.Turn(uuid7(), next(_seq), CONVERSATION, "a", kind, payload, datetime(2026, 1, 1, tzinfo=UTC))


def user(text: Any = "hi", **more: Any) -> et.Turn:
    return turn("user", text=text, **more)


def model(text: Any = "", *calls: tuple[str, str], **more: Any) -> et.Turn:
    return turn("model", text=text, toolCalls=[{"id": i, "name": n, "args": {}} for i, n in calls], **more)


def call(id: str, name: str = "t", **more: Any) -> et.Turn:
    return turn("tool_call", toolName=name, toolCallId=id, args={}, **more)


def result(id: str, value: Any = "ok", **more: Any) -> et.Turn:
    return turn("tool_result", toolName="t", toolCallId=id, result=value, **more)


def error(id: str | None = None, message: str = "bad", **more: Any) -> et.Turn:
    return turn("error", type="E", message=message, **({"stage": "tool"} | ({"toolCallId": id} if id else {}) | more))


def outcomes(messages: list[et.models.Message]) -> list[tuple[str, str]]:
    return [(m.tool_call_id, m.content) for m in messages if isinstance(m, et.ToolMessage)]


def sent(turns: list[et.Turn], keep: list[et.Turn] | None = None) -> list[Any]:
    messages = history.messages(turns, keep)
    check_messages(messages)
    return messages


# Properties

IDS = st.sampled_from(["call_0", "call_1", "call.1:x", "", " ", "é", "x" * 80, "a b", "\x00"])
RUNS = st.sampled_from([None, "r1", "r2", 3])
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.sampled_from(["", " \n", "hello", "[redacted]"])
NAMED_CALL = st.fixed_dictionaries({"id": IDS, "name": st.sampled_from(["t", "my tool!", ""])}, optional={"args": JUNK})


def payload(kind: str) -> st.SearchStrategy[Any]:
    odd = {"runId": RUNS, "text": TEXTS | JUNK}
    if kind == "model":
        odd |= {
            "toolCalls": st.lists(NAMED_CALL, max_size=4) | JUNK,
            "incomplete": st.sampled_from([True, False, "yes"]),
            "reasoning": JUNK,
            "provider": JUNK,
        }
    elif kind != "user":
        odd |= {
            "toolCallId": IDS | JUNK,
            "toolName": JUNK | st.just("memory.remember"),
            "args": JUNK,
            "result": JUNK,
            "message": JUNK,
            "stage": JUNK,
        }
    return st.fixed_dictionaries({}, optional=odd) | JUNK


@st.composite
def logs(draw: st.DrawFn) -> list[et.Turn]:
    """Turns of any kind in any order, with any payload: crashes, orphans, several runs, other programs' rows."""
    kinds = draw(st.lists(st.sampled_from(["user", "model", "tool_call", "tool_result", "error"]), max_size=14))
    return [
        et.Turn(uuid4(), seq, CONVERSATION, "a", kind, draw(payload(kind)), datetime(2026, 1, 1, tzinfo=UTC))
        for seq, kind in enumerate(kinds)
    ]


@st.composite
def runs(draw: st.DrawFn) -> list[et.Turn]:
    """Well-made runs, side by side: ids reused over turns and within one, outcomes in any order, cut off anywhere."""
    lanes = []
    for run in draw(st.lists(st.sampled_from(["r1", "r2", "r3"]), min_size=1, max_size=3, unique=True)):
        lane = [user(runId=run)]
        for _ in range(draw(st.integers(0, 3))):
            ids = draw(st.lists(st.sampled_from(["call_0", "call_1", "c"]), max_size=3))
            lane.append(model("", *((i, "t") for i in ids), runId=run))
            lane += [call(i, runId=run) for i in ids]
            lane += [result(i, f"{run} {i}", runId=run) for i in draw(st.permutations(ids))]
        lanes.append(lane[: draw(st.integers(1, len(lane)))])
    woven: list[et.Turn] = []
    while any(lanes):
        lane = draw(st.sampled_from([lane for lane in lanes if lane]))
        woven.append(lane.pop(0))
    return woven


@given(logs())
@settings(max_examples=400, deadline=None)
def test_any_log_makes_a_valid_history(turns: list[et.Turn]) -> None:
    """field case 28, field case 36, field case 38: never an exception, always valid."""
    sent(turns)
    open_calls(turns)
    finished(turns)


@given(logs() | runs(), st.data())
@settings(max_examples=300, deadline=None)
def test_any_cut_of_any_log_makes_a_valid_history(turns: list[et.Turn], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(turns), unique_by=id)) if turns else []
    sent(turns, kept)
    for n in (1, 2, 3, 100):
        sent(turns, list(et.last_turns(n)(turns)))
        sent(turns, list(et.token_budget(n)(turns)))


@given(runs())
@settings(max_examples=300, deadline=None)
def test_calls_keep_the_outcomes_of_their_own_run(turns: list[et.Turn]) -> None:
    """field case 23, field case 28: two runs in one conversation, the same ids in both."""
    sent(turns)
    for block in blocks(turns):
        for one in block.calls:
            if one.outcome is not None:
                assert one.outcome.payload["runId"] == block.turn.payload["runId"]
                assert one.outcome.payload["toolCallId"] == one.call.id
    every = [one.outcome.id for block in blocks(turns) for one in block.calls if one.outcome is not None]
    assert len(every) == len(set(every)) == sum(turn.kind == "tool_result" for turn in turns)


# Examples


def test_outcomes_come_in_call_order() -> None:
    """field case 30"""
    turns = [user(), model("", ("a", "t"), ("b", "t")), call("a"), call("b"), result("b", "2"), result("a", "1")]
    assert outcomes(sent(turns)) == [("a", "1"), ("b", "2")]


def test_ids_that_come_again_are_told_apart() -> None:
    """field case 28"""
    turns = [user()]
    for number in range(3):
        turns += [model("", ("call_0", "t")), call("call_0"), result("call_0", str(number))]
    assert outcomes(sent(turns)) == [("call_0", "0"), ("call_0_2", "1"), ("call_0_3", "2")]


def test_ids_and_names_are_made_of_what_every_provider_takes() -> None:
    turns = [user(), model("", ("call.1:x", "my tool!"), ("", "t")), result("call.1:x", "1"), result("", "2")]
    messages = sent(turns)
    assert [(c.id, c.name) for c in messages[1].tool_calls] == [("call_1_x", "my_tool_"), ("call", "t")]
    assert [content for _, content in outcomes(messages)] == ["1", "2"]


def test_ids_that_become_alike_stay_apart() -> None:
    turns = [user(), model("", ("a.b", "t"), ("a:b", "t")), result("a:b", "2"), result("a.b", "1")]
    assert outcomes(sent(turns)) == [("a_b", "1"), ("a_b_2", "2")]


def test_a_call_without_an_outcome_is_interrupted_and_stays_visible() -> None:
    """field case 36, field case 38"""
    turns = [user(), model("", ("a", "t")), call("a")]
    messages = sent(turns)
    assert messages[1].tool_calls[0].name == "t"
    assert messages[2] == et.ToolMessage("a", "t", history.INTERRUPTED, is_error=True)


def test_a_call_that_no_model_turn_names_stays_visible() -> None:
    """field case 36: a tool_call row alone, as another program may write it."""
    messages = sent([user(), call("a", "grep")])
    assert messages[1].tool_calls == (et.ToolCall("a", "grep", {}),)
    assert messages[2].content == history.INTERRUPTED
    messages = sent([user(), model("I look"), call("a", "grep"), result("a", "found")])
    assert (messages[1].text, messages[1].tool_calls[0].name) == ("I look", "grep")
    assert outcomes(messages) == [("a", "found")]


def test_an_outcome_stored_before_its_call_is_its_outcome() -> None:
    """field case 21"""
    turns = [user(), model("", ("a", "t")), result("a", "fast"), call("a")]
    assert outcomes(sent(turns)) == [("a", "fast")]
    assert open_calls(turns) == []


def test_order_is_that_of_appending_not_of_the_clock() -> None:
    """field case 20"""
    late = dataclasses.replace(call("a"), created_at=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(days=1))
    assert outcomes(sent([user(), model("", ("a", "t")), late, result("a")])) == [("a", "ok")]


def test_an_outcome_of_another_run_does_not_close_a_call() -> None:
    """field case 23: the first run's outcome comes after it was closed as interrupted, and the id is used again."""
    turns = [
        user(runId="r1"),
        model("", ("call_0", "t"), runId="r1"),
        call("call_0", runId="r1"),
        error("call_0", "interrupted", runId="r2"),
        user("again", runId="r2"),
        model("", ("call_0", "t"), runId="r2"),
        call("call_0", runId="r2"),
        result("call_0", "late", runId="r1"),
        result("call_0", "mine", runId="r2"),
    ]
    assert [content for _, content in outcomes(sent(turns))] == ["interrupted", "mine"]


def test_memory_turns_reach_no_model() -> None:
    memory = turn("tool_result", toolName="memory.remember", result={"text": "x"}, runId="r")
    assert len(sent([user(), memory, model("ok"), user("more")])) == 3
    turns = [user(), model("", ("a", "t")), call("a"), memory, result("a", "mine")]
    assert outcomes(sent(turns)) == [("a", "mine")]


def test_two_messages_of_one_side_are_one() -> None:
    turns = [user("one"), error(), user("two"), model("a"), model("b"), user("three")]
    assert [m.text for m in sent(turns)] == ["one\n\ntwo", "a\n\nb", "three"]


def test_blank_texts() -> None:
    messages = sent([user(" "), model(" \n", ("a", "t")), result("a", ""), model(""), user("x")])
    assert messages[0].text == history.EMPTY
    assert messages[1].text == ""


def test_a_broken_off_answer_is_shown_only_to_what_the_user_said_next() -> None:
    """field case 41"""
    turns = [user("tell"), model("once up", incomplete=True)]
    assert sent(turns) == [et.UserMessage("tell")]
    assert [m.text for m in sent([*turns, user("go on")])] == ["tell", "once up", "go on"]


def test_what_follows_a_finished_answer_does_not_unfinish_it() -> None:
    done = model("done")
    aside = [error(stage="hook"), turn("tool_result", toolName="memory.remember", toolCallId=None)]
    assert finished([user(), done]) is done
    assert finished([user(), done, *aside]) is done
    assert finished([user(), done, result("late")]) is done
    for more in (user(), call("x"), model("", ("a", "t")), model("x", incomplete=True)):
        assert finished([user(), done, more]) is None
    assert finished([]) is None


def test_a_redacted_log_is_valid() -> None:
    turns = [
        user("[redacted]"),
        turn("model", text="x", toolCalls="[redacted]"),
        call("a", "t"),
        turn("tool_result", toolName="t", toolCallId="a", text="[redacted]"),
        turn("error", message=None, toolCallId="b"),
    ]
    assert outcomes(sent(turns)) == [("a", '{"text":"[redacted]"}')]


# Choosing


def conversation() -> list[et.Turn]:
    return [
        user("first"),
        model("", ("a", "t"), ("b", "t")),
        call("a"),
        call("b"),
        result("b"),
        result("a"),
        model("done"),
        user("second"),
        model("", ("a", "t")),
        call("a"),
        result("a", "newest"),
    ]


def test_last_turns_keeps_what_they_cannot_be_read_without() -> None:
    turns = conversation()
    assert list(et.last_turns(1)(turns)) == turns[8:]
    assert list(et.last_turns(8)(turns)) == turns[1:]
    messages = sent(turns, list(et.last_turns(1)(turns)))
    assert messages[0] == et.UserMessage("second")
    assert len(list(et.last_turns(99)(turns))) == len(turns)


def test_token_budget_keeps_whole_blocks_and_at_least_the_newest() -> None:
    turns = conversation()
    assert list(et.token_budget(1)(turns)) == turns[8:]
    assert list(et.token_budget(10_000)(turns)) == turns
    long = [user("x" * 4000), model("y" * 4000), user("z" * 40)]
    assert list(et.token_budget(20)(long)) == long[2:]
    assert list(et.token_budget(1020)(long)) == long[1:]


@pytest.mark.parametrize("n", [0, -1, 1.5, "3", None, True])
def test_a_cut_that_would_send_nothing_is_refused(n: Any) -> None:
    for function in (et.last_turns, et.token_budget):
        with pytest.raises(et.InvalidValue, match="whole number"):
            function(n)


def test_any_part_of_a_block_brings_the_block() -> None:
    turns = conversation()
    only_a_result = [turns[4]]
    messages = sent(turns, only_a_result)
    assert [m.text for m in messages if isinstance(m, et.UserMessage)] == ["first"]
    assert len(outcomes(messages)) == 3


def test_turns_may_be_changed_or_made_up() -> None:
    turns = conversation()
    short = dataclasses.replace(turns[5], payload={**turns[5].payload, "result": "cut"})
    summary = user("Summary: much was said.")
    messages = sent(turns, [summary, *turns[1:5], short, *turns[6:]])
    assert messages[0].text == "Summary: much was said."
    assert outcomes(messages)[0] == ("a", "cut")


def test_nothing_kept_still_sends_the_question_and_the_newest_block() -> None:
    messages = sent(conversation(), [])
    assert [type(m).__name__ for m in messages] == ["UserMessage", "AssistantMessage", "ToolMessage"]
    assert messages[0].text == "second"


def test_a_history_function_that_returns_no_turns_is_refused() -> None:
    for wrong in (None, 3, ["x"]):
        with pytest.raises(et.InvalidValue, match="history function"):
            asyncio.run(history.choose(lambda _, wrong=wrong: wrong, []))


def test_a_long_log_with_one_id_is_paired_in_linear_time() -> None:
    turns = [user()]
    for number in range(5000):
        turns += [model("", ("call_0", "t")), call("call_0"), result("call_0", number)]
    started = time.perf_counter()
    assert len(blocks(turns)) == 5001
    assert time.perf_counter() - started < 1.5
