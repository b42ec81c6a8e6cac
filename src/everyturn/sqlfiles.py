"""The named queries: one question per file in queries/, written for psql and run by the driver.

A parameter is written `:'name'`, as psql writes a quoted variable, so that a file runs there after `\\set name value`.
For the driver it becomes the placeholder `%(name)s`, and a literal percent sign is doubled.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

from .errors import QueryNotFound

_PARAMETER = re.compile(r":'([a-z_][a-z0-9_]*)'")


def names() -> list[str]:
    """The names of all queries, sorted."""
    folder = files("everyturn") / "queries"
    return sorted(entry.name[:-4] for entry in folder.iterdir() if entry.name.endswith(".sql"))


@cache
def source(name: str) -> str:
    """The text of the query as it is in its file. Raises QueryNotFound."""
    entry = files("everyturn") / "queries" / f"{name}.sql"
    if not re.fullmatch(r"[a-z0-9_]+", name) or not entry.is_file():
        raise QueryNotFound(f"There is no query named {name!r}. There are: {', '.join(names())}.")
    return entry.read_text(encoding="utf-8")


@cache
def query(name: str) -> LiteralString:
    """The text of the query as psycopg takes it."""
    return _PARAMETER.sub(r"%(\1)s", source(name).replace("%", "%%"))  # a file of the package, not of a user


@cache
def parameters(name: str) -> frozenset[str]:
    """The names of the query's parameters."""
    return frozenset(re.findall(r"%\(([a-z_][a-z0-9_]*)\)[sbt]", query(name)))


@cache
def writes(name: str) -> bool:
    """Whether the query changes rows, so that running it twice may not be harmless."""
    return re.search(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b", query(name)) is not None


@cache
def numbered(name: str) -> tuple[bytes, tuple[str, ...]]:
    """The text of the query with `$1`, `$2` … as the server takes it, and the parameters' names in that order."""
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    return _PARAMETER.sub(number, source(name)).encode(), tuple(order)
