"""The connections of one event loop that statements take and give back.

`psycopg_pool` opens connections in tasks of its own, which swallow cancellation: an event loop that ends at that moment
never ends. Here the caller opens the connection it waits for, and there is nothing in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

import psycopg
from psycopg.pq import TransactionStatus

from .connection import Connection, Opener, quiet, unreachable
from .database_errors import connection_lost
from .errors import DatabaseUnavailable

logger = logging.getLogger("everyturn")

_SIZE = 8
_PATIENCE = 30.0
# How long an unused connection is kept.
_IDLE = 300.0


class Pool:
    """At most eight connections in autocommit mode, opened when needed."""

    def __init__(self, opener: Opener, configure: Callable[[Connection], Awaitable[None]]) -> None:
        self._opener = opener
        self._configure = configure
        self._permits = asyncio.Semaphore(_SIZE)
        self._idle: list[tuple[Connection, float]] = []
        self._used: set[Connection] = set()
        self._pruning: asyncio.TimerHandle | None = None
        self._closed = False

    async def take(self) -> Connection:
        """A connection that is open as far as it says; to be given back. Raises DatabaseUnavailable."""
        self._refuse_when_closed()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._permits.acquire()
        except TimeoutError:
            raise DatabaseUnavailable(
                f"All {_SIZE} connections were in use for {_PATIENCE:.0f} seconds. Keep transactions short."
            ) from None
        try:
            self._refuse_when_closed()
            conn = await self._kept() or await self._opened()
        except BaseException:
            self._permits.release()
            raise
        self._used.add(conn)
        return conn

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise DatabaseUnavailable("This database was closed; open it again with et.connect().")

    async def _kept(self) -> Connection | None:
        """The connection that was used last, if it still is one."""
        while self._idle:
            conn, _ = self._idle.pop()
            if quiet(conn):
                return conn
            try:
                # A round trip only where something arrived in the meantime.
                await conn.execute("SELECT 1", prepare=False)
                return conn
            except psycopg.Error:
                conn.pgconn.finish()
            except BaseException:
                conn.pgconn.finish()
                raise
        return None

    async def _opened(self) -> Connection:
        """A new connection; a server that is being restarted is waited for."""
        deadline = time.monotonic() + _PATIENCE
        pause = 0.05
        while True:
            conn: Connection | None = None
            try:
                conn = await self._opener.open()
                await self._configure(conn)
                return conn
            except psycopg.Error as error:
                await _close(conn)
                known = error.sqlstate is not None and not connection_lost(error, conn)
                if known or time.monotonic() + pause > deadline:
                    raise unreachable(self._opener.url, error) from error
            except BaseException:
                await _close(conn)
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    def give_back(self, conn: Connection) -> bool:
        """The connection is free for others; False when it has to be cleaned up first."""
        if self._closed or conn.closed or conn.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        self._used.discard(conn)
        self._idle.append((conn, time.monotonic()))
        self._permits.release()
        if self._pruning is None:
            self._prune_later()
        return True

    async def clean_up(self, conn: Connection) -> None:
        """Roll back what somebody left open on it, or close what cannot be used again."""
        try:
            if conn.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                logger.warning("A transaction was left open on a connection; it is rolled back.")
                with contextlib.suppress(psycopg.Error):
                    await conn.rollback()
        finally:
            if not self.give_back(conn):
                conn.pgconn.finish()
                self._used.discard(conn)
                self._permits.release()

    def _prune_later(self) -> None:
        self._pruning = asyncio.get_running_loop().call_later(_IDLE, self._prune)

    def _prune(self) -> None:
        self._pruning = None
        limit = time.monotonic() - _IDLE
        for conn, since in self._idle:
            if since <= limit:
                conn.pgconn.finish()
        self._idle = [kept for kept in self._idle if not kept[0].closed]
        if self._idle:
            self._prune_later()

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        self._closed = True
        if self._pruning is not None:
            self._pruning.cancel()
        idle, self._idle = self._idle, []
        for conn, _ in idle:
            await _close(conn)

    def abandon(self) -> None:
        """Close the sockets from outside the event loop, which has ended."""
        self._closed = True
        for conn in [*self._used, *(conn for conn, _ in self._idle)]:
            conn.pgconn.finish()


async def _close(conn: Connection | None) -> None:
    if conn is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            await conn.close()
