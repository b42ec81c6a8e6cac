"""What a database keeps for one event loop: its pool, its writer, and the session that holds its locks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psycopg

from .connection import Connection, Opener, Preparing
from .database_errors import connection_lost, translate
from .pool import Pool
from .session import Session, stop_preparing
from .writer import Writer


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
        self._pool = Pool(self._opener, self._configure)

    async def _configure(self, conn: Connection) -> None:
        if self._preparing.enabled:
            cursor = await conn.execute("SELECT pg_backend_pid() AS pid", prepare=False)
            row = await cursor.fetchone()
            if row is not None and row["pid"] == conn.info.backend_pid:
                return
        stop_preparing(conn, self._preparing)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, in autocommit mode. Raises DatabaseUnavailable."""
        conn = await self._pool.take()
        try:
            yield conn
        finally:
            if not self._pool.give_back(conn):
                # A caller that is cancelled here must not take the connection along.
                await asyncio.shield(asyncio.ensure_future(self._pool.clean_up(conn)))

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

    async def close(self) -> None:
        """Write what is queued, then close every connection."""
        await self.writer.close()
        await self.session.free_released()
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
        self._pool.abandon()
