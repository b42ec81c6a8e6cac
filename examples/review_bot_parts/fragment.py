"""Parse what a hunk shows of a Python file: a piece that may start and end in the middle of anything.

A piece that begins inside a block gets the headers it lacks, one that ends inside a `try` gets its end, and a
few lines are cut where that makes the rest parse. A piece that still does not parse is not judged at all: no
syntax tree, no guesses.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MAX_CUT = 4
_BLANK = re.compile(r"^\s*(#.*)?$")
_OPENS_BLOCK = re.compile(r":\s*(#.*)?$")
_QUOTES = ('"""', "'''")


@dataclass(frozen=True, slots=True)
class Fragment:
    tree: ast.Module
    comments: tuple[tuple[int, str], ...]
    """`(index of the line, comment)`."""
    offset: int
    """Add it to a node's `lineno` for the index of its line in what was parsed."""

    def index(self, node: ast.stmt | ast.expr | ast.excepthandler) -> int:
        return node.lineno + self.offset


def parse(lines: Sequence[str]) -> Fragment | None:
    """The syntax tree and comments of consecutive lines of Python, or None when they make no sense alone."""
    for first, last in _cuts(lines):
        body = lines[first:last]
        if not any(line.strip() for line in body):
            continue
        head, tail = _scaffold(body)
        source = "\n".join([*head, *body, *tail, ""])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
            continue
        offset = first - len(head) - 1
        comments = tuple((token.start[0] + offset, token.string) for token in tokens if token.type == tokenize.COMMENT)
        return Fragment(tree, comments, offset)
    return None


def _cuts(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Which lines to try, the whole piece first."""
    count = len(lines)
    cuts = [(top, bottom) for top in range(_MAX_CUT + 1) for bottom in range(_MAX_CUT + 1)]
    for top, bottom in sorted(cuts, key=sum):
        if top + bottom < count:
            yield top, count - bottom
    # A piece that starts inside a docstring: what follows the quotes that close it.
    for index, line in enumerate(lines):
        if any(line.count(quotes) % 2 for quotes in _QUOTES):
            yield index + 1, count
            break


def _scaffold(body: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines to put before and after a piece."""
    code = [line for line in body if not _BLANK.match(line)]
    return (_headers(code), _endings(code)) if code else ([], [])


def _headers(code: Sequence[str]) -> list[str]:
    """The block headers above the first line that its indentation, and later dedents, ask for."""
    lowest = _indent(code[0])
    headers: list[str] = []
    if opener := _opener(code[0]):
        headers = [" " * lowest + opener, " " * (lowest + 1) + "pass"]
    for line in code[1:]:
        if (indent := _indent(line)) < lowest:
            headers.insert(0, " " * indent + (_opener(line) or "if True:"))
            lowest = indent
    if lowest > 0:
        headers.insert(0, "if True:")
    return headers


def _opener(line: str) -> str | None:
    """The header that a line such as `else:` continues."""
    word = re.match(r"\s*(elif|else|except|finally|case)\b", line)
    if word is None:
        return None
    return {"except": "try:", "finally": "try:", "case": "match 0:"}.get(word[1], "if True:")


def _endings(code: Sequence[str]) -> list[str]:
    """What a piece that stops too early lacks: a body after its last header, an end for each open `try`."""
    last = code[-1]
    endings: list[str] = []
    if _OPENS_BLOCK.search(last):
        endings.append(" " * (_indent(last) + 4) + "0")
    elif last.lstrip().startswith("@"):
        endings.append(" " * _indent(last) + "def _(): pass")
    open_tries: list[int] = []
    for line in code:
        indent = _indent(line)
        open_tries = [level for level in open_tries if level < indent or (level == indent and not _ends_try(line))]
        if re.match(r"\s*try\s*:", line):
            open_tries.append(indent)
    endings.extend(" " * level + "finally: pass" for level in reversed(open_tries))
    return endings


def _ends_try(line: str) -> bool:
    return re.match(r"\s*(except|finally)\b", line) is not None


def _indent(line: str) -> int:
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())
