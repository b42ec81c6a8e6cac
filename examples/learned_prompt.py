"""Print a prompt of the review bot, and after it the comments that reviewers dismissed, with their reasons.

    python examples/learned_prompt.py examples/prompts/reviewer.md > learned.md

Each such prompt is a revision of its own: `everyturn replay` records which one a case was run under.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

import everyturn as et
from review_bot import AGENT, DatabaseOption


async def learned(prompt: str, database: str | None) -> str:
    """The prompt with the dismissals of a year at its end, in an order that stays the same."""
    async with et.connect(database) as db:
        dismissed = await db.evals.wrong(AGENT, tool="post_review_comment", days=365, limit=None)
    lines = sorted(" ".join(f"- {each.comment_body} ({each.last_reason})".split()) for each in dismissed)
    if not lines:
        return prompt
    return "\n".join(
        [prompt.rstrip(), "", "Reviewers dismissed these comments. Leave out the like of them:", *lines, ""]
    )


def main(
    prompt: Annotated[Path, typer.Argument(help="The file that holds it.", exists=True, dir_okay=False)],
    database: DatabaseOption = None,
) -> None:
    """Print a prompt with what reviewers dismissed."""
    sys.stdout.write(asyncio.run(learned(prompt.read_text("utf-8"), database)))


if __name__ == "__main__":
    try:
        typer.run(main)
    except et.EveryturnError as error:
        print(error, file=sys.stderr)
        sys.exit(4)
