"""Options of `everyturn memory`."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from everyturn.cli.filters import argument, readable
from everyturn.cli.memory_text import parse_lifetime
from everyturn.cli.times import parse_time


class Kind(StrEnum):
    episodic = "episodic"
    semantic = "semantic"
    procedural = "procedural"


class OnDuplicate(StrEnum):
    keep = "keep"
    skip = "skip"
    supersede = "supersede"


KindArgument = Annotated[Kind, typer.Argument(help="episodic, semantic or procedural.", show_default=False)]
SubjectOption = Annotated[
    list[str] | None,
    typer.Option("--subject", "-s", metavar="NAME", help="What it is about. May be repeated.", parser=readable),
]
ScopeOption = Annotated[
    str | None,
    typer.Option("--scope", metavar="NAME", help="Whose memory it is. Default: default.", parser=readable),
]
AllScopesOption = Annotated[bool, typer.Option("--all-scopes", help="In every scope.")]
ConditionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only where an attribute is so: KEY=VALUE, KEY<VALUE (also <= > >=), KEY (exists), !KEY (does not). "
        "VALUE is JSON, or else a string. May be repeated.",
    ),
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option("--attribute", "-a", metavar="KEY=VALUE", help="VALUE is JSON, or else a string. May be repeated."),
]
TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads stdin.", show_default=False)]
TimeOption = Annotated[
    datetime | None,
    typer.Option(
        "--at", metavar="TIME", help="When it happened, or since when it is true.", parser=argument(parse_time)
    ),
]
ExpiresOption = Annotated[
    timedelta | None,
    typer.Option("--expires-in", metavar="AGE", help="For how long: 30m, 24h, 7d.", parser=argument(parse_lifetime)),
]
