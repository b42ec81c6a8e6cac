"""A reviewer that needs no key and no network: the rules, speaking the protocol of a model.

It is asked what a model is asked and answers what a model answers: it calls `fetch_pr_diff`, then
`prior_findings` for each hunk it has something to say about, then `post_review_comment` for what was not said
before, and closes with a sentence. All it knows it reads from the messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import everyturn as et

from .diff import UnreadableDiff, hunks
from .rules import Finding, review

_TASK = re.compile(r"\bPR (?P<repo>.+?)#(?P<pr>\d+)")
_Outcomes = list[tuple[et.ToolCall, et.ToolMessage]]


class OfflineReviewer:
    """The model leaf `offline:rules`."""

    name = "offline:rules"

    def __call__(self, request: et.ModelRequest) -> et.ModelTurn:
        task, fetched, priors, posts = _so_far(request.messages)
        named = _TASK.search(task)
        if named is None:
            return self._say('I review pull requests: ask me to "Review PR owner/name#1".')
        target = {"repo": named["repo"], "pr": int(named["pr"])}
        if not fetched:
            return self._call("fetch_pr_diff", [target])
        diff = fetched[0][1]
        if diff.is_error:
            return self._say(f"The diff could not be fetched: {diff.content}")
        try:
            found = _findings(diff.content)
        except UnreadableDiff as error:
            return self._say(str(error))
        if found and not priors:
            asked = [{"repo": target["repo"], "hunk_hash": key} for key in found]
            return self._call("prior_findings", asked)
        said = {_args(call).get("hunk_hash"): _texts(outcome) for call, outcome in priors}
        new = [(key, each) for key in found for each in found[key] if _is_new(each, said.get(key))]
        if new and not posts:
            comments = [
                target | {"path": each.path, "line": each.line, "body": each.body, "hunk_hash": key}
                for key, each in new
            ]
            return self._call("post_review_comment", comments)
        return self._say(_summary(found, len(new), priors, posts))

    def _call(self, tool: str, calls: Sequence[dict[str, Any]]) -> et.ModelTurn:
        made = [et.ToolCall(id=f"{tool}-{number}", name=tool, args=args) for number, args in enumerate(calls, 1)]
        return et.ModelTurn(tool_calls=made, model=self.name, usage=et.Usage(), cost_usd=Decimal(0))

    def _say(self, text: str) -> et.ModelTurn:
        return et.ModelTurn(text=text, model=self.name, usage=et.Usage(), cost_usd=Decimal(0))


@lru_cache(maxsize=4)
def _findings(diff: str) -> dict[str, list[Finding]]:
    """The findings by hunk; a review asks for them in each of its turns."""
    return {hunk.hash: findings for hunk in hunks(diff) if (findings := review(hunk))}


def _so_far(messages: Sequence[Any]) -> tuple[str, _Outcomes, _Outcomes, _Outcomes]:
    """The task, and the outcomes of each tool since it was given."""
    task = ""
    calls: dict[str, et.ToolCall] = {}
    outcomes: dict[str, _Outcomes] = {"fetch_pr_diff": [], "prior_findings": [], "post_review_comment": []}
    for message in messages:
        if isinstance(message, et.UserMessage):
            task = message.text
            outcomes = {tool: [] for tool in outcomes}
        elif isinstance(message, et.AssistantMessage):
            calls = {call.id: call for call in message.tool_calls}
        elif message.tool_call_id in calls:
            outcomes.setdefault(message.tool_name, []).append((calls[message.tool_call_id], message))
    return task, outcomes["fetch_pr_diff"], outcomes["prior_findings"], outcomes["post_review_comment"]


def _is_new(finding: Finding, said: list[str] | None) -> bool:
    # None: what was said before could not be looked up, and repeating oneself is worse than staying silent.
    return said is not None and not any(text.startswith(finding.topic) for text in said)


def _texts(outcome: et.ToolMessage) -> list[str] | None:
    return None if outcome.is_error else [prior["text"] for prior in json.loads(outcome.content)]


def _args(call: et.ToolCall) -> dict[str, Any]:
    return call.args if isinstance(call.args, dict) else {}


def _summary(found: dict[str, list[Finding]], new: int, priors: _Outcomes, posts: _Outcomes) -> str:
    refused = [outcome.content for _, outcome in (*posts, *priors) if outcome.is_error]
    unposted = sum(outcome.is_error for _, outcome in posts)
    unasked = sum(len(found[_args(call)["hunk_hash"]]) for call, outcome in priors if outcome.is_error)
    known = sum(map(len, found.values())) - new - unasked
    text = f"{new - unposted} new, {known} said before"
    return f"{text}, {unposted + unasked} left for the next review: {refused[0]}" if refused else f"{text}."
