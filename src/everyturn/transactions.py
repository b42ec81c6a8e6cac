"""The transaction a task is in: a context variable, so that the tasks it starts are in it too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from .connection import Connection


class Transaction:
    """An open `db.transaction()`: the appends and fetches of its task go through its connection."""

    def __init__(self, database: object, conn: Connection, parent: Transaction | None) -> None:
        self.database = database
        self.conn = conn
        self.parent = parent
        self.open = True
        self.nesting = asyncio.Lock()
        """Held by the savepoint inside: two of them would close in the wrong order."""


_current: ContextVar[Transaction | None] = ContextVar("everyturn_transaction", default=None)


def current(database: object) -> Transaction | None:
    """The innermost open transaction of this database that the running task is in."""
    transaction = _current.get()
    while transaction is not None and not (transaction.open and transaction.database is database):
        transaction = transaction.parent
    return transaction


@contextlib.contextmanager
def entered(database: object, conn: Connection) -> Iterator[None]:
    """Be in a transaction, on this connection."""
    transaction = Transaction(database, conn, _current.get())
    token = _current.set(transaction)
    try:
        yield
    finally:
        transaction.open = False
        # A fixture, or a generator that was not run to its end, ends in another context; closed is closed there too.
        with contextlib.suppress(ValueError):
            _current.reset(token)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Be in no transaction, whatever surrounds."""
    token = _current.set(None)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            _current.reset(token)
