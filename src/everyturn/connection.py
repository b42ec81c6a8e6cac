"""A connection of one's own: reconnects, prepares statements where that works, and holds advisory locks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import time
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import set_json_loads

from . import jsonable
from .database_errors import connection_lost
from .errors import DatabaseUnavailable

logger = logging.getLogger("everyturn")

CONNECTION_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "client_encoding": "utf8",
    "fallback_application_name": "everyturn",
}

# Prepared statements that a pooler or a DEALLOCATE took away, or whose result type a migration changed.
_STALE_PREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)


class Preparing:
    """Whether statements are prepared on the server; switched off for good once a pooler gets in the way."""

    def __init__(self) -> None:
        self.enabled = True


def quiet(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether nothing has arrived on an idle connection; a server that closed it would have said so.

    Costs no round trip, unlike a `SELECT 1`.
    """
    if conn.closed:
        return False
    if conn.lock.locked():
        return True  # what arrives is the answer to a statement under way
    try:
        poller = select.poll()
        poller.register(conn.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poller.poll(0)
    except (OSError, psycopg.Error):
        return False


async def open_connection(url: str) -> psycopg.AsyncConnection[dict[str, Any]]:
    """Connect in autocommit mode. Raises psycopg.OperationalError."""
    conn = await psycopg.AsyncConnection.connect(url, row_factory=dict_row, **CONNECTION_OPTIONS)
    await configure(conn)
    return conn


async def configure(conn: psycopg.AsyncConnection[Any]) -> None:
    """Read JSON as everyturn wrote it."""
    set_json_loads(jsonable.loads, conn)


class Session:
    """One connection of one event loop, opened when first needed and again whenever it was lost."""

    def __init__(self, url: str, preparing: Preparing, *, patience: float = 30.0) -> None:
        self._url = url
        self._preparing = preparing
        self._patience = patience
        self._conn: psycopg.AsyncConnection[dict[str, Any]] | None = None
        self._identity: tuple[int, Any] | None = None
        self._predecessor: tuple[int, Any] | None = None
        self._connecting = asyncio.Lock()
        self.pooled = False
        """Whether a pooler sits between: the session then is not ours alone."""
        self.held: set[int] = set()
        """The advisory locks this session holds for running conversations."""
        self._released: list[int] = []

    async def connection(self) -> tuple[psycopg.AsyncConnection[dict[str, Any]], bool]:
        """The open connection, and whether it is a new one. Raises DatabaseUnavailable."""
        conn = self._conn
        if conn is not None and quiet(conn):
            return conn, False
        async with self._connecting:
            if self._conn is not None and quiet(self._conn):
                return self._conn, False
            if self._conn is not None and not self._conn.closed:
                # Something arrived: a notice, or the word that the server is going.
                with contextlib.suppress(psycopg.Error):
                    await self._conn.execute("SELECT 1")
                    return self._conn, False
            first = self._identity is None
            await self._drop()
            conn = await self._connect(once=first)
            self._conn = conn
            return conn, True

    async def _connect(self, *, once: bool) -> psycopg.AsyncConnection[dict[str, Any]]:
        deadline = time.monotonic() + self._patience
        pause = 0.05
        while True:
            try:
                conn = await open_connection(self._url)
                cursor = conn.cursor(row_factory=tuple_row)
                await cursor.execute("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
                row = await cursor.fetchone()
                self._identity = (row[0], row[1]) if row else (conn.info.backend_pid, None)
                self.pooled = self._identity[0] != conn.info.backend_pid
                if self.held and not self.pooled:
                    await cursor.execute(
                        "SELECT k, pg_try_advisory_lock(k) FROM unnest(%s::bigint[]) AS k", (list(self.held),)
                    )
                    self.held = {key for key, locked in await cursor.fetchall() if locked}
                return conn
            except psycopg.Error as error:
                known = error.sqlstate is not None and error.sqlstate != "57P03"
                if known or once or time.monotonic() + pause > deadline:
                    raise unreachable(self._url, error) from error
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    async def _drop(self) -> None:
        if self._conn is not None:
            self._predecessor, conn, self._conn = self._identity, self._conn, None
            self._released.clear()
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()

    async def bury_predecessor(self) -> None:
        """Wait until the server process of the lost connection is gone: until then it may still commit."""
        if self._predecessor is None or self.pooled:
            return
        pid, started = self._predecessor
        for attempt in range(200):
            rows = await self.fetch(
                "SELECT CASE WHEN %s THEN pg_terminate_backend(pid) END"
                "  FROM pg_stat_activity WHERE pid = %s AND backend_start = %s",
                (attempt % 20 == 0, pid, started),
            )
            if not rows:
                self._predecessor = None
                return
            await asyncio.sleep(0.05)

    def lost(self, error: psycopg.Error) -> bool:
        """Whether `error` means that the connection is gone; it is then dropped by the next `connection()`."""
        if not connection_lost(error, self._conn):
            return False
        if self._conn is not None and not self._conn.closed:
            self._conn.pgconn.finish()
        return True

    async def execute(
        self, conn: psycopg.AsyncConnection[dict[str, Any]], statement: LiteralString, values: Any
    ) -> psycopg.AsyncCursor[dict[str, Any]]:
        """Run a statement, prepared where that works."""
        if self._preparing.enabled:
            try:
                return await conn.execute(statement, values, prepare=True)
            except _STALE_PREPARED as error:
                forget_prepared(conn, self._preparing, error)
        return await conn.execute(statement, values, prepare=False)

    async def fetch(self, statement: LiteralString, values: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement on this session and return its rows as tuples."""
        conn, _ = await self.connection()
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute(statement, values, prepare=False)
        return await cursor.fetchall()

    def take_released(self) -> list[int]:
        """The locks to be freed by the statement about to be sent."""
        released, self._released = self._released, []
        return released

    def put_back_released(self, keys: list[int]) -> None:
        self._released.extend(keys)

    def release_later(self, key: int) -> None:
        """Free a lock with the next statement that can carry it."""
        self.held.discard(key)
        self._released.append(key)

    def reclaim(self, key: int) -> bool:
        """Take back a lock that was to be freed and is still held."""
        if key not in self._released:
            return False
        self._released.remove(key)
        self.held.add(key)
        return True

    async def free_released(self) -> None:
        """Free now what no statement has carried yet."""
        keys = self.take_released()
        if keys and self._conn is not None:
            try:
                await self.fetch("SELECT pg_advisory_unlock(k) FROM unnest(%s::bigint[]) AS k", (keys,))
            except (psycopg.Error, DatabaseUnavailable):
                logger.debug("advisory locks went with their connection")

    async def close(self) -> None:
        await self._drop()

    def abandon(self) -> None:
        """Close the socket from outside the event loop, which has ended."""
        if self._conn is not None and not self._conn.closed:
            self._conn.pgconn.finish()


def forget_prepared(conn: psycopg.AsyncConnection[Any], preparing: Preparing, error: psycopg.Error) -> None:
    """After a stale prepared statement: stop preparing, or raise the error when it is about something else."""
    if isinstance(error, psycopg.errors.FeatureNotSupported):
        if "cached plan" not in str(error):
            raise error
    else:
        preparing.enabled = False
        conn.prepare_threshold = None
        logger.info("Prepared statements do not survive on this connection (a pooler?); going on without them.")
    conn._prepared.clear()


def without_password(url: str) -> str:
    """A connection string fit to be shown."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "(a connection string that cannot be read)"
    host = parts.get("host") or parts.get("hostaddr") or "local socket"
    port = f":{parts['port']}" if parts.get("port") else ""
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"{user}{host}{port}/{parts.get('dbname') or ''}"


def unreachable(url: str, error: psycopg.Error) -> DatabaseUnavailable:
    """The error for a server that could not be connected to."""
    said = " ".join(str(error).split())
    return DatabaseUnavailable(
        f"The database {without_password(url)} cannot be reached: {said}. "
        "Check that the server runs and that EVERYTURN_DATABASE or the target names it."
    )
