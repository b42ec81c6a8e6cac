"""Options that several commands share to say which rows are meant."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from everyturn.cli.paging import DEFAULT_LIMIT
from everyturn.cli.times import parse_time
from everyturn.errors import InvalidValue


def readable(text: str) -> str:
    """An argument as text: bytes that are not UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


T = TypeVar("T")


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of an option or argument: what it refuses is a usage error."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except InvalidValue as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def parse_uuid(text: str) -> UUID:
    """A UUID in any of its spellings."""
    try:
        return UUID(text.strip())
    except ValueError:
        raise InvalidValue(f"{text!r} is not a UUID, such as 0197f3a0-5c1e-7c3a-9d52-6f0e8b1a2c3d.") from None


TIME_FORMS = "an age (30m, 24h, 7d, 2w), a date or an ISO 8601 time; UTC where no offset is given"

_MAX_ROWS = (1 << 31) - 1
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        metavar="N",
        help=f"Show at most N rows (default {DEFAULT_LIMIT}).",
        callback=lambda rows: min(rows, _MAX_ROWS),
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Show every row.")]
AgentOption = Annotated[
    str | None, typer.Option("--agent", metavar="NAME", help="Only of this agent.", parser=readable)
]
ConversationOption = Annotated[
    UUID | None,
    typer.Option("--conversation", "-c", metavar="ID", help="Only of this conversation.", parser=argument(parse_uuid)),
]
ToolOption = Annotated[
    str | None, typer.Option("--tool", metavar="NAME", help="Only about this tool.", parser=readable)
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", metavar="KEY=VALUE", help="Only where the payload's KEY is VALUE. May be repeated."),
]
SinceOption = Annotated[
    datetime | None,
    typer.Option("--since", metavar="TIME", help=f"Only from then on: {TIME_FORMS}.", parser=argument(parse_time)),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option(
        "--until", metavar="TIME", help="Only before then, written like --since.", parser=argument(parse_time)
    ),
]
OlderThanOption = Annotated[
    datetime,
    typer.Option(
        "--older-than",
        metavar="TIME",
        help="What is from before then: an age (30m, 14d, 8w), a date or an ISO 8601 time.",
        parser=argument(parse_time),
        show_default=False,
    ),
]
EmbedderOption = Annotated[
    str | None,
    typer.Option(
        "--embedder",
        metavar="NAME",
        envvar="EVERYTURN_EMBEDDER",
        help="What makes vectors: local, voyage:MODEL, openai:MODEL, none, or python:MODULE:FUNCTION. "
        "Default: local, where it is installed.",
    ),
]
IdArgument = Annotated[UUID, typer.Argument(metavar="ID", parser=argument(parse_uuid), show_default=False)]


class VerdictName(StrEnum):
    good = "good"
    bad = "bad"
    partial = "partial"


def parse_where(pairs: Sequence[str] | None) -> dict[str, str]:
    """`KEY=VALUE` pairs as a dict; the key ends at the first `=`. Raises InvalidValue."""
    wanted: dict[str, str] = {}
    for pair in pairs or ():
        key, separator, value = readable(pair).partition("=")
        if not separator or not key:
            raise InvalidValue(f"--where {pair!r} is not KEY=VALUE.")
        if wanted.setdefault(key, value) != value:
            raise InvalidValue(f"--where asks that {key!r} is {wanted[key]!r} and {value!r} at once.")
    return wanted


def as_matching(wanted: dict[str, str]) -> str | None:
    """The `matching` parameter of a query: a JSON object, or None for no condition."""
    return json.dumps(wanted) if wanted else None


def embedder_named(name: str | None) -> Any:
    """The embedder an option names, as `connect` takes it."""
    from everyturn.cli.objects import is_reference, load_object

    return load_object(name) if name is not None and is_reference(name) else name


def text_argument(text: str) -> str:
    """Text given as an argument, or on stdin where the argument is `-`."""
    return sys.stdin.read() if text == "-" else readable(text)


def rows_wanted(limit: int, everything: bool) -> int | None:
    return None if everything else limit
