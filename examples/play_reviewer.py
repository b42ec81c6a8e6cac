"""Play the reviewer on the forge on disk: say what you make of a comment of the review bot.

    python examples/play_reviewer.py --local . --reason "We do this on purpose."
    python examples/play_reviewer.py --local . --comment 3 --accept --reason "Good catch."

Without --comment it dismisses the first comment, once: it stands in for a person in `make demo`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from review_bot_parts.forge import ForgeError, Opinion
from review_bot_parts.local_forge import LocalForge
from review_bot_parts.output import console
from review_bot_parts.repository import Repository, RepositoryError


def judge(
    local: Annotated[Path, typer.Option("--local", help="A git repository on disk.")],
    reason: Annotated[str, typer.Option("--reason", help="What you would reply.")],
    comment: Annotated[int | None, typer.Option("--comment", min=1, help="Its number; else the first.")] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Accept it instead.")] = False,
    forge: Annotated[Path | None, typer.Option("--forge", help="The file that keeps the comments.")] = None,
    repo: Annotated[str | None, typer.Option("--repo", help="Its name; from its origin unless given.")] = None,
) -> None:
    """Dismiss a comment of the review bot, or accept it. Exits 3 where there is no comment yet."""
    posted_to = LocalForge(Repository(local), forge, repo=repo)
    comments = {each.id: each for each in posted_to.comments()}
    if not comments:
        console.print(f"The bot has not commented on {escape(posted_to.repo)} yet.")
        raise typer.Exit(3)
    chosen = comment or next(iter(posted_to.judged()), min(comments))
    if comment or chosen not in posted_to.judged():
        posted_to.judge(chosen, Opinion("good" if accept else "bad", reason, "reply", "you"))
    said = comments[chosen]
    verdict = posted_to.judged()[chosen]
    console.print(f"#{said.pr} [yellow]{escape(said.path)}:{said.line}[/] {escape(said.body)}")
    console.print(f"    {'accepted' if verdict.verdict == 'good' else 'dismissed'}: {escape(verdict.reason)}")


if __name__ == "__main__":
    try:
        typer.run(judge)
    except (RepositoryError, ForgeError) as error:
        print(error, file=sys.stderr)
        sys.exit(4)
