"""`everyturn report`, `diff` and `gate`: what replays found."""

from __future__ import annotations

import csv as csvlib
import io
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from everyturn.cli.command import Session, command
from everyturn.cli.dataset import DatasetArgument
from everyturn.cli.exits import CHECK_FAILED, NOT_ENOUGH_DATA, OK
from everyturn.cli.filters import JsonOption, argument, parse_uuid
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.text import one_line, shown

if TYPE_CHECKING:
    from everyturn.datasets.compare import Diff
    from everyturn.datasets.gate import GateResult

report_app = typer.Typer(rich_markup_mode=None, add_completion=False)
diff_app = typer.Typer(rich_markup_mode=None, add_completion=False)
gate_app = typer.Typer(rich_markup_mode=None, add_completion=False)

MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Write Markdown.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Write CSV.")]
CandidateOption = Annotated[
    str | None,
    typer.Option("--candidate", metavar="MODEL[@REV]|ID", help="A model, or a replay. Default: the newest replay."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="MODEL[@REV]|ID", help="Default: the newest replay with another model or prompt."
    ),
]
_OUTPUT = 200


class By(StrEnum):
    tag = "tag"


def _rate(row: Row) -> str:
    return f"{row['pass_rate']:.1%}"


def _interval(row: Row) -> str:
    return f"{row['low']:.1%}–{row['high']:.1%}"


def _cost(row: Row) -> str:
    """What is known; how many runs have no price is said beside it, and nothing known is not zero."""
    unpriced = f" ({row['unpriced']} of {row['n']} unpriced)" if row["unpriced"] else ""
    return ("unknown" if row["cost_usd"] is None else f"{row['cost_usd']:.4f}") + unpriced


REPORT = [
    Column("model", lambda row: row["label"]),
    Column(
        "n", lambda row: str(row["n"]) if row["n"] >= row["planned"] else f"{row['n']}/{row['planned']}", right=True
    ),
    Column("pass", _rate, right=True),
    Column("95 %", _interval),
    Column("errors", right=True),
    Column("unjudged", right=True),
    Column("score", lambda row: None if row["mean_score"] is None else f"{row['mean_score']:.2f}", right=True),
    Column("cost USD", _cost, right=True),
    Column("judge USD", lambda row: row["judge_cost_usd"], right=True),
    Column("tokens", lambda row: f"{row['input_tokens']}+{row['output_tokens']}", right=True),
    Column("p50 ms", lambda row: row["p50_ms"], right=True),
    Column("p95 ms", lambda row: row["p95_ms"], right=True),
]
TRIALS = [
    Column("majority", lambda row: None if row["majority"] is None else f"{row['majority']:.1%}", right=True),
    Column("all trials", lambda row: None if row["pass_all"] is None else f"{row['pass_all']:.1%}", right=True),
]
BY_TAG = [
    Column("model"),
    Column("prompt_rev", lambda row: row["prompt_rev"][:12]),
    Column("tag"),
    Column("cases", right=True),
    Column("n", right=True),
    Column("pass", _rate, right=True),
    Column("95 %", _interval),
    Column("errors", right=True),
    Column("unjudged", right=True),
]
CHANGED = [
    Column("category"),
    Column("id", whole=True),
    Column("tags", lambda row: ",".join(row["tags"]), only_piped=True),
    Column("passes", lambda row: f"{_trials(row, 'old')} → {_trials(row, 'new')}"),
    Column("prompt", flexible=True),
    Column("baseline output", lambda row: row["old_output"], flexible=True),
    Column("candidate output", lambda row: _after(row), flexible=True),
]


def _trials(row: Row, side: str) -> str:
    return "–" if row[f"{side}_n"] is None else f"{row[f'{side}_passed']}/{row[f'{side}_n']}"


def _after(row: Row) -> str | None:
    return f"[{row['error']}]" if row["error"] else row["output"]


async def write(
    out: Output, columns: Sequence[Column], rows: Sequence[Row], *, json: bool, markdown: bool, csv: bool, empty: str
) -> None:
    """A table in the form that was asked for."""
    if sum((json, markdown, csv)) > 1:
        raise typer.BadParameter("Give one of --json, --markdown and --csv.")
    if markdown:
        out.write(as_markdown(columns, rows))
    elif csv:
        text = io.StringIO()
        writer = csvlib.writer(text, lineterminator="\n")
        names = list(rows[0]) if rows else [column.name for column in columns]
        writer.writerow(names)
        writer.writerows([shown(row[name]) for name in names] for row in rows)
        out.write(text.getvalue())
    else:
        await out.listing(columns, _page(rows), limit=None, json=json, empty=empty)


