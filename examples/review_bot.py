"""A code-review bot that remembers what it said: every turn, tool call and finding is a row.

    python examples/review_bot.py review --repo owner/name --pr 7      # GitHub, with GITHUB_TOKEN
    python examples/review_bot.py review --local . --last 10           # the last commits of a repository on disk
    python examples/review_bot.py sync --repo owner/name               # what reviewers made of its comments
    python examples/review_bot.py wrong --repo owner/name              # what it got wrong, and why
    python examples/review_bot.py report

The reviewer is a model when MODEL names one (`MODEL=anthropic:claude-opus-4-7`), else a set of rules that needs
no key and no network; both get the same four tools. A finding is remembered with its hunk, and never posted
there again; what reviewers accepted or dismissed is a verdict on the turn that posted it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import everyturn as et
from review_bot_parts import feedback, github
from review_bot_parts.forge import Forge, ForgeError, PullRequest
from review_bot_parts.local_forge import LocalForge
from review_bot_parts.offline import OfflineReviewer
from review_bot_parts.output import console, counted, show_review, show_table, show_verdicts
from review_bot_parts.past_reviews import past_reviews_of
from review_bot_parts.repository import Repository, RepositoryError

AGENT = "code-reviewer"
FINDINGS_BY_RULE = Path(__file__).with_name("review_bot_parts") / "findings_by_rule.sql"
INSTRUCTIONS = Path(__file__).with_name("prompts").joinpath("reviewer.md").read_text("utf-8")

app = typer.Typer(help="A code-review bot that remembers what it said.", no_args_is_help=True)
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", help="A Postgres URL or a directory; EVERYTURN_DATABASE or the embedded one."),
]


# --- the four tools -------------------------------------------------------------------------------


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=1200))
async def fetch_pr_diff(repo: str, pr: int, ctx: et.Context) -> str:
    """Fetch the unified diff of a pull request. Each hunk's header carries its hash."""
    forge: Forge = ctx.deps
    key = f"{repo}#{pr}@{await forge.head(repo, pr)}"
    cached = await ctx.memory.recall("procedural", subjects=[key])
    if cached:
        return str(cached[0].value)
    diff = await forge.diff(repo, pr)
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    await ctx.memory.remember("procedural", cache_key=key, value=diff, expires_at=in_an_hour)
    return diff


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=1200))
async def prior_findings(repo: str, hunk_hash: str, ctx: et.Context) -> list[dict[str, Any]]:
    """What was said about this hunk before, by this bot, in any pull request of the repository."""
    hits = await ctx.memory.recall("semantic", subjects=[f"repo:{repo}", f"hunk:{hunk_hash}"], limit=100)
    return [{"text": hit.text, **hit.attributes} for hit in hits]


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=1200))
async def past_reviews(repo: str, about: str, ctx: et.Context) -> dict[str, Any]:
    """What reviewers of the repository made of comments like this one: those that survived, those dismissed and why."""
    return await past_reviews_of(ctx.db, ctx.agent, repo, about)


@et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=80))  # what GitHub takes of new content in a minute
async def post_review_comment(
    repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str, ctx: et.Context
) -> dict[str, Any]:
    """Post a comment on a line of a hunk, and remember it."""
    forge: Forge = ctx.deps
    known = await prior_findings(repo, hunk_hash, ctx)
    for prior in known:
        if prior["text"] == body:
            return {"url": prior["url"], "repeated": True}
    comment = await forge.post_review_comment(repo, pr, path, line, body, hunk_hash)
    await ctx.memory.remember(
        "semantic",
        text=body,
        subjects=[f"repo:{repo}", f"hunk:{hunk_hash}", f"pr:{pr}"],
        attributes={"path": path, "line": line, "url": comment.url},
    )
    return {"url": comment.url, "comment_id": comment.id}


# --- the bot --------------------------------------------------------------------------------------


def reviewer(db: et.Database) -> et.Agent:
    """The agent: a model when MODEL names one, else the rules."""
    return et.Agent(
        db,
        AGENT,
        tools=[fetch_pr_diff, prior_findings, past_reviews, post_review_comment],
        model=os.environ.get("MODEL") or OfflineReviewer(),
        instructions=INSTRUCTIONS,
        max_turns=200,
    )


