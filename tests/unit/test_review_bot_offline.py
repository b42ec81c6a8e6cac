"""The offline reviewer: it speaks the protocol of a model, and reads all it knows from the messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import everyturn as et
from review_bot_parts.diff import hunks, mark
from review_bot_parts.offline import OfflineReviewer

DIFF = mark(
    "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,4 @@\n import os\n+x = y == None\n+z = y != None\n f()\n"
    "@@ -20,2 +22,3 @@\n a = 1\n+breakpoint()\n b = 2\n"
    "@@ -40,2 +43,3 @@\n c = 1\n+d = 2\n e = 3\n"
)
FIRST, SECOND, _ = hunks(DIFF)
TASK = "Review PR o/r#7. Skip findings that match prior accepted findings on the same hunk."

Handler = Callable[[dict[str, Any]], str]


def converse(handlers: dict[str, Handler], task: str = TASK) -> tuple[str, list[et.ToolCall]]:
    """Run the reviewer against these tools: what it said last, and all its calls."""
    reviewer = OfflineReviewer()
    handlers = {"past_reviews": nothing_learned} | handlers
    messages: list[Any] = [et.UserMessage(task)]
    calls: list[et.ToolCall] = []
    for _ in range(6):
        turn = reviewer(et.ModelRequest(messages=messages))
        assert turn.model == "offline:rules"
        assert turn.cost_usd == 0
        messages.append(et.AssistantMessage(turn.text, turn.tool_calls))
        if not turn.tool_calls:
            return turn.text, calls
        for call in turn.tool_calls:
            calls.append(call)
            assert isinstance(call.args, dict)
            try:
                messages.append(et.ToolMessage(call.id, call.name, handlers[call.name](call.args)))
            except RuntimeError as error:
                messages.append(et.ToolMessage(call.id, call.name, str(error), is_error=True))
    pytest.fail("the reviewer does not come to an end")


def no_priors(args: dict[str, Any]) -> str:
    return "[]"


def posted(args: dict[str, Any]) -> str:
    return json.dumps({"url": "u"})


def nothing_learned(args: dict[str, Any]) -> str:
    return json.dumps({"survived": [], "dismissed": []})


def refuse(args: dict[str, Any]) -> str:
    raise RuntimeError("Rate budget spent; wait 9 s.")


def test_it_fetches_asks_and_posts() -> None:
    text, calls = converse(
        {"fetch_pr_diff": lambda args: DIFF, "prior_findings": no_priors, "post_review_comment": posted}
    )
    assert [call.name for call in calls] == [
        "fetch_pr_diff",
        *["prior_findings"] * 2,
        *["past_reviews"] * 2,
        *["post_review_comment"] * 3,
    ]
    assert len({call.id for call in calls}) == len(calls)
    assert calls[0].args == {"repo": "o/r", "pr": 7}
    assert calls[1].args == {"repo": "o/r", "hunk_hash": FIRST.hash}
    assert isinstance(calls[3].args, dict)
    assert calls[3].args["about"].startswith("[none-comparison] ")
    assert isinstance(calls[7].args, dict)
    assert calls[7].args.pop("body").startswith("[leftover-debugger] `breakpoint()`: ")
    assert calls[7].args == {"repo": "o/r", "pr": 7, "path": "a.py", "line": 23, "hunk_hash": SECOND.hash}
    assert text == "3 new, 0 said before."


def test_it_does_not_say_again_what_was_said_however_it_was_worded() -> None:
    def priors(args: dict[str, Any]) -> str:
        said = [{"text": "[none-comparison] `x = y == None`: in other words", "path": "a.py", "line": 2}]
        return json.dumps(said if args["hunk_hash"] == FIRST.hash else [])

    text, calls = converse(
        {"fetch_pr_diff": lambda args: DIFF, "prior_findings": priors, "post_review_comment": posted}
    )
    assert [call.args["line"] for call in calls[5:] if isinstance(call.args, dict)] == [3, 23]
    assert text == "2 new, 1 said before."


def test_it_stays_silent_where_it_cannot_look_up_what_was_said() -> None:
    def priors(args: dict[str, Any]) -> str:
        return refuse(args) if args["hunk_hash"] == FIRST.hash else "[]"

    text, calls = converse(
        {"fetch_pr_diff": lambda args: DIFF, "prior_findings": priors, "post_review_comment": posted}
    )
    assert [call.name for call in calls].count("post_review_comment") == 1
    assert text == "1 new, 0 said before, 2 left for the next review: Rate budget spent; wait 9 s."


def test_it_keeps_to_itself_what_reviewers_dismissed_and_takes_their_wording() -> None:
    def reviews(args: dict[str, Any]) -> str:
        if args["about"].startswith("[none-comparison]"):
            survived = [{"body": "[none-comparison] `x = y == None`: say `is None`, as we all do.", "verdict": "good"}]
            dismissed = [{"body": "[none-comparison] `z = y != None`: anything", "times": 1, "reason": "numpy"}]
        else:
            survived, dismissed = [], [{"body": "[leftover-debugger] `x`: y", "times": 3, "reason": "meant"}]
        return json.dumps({"survived": survived, "dismissed": dismissed})

    text, calls = converse(
        {
            "fetch_pr_diff": lambda args: DIFF,
            "prior_findings": no_priors,
            "past_reviews": reviews,
            "post_review_comment": posted,
        }
    )
    bodies = [call.args["body"] for call in calls if call.name == "post_review_comment" and isinstance(call.args, dict)]
    assert bodies == ["[none-comparison] `x = y == None`: say `is None`, as we all do."]
    assert text == "1 new, 0 said before, 2 unsaid because reviewers dismissed the like."


def test_it_reviews_on_where_past_reviews_cannot_be_looked_up() -> None:
    text, _ = converse(
        {
            "fetch_pr_diff": lambda args: DIFF,
            "prior_findings": no_priors,
            "past_reviews": refuse,
            "post_review_comment": posted,
        }
    )
    assert text == "3 new, 0 said before."


def test_it_says_what_could_not_be_posted() -> None:
    text, _ = converse({"fetch_pr_diff": lambda args: DIFF, "prior_findings": no_priors, "post_review_comment": refuse})
    assert text == "0 new, 0 said before, 3 left for the next review: Rate budget spent; wait 9 s."


@pytest.mark.parametrize(
    ("task", "fetch", "sentence"),
    [
        ("Hello", None, "ask me"),
        (TASK, refuse, "could not be fetched: Rate budget spent"),
        (TASK, lambda args: "--- a/x\n+++ b/x\n@@ -1,5 +1,9 @@\n what\n", "not a unified diff"),
        (TASK, lambda args: "", "0 new, 0 said before."),
    ],
)
def test_it_answers_when_there_is_nothing_to_review(task: str, fetch: Handler, sentence: str) -> None:
    text, calls = converse({"fetch_pr_diff": fetch}, task)
    assert sentence in text
    assert len(calls) == (fetch is not None)
