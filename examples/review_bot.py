"""A code-review bot that remembers what it said: every turn, tool call and finding is a row.

    python examples/review_bot.py review --local . --last 10
    python examples/review_bot.py report

Each of the last commits of a git repository is reviewed as a pull request of a forge on disk. The reviewer is
a model when MODEL names one (`MODEL=anthropic:claude-opus-4-7`), else a set of rules that needs no key and no
network; both get the same three tools. A finding is remembered with its hunk, and never posted there again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import everyturn as et
from review_bot_parts.forge import Comment, Forge, ForgeError, LocalForge, PullRequest
from review_bot_parts.offline import OfflineReviewer
from review_bot_parts.repository import Repository, RepositoryError

AGENT = "code-reviewer"
FINDINGS_BY_RULE = Path(__file__).with_name("review_bot_parts") / "findings_by_rule.sql"
INSTRUCTIONS = """\
You review pull requests. Fetch the diff first: each hunk's header carries its hash as `hunk:HASH`.
For every hunk that adds something wrong, risky or unclear, ask prior_findings for that hash, and leave out
whatever was said there before. Post each remaining finding with post_review_comment: one finding per comment,
on an added line of the hunk (counted in the new file, from the header's +start), its body beginning with a
short rule name in brackets, such as `[bare-except] `, followed by what is wrong and what to do. Say nothing
about style that a formatter settles, and nothing you are not sure of. When all is posted, answer with one
sentence.
"""

app = typer.Typer(help="A code-review bot that remembers what it said.", no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True)
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", help="A Postgres URL or a directory; EVERYTURN_DATABASE or the embedded one."),
]


# --- the three tools ------------------------------------------------------------------------------


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=120))
async def fetch_pr_diff(repo: str, pr: int, ctx: et.Context) -> str:
    """Fetch the unified diff of a pull request. Each hunk's header carries its hash."""
    forge: Forge = ctx.deps
    key = f"{repo}#{pr}"
    cached = await ctx.memory.recall("procedural", subjects=[key])
    if cached:
        return str(cached[0].value)
    diff = await asyncio.to_thread(forge.diff, repo, pr)
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    await ctx.memory.remember("procedural", cache_key=key, value=diff, expires_at=in_an_hour)
    return diff


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=1200))
async def prior_findings(repo: str, hunk_hash: str, ctx: et.Context) -> list[dict[str, Any]]:
    """What was said about this hunk before, by this bot, in any pull request of the repository."""
    hits = await ctx.memory.recall("semantic", subjects=[f"repo:{repo}", f"hunk:{hunk_hash}"], limit=100)
    return [{"text": hit.text, **hit.attributes} for hit in hits]


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=300))
async def post_review_comment(
    repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str, ctx: et.Context
) -> dict[str, Any]:
    """Post a comment on a line of a hunk, and remember it."""
    forge: Forge = ctx.deps
    known = await prior_findings(repo, hunk_hash, ctx)
    for prior in known:
        if prior["text"] == body:
            return {"url": prior["url"], "repeated": True}
    comment = await asyncio.to_thread(forge.post_review_comment, repo, pr, path, line, body, hunk_hash)
    await ctx.memory.remember(
        "semantic",
        text=body,
        subjects=[f"repo:{repo}", f"hunk:{hunk_hash}", f"pr:{pr}"],
        attributes={"path": path, "line": line, "url": comment.url},
    )
    return {"url": comment.url}


# --- the bot --------------------------------------------------------------------------------------


def reviewer(db: et.Database) -> et.Agent:
    """The agent: a model when MODEL names one, else the rules."""
    return et.Agent(
        db,
        AGENT,
        tools=[fetch_pr_diff, prior_findings, post_review_comment],
        model=os.environ.get("MODEL") or OfflineReviewer(),
        instructions=INSTRUCTIONS,
        max_turns=200,
    )


async def review_all(forge: LocalForge, pulls: list[PullRequest], database: str | None) -> None:
    async with et.connect(database) as db:
        agent = reviewer(db)
        await agent.register()
        for pull in pulls:
            task = f"Review PR {forge.repo}#{pull.number}. "
            task += "Skip findings that match prior accepted findings on the same hunk."
            result = await agent.run(task, deps=forge)
            show_review(pull, result)


def show_review(pull: PullRequest, result: et.RunResult) -> None:
    console.print(f"[bold]#{pull.number}[/] [cyan]{pull.sha[:8]}[/] {escape(pull.title)}")
    payloads = [turn.payload for turn in result.turns if turn.kind == "tool_result"]
    posted = [each for each in payloads if each["toolName"] == "post_review_comment" and not each.get("repeated")]
    for each in sorted(posted, key=lambda each: (each["path"], each["line"])):
        console.print(f"    [yellow]{escape(each['path'])}:{each['line']}[/] {escape(each['body'])}")
    for error in [turn.payload for turn in result.turns if turn.kind == "error"]:
        console.print(f"    [red]{escape(error.get('toolName') or error['stage'])}: {escape(error['message'])}[/]")
    console.print(f"    [dim]{escape(str(result.output))}[/]")


async def report_all(database: str | None) -> None:
    async with et.connect(database) as db:
        tables = {
            "Turns by kind": await db.query("turns_by_kind", agent=AGENT, since=None),
            "Findings by rule": await db.fetch(FINDINGS_BY_RULE.read_text("utf-8"), {"agent": AGENT}),
            "Cost by model": await db.query("cost_by_model", agent=AGENT, since=None),
            "Slowest tools": await db.query("slowest_tools", agent=AGENT, since=None),
        }
    for title, rows in tables.items():
        show_table(title, rows)


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
    console.print(table)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else escape(str(value))


# --- the command line -----------------------------------------------------------------------------


@app.command()
def review(
    local: Annotated[Path, typer.Option("--local", help="A git repository on disk.")],
    last: Annotated[int, typer.Option("--last", min=1, help="How many of its last commits.")] = 10,
    database: DatabaseOption = None,
    forge: Annotated[Path | None, typer.Option("--forge", help="The file that keeps the comments.")] = None,
    repo: Annotated[str | None, typer.Option("--repo", help="Its name; from its origin unless given.")] = None,
) -> None:
    """Review the last commits of a repository; what was said about a hunk before is not said again."""
    repository = Repository(local)
    name = repo or repository.name()
    kept_in = platformdirs.user_data_path("everyturn") / "review-bot" / f"{name.replace('/', '_')}.json"
    posted_to = LocalForge(repository, forge or kept_in, repo=name)
    before = len(posted_to.comments())
    pulls = posted_to.open_pull_requests(repository.last_commits(last))
    if not pulls:
        console.print(f"{escape(name)} has no commits yet: nothing to review.")
        return
    run(review_all(posted_to, pulls, database))
    new: list[Comment] = posted_to.comments()[before:]
    console.print(
        f"\n{counted(len(new), 'new comment')} on {counted(len(pulls), 'commit')} of [bold]{escape(name)}[/],"
        f" {before} from earlier reviews; all in {escape(str(posted_to.store))}\n"
    )


@app.command()
def report(database: DatabaseOption = None) -> None:
    """Print, by SQL, what the bot did: turns by kind, findings by rule, cost, slowest tools."""
    run(report_all(database))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def main() -> None:
    try:
        app()
    except (et.EveryturnError, RepositoryError, ForgeError) as error:
        print(error, file=sys.stderr)
        sys.exit(4)


if __name__ == "__main__":
    main()
