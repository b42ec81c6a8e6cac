"""The slash commands `/eval-capture` and `/eval-bad`, as files of Claude Code.

A file carries a hash of what we wrote: one that was edited since, or that somebody else wrote, is left alone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"<!-- written by everyturn claude-code install: ([0-9a-f]{16}) -->\n?")

_CAPTURE = """\
---
description: Keep the last exchange of this session as an eval case
argument-hint: [tag,tag…]
allowed-tools: Bash({program} claude-code capture:*)
disable-model-invocation: true
---
!`{program} claude-code capture --session "${{CLAUDE_SESSION_ID}}" -- "$ARGUMENTS"`

The line above says which case was captured, or why none was. Repeat it to the user in one sentence; do nothing else.
"""

_BAD = """\
---
description: Judge the last answer of this session bad, and keep it as an eval case
argument-hint: [what was wrong]
allowed-tools: Bash({program} claude-code capture:*)
disable-model-invocation: true
---
!`{program} claude-code capture --bad --session "${{CLAUDE_SESSION_ID}}" --rationale "$ARGUMENTS"`

The line above says which case was captured, or why none was. Repeat it to the user in one sentence; do nothing else.
"""

TEMPLATES = {"eval-capture.md": _CAPTURE, "eval-bad.md": _BAD}


@dataclass(frozen=True, slots=True)
class Written:
    """What became of one command file."""

    path: Path
    outcome: str
    """`written`, `unchanged`, `removed`, `absent`, or `kept`: it is not as we wrote it."""


def add_commands(folder: Path, program: str) -> list[Written]:
    """Write the command files that are not there, and renew those that are as we wrote them."""
    done = []
    for name, template in TEMPLATES.items():
        path = folder / name
        text = _marked(template.format(program=program))
        there = _read(path)
        if there is not None and there != text and not _is_ours(there):
            done.append(Written(path, "kept"))
            continue
        if there != text:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", newline="\n")
        done.append(Written(path, "unchanged" if there == text else "written"))
    return done


def remove_commands(folder: Path) -> list[Written]:
    """Remove the command files that are as we wrote them, and the folder where that leaves it empty."""
    done = []
    for name in TEMPLATES:
        path = folder / name
        there = _read(path)
        if there is None:
            done.append(Written(path, "absent"))
        elif _is_ours(there):
            path.unlink()
            done.append(Written(path, "removed"))
        else:
            done.append(Written(path, "kept"))
    if any(written.outcome == "removed" for written in done) and not any(folder.iterdir()):
        folder.rmdir()
    return done


def _marked(text: str) -> str:
    return f"{text}<!-- written by everyturn claude-code install: {_hash(text)} -->\n"


def _is_ours(text: str) -> bool:
    mark = _MARK.search(text)
    return mark is not None and mark[1] == _hash(text[: mark.start()] + text[mark.end() :])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
