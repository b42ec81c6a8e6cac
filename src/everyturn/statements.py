"""Running SQL: one's own, and the named queries."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, LiteralString

import psycopg

from . import sqlfiles
from .connection import Connection, Preparing, Row
from .database_errors import connection_lost, translate, turned_away
from .errors import InvalidValue
from .session import execute

logger = logging.getLogger("everyturn")

_ATTEMPTS = 3
_OF_THE_SESSION = frozenset(("SET", "LISTEN"))
# A connection that was ended while it was idle says so at once; a statement that an operator ended is not run again.
_AT_ONCE = 0.5


class Statements(ABC):
    """The part of `Database` that runs statements."""

    _preparing: Preparing

    @property
    @abstractmethod
    def ambient(self) -> Connection | None:
        """The connection of the surrounding transaction."""

    @abstractmethod
    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of the pool, or that of the surrounding transaction."""

    async def fetch(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Row]:
        """Run any SQL and return its rows as dicts; the placeholders are psycopg's (`%s`, `%(name)s`).

        Without params a percent sign is an ordinary character. Errors of the statement are psycopg's own;
        raises DatabaseUnavailable when the connection is lost.
        """
        rows, _ = await self._run(sql, params, prepare=None)
        return rows

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> int:
        """Run any SQL and return the number of rows it touched."""
        _, touched = await self._run(sql, params, prepare=None)
        return touched

    async def query(self, name: str, /, **params: Any) -> list[Row]:
        """Run a named query (queries/NAME.sql); a parameter that is left out is NULL.

        Raises QueryNotFound, and InvalidValue for a parameter it does not have.
        """
        known = sqlfiles.parameters(name)
        unknown = sorted(set(params) - known)
        if unknown:
            raise InvalidValue(
                f"Query {name!r} has no parameter {unknown[0]!r}. It has: {', '.join(sorted(known)) or 'none'}."
            )
        values = dict.fromkeys(known) | params
        # A named query may be planned for its values: a generic plan of a filtered search is many times slower.
        rows, _ = await self._run(sqlfiles.query(name), values, prepare=False, again=not sqlfiles.writes(name))
        return rows

    def statement(self, name: str) -> LiteralString:
        """The text of a named query, as psycopg takes it."""
        return sqlfiles.query(name)

    async def read(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        """Run a named query that is asked often and whose plan does not depend on its values."""
        rows, _ = await self._run(sqlfiles.query(name), params, prepare=True, again=True)
        return rows

    async def _run(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None,
        *,
        prepare: bool | None,
        again: bool = False,
    ) -> tuple[list[Row], int]:
        """The rows, and how many were touched. What is harmless `again` is repeated on another connection."""
        for attempt in range(_ATTEMPTS):
            async with self.connection() as conn:
                began = time.monotonic()
                try:
                    cursor = await self._execute(conn, sql, params, prepare)
                    rows = await cursor.fetchall() if cursor.description is not None else []
                    if cursor.statusmessage in _OF_THE_SESSION and self.ambient is None:
                        await self._drop(conn)
                    return rows, cursor.rowcount
                except psycopg.Error as error:
                    if not connection_lost(error, conn):
                        raise
                    if (
                        self.ambient is not None
                        or attempt == _ATTEMPTS - 1
                        or not (again or (turned_away(error) and time.monotonic() - began < _AT_ONCE))
                    ):
                        raise translate(error) from error
        raise AssertionError("unreachable")

    async def _drop(self, conn: Connection) -> None:
        """Give up a connection whose settings were changed: the next to borrow it must not have them."""
        logger.warning(
            "SET and LISTEN change one connection of the pool, which is now closed: they have no effect on what "
            "follows. Use SET LOCAL in db.transaction(), or options= in the URL."
        )
        await conn.close()

    async def _execute(
        self, conn: Connection, sql: str, params: Sequence[Any] | Mapping[str, Any] | None, prepare: bool | None
    ) -> psycopg.AsyncCursor[Row]:
        # In a transaction nothing can be tried again.
        return await execute(conn, self._preparing, sql, params, prepare=prepare, again=self.ambient is None)
