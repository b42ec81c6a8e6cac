"""Whether a connection keeps a session of its own: locks, notifications, poolers in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from .doctor_findings import Finding, miss, ok, row, said, warn

_KEY = 0x646F_6374_6F72
_PATIENCE = 3.0
_SESSION_URL = (
    "Keep the pooler for the rest, and set EVERYTURN_SESSION_DATABASE to a URL that reaches the server "
    "directly, "
    "or through a pooler in session mode."
)


async def advisory_locks(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    name = "advisory locks"
    try:
        (got,) = await row(conn, "SELECT pg_try_advisory_lock(%s)", _KEY)
        (freed,) = await row(conn, "SELECT pg_advisory_unlock(%s)", _KEY) if got else (True,)
    except psycopg.Error as error:
        way_out = "Run one process per conversation: nothing will stop two from running the same one."
        return [miss(name, said(error), way_out)]
    return (
        [ok(name, "tried")] if freed else [warn(name, "a session lock was not kept between statements", _SESSION_URL)]
    )


async def notifications(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    name = "LISTEN and NOTIFY"
    channel = f"everyturn_doctor_{conn.info.backend_pid}"
    try:
        await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        await conn.execute("SELECT pg_notify(%s, '')", [channel])
        heard = [note.channel async for note in conn.notifies(timeout=_PATIENCE, stop_after=1)]
        await conn.execute("UNLISTEN *")
        if channel in heard:
            return [ok(name, "tried")]
        detail = "a notification did not arrive"
    except psycopg.Error as error:
        detail = said(error)
    return [warn(name, f"{detail}; live tails ask the tables instead of being told", _SESSION_URL)]


async def pooling(first: AsyncConnection[Any], second: AsyncConnection[Any]) -> Sequence[Finding]:
    """A pooler in transaction mode gives a connection whichever server process is free.

    While the second connection holds a transaction, and with it the process that the first has used, the
    first must be given another.
    """
    name = "pooling"
    (before,) = await row(first, "SELECT pg_backend_pid()")
    if before == first.info.backend_pid:
        return [ok(name, "a direct connection: each has a session of its own")]
    moved = False
    async with second.transaction(force_rollback=True):
        (taken,) = await row(second, "SELECT pg_backend_pid()")
        (after,) = await row(first, "SELECT pg_backend_pid()")
        moved = taken == before or after != before
    if not moved:
        return [ok(name, "a pooler in session mode: each connection has a session of its own")]
    detail = "a pooler in transaction mode: sessions do not exist, so two processes may run one conversation"
    return [warn(name, detail, _SESSION_URL)]
