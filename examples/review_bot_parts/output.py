"""What the review bot prints for people: reviews, verdicts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import everyturn as et

from .diff import notes_of
from .feedback import Synced
from .forge import PullRequest

console = Console(highlight=False, soft_wrap=True)


def show_review(pull: PullRequest, result: et.RunResult) -> None:
    console.print(f"[bold]#{pull.number}[/] [cyan]{pull.sha[:8]}[/] {escape(pull.title)}")
    payloads = [turn.payload for turn in result.turns if turn.kind == "tool_result"]
    for note in [note for each in payloads if each["toolName"] == "fetch_pr_diff" for note in notes_of(each["result"])]:
        console.print(f"    [dim]left out: {escape(note)}[/]")
    posted = [each for each in payloads if each["toolName"] == "post_review_comment" and not each.get("repeated")]
    for each in sorted(posted, key=lambda each: (each["path"], each["line"])):
        console.print(f"    [yellow]{escape(each['path'])}:{each['line']}[/] {escape(each['body'])}")
    for error in [turn.payload for turn in result.turns if turn.kind == "error"]:
        console.print(f"    [red]{escape(error.get('toolName') or error['stage'])}: {escape(error['message'])}[/]")
    console.print(f"    [dim]{escape(str(result.output))}[/]")


def show_verdicts(found: Sequence[Synced]) -> None:
    for each in sorted(found, key=lambda each: (each.pr, each.path, each.line)):
        console.print(f"    [yellow]#{each.pr} {escape(each.path)}:{each.line}[/] {escape(each.body)}")
        console.print(f"        [bold]{each.opinion.verdict}[/]: {escape(each.opinion.reason)}")


def show_table(title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        console.print(f"[bold]{title}[/]: none\n")
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in (columns := [name for name in rows[0] if name != "agent"]):
        numeric = isinstance(rows[0][column], int | float) or hasattr(rows[0][column], "as_tuple")
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(shown(row[column]) for column in columns))
    console.print(table, width=None if console.is_terminal else max(console.width, 160))


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else escape(str(value))
