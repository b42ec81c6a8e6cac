"""What a database keeps for one event loop: its pool, its writer, and the session that holds its locks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from .connection import Connection, Opener, Preparing, configure, quiet, unreachable
from .database_errors import connection_lost, translate
from .errors import DatabaseUnavailable
from .session import Session, stop_preparing
from .writer import Writer

logger = logging.getLogger("everyturn")

_POOL_SIZE = 8
_PATIENCE = 30.0


class Resources:
    """The connections of one event loop."""

    def __init__(
        self, url: str, session_url: str | None, preparing: Preparing, revive: Callable[[], None] | None
    ) -> None:
        self._opener = Opener(url, revive)
        self._preparing = preparing
        self.session = Session(self._opener, preparing)
        self.writer = Writer(self.session)
        self.lock_session = Session(Opener(session_url), preparing) if session_url else self.session
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            connection_class=self._opener.connection_class,
            kwargs=self._opener.options,
            configure=self._configure,
            min_size=0,
            max_size=_POOL_SIZE,
            open=False,
            timeout=_PATIENCE,
            name="everyturn",
        )
        self._opening: asyncio.Task[None] | None = None

    async def _configure(self, conn: Connection) -> None:
        await configure(conn)
        if self._preparing.enabled:
            cursor = await conn.execute("SELECT pg_backend_pid() AS pid", prepare=False)
            row = await cursor.fetchone()
            if row is not None and row["pid"] == conn.info.backend_pid:
                return
        stop_preparing(conn, self._preparing)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, in autocommit mode. Raises DatabaseUnavailable."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._pool.open())
        await asyncio.shield(self._opening)
        conn = await self._living()
        try:
            yield conn
        finally:
            # A caller that is cancelled here must not take the connection along.
            await asyncio.shield(asyncio.ensure_future(self._pool.putconn(conn)))

    async def _living(self) -> Connection:
        """A connection that is open as far as it says; those the server has ended are given up.

        The pool's own check would wait a second before it looks at the next one.
        """
        while True:
            try:
                conn = await self._pool.getconn()
            except PoolClosed as error:
                raise DatabaseUnavailable("This database was closed; open it again with et.connect().") from error
            except PoolTimeout as error:
                await self._explain(error)
            if quiet(conn):
                return conn
            try:
                # A round trip only where something arrived on the idle connection.
                await conn.execute("SELECT 1", prepare=False)
                return conn
            except psycopg.Error:
                conn.pgconn.finish()
                await self._pool.putconn(conn)
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(self._pool.putconn(conn)))
                raise

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection on which a transaction has begun; one that turns out to be gone is exchanged.

        Raises DatabaseUnavailable when the connection is lost later.
        """
        for attempt in range(3):
            async with self.connection() as conn:
                begun = False
                try:
                    async with conn.transaction():
                        begun = True
                        yield conn
                    return
                except psycopg.Error as error:
                    if not connection_lost(error, conn):
                        raise
                    if begun or attempt == 2:
                        raise translate(error) from error

    async def _explain(self, error: PoolTimeout) -> NoReturn:
        """Say why no connection was to be had: the server is away, or all connections are in use."""
        try:
            conn = await self._opener.open(connect_timeout=3)
        except psycopg.OperationalError as cause:
            raise unreachable(self._opener.url, cause) from error
        await conn.close()
        raise DatabaseUnavailable(
            f"All {_POOL_SIZE} connections of the pool were in use for {_PATIENCE:.0f} seconds. "
            "Keep transactions short."
        ) from error

    async def close(self) -> None:
        """Write what is queued, then close every connection."""
        await self.writer.close()
        await self.session.free_released()
        if self._opening is not None:
            await self._pool.close()
        if self.lock_session is not self.session:
            await self.lock_session.free_released()
            await self.lock_session.close()
        await self.session.close()

    async def close_from_elsewhere(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop this belongs to close it where that runs in another thread; else close the sockets."""
        if loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(self.close(), loop)
            done, _ = await asyncio.wait({asyncio.wrap_future(closing)}, timeout=10)
            if done and done.pop().exception() is None:
                return
        self.abandon()

    def abandon(self) -> None:
        """Close the sockets of a loop that has ended."""
        self.session.abandon()
        self.lock_session.abandon()
        for conn in list(self._pool._pool):
            conn.pgconn.finish()
