"""A reviewer that needs no key and no network: the rules, speaking the protocol of a model.

It is asked what a model is asked and answers what a model answers: it calls `fetch_pr_diff`, then
`prior_findings` for each hunk it has something to say about and `past_reviews` for each rule, then
`post_review_comment` for what was neither said before nor dismissed, and closes with a sentence. All it knows it
reads from the messages, and of its instructions the lines that list what reviewers dismissed: `- [rule] …`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import everyturn as et

from .diff import UnreadableDiff, hunks
from .lessons import learned
from .rules import Finding, review

_TASK = re.compile(r"\bPR (?P<repo>.+?)#(?P<pr>\d+)")
_Outcomes = list[tuple[et.ToolCall, et.ToolMessage]]


class OfflineReviewer:
    """The model leaf `offline:rules`."""

    name = "offline:rules"

    def __call__(self, request: et.ModelRequest) -> et.ModelTurn:
        task, outcomes = _so_far(request.messages)
        fetched, priors, posts = (outcomes[tool] for tool in ("fetch_pr_diff", "prior_findings", "post_review_comment"))
        named = _TASK.search(task)
        if named is None:
            return self._say('I review pull requests: ask me to "Review PR owner/name#1".')
        target: dict[str, Any] = {"repo": named["repo"], "pr": int(named["pr"])}
        if not fetched:
            return self._call([("fetch_pr_diff", target)])
        diff = fetched[0][1]
        if diff.is_error:
            return self._say(f"The diff could not be fetched: {diff.content}")
        try:
            found = _findings(diff.content)
        except UnreadableDiff as error:
            return self._say(str(error))
        if found and not priors:
            return self._call(_questions(target["repo"], found))
        said = {_args(call).get("hunk_hash"): _texts(outcome) for call, outcome in priors}
        new = [(key, each) for key in found for each in found[key] if _is_new(each, said.get(key))]
        lessons = [json.loads(outcome.content) for _, outcome in outcomes["past_reviews"] if not outcome.is_error]
        told = _dismissed(request.instructions or "")
        kept = [(key, each) for key, each in new if not any(line.startswith(each.topic) for line in told)]
        wanted = [(key, worded) for key, each in kept if (worded := learned(each, lessons))]
        if wanted and not posts:
            places = [
                {"path": each.path, "line": each.line, "body": each.body, "hunk_hash": key} for key, each in wanted
            ]
            return self._call([("post_review_comment", target | place) for place in places])
        return self._say(_summary(found, len(new), len(wanted), priors, posts))

    def _call(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> et.ModelTurn:
        made = [
            et.ToolCall(id=f"{tool}-{number}", name=tool, args=args) for number, (tool, args) in enumerate(calls, 1)
        ]
        return et.ModelTurn(tool_calls=made, model=self.name, usage=et.Usage(), cost_usd=Decimal(0))

    def _say(self, text: str) -> et.ModelTurn:
        return et.ModelTurn(text=text, model=self.name, usage=et.Usage(), cost_usd=Decimal(0))


@lru_cache(maxsize=4)
def _findings(diff: str) -> dict[str, list[Finding]]:
    """The findings by hunk; a review asks for them in each of its turns."""
    return {hunk.hash: findings for hunk in hunks(diff) if (findings := review(hunk))}


def _questions(repo: str, found: dict[str, list[Finding]]) -> list[tuple[str, dict[str, Any]]]:
    """What was said about each hunk, and what reviewers made of each rule's comments."""
    by_rule = {each.rule: each for findings in found.values() for each in findings}
    asked: list[tuple[str, dict[str, Any]]] = [("prior_findings", {"repo": repo, "hunk_hash": key}) for key in found]
    return asked + [("past_reviews", {"repo": repo, "about": each.body}) for each in by_rule.values()]


def _so_far(messages: Sequence[Any]) -> tuple[str, dict[str, _Outcomes]]:
    """The task, and the outcomes of each tool since it was given."""
    task = ""
    calls: dict[str, et.ToolCall] = {}
    outcomes: dict[str, _Outcomes] = defaultdict(list)
    for message in messages:
        if isinstance(message, et.UserMessage):
            task = message.text
            outcomes = defaultdict(list)
        elif isinstance(message, et.AssistantMessage):
            calls = {call.id: call for call in message.tool_calls}
        elif message.tool_call_id in calls:
            outcomes[message.tool_name].append((calls[message.tool_call_id], message))
    return task, outcomes


def _dismissed(instructions: str) -> list[str]:
    """The comments that the instructions list as dismissed."""
    return [line[2:] for line in instructions.splitlines() if line.startswith("- [")]


def _is_new(finding: Finding, said: list[str] | None) -> bool:
    # None: what was said before could not be looked up, and repeating oneself is worse than staying silent.
    return said is not None and not any(text.startswith(finding.topic) for text in said)


def _texts(outcome: et.ToolMessage) -> list[str] | None:
    return None if outcome.is_error else [prior["text"] for prior in json.loads(outcome.content)]


def _args(call: et.ToolCall) -> dict[str, Any]:
    return call.args if isinstance(call.args, dict) else {}


def _summary(found: dict[str, list[Finding]], new: int, wanted: int, priors: _Outcomes, posts: _Outcomes) -> str:
    refused = [outcome.content for _, outcome in (*posts, *priors) if outcome.is_error]
    unposted = sum(outcome.is_error for _, outcome in posts)
    unasked = sum(len(found[_args(call)["hunk_hash"]]) for call, outcome in priors if outcome.is_error)
    known = sum(map(len, found.values())) - new - unasked
    text = f"{wanted - unposted} new, {known} said before"
    if new > wanted:
        text += f", {new - wanted} unsaid because reviewers dismissed the like"
    return f"{text}, {unposted + unasked} left for the next review: {refused[0]}" if refused else f"{text}."
