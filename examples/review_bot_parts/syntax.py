"""Walk the Python of a hunk: its comments, and each node of its syntax tree with where it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from .fragment import Fragment, parse

_TODO = re.compile(r"^#\s*(?P<word>TODO|FIXME|XXX|HACK)\b(?P<rest>.*)")
_OWNER = re.compile(r"^\s*\([^)\s][^)]*\)|@\w|#\d|\b[A-Z]{2,}-\d|https?://")
_TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\s*\[)")
_NOQA = re.compile(r"#\s*noqa(?!\s*:\s*[A-Z])", re.IGNORECASE)
_TEST_PARTS = {"test", "tests", "testing", "fixtures", "conftest.py"}
_SCRIPT_PARTS = {"cli", "scripts", "script", "bin", "tools", "examples", "benchmarks", "docs"}
_SCRIPT_NAMES = {"cli.py", "__main__.py", "setup.py", "manage.py", "noxfile.py", "tasks.py"}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Note = tuple[int, str, str]
"""`(line in the new file, rule, message)`."""


@dataclass(slots=True)
class Place:
    """Where a node stands."""

    path: str
    parents: list[ast.AST] = field(default_factory=list)

    @property
    def function(self) -> ast.AST | None:
        """The innermost function around it that the hunk shows."""
        return next((node for node in reversed(self.parents) if isinstance(node, FUNCTIONS)), None)

    @property
    def is_test(self) -> bool:
        path = PurePosixPath(self.path)
        return bool(_TEST_PARTS & set(path.parts)) or path.name.startswith("test_") or path.stem.endswith("_test")

    @property
    def is_script(self) -> bool:
        path = PurePosixPath(self.path)
        return bool(_SCRIPT_PARTS & set(path.parts[:-1])) or path.name in _SCRIPT_NAMES


Check = Callable[..., str | None]
"""`check(node, place)` returns what is wrong, in a sentence, or None."""
Rules = Mapping[str, tuple[tuple[type[ast.AST], ...], Check]]
"""Checks by the name of their rule, each with the kinds of node it looks at."""


def registry() -> tuple[dict[str, tuple[tuple[type[ast.AST], ...], Check]], Callable[..., Callable[[Check], Check]]]:
    """An empty set of rules, and the decorator that adds a check to it: `@rule("its-name", *kinds)`."""
    rules: dict[str, tuple[tuple[type[ast.AST], ...], Check]] = {}

    def rule(name: str, *kinds: type[ast.AST]) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            rules[name] = (kinds, check)
            return check

        return register

    return rules, rule


def judge(path: str, lines: Sequence[tuple[int, str, bool]], rules: Rules) -> Iterator[Note]:
    """What the rules say about the new side of a hunk, added lines and context alike."""
    fragment = parse([text for _, text, _ in lines])
    if fragment is None:
        return
    numbers = [number for number, _, _ in lines]
    yield from _comments(fragment, numbers)
    yield from _visit(fragment.tree, Place(path), fragment, numbers, rules)


def _visit(node: ast.AST, place: Place, fragment: Fragment, numbers: Sequence[int], rules: Rules) -> Iterator[Note]:
    if isinstance(node, ast.stmt | ast.expr | ast.excepthandler):
        index = fragment.index(node)
        for rule, (kinds, check) in rules.items():
            # A node of the scaffolding that `parse` put around the piece lies outside of it.
            if isinstance(node, kinds) and 0 <= index < len(numbers) and (message := check(node, place)):
                yield numbers[index], rule, message
    place.parents.append(node)
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, place, fragment, numbers, rules)
    place.parents.pop()


def _comments(fragment: Fragment, numbers: Sequence[int]) -> Iterator[Note]:
    for index, comment in fragment.comments:
        if not 0 <= index < len(numbers):
            continue
        number = numbers[index]
        if match := _TODO.match(comment):
            yield from todo(number, match["word"], match["rest"])
        if _TYPE_IGNORE.search(comment):
            yield (
                number,
                "broad-type-ignore",
                "This hides every type error of the line; name the one: `type: ignore[code]`.",
            )
        if _NOQA.search(comment):
            yield number, "broad-noqa", "This hides every lint rule on the line; name the one: `noqa: CODE`."


def todo(number: int, word: str, rest: str) -> Iterator[Note]:
    """A TODO that nobody owns; one with a name, an issue or a link is fine."""
    if not _OWNER.search(rest):
        yield (
            number,
            "todo-without-owner",
            f"Nobody will come back to this; write {word}(name) or name an issue.",
        )


def dotted(node: ast.AST) -> str:
    """`a.b.c` for names and attributes, else an empty string."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""
