"""A unified diff from GitHub's list of files, each with a patch of its own, or without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .diff import UnreadableDiff, hunks


def diff_of(files: Iterable[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The diff, and what it leaves out: files that GitHub gives no patch for, binary or too large."""
    parts: list[str] = []
    left_out: list[str] = []
    for file in files:
        header, patch = _header(file), file.get("patch")
        if patch:
            part = header + _named(file) + patch.rstrip("\n") + "\n"
            if _reads(part):
                parts.append(part)
            else:
                left_out.append(f"{file['filename']}, whose patch cannot be read")
        elif file.get("changes"):
            left_out.append(f"{file['filename']}, too large for GitHub to show ({file['changes']:,} lines)")
        elif file["status"] in {"renamed", "removed", "unchanged"}:
            parts.append(header)
        else:
            left_out.append(f"{file['filename']}, binary or empty")
    return "".join(parts), left_out


def _header(file: Mapping[str, Any]) -> str:
    old, new = file.get("previous_filename") or file["filename"], file["filename"]
    lines = [f"diff --git {_quoted('a/' + old)} {_quoted('b/' + new)}"]
    if file["status"] == "added":
        lines.append("new file mode 100644")
    elif file["status"] == "removed":
        lines.append("deleted file mode 100644")
    elif old != new:
        word = "copy" if file["status"] == "copied" else "rename"
        lines += [f"{word} from {_quoted(old)}", f"{word} to {_quoted(new)}"]
    return "\n".join(lines) + "\n"


def _named(file: Mapping[str, Any]) -> str:
    old, new = file.get("previous_filename") or file["filename"], file["filename"]
    source = "/dev/null" if file["status"] == "added" else _quoted(f"a/{old}")
    target = "/dev/null" if file["status"] == "removed" else _quoted(f"b/{new}")
    return f"--- {source}\n+++ {target}\n"


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes where it holds a character that would end it."""
    if not any(character in path for character in '"\\\t\n\r'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r") + '"'


def _reads(part: str) -> bool:
    try:
        hunks(part)
    except UnreadableDiff:
        return False
    return True
