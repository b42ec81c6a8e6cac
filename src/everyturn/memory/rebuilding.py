"""`rebuild`: the tables made again from the log, in one transaction and without embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from everyturn.database_errors import translate

from .values import KINDS, Kind, Rebuilt

if TYPE_CHECKING:
    from everyturn.database import Database


async def rebuild(
    database: Database,
    *,
    agent: str | None,
    scope: str | None,
    progress: Callable[[Rebuilt], object] | None,
) -> list[Rebuilt]:
    done: list[Rebuilt] = []
    try:
        async with database.transaction():
            # Writers wait, readers do not. Whatever was committed before has its turn in the log.
            await database.execute(
                "LOCK TABLE agent_episodic, agent_semantic, agent_procedural IN SHARE ROW EXCLUSIVE MODE"
            )
            for kind in KINDS:
                done.append(await _table(database, kind, agent, scope))
                if progress is not None:
                    progress(done[-1])
    except psycopg.Error as error:
        raise translate(error) from error
    return done


async def _table(database: Database, kind: Kind, agent: str | None, scope: str | None) -> Rebuilt:
    [removed] = await database.query(f"memory_rebuild_remove_{kind}", agent=agent, scope=scope)
    [written] = await database.query(f"memory_rebuild_write_{kind}", agent=agent, scope=scope)
    return Rebuilt(kind, removed["removed"], written["written"])
