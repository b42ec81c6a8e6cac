"""Options that say which cases are meant, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from everyturn.cli.filters import readable

TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", metavar="TAG", help="Cases with all of these tags; repeat it, or use commas."),
]
AnyTagOption = Annotated[
    list[str] | None, typer.Option("--any-tag", metavar="TAG", help="Cases with one of these tags.")
]
NotTagOption = Annotated[
    list[str] | None, typer.Option("--not-tag", metavar="TAG", help="Cases with none of these tags.")
]
SourceOption = Annotated[
    str | None,
    typer.Option("--source", metavar="NAME", help="Such as production, incident or handcrafted.", parser=readable),
]
ReferenceOption = Annotated[
    str | None, typer.Option("--reference", metavar="TEXT", help="The answer that is right.", parser=readable)
]


class OnDuplicate(StrEnum):
    store = "store"
    skip = "skip"


OnDuplicateOption = Annotated[
    OnDuplicate, typer.Option("--on-duplicate", help="What to do with content that is stored already.")
]


def split_tags(given: Sequence[str] | None) -> list[str]:
    """Tags from repeated options, each of which may hold several between commas."""
    return [tag.strip() for text in given or () for tag in readable(text).split(",") if tag.strip()]


def narrowing(tag: Any, any_tag: Any, not_tag: Any, source: str | None, since: Any, until: Any) -> dict[str, Any]:
    """The filters of a list of cases, as its query takes them."""
    return {
        "tags": split_tags(tag) or None,
        "any_tags": split_tags(any_tag) or None,
        "not_tags": split_tags(not_tag) or None,
        "source": source,
        "since": since,
        "until": until,
    }
