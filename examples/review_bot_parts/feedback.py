"""Fetch what reviewers make of the bot's comments, and record it: a verdict on the turn that posted the comment."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import everyturn as et

from .forge import Forge, ForgeError, Opinion

POSTED_COMMENTS = Path(__file__).with_name("posted_comments.sql").read_text("utf-8")
SOURCE = "review-bot sync"


@dataclass(frozen=True, slots=True)
class Synced:
    """One verdict that was new."""

    pr: int
    path: str
    line: int
    body: str
    opinion: Opinion


async def sync(db: et.Database, agent: str, forge: Forge, days: float) -> tuple[list[Synced], int, list[ForgeError]]:
    """Record what is new about the comments of the last days: the verdicts, how many comments there are, and failures.

    What was recorded before is not recorded again; a reviewer who changes their mind gets a further row, and the last
    one stands.
    """
    where: dict[str, Any] = {"agent": agent, "repo": forge.repo, "days": days}
    posted: dict[int, list[int]] = defaultdict(list)
    for row in await db.fetch(POSTED_COMMENTS, where | {"pr": None}):
        posted[row["pr"]].append(row["comment_id"])
    found: list[Synced] = []
    failures: list[ForgeError] = []
    for pr, comments in sorted(posted.items()):
        try:
            opinions = await forge.opinions(pr, comments)
        except ForgeError as error:
            failures.append(error)
            continue
        async with db.transaction():
            # Of two that run at once, the second sees what the first has recorded.
            await db.fetch("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"{SOURCE} {forge.repo}#{pr}"])
            for row in await db.fetch(POSTED_COMMENTS, where | {"pr": pr}):
                said = opinions.get(row["comment_id"])
                if said is None or (said.verdict, said.reason) == (row["verdict"], row["rationale"]):
                    continue
                about = {"source": SOURCE, "sign": said.sign, "by": said.by}
                await db.evals.record(row["turn_id"], "human", said.verdict, said.reason, about)
                found.append(Synced(pr, row["path"], row["line"], row["body"], said))
    return found, sum(map(len, posted.values())), failures
