"""Statements that are sent at once and answered in a callback of the event loop, without a task of their own.

The driver's `execute` takes three turns of the event loop and a tenth of a millisecond of Python. This speaks to the
same libpq connection (`psycopg.pq`) under the connection's lock, one statement at a time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from .connection import Connection

Answer: TypeAlias = "pq.abc.PGresult | psycopg.Error"

_wires = itertools.count(1)
_FINE = frozenset((pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK))


class Wire:
    """The statements sent on one connection. Parameters are text; results come in binary format."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self._loop = asyncio.get_running_loop()
        self._socket = conn.pgconn.socket
        # Statements that a former wire prepared on this connection keep their names.
        self._prefix = f"everyturn {next(_wires)} "
        self._prepared: set[str] = set()
        self._waiting: tuple[str, Sequence[bytes | None]] | None = None
        """What is to be sent once its statement is prepared."""
        self._result: Any = None
        self._done: Callable[[Answer], None] | None = None

    def try_lock(self) -> bool:
        """Take the connection's lock if nobody has it."""
        if self.conn.lock.locked():
            return False
        taking = self.conn.lock.acquire()
        try:
            taking.send(None)
        except StopIteration:
            return True
        taking.close()  # it is free, and promised to somebody who waited for it
        return False

    def send(
        self,
        name: str,
        statement: bytes,
        values: Sequence[bytes | None],
        done: Callable[[Answer], None],
        *,
        prepare: bool,
    ) -> None:
        """Send a statement; `done` is called with its result or its error, once the lock is free again.

        The lock must be held.
        """
        connection = self.conn.pgconn
        self._done, self._result, self._waiting = done, None, None
        self._loop.add_reader(self._socket, self._readable)
        try:
            if not prepare:
                connection.send_query_params(statement, values, result_format=1)
            elif name in self._prepared:
                connection.send_query_prepared((self._prefix + name).encode(), values, result_format=1)
            else:
                self._waiting = (name, values)
                connection.send_prepare((self._prefix + name).encode(), statement)
            self._flush()
        except psycopg.Error as error:
            self._loop.call_soon(self._answer, error)

    def _flush(self) -> None:
        if self.conn.pgconn.flush():
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        try:
            if not self.conn.pgconn.flush():
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._answer(error)

    def _readable(self) -> None:
        connection = self.conn.pgconn
        try:
            connection.consume_input()
            while not connection.is_busy():
                result = connection.get_result()
                if result is None:
                    self._complete()
                    return
                self._result = result
        except psycopg.Error as error:
            self._answer(error)

    def _complete(self) -> None:
        if self._result is None:
            self.conn.pgconn.finish()  # what became of the statement is uncertain
            self._answer(psycopg.OperationalError("the connection ended without an answer"))
        elif self._result.status not in _FINE:
            self._answer(error_from_result(self._result, encoding="utf-8"))
        elif self._waiting is not None:
            (name, values), self._waiting = self._waiting, None
            self._prepared.add(name)
            self._result = None
            self.conn.pgconn.send_query_prepared((self._prefix + name).encode(), values, result_format=1)
            self._flush()
        else:
            self._answer(self._result)

    def _answer(self, answer: Answer) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        # Also when the connection broke: its number is given to the next socket that is opened.
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self.conn.lock.release()
        done(answer)