def as_markdown(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """A Markdown table; cells are one line, cut at 200 characters, with nothing in them read as markup of the table."""

    def cell(value: Any) -> str:
        text = one_line(shown(value))
        text = text if len(text) <= _OUTPUT else text[: _OUTPUT - 1] + "…"
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")

    lines = [
        "| " + " | ".join(column.name for column in columns) + " |",
        "|" + "|".join("---:" if column.right else "---" for column in columns) + "|",
        *("| " + " | ".join(cell(column.of(row)) for column in columns) + " |" for row in rows),
    ]
    return "".join(f"{line}\n" for line in lines)


async def _page(rows: Sequence[Row]) -> AsyncGenerator[Sequence[Row]]:
    yield rows


@command(report_app, "report")
async def report(
    session: Session,
    dataset: DatasetArgument,
    by: Annotated[By | None, typer.Option("--by", help="Break it down.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Only this model.")] = None,
    replay: Annotated[
        UUID | None, typer.Option("--replay", metavar="ID", help="Only this replay.", parser=argument(parse_uuid))
    ] = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
) -> int:
    """How each model does on a dataset under each prompt, by its newest replay.

    Errors, and outputs that wait for a verdict, are in the denominator and are no passes.
    """
    from everyturn.datasets import report as reports

    async with session.as_it_is() as db:
        found = await db.datasets.get(dataset)
        if by is not None:
            rows: list[dict[str, Any]] = await reports.by_tag(db, found, replay=replay, model=model)
            columns = BY_TAG
        else:
            rows = [line.as_row() for line in await reports.report(db, found, replay=replay, model=model)]
            columns = [*REPORT, *(TRIALS if any(row["majority"] is not None for row in rows) else [])]
    empty = f"{found} was not replayed yet."
    await write(session.out, columns, rows, json=json, markdown=markdown, csv=csv, empty=empty)
    return OK if rows else NOT_ENOUGH_DATA


@command(diff_app, "diff")
async def diff(
    session: Session,
    dataset: DatasetArgument,
    baseline: BaselineOption = None,
    candidate: CandidateOption = None,
    category: Annotated[
        str,
        typer.Option(
            "--category",
            help="Which cases to list: any (that changed), regressed, improved, new_failure, removed, flaky, unjudged.",
        ),
    ] = "any",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="List at most N.")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of the bootstrap.")] = 0,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
) -> int:
    """What a candidate changes against a baseline, case by case, and whether it is more than noise.

    Exit 3 when there is too little to compare.
    """
    from everyturn.datasets import compare

    async with session.as_it_is() as db:
        found = await db.datasets.get(dataset)
        result = await compare.diff(db, found, baseline=baseline, candidate=candidate, seed=seed)
        rows = await compare.changed_cases(db, found, result, kind=category, limit=limit)
    if json:
        session.out.json({**as_json(result), "cases": rows})
    elif csv:
        await write(session.out, CHANGED, rows, json=False, markdown=markdown, csv=True, empty="")
    else:
        lines = summary(result)
        for line in lines:
            session.out.line(f"{line}  " if markdown else line)
        if rows:
            session.out.line()
            await write(session.out, CHANGED, rows, json=False, markdown=markdown, csv=False, empty="")
    return NOT_ENOUGH_DATA if result.paired == 0 else OK


def as_json(result: Diff) -> dict[str, Any]:
    sides = {
        name: {
            "label": side.label,
            "model": side.model,
            "prompt_rev": side.prompt_rev,
            "replay_id": side.replay_id,
            "status": side.status,
        }
        for name, side in (("baseline", result.baseline), ("candidate", result.candidate))
    }
    return {**asdict(result), **sides}


def summary(result: Diff) -> list[str]:
    """A comparison in a few lines."""
    lines = [f"{result.dataset}: {result.candidate.label} against {result.baseline.label}"]
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result.counts.items() if count)
    lines.append(f"Cases: {counts or 'none'}")
    if result.difference is not None and result.baseline_rate is not None and result.candidate_rate is not None:
        lines.append(
            f"Pass rate over {result.paired} pairs: {result.baseline_rate:.1%} → {result.candidate_rate:.1%} "
            f"({100 * result.difference:+.1f} points; 95 % interval {100 * (result.low or 0):+.1f} to "
            f"{100 * (result.high or 0):+.1f})"
        )
        lines.append(f"Exact McNemar: p = {result.p_value:.4g}. {result.verdict.capitalize()}.")
    else:
        lines.append(f"{result.verdict.capitalize()}.")
    for name, side in (("baseline", result.baseline), ("candidate", result.candidate)):
        if side.status != "finished":
            lines.append(f"The {name}'s replay is {side.status}: some of its cases are missing.")
    return lines


@command(gate_app, "gate")
async def gate(
    session: Session,
    dataset: DatasetArgument,
    candidate: CandidateOption = None,
    baseline: BaselineOption = None,
    max_regressions: Annotated[
        int | None, typer.Option("--max-regressions", min=0, metavar="N", help="Against the baseline.")
    ] = None,
    min_pass_rate: Annotated[
        float | None, typer.Option("--min-pass-rate", min=0, max=1, metavar="SHARE", help="Such as 0.9.")
    ] = None,
    max_p95: Annotated[
        int | None, typer.Option("--max-p95", min=0, metavar="MS", help="Of an answer's latency.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", min=0, metavar="USD", help="Of the replay, judges included.")
    ] = None,
    max_errors: Annotated[
        int, typer.Option("--max-errors", min=0, metavar="N", help="Runs that ended in an error.")
    ] = 0,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
) -> int:
    """Whether a candidate may be released: exit 0 pass, 1 fail, 3 not enough data to tell."""
    from everyturn.datasets import gate as gates

    async with session.as_it_is() as db:
        result = await gates.gate(
            db,
            await db.datasets.get(dataset),
            candidate=candidate,
            baseline=baseline,
            max_regressions=max_regressions,
            min_pass_rate=min_pass_rate,
            max_p95_ms=max_p95,
            max_cost_usd=max_cost,
            max_errors=max_errors,
        )
    await _show_gate(session.out, result, json, markdown)
    return {gates.PASS: OK, gates.FAIL: CHECK_FAILED}.get(result.status, NOT_ENOUGH_DATA)


async def _show_gate(out: Output, result: GateResult, json: bool, markdown: bool) -> None:
    if json:
        out.json(asdict(result))
        return
    against = f" against {result.baseline}" if result.baseline else ""
    line: Callable[[str], None] = out.line
    line(f"{result.status.replace('_', ' ')}: {result.candidate or 'nothing'} on {result.dataset}{against}")
    if markdown:
        line("")
    columns = [Column("check", lambda row: row["name"]), Column("status"), Column("said", flexible=True)]
    rows = [asdict(check) for check in result.checks]
    await write(out, columns, rows, json=False, markdown=markdown, csv=False, empty="")
