"""What Postgres says, as everyturn's own errors. Told apart by SQLSTATE, never by constraint names."""

from __future__ import annotations

import psycopg

from .errors import DatabaseUnavailable, EveryturnError, InvalidValue, MigrationError

# Shutdown, crash, not yet up, idle for too long, in a session or a transaction.
_GOING_AWAY = frozenset(("57P01", "57P02", "57P03", "57P05", "25P03"))


def connection_lost(error: psycopg.Error, conn: psycopg.AsyncConnection[object] | None) -> bool:
    """Whether this error means that the connection is gone, not that the statement was refused."""
    state = error.sqlstate
    if state is None:
        return conn is None or conn.closed or isinstance(error, psycopg.InterfaceError)
    return state in _GOING_AWAY or state.startswith("08")


def turned_away(error: psycopg.Error) -> bool:
    """Whether the server said that it ends the connection; the statement it says this of has had no effect."""
    return error.sqlstate in _GOING_AWAY


def translate(error: psycopg.Error) -> EveryturnError:
    """The everyturn error for a refused statement, with the original as its cause."""
    state = error.sqlstate or ""
    said = (error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__).rstrip(".")
    translated: EveryturnError
    if state == "53100":
        translated = DatabaseUnavailable(
            f"The database's disk is full ({said}). Nothing of this write was stored; free space and write again."
        )
    elif state == "25006":
        translated = DatabaseUnavailable(f"The database takes no writes ({said}). Connect to the primary server.")
    elif isinstance(error, psycopg.DataError) or state[:2] in ("22", "23", "54"):
        translated = InvalidValue(f"Postgres refused the row: {said}. Nothing of it was stored.")
    elif state == "" or state[:2] in ("08", "53", "57", "58", "XX"):
        translated = DatabaseUnavailable(f"The database could not do this: {said}.")
    elif state == "42501":
        translated = EveryturnError(f"The database's role may not do this: {said}. Grant it the right, or use another.")
    elif state in ("42P01", "42703", "42883", "3F000"):
        translated = MigrationError(f"The database lacks a part of the contract: {said}. Run `everyturn db migrate`.")
    else:
        translated = EveryturnError(f"Postgres refused the statement ({state}): {said}.")
    translated.__cause__ = error
    return translated
