"""Going on with conversations that a crash left without an ending."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.cli.objects import FORMS, load_object
from everyturn.cli.paging import pages
from everyturn.errors import InvalidValue

if TYPE_CHECKING:
    from everyturn.agent import Agent
    from everyturn.database import Database


async def load_agent(reference: str, db: Database) -> Agent:
    """The agent a reference names: an agent, or a function that takes the database and returns one.

    Raises InvalidValue for anything else, and for an agent that is bound to another database.
    """
    from everyturn.agent import Agent

    found = load_object(reference)
    if not isinstance(found, Agent) and callable(found):
        found = found(db)
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, Agent):
        raise InvalidValue(
            f"{reference!r} is a {type(found).__name__}: neither an agent nor a function that takes the "
            f"database and returns one. Write {FORMS}."
        )
    if not same_database(found.db.url, db.url):
        raise InvalidValue(
            f"The agent {reference!r} is bound to another database than the one this command uses. Name that "
            "one with --database, or write a function that takes the database and returns the agent."
        )
    return found


def same_database(one: str, other: str) -> bool:
    """Whether two connection strings name the same database of the same server."""
    from psycopg.conninfo import conninfo_to_dict

    keys = ("host", "hostaddr", "port", "dbname", "service")
    first, second = conninfo_to_dict(one), conninfo_to_dict(other)
    return all(first.get(key) == second.get(key) for key in keys)


async def crashed(db: Database, agent: str) -> Sequence[UUID]:
    """The crashed conversations of an agent, the last written to first."""
    found: list[UUID] = []
    listed = pages(db, "conversations_by_status", rows=None, status="crashed", agent=agent)
    async with aclosing(listed):
        async for page in listed:
            found += [row["id"] for row in page]
    return found


async def resume_one(agent: Agent, conversation: UUID, deps: Any) -> dict[str, Any]:
    """Resume a conversation; what came of it, as a row."""
    result = await agent.resume(conversation, deps=deps)
    return {
        "conversation": result.conversation,
        "run_id": result.run_id,
        "turns": len(result.turns),
        "cost_usd": result.cost_usd,
        "output": result.output,
    }
