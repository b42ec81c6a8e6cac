"""`rebuild`: the tables made again from the log, in one transaction and without embedding."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
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
                done.append(await _table(database, kind, agent, scope, progress))
                if progress is not None:
                    progress(done[-1])
    except psycopg.Error as error:
        raise translate(error) from error
    return done


async def _table(
    database: Database,
    kind: Kind,
    agent: str | None,
    scope: str | None,
    progress: Callable[[Rebuilt], object] | None,
) -> Rebuilt:
    [removed] = await database.query(f"memory_rebuild_remove_{kind}", agent=agent, scope=scope)
    count = removed["removed"]
    if progress is not None:
        progress(Rebuilt(kind, count, 0))
    with _told(database, lambda written: progress(Rebuilt(kind, count, written)) if progress is not None else None):
        [written] = await database.query(f"memory_rebuild_write_{kind}", agent=agent, scope=scope)
    return Rebuilt(kind, count, written["written"])


@contextlib.contextmanager
def _told(database: Database, written: Callable[[int], object]) -> Iterator[None]:
    """Hear how far the server has come while its statement runs; what the listener raises is raised afterwards."""
    conn = database.ambient
    assert conn is not None
    raised: list[Exception] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        told = re.fullmatch(r"everyturn rebuilding \w+ (\d+)", notice.message_primary or "")
        if told and not raised:
            try:
                written(int(told[1]))
            except Exception as error:
                raised.append(error)

    conn.add_notice_handler(hear)
    try:
        yield
    finally:
        conn.remove_notice_handler(hear)
    if raised:
        raise raised[0]
