"""How verdicts, agreement and comparisons are shown, and the sides of a comparison as they are written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from everyturn.cli.filters import readable
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.times import parse_time
from everyturn.errors import InvalidValue

if TYPE_CHECKING:
    from everyturn.agreement import Agreement
    from everyturn.comparing import Comparison, Tally


EVALS = [
    Column("created_at"),
    Column("turn_id", whole=True),
    Column("conversation", only_piped=True),
    Column("evaluator"),
    Column("verdict"),
    Column("rationale", flexible=True),
    Column("payload", only_piped=True),
    Column("id", only_piped=True),
]
WRONG = [
    Column("times_dismissed", right=True),
    Column("path"),
    Column("comment_body", flexible=True),
    Column("last_reason"),
    Column("last_evaluator"),
    Column("last_judged_at"),
    Column("last_turn", whole=True, only_piped=True),
]
DISAGREEMENTS = [
    Column("turn_id", whole=True),
    Column("verdict"),
    Column("against_verdict"),
    Column("rationale", flexible=True),
    Column("against_rationale"),
    Column("text", only_piped=True),
]


async def first(found: AsyncGenerator[Any], rows: int | None) -> AsyncGenerator[list[Row]]:
    count = 0
    async for page in found:
        yield list(page) if rows is None else list(page)[: rows - count]
        count += len(page)


def show_agreement(out: Output, found: Agreement) -> None:
    kappa = "not defined: one and the same verdict for every turn"
    if found.kappa is not None:
        kappa = f"{found.kappa:.3f} (95 %: {found.kappa_low:.3f} to {found.kappa_high:.3f})"
    out.fields(
        {
            "turns": found.turns,
            "agreement": f"{found.agreement:.3f} ({found.agreed} of {found.turns})",
            "kappa": kappa,
        }
        | {
            f"{found.evaluator} {one}": ", ".join(f"{found.against} {other} {n}" for other, n in row.items())
            for one, row in found.confusion.items()
        }
    )


def comparison_document(found: Comparison) -> dict[str, Any]:
    document = asdict(found) | {"more_than_noise": found.more_than_noise}
    for name, tally in (("baseline", found.baseline), ("candidate", found.candidate)):
        document[name] |= {"turns": tally.turns, "good_rate": tally.good_rate}
    return document


def show_comparison(out: Output, found: Comparison) -> None:
    for sentence_of_change in found.changed.values():
        out.warn(f"Compared all the same: {sentence_of_change}")
    fields: dict[str, Any] = {"baseline": _shown(found.baseline), "candidate": _shown(found.candidate)}
    if found.difference is not None and found.low is not None and found.high is not None:
        said = "more than noise" if found.more_than_noise else "not more than noise"
        fields["difference"] = f"{found.difference:+.1%} good (95 %: {found.low:+.1%} to {found.high:+.1%}): {said}"
    out.fields(fields)


def _shown(tally: Tally) -> str:
    rate = "" if tally.good_rate is None else f" ({tally.good_rate:.1%} good)"
    return f"{tally.turns} turns: {tally.good} good, {tally.partial} partial, {tally.bad} bad{rate}"


def parse_side(parts: list[str], option: str) -> dict[str, Any]:
    """`since=30d,until=7d,model=M,prompt=REV` as the fields of a Side. Raises InvalidValue."""
    names = {"since": "since", "until": "until", "model": "model", "prompt": "prompt_rev", "prompt_rev": "prompt_rev"}
    side: dict[str, Any] = {}
    for part in [piece for text in parts for piece in readable(text).split(",")]:
        key, separator, value = part.strip().partition("=")
        if not separator or not value or key not in names:
            raise InvalidValue(f"{option} {part!r} is not one of since=TIME, until=TIME, model=NAME, prompt=REVISION.")
        if names[key] in side:
            raise InvalidValue(f"{option} names {key!r} twice.")
        side[names[key]] = parse_time(value) if key in ("since", "until") else value
    return side
