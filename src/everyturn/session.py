"""A connection of one's own: comes back after it was lost, and holds the advisory locks of running conversations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, LiteralString

import psycopg
from psycopg.rows import tuple_row

from .connection import Connection, Opener, Preparing, Row, quiet, unreachable
from .database_errors import connection_lost, translate
from .errors import DatabaseUnavailable

logger = logging.getLogger("everyturn")

# Prepared statements that a pooler or a DEALLOCATE took away, or whose result type a migration changed.
_STALE_PREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.FeatureNotSupported,
)

_BURY_OWN = """
SELECT CASE WHEN %s THEN pg_terminate_backend(pid) END
  FROM pg_stat_activity
 WHERE pid = %s AND backend_start = %s
"""

# Behind a pooler the server process is not ours to end: wait for the appends that were under way when we came back.
_BURY_POOLED = """
SELECT pid
  FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
   AND state = 'active' AND query LIKE '-- Append %%' AND clock_timestamp() - query_start > %s * interval '1 second'
"""


class Session:
    """One connection of one event loop, opened when first needed and again whenever it was lost."""

    def __init__(self, opener: Opener, preparing: Preparing, *, patience: float = 30.0) -> None:
        self._opener = opener
        self._preparing = preparing
        self._patience = patience
        self._conn: Connection | None = None
        self._identity: tuple[int, Any] | None = None
        self._predecessors: list[tuple[int, Any]] = []
        self._connecting = asyncio.Lock()
        self._closed = False
        self.pooled = False
        """Whether a pooler sits between: the session then is not ours alone."""
        self.held: set[int] = set()
        """The advisory locks this session holds for running conversations."""
        self.asked_for: set[int] = set()
        """Those that are being asked for."""
        self._released: list[int] = []

    async def connection(self) -> Connection:
        """The open connection. When it is a new one, the server process of the one before has ended.

        Raises DatabaseUnavailable.
        """
        conn = self._conn
        if conn is not None and quiet(conn):
            return conn
        async with self._connecting:
            if self._closed:
                raise DatabaseUnavailable("This database was closed; open it again with et.connect().")
            if self._conn is not None and quiet(self._conn):
                return self._conn
            if self._conn is not None and not self._conn.closed:
                # Something arrived: a notice, or the word that the server is going.
                with contextlib.suppress(psycopg.Error):
                    await self._conn.execute("SELECT 1")
                    return self._conn
            first = self._identity is None
            await self._drop()
            self._conn = conn = await self._connect(once=first)
            return conn

    def ready(self) -> Connection | None:
        """The connection, if it is open and idle as far as can be told without waiting."""
        conn = self._conn
        return conn if conn is not None and quiet(conn) and not conn.lock.locked() else None

    @property
    def prepares(self) -> bool:
        """Whether statements are worth preparing."""
        return self._preparing.enabled

    async def _connect(self, *, once: bool) -> Connection:
        deadline = time.monotonic() + self._patience
        pause = 0.05
        while True:
            conn: Connection | None = None
            try:
                conn = await self._opener.open()
                await self._introduce(conn)
                return conn
            except psycopg.Error as error:
                await _close(conn)
                known = error.sqlstate is not None and not connection_lost(error, conn)
                if known or once or time.monotonic() + pause > deadline:
                    raise unreachable(self._opener.url, error) from error
            except BaseException:
                await _close(conn)
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def _introduce(self, conn: Connection) -> None:
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        row = await cursor.fetchone()
        identity = (row[0], row[1]) if row else (conn.info.backend_pid, None)
        self.pooled = identity[0] != conn.info.backend_pid
        if self.pooled:
            stop_preparing(conn, self._preparing)
        await self._bury_predecessors(conn)
        self._identity = identity
        if self.held and not self.pooled:
            self.held = await self._lock(conn, list(self.held))

    async def _lock(self, conn: Connection, keys: list[int]) -> set[int]:
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute("SELECT k, pg_try_advisory_lock(k) FROM unnest(%s::bigint[]) AS k", (keys,))
        return {key for key, locked in await cursor.fetchall() if locked}

    async def hold(self, conn: Connection, keys: list[int]) -> None:
        """Lock what a statement was to lock whose answer was lost."""
        if keys and not self.pooled:
            self.held |= await self._lock(conn, keys)

    async def _bury_predecessors(self, conn: Connection) -> None:
        """Wait until the server processes of lost connections are gone: until then they may still commit."""
        cursor = conn.cursor(row_factory=tuple_row)
        began = time.monotonic()
        while self._predecessors:
            pid, started = self._predecessors[-1]
            waited = time.monotonic() - began
            if self.pooled:
                await cursor.execute(_BURY_POOLED, (waited,), prepare=False)
            else:
                await cursor.execute(_BURY_OWN, (True, pid, started), prepare=False)
            if not await cursor.fetchall():
                self._predecessors.pop()
            elif waited > 10:
                raise DatabaseUnavailable(
                    f"The server process {pid} of a lost connection does not end; what it was writing is uncertain."
                )
            else:
                await asyncio.sleep(0.01 if waited < 0.5 else 0.1)

    async def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            if self._identity is not None:
                self._predecessors.append(self._identity)
            self._released.clear()
            await _close(conn)

    def lost(self, error: psycopg.Error, conn: Connection) -> bool:
        """Whether `error` means that this connection is gone; the next `connection()` is then another."""
        if not connection_lost(error, conn):
            return False
        if not conn.closed:
            conn.pgconn.finish()
        return True

    async def execute(self, conn: Connection, statement: LiteralString, values: Any) -> psycopg.AsyncCursor[Row]:
        """Run a statement, prepared where that works."""
        return await execute(conn, self._preparing, statement, values, prepare=True)

    async def fetch(self, statement: LiteralString, values: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement that does no harm when it runs twice, and return its rows as tuples.

        Raises DatabaseUnavailable.
        """
        for attempt in range(5):
            conn = await self.connection()
            try:
                cursor = conn.cursor(row_factory=tuple_row)
                await cursor.execute(statement, values, prepare=False)
                return await cursor.fetchall()
            except psycopg.Error as error:
                if not self.lost(error, conn) or attempt == 4:
                    raise translate(error) from error
        raise AssertionError("unreachable")

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
        if key not in self._released or self._conn is None or not quiet(self._conn):
            return False
        self._released.remove(key)
        self.held.add(key)
        return True

    async def free_released(self) -> None:
        """Free now what no statement has carried yet."""
        keys = self.take_released()
        if not keys or self._conn is None or self._conn.closed:
            return  # the locks went with their connection
        conn = self._conn
        try:
            await conn.execute("SELECT pg_advisory_unlock(k) FROM unnest(%s::bigint[]) AS k", (keys,), prepare=False)
        except psycopg.Error as error:
            self.lost(error, conn)
            logger.debug("advisory locks went with their connection")

    async def close(self) -> None:
        self._closed = True
        async with self._connecting:
            await self._drop()

    def abandon(self) -> None:
        """Close the socket from outside the event loop, which has ended."""
        self._closed = True
        if self._conn is not None and not self._conn.closed:
            self._conn.pgconn.finish()


def stop_preparing(conn: psycopg.AsyncConnection[Row], preparing: Preparing) -> None:
    """Go on without prepared statements, on all connections."""
    if preparing.enabled:
        preparing.enabled = False
        logger.info("Prepared statements do not survive on this connection (a pooler?); going on without them.")
    conn.prepare_threshold = None


async def execute(
    conn: Connection, preparing: Preparing, statement: str, values: Any, *, prepare: bool | None, again: bool = True
) -> psycopg.AsyncCursor[Row]:
    """Run a statement, prepared if asked for and where that works.

    A prepared statement that is gone, or no longer valid, is refused before it does anything: it is run again without.
    """
    if not preparing.enabled:
        return await conn.execute(statement, values, prepare=False)
    try:
        return await conn.execute(statement, values, prepare=prepare)
    except _STALE_PREPARED as error:
        if not again:
            raise
        if isinstance(error, psycopg.errors.FeatureNotSupported):
            if "cached plan" not in str(error):
                raise
        else:
            stop_preparing(conn, preparing)
    conn._prepared.clear()
    return await conn.execute(statement, values, prepare=False)


async def _close(conn: Connection | None) -> None:
    if conn is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            await conn.close()
