"""What the offline reviewer learns from its reviewers: which findings to keep to itself, and how to word the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .past_reviews import rule_of
from .rules import Finding

MUTED_AFTER = 3
"""So many dismissals silence a rule in a repository, unless one of its comments was accepted."""
# What these find is looked at by a person every time.
_NEVER_MUTED = {"hard-coded-secret", "merge-marker"}


def learned(finding: Finding, lessons: Sequence[Mapping[str, Any]]) -> Finding | None:
    """The finding in words that reviewers accepted; None where they dismissed the like of it."""
    if finding.rule in _NEVER_MUTED or not finding.excerpt:
        return finding
    dismissed = _of_rule(finding.rule, lessons, "dismissed")
    accepted = [each for each in _of_rule(finding.rule, lessons, "survived") if each["verdict"] == "good"]
    if any(each["body"].startswith(finding.topic) for each in dismissed):
        return None
    if not accepted and sum(each["times"] for each in dismissed) >= MUTED_AFTER:
        return None
    # Words about other code may not fit: advice names operators, defaults, exceptions.
    words = [each["body"].removeprefix(finding.topic) for each in accepted if each["body"].startswith(finding.topic)]
    return replace(finding, message=words[0]) if words and words[0].strip() else finding


def _of_rule(rule: str, lessons: Sequence[Mapping[str, Any]], side: str) -> list[Mapping[str, Any]]:
    return [each for lesson in lessons for each in lesson[side] if rule_of(each["body"]) == rule]