async def review_all(forge: Forge, pulls: list[PullRequest], database: str | None) -> None:
    async with et.connect(database) as db:
        agent = reviewer(db)
        await agent.register()
        for pull in pulls:
            task = f"Review PR {forge.repo}#{pull.number}. "
            task += "Skip findings that match prior accepted findings on the same hunk."
            result = await agent.run(task, deps=forge)
            show_review(pull, result)


async def review_on_github(repo: str, pr: int, database: str | None) -> None:
    async with github.connect(repo, pr) as forge:
        await review_all(forge, [await forge.pull_request(pr)], database)


async def sync_all(connecting: AbstractAsyncContextManager[Forge], days: float, database: str | None) -> None:
    async with connecting as forge, et.connect(database) as db:
        found, comments, failures = await feedback.sync(db, AGENT, forge, days)
    show_verdicts(found)
    console.print(f"{counted(len(found), 'new verdict')} on {counted(comments, 'comment')} of [bold]{forge.repo}[/].")
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        raise typer.Exit(4)


async def show_wrong(repo: str | None, days: float, database: str | None) -> None:
    where = {"repo": repo} if repo else None
    async with et.connect(database) as db:
        wrong = await db.evals.wrong(AGENT, tool="post_review_comment", where=where, days=days)
    rows = [(each.comment_body, each.path, each.times_dismissed, each.last_reason) for each in wrong]
    columns = ("comment_body", "path", "times_dismissed", "last_reason")
    show_table("What I got wrong", [dict(zip(columns, row, strict=True)) for row in rows])


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


# --- the command line -----------------------------------------------------------------------------


LocalOption = Annotated[Path | None, typer.Option("--local", help="A git repository on disk.")]
RepoOption = Annotated[str | None, typer.Option("--repo", help="owner/name; of one on disk its origin's unless given.")]
ForgeOption = Annotated[Path | None, typer.Option("--forge", help="The file that keeps the comments on one on disk.")]
DaysOption = Annotated[float, typer.Option("--days", min=0, help="How far back.")]


@app.command()
def review(
    local: LocalOption = None,
    last: Annotated[int, typer.Option("--last", min=1, help="How many of its last commits.")] = 10,
    repo: RepoOption = None,
    pr: Annotated[int | None, typer.Option("--pr", min=1, help="A pull request of --repo on GitHub.")] = None,
    forge: ForgeOption = None,
    database: DatabaseOption = None,
) -> None:
    """Review a pull request on GitHub, or the last commits of a repository on disk."""
    if (local is None) == (pr is None):
        raise typer.BadParameter("Say --repo owner/name --pr N, or --local PATH.")
    if pr is not None:
        run(review_on_github(required(repo), pr, database))
        return
    posted_to = local_forge(local, forge, repo)
    before = len(posted_to.comments())
    pulls = posted_to.open_pull_requests(posted_to.repository.last_commits(last))
    if not pulls:
        console.print(f"{escape(posted_to.repo)} has no commits yet: nothing to review.")
        return
    run(review_all(posted_to, pulls, database))
    new = len(posted_to.comments()) - before
    console.print(
        f"\n{counted(new, 'new comment')} on {counted(len(pulls), 'commit')} of [bold]{escape(posted_to.repo)}[/],"
        f" {before} from earlier reviews; all in {escape(str(posted_to.store))}\n"
    )


@app.command()
def sync(
    repo: RepoOption = None,
    local: LocalOption = None,
    forge: ForgeOption = None,
    days: DaysOption = 90,
    database: DatabaseOption = None,
) -> None:
    """Fetch what reviewers did about the bot's comments, and record it as verdicts on its turns."""
    on_disk = local is not None
    run(
        sync_all(
            nullcontext(local_forge(local, forge, repo)) if on_disk else github.connect(required(repo)), days, database
        )
    )


@app.command()
def wrong(repo: RepoOption = None, days: DaysOption = 90, database: DatabaseOption = None) -> None:
    """Print what the bot got wrong: the comments that reviewers dismissed, the most often dismissed first."""
    run(show_wrong(repo, days, database))


@app.command()
def report(database: DatabaseOption = None) -> None:
    """Print, by SQL, what the bot did: turns by kind, findings by rule, cost, slowest tools."""
    run(report_all(database))


def local_forge(local: Path | None, store: Path | None, repo: str | None) -> LocalForge:
    return LocalForge(Repository(local or Path()), store, repo=repo)


def required(repo: str | None) -> str:
    if repo is None:
        raise typer.BadParameter("On GitHub it takes --repo owner/name.")
    return repo


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
