"""What reviewers made of past comments of the same kind: wording to keep, and findings to leave unsaid."""

from __future__ import annotations

import re
from typing import Any

import everyturn as et

_RULE = re.compile(r"^\[([a-z0-9-]+)\]")
MOST = 5


async def past_reviews_of(db: et.Database, agent: str, repo: str, about: str) -> dict[str, list[dict[str, Any]]]:
    """The comments like `about` that survived review, and those under its rule that were dismissed, with the reason."""
    of: dict[str, Any] = {"tool": "post_review_comment", "where": {"repo": repo}}
    alike = await db.evals.similar(about, agent=agent, kind="tool_result", limit=MOST * 4, **of)
    dismissed = await db.evals.wrong(agent, days=365, limit=None, **of)
    rule = rule_of(about)
    survived = [
        {"body": each.turn.payload.get("body"), "verdict": each.verdict, "similarity": round(each.similarity, 2)}
        for each in alike
        if rule is None or rule_of(each.turn.payload.get("body")) == rule
    ]
    wrong = [
        {"body": each.comment_body, "times": each.times_dismissed, "reason": each.last_reason}
        for each in dismissed
        if rule is None or rule_of(each.comment_body) == rule
    ]
    # What someone accepted is worth more than what nobody minded.
    survived.sort(key=lambda each: each["verdict"] != "good")
    return {"survived": survived[:MOST], "dismissed": wrong[: MOST * 4]}


def rule_of(body: str | None) -> str | None:
    """The rule a comment begins with: `[bare-except] …`."""
    match = _RULE.match(body or "")
    return match[1] if match else None
