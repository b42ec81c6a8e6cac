"""The database: `connect`, its transactions, and the managers of its tables.

Connections are kept per event loop, so that one `Database` serves `asyncio.run` again and again, and threads with
loops of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from . import jsonable, migrate, transactions
from .connecting import Connecting
from .connection import Connection, Opener, Preparing, unreachable, without_password
from .database_errors import translate
from .errors import DatabaseUnavailable
from .managers import Managers
from .redaction import Redact, Redaction
from .resources import Resources
from .session import Session
from .statements import Statements
from .target import check_conninfo, resolve
from .target import session_url as session_url_given
from .writer import Writer

if TYPE_CHECKING:
    from .embed import Embedder
    from .embedded import Server

logger = logging.getLogger("everyturn")


class Database(Managers, Statements):
    """One Postgres database that holds the contract. Made by `connect`."""

    __blocking_face__ = True

    def __init__(
        self,
        url: str,
        *,
        embedder: Embedder | None = None,
        redact: Redact = None,
        session_url: str | None = None,
        server: Server | None = None,
    ) -> None:
        from .vectors import Vectors

        self.url = url
        """The connection string, as psql takes it."""
        self.redact: Callable[[Any], Any] | None = Redaction.of(redact)
        """What masks secrets in everything that is stored; None where that was switched off."""
        self.vectors = Vectors(self, embedder)
        self._session_url = session_url
        self._server = server
        self._preparing = Preparing()
        self._process = os.getpid()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Resources] = weakref.WeakKeyDictionary()
        self._inherited: list[Resources] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<everyturn.Database {without_password(self.url)}>"

    @property
    def embedder(self) -> Embedder | None:
        """What makes the vectors; None when there is none, and rows are then found by their words only."""
        return self.vectors.embedder

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def _here(self) -> Resources:
        if self._closed:
            raise DatabaseUnavailable("This database was closed; open it again with et.connect().")
        if self._process != os.getpid():
            # After a fork these sockets are the parent's: neither used nor closed here.
            self._inherited += self._loops.values()
            self._loops.clear()
            self._process = os.getpid()
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            for other in [other for other in self._loops if other.is_closed()]:
                self._loops.pop(other).abandon()
            here = self._loops[loop] = Resources(self.url, self._session_url, self._preparing, self._revive)
        return here

    @property
    def _revive(self) -> Callable[[], None] | None:
        return self._server.ensure_running if self._server is not None else None

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
        current = transactions.current(self)
        return current.conn if current is not None else None

    @contextlib.asynccontextmanager
    async def own_connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, whatever transaction surrounds it. Raises DatabaseUnavailable."""
        async with self._here().connection() as conn:
            yield conn

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, or that of the surrounding transaction. Raises DatabaseUnavailable."""
        ambient = self.ambient
        if ambient is not None:
            yield ambient
            return
        async with self.own_connection() as conn:
            yield conn

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction: appends and fetches of this task inside it are committed together, or not at all.

        Tasks started inside are in it too. Inside another one it is a savepoint. Runs of agents never join it: their
        turns are durable one by one. Raises DatabaseUnavailable when the connection is lost.
        """
        outer = transactions.current(self)
        async with contextlib.AsyncExitStack() as stack:
            if outer is None:
                conn = await stack.enter_async_context(self._here().transaction())
            else:
                await stack.enter_async_context(outer.nesting)
                conn = outer.conn
                await stack.enter_async_context(conn.transaction())
            with transactions.entered(self, conn):
                yield conn

    def encode(self, value: Any, *, lenient: bool = False) -> str:
        """A value as the JSON text that is stored: redacted, then cleaned (see `everyturn.jsonable`)."""
        redact = self.redact
        if redact is not None and not isinstance(redact, Redaction):
            value = redact(jsonable.clean_lenient(value) if lenient else jsonable.clean(value))
        text = jsonable.dumps_lenient(value) if lenient else jsonable.dumps(value)
        return redact.text(text) if isinstance(redact, Redaction) else text

    async def migrate(self) -> list[str]:
        """Bring the schema to this version; return the names of the migrations that were applied now.

        Raises MigrationError, and DatabaseUnavailable.
        """
        try:
            # Never prepared: what is planned here may be gone a migration later, or behind a pooler.
            conn = await Opener(self.url, self._revive).open(prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise unreachable(self.url, error) from error
        async with conn:
            try:
                if not migrate.pending(await migrate.applied(conn)):
                    return []
                return await migrate.migrate(conn)
            except psycopg.Error as error:
                raise translate(error) from error

    async def close(self) -> None:
        """Write what is queued and close every connection; the embedded server stops with its last user."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        try:
            if self._process == os.getpid():
                for other in [other for other in self._loops if other is not loop]:
                    await self._loops.pop(other).close_from_elsewhere(other)
                here = self._loops.pop(loop, None)
                if here is not None:
                    await here.close()
        finally:
            if self._server is not None:
                await asyncio.to_thread(self._server.close)


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    embedder: Any = None,
    redact: Redact = None,
    session_url: str | None = None,
) -> Connecting[Database]:
    """Open a database: `async with et.connect() as db`, or `with et.connect() as db` for blocking methods.

    `target` is a Postgres URL, a directory (an embedded server keeps its data there), or None: EVERYTURN_DATABASE,
    else the embedded server in the user's data directory. `embedder` is `"local"`, `"voyage:…"`, `"openai:…"`, a
    function, or None for the local one where it is installed. `redact` adds rules to those that mask known credentials:
    a field path, a compiled regular expression, a function, or several; False stores everything as it is.
    `session_url` is a second URL, for the one connection that needs a session of its own when `target` goes through a
    transaction pooler.

    Raises DatabaseUnavailable, MigrationError, EmbedderError and InvalidValue when it is entered.
    """
    return Connecting(lambda: _open(target, embedder, redact, session_url))


async def _open(
    target: str | os.PathLike[str] | None,
    embedder: Any,
    redact: Redact,
    session_url: str | None,
) -> Database:
    from .embed import resolve as resolve_embedder

    # All that may be refused comes before a server is started.
    where = resolve(target)
    session_url = check_conninfo(session_url) if session_url else session_url_given()
    made = resolve_embedder(embedder)
    server: Server | None = None
    if isinstance(where, str):
        url = where
        logger.info("using database %s", without_password(url))
    else:
        from . import embedded

        directory = Path(where) if where is not None else embedded.default_directory()
        server = await asyncio.to_thread(embedded.start, directory)
        url = server.url
        logger.info("using database embedded in %s", directory)
    database = Database(url, embedder=made, redact=redact, session_url=session_url, server=server)
    try:
        await database.migrate()
        await database.vectors.adopt(explicit=embedder is not None)
    except BaseException:
        await database.close()
        raise
    return database
