"""The database: `connect`, its pool and writer, transactions, and SQL of one's own.

Everything is kept per event loop, so that one `Database` serves `asyncio.run` again and again, and threads with loops of
their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, LiteralString, NoReturn, cast

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from . import jsonable, migrate, sqlfiles
from .connection import (
    CONNECTION_OPTIONS,
    Preparing,
    Session,
    configure,
    forget_prepared,
    quiet,
    unreachable,
    without_password,
)
from .database_errors import connection_lost, translate
from .errors import DatabaseUnavailable, InvalidValue
from .target import resolve, session_url
from .writer import Writer

if TYPE_CHECKING:
    from .embed import Embedder
    from .embedded import Server
    from .evals import Evals
    from .events import Events
    from .memory import Memory
    from .tool_registry import ToolRegistry
    from .turns import Turns

logger = logging.getLogger("everyturn")

Row = dict[str, Any]
Connection = psycopg.AsyncConnection[Row]


class _Transaction:
    """An open `db.transaction()`: the appends and fetches of its task go through its connection."""

    def __init__(self, database: Database, conn: Connection) -> None:
        self.database = database
        self.conn = conn
        self.open = True


_transaction: ContextVar[_Transaction | None] = ContextVar("everyturn_transaction", default=None)


class _Loop:
    """What belongs to one event loop."""

    def __init__(self, url: str, session_url: str | None, preparing: Preparing) -> None:
        self.session = Session(url, preparing)
        self.writer = Writer(self.session)
        self.lock_session = Session(session_url, preparing) if session_url else self.session
        self.pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            connection_class=cast("type[Connection]", psycopg.AsyncConnection),
            kwargs=CONNECTION_OPTIONS | {"row_factory": dict_row},
            configure=configure,
            min_size=0,
            max_size=8,
            open=False,
            check=_check,
            timeout=30,
            name="everyturn",
        )
        self._opening: asyncio.Task[None] | None = None

    async def opened(self) -> AsyncConnectionPool[Connection]:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.pool.open())
        await asyncio.shield(self._opening)
        return self.pool

    async def close(self) -> None:
        await self.writer.close()
        await self.session.free_released()
        if self._opening is not None:
            await self.pool.close()
        if self.lock_session is not self.session:
            await self.lock_session.close()
        await self.session.close()

    def abandon(self) -> None:
        """Close the sockets of a loop that has ended."""
        self.session.abandon()
        self.lock_session.abandon()
        for conn in list(self.pool._pool):
            conn.pgconn.finish()


async def _check(conn: Connection) -> None:
    # A round trip only where something arrived on the idle connection.
    if not quiet(conn):
        await AsyncConnectionPool.check_connection(conn)


class Database:
    """One Postgres database that holds the contract. Made by `connect`."""

    __blocking_face__ = True

    def __init__(
        self,
        url: str,
        *,
        embedder: Embedder | None = None,
        redact: Callable[[Any], Any] | None = None,
        session_url: str | None = None,
        server: Server | None = None,
    ) -> None:
        from .vectors import Vectors

        self.url = url
        """The connection string, as psql takes it."""
        self.redact = redact
        self.vectors = Vectors(self, embedder)
        self._session_url = session_url
        self._server = server
        self._preparing = Preparing()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()

    @cached_property
    def turns(self) -> Turns:
        """The conversation log."""
        from .turns import Turns

        return Turns(self)

    @cached_property
    def tools(self) -> ToolRegistry:
        """The tool registry."""
        from .tool_registry import ToolRegistry

        return ToolRegistry(self)

    @cached_property
    def memory(self) -> Memory:
        """What agents remember."""
        from .memory import Memory

        return Memory(self)

    @cached_property
    def evals(self) -> Evals:
        """The verdicts."""
        from .evals import Evals

        return Evals(self)

    @cached_property
    def events(self) -> Events:
        """The stream events."""
        from .events import Events

        return Events(self)

    def __repr__(self) -> str:
        return f"<everyturn.Database {without_password(self.url)}>"

    @property
    def embedder(self) -> Embedder | None:
        """What makes the vectors; None when there is none, and rows are then found by their words only."""
        return self.vectors.embedder

    def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            for other in [other for other in self._loops if other.is_closed()]:
                self._loops.pop(other).abandon()
            here = self._loops[loop] = _Loop(self.url, self._session_url, self._preparing)
        return here

    @property
    def writer(self) -> Writer:
        """The group-commit writer of the running event loop."""
        return self._here().writer

    @property
    def lock_session(self) -> Session:
        """The session that holds the advisory locks of conversations."""
        return self._here().lock_session

    @property
    def ambient(self) -> Connection | None:
        """The connection of the `transaction()` this task is in, if it is in one of this database."""
        current = _transaction.get()
        return current.conn if current is not None and current.database is self and current.open else None

    @contextlib.asynccontextmanager
    async def own_connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, in autocommit mode, whatever transaction surrounds it. Raises DatabaseUnavailable."""
        pool = await self._here().opened()
        try:
            conn = await pool.getconn()
        except PoolTimeout as error:
            await self._explain(error)
        try:
            yield conn
        finally:
            await pool.putconn(conn)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, or that of the surrounding transaction. Raises DatabaseUnavailable."""
        ambient = self.ambient
        if ambient is not None:
            yield ambient
            return
        async with self.own_connection() as conn:
            yield conn

    async def _explain(self, error: PoolTimeout) -> NoReturn:
        """Say why no connection was to be had: the server is away, or all connections are in use."""
        try:
            await psycopg.AsyncConnection.connect(self.url, connect_timeout=3)
        except psycopg.OperationalError as cause:
            raise unreachable(self.url, cause) from error
        raise DatabaseUnavailable(
            "All connections of the pool were in use for 30 seconds. Keep transactions short."
        ) from error

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction: appends and fetches of this task inside it are committed together, or not at all.

        Inside another one it is a savepoint. Runs of agents never join it: their turns are durable one by one.
        """
        async with self.connection() as conn, conn.transaction():
            if self.ambient is not None:
                yield conn
                return
            current = _Transaction(self, conn)
            token = _transaction.set(current)
            try:
                yield conn
            finally:
                current.open = False
                _transaction.reset(token)

    async def fetch(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Row]:
        """Run any SQL and return its rows as dicts; the placeholders are psycopg's (`%s`, `%(name)s`).

        Without params a percent sign is an ordinary character. Errors of the statement are psycopg's own;
        raises DatabaseUnavailable when the connection is lost.
        """
        return await self._run(sql, params, prepare=None)

    async def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> int:
        """Run any SQL and return the number of rows it touched."""
        async with self.connection() as conn:
            try:
                return (await self._cursor(conn, sql, params, prepare=None)).rowcount
            except psycopg.Error as error:
                if connection_lost(error, conn):
                    raise translate(error) from error
                raise

    async def query(self, name: str, **params: Any) -> list[Row]:
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
        return await self._run(sqlfiles.query(name), values, prepare=False, again=True)

    def statement(self, name: str) -> LiteralString:
        """The text of a named query, as psycopg takes it."""
        return sqlfiles.query(name)

    async def read(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        """Run a named query that is asked often and whose plan does not depend on its values."""
        return await self._run(sqlfiles.query(name), params, prepare=True, again=True)

    async def _run(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None,
        *,
        prepare: bool | None,
        again: bool = False,
    ) -> list[Row]:
        async with self.connection() as conn:
            try:
                cursor = await self._cursor(conn, sql, params, prepare)
                return await cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                if not connection_lost(error, conn):
                    raise
                if not again or self.ambient is not None:
                    raise translate(error) from error
        # Reading once more is harmless.
        return await self._run(sql, params, prepare=prepare)

    async def _cursor(
        self,
        conn: Connection,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None,
        prepare: bool | None,
    ) -> psycopg.AsyncCursor[Row]:
        if not self._preparing.enabled:
            return await conn.execute(sql, params, prepare=False)
        try:
            return await conn.execute(sql, params, prepare=prepare)
        except (
            psycopg.errors.InvalidSqlStatementName,
            psycopg.errors.DuplicatePreparedStatement,
            psycopg.errors.FeatureNotSupported,
        ) as error:
            if self.ambient is not None:
                raise
            forget_prepared(conn, self._preparing, error)
            return await conn.execute(sql, params, prepare=False)

    def encode(self, value: Any, *, lenient: bool = False) -> str:
        """A value as the JSON text that is stored: redacted, then cleaned (see `everyturn.jsonable`)."""
        if self.redact is not None:
            value = self.redact(jsonable.clean_lenient(value) if lenient else jsonable.clean(value))
        return jsonable.dumps_lenient(value) if lenient else jsonable.dumps(value)

    async def migrate(self) -> list[str]:
        """Bring the schema to this version; return the names of the migrations that were applied now."""
        try:
            async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:
                if not migrate.pending(await migrate.applied(conn)):
                    return []
                return await migrate.migrate(conn)
        except psycopg.OperationalError as error:
            raise unreachable(self.url, error) from error

    async def close(self) -> None:
        """Write what is queued and close every connection; the embedded server stops with its last user."""
        loop = asyncio.get_running_loop()
        here = self._loops.pop(loop, None)
        if here is not None:
            await here.close()
        for other in list(self._loops):
            if other.is_closed():
                self._loops.pop(other).abandon()
            else:  # a loop in another thread closes its own
                closing = asyncio.run_coroutine_threadsafe(self._loops.pop(other).close(), other)
                await asyncio.wait({asyncio.wrap_future(closing)}, timeout=10)
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
            self._server = None


class Connecting:
    """What `connect` returns: `async with` it, `with` it, or `await` it."""

    def __init__(self, target: str | os.PathLike[str] | None, options: dict[str, Any]) -> None:
        self._target = target
        self._options = options
        self._database: Database | None = None
        self._portal: Any = None

    async def _open(self) -> Database:
        from .embed import resolve as resolve_embedder

        where = resolve(self._target)
        embedder = self._options["embedder"]
        server: Server | None = None
        if isinstance(where, str):
            url = where
        else:
            from . import embedded

            directory = where if where is not None else embedded.default_directory()
            server = await asyncio.to_thread(embedded.start, Path(directory))
            url = server.url
        database = Database(
            url,
            embedder=resolve_embedder(embedder),
            redact=self._options["redact"],
            session_url=self._options["session_url"] or session_url(),
            server=server,
        )
        logger.info(
            "using database %s",
            without_password(url) if server is None else f"embedded in {where or directory}",
        )
        try:
            await database.migrate()
            await database.vectors.adopt(explicit=embedder is not None)
        except BaseException:
            await database.close()
            raise
        return database

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> Database:
        self._database = await self._open()
        return self._database

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            await self._database.close()

    def __enter__(self) -> Any:
        from .blocking import Portal

        self._portal = Portal()
        try:
            self._database = self._portal.run(self._open())
        except BaseException:
            self._portal.close()
            raise
        return self._portal.face(self._database)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._database is not None:
                self._portal.run(self._database.close())
        finally:
            self._portal.close()


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    embedder: Any = None,
    redact: Callable[[Any], Any] | None = None,
    session_url: str | None = None,
) -> Connecting:
    """Open a database: `async with et.connect() as db`, or `with et.connect() as db` for blocking methods.

    `target` is a Postgres URL, a directory (an embedded server keeps its data there), or None: EVERYTURN_DATABASE,
    else the embedded server in the user's data directory. `embedder` is `"local"`, `"voyage:…"`, `"openai:…"`, a
    function, or None for the local one where it is installed. `session_url` is a second URL, for the one
    connection that needs a session of its own when `target` goes through a transaction pooler.

    Raises DatabaseUnavailable, MigrationError, EmbedderError and InvalidValue when it is entered.
    """
    return Connecting(target, {"embedder": embedder, "redact": redact, "session_url": session_url})
