"""Review rules for the added lines of a hunk, chosen for being right when they speak.

Python is judged by its syntax tree and its comments, so that strings are never mistaken for code; other
languages by a few patterns that need no parser. A rule only ever speaks about a line that the diff added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from . import call_rules, python_rules
from .diff import Hunk
from .secrets import mask, token_kind
from .syntax import judge, todo

_PYTHON_RULES = python_rules.RULES | call_rules.RULES
_MERGE_MARKER = re.compile(r"^(<{7}|>{7}|\|{7})(?: \S|$)")
_TODO = re.compile(r"(?:^|\s)(?://|--|/\*|\*|#|;|<!--)\s*(?P<word>TODO|FIXME|XXX|HACK)\b(?P<rest>.*)")
_SCRIPT_DEBUG = re.compile(r"^\s*(?:console\.(?:log|debug|trace)\(|debugger\s*;?\s*$)")
_SCRIPTS = {".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".vue", ".svelte"}
_PROSE = {
    ".md",
    ".rst",
    ".txt",
    ".adoc",
    ".json",
    ".jsonl",
    ".csv",
    ".lock",
    ".svg",
    ".html",
    ".xml",
    ".diff",
    ".patch",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about one added line."""

    path: str
    line: int
    rule: str
    message: str
    excerpt: str = ""

    @property
    def topic(self) -> str:
        """How its comment begins: enough to know it again when the advice has been worded anew."""
        return self.body if not self.excerpt else f"[{self.rule}] `{self.excerpt}`: "

    @property
    def body(self) -> str:
        """The comment: its rule in brackets, the code it is about, what is wrong and what to do."""
        return f"[{self.rule}] " + (f"`{self.excerpt}`: " if self.excerpt else "") + self.message


def review(hunk: Hunk) -> list[Finding]:
    """The findings of a hunk by line; two that would say the same words are said once."""
    found: dict[str, Finding] = {}
    said = list(_by_pattern(hunk))
    if PurePosixPath(hunk.path).suffix in {".py", ".pyi"}:
        said += judge(hunk.path, hunk.lines, _PYTHON_RULES)
    secret_lines = {number for number, rule, _ in said if rule == "hard-coded-secret"}
    for number, rule, message in sorted(said):
        line = hunk.added.get(number)
        if line is None:
            continue
        excerpt = "" if number in secret_lines else mask(" ".join(line.split()))[:72].replace("`", "'")
        finding = Finding(hunk.path, number, rule, message, excerpt)
        found.setdefault(finding.body, finding)
    return list(found.values())


def _by_pattern(hunk: Hunk) -> Iterator[tuple[int, str, str]]:
    suffix = PurePosixPath(hunk.path).suffix.lower()
    for number, line in hunk.added.items():
        if kind := token_kind(line):
            message = f"This looks like {kind}; revoke it, and read it from the environment."
            yield number, "hard-coded-secret", message
        if _MERGE_MARKER.match(line):
            yield number, "merge-marker", "A merge conflict was committed unresolved."
        if suffix in _SCRIPTS and _SCRIPT_DEBUG.match(line):
            yield number, "leftover-debugger", "Debugging output was left in; remove it, or use a logger."
        if suffix not in _PROSE | {".py", ".pyi"} and (match := _TODO.search(line)):
            yield from todo(number, match["word"], match["rest"])
