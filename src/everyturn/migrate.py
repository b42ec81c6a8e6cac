"""Applies migrations/*.sql: in name order, each in a transaction of its own, under one advisory lock."""

from __future__ import annotations

import hashlib
import logging
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from .database_errors import translate
from .errors import MigrationError

logger = logging.getLogger("everyturn")

LOCK = 0x6576_6572_7974_7572  # "everytur"

# Set for the database, so that the SQL of any client is answered as ours is: a filtered vector search goes on until its
# LIMIT is filled, and looks at enough candidates to find the true neighbours.
DATABASE_SETTINGS: dict[str, str] = {
    "hnsw.iterative_scan": "strict_order",
    "hnsw.ef_search": "400",
    "hnsw.max_scan_tuples": "1000000",
    "hnsw.scan_mem_multiplier": "16",
    "jit": "off",
}

_LEDGER = """
CREATE TABLE IF NOT EXISTS everyturn_migrations (
    name        text PRIMARY KEY,
    checksum    text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
)
"""


def migrations() -> list[tuple[str, str]]:
    """The names and the SQL of all migrations, in the order in which they are applied."""
    folder = files("everyturn") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(name, (folder / name).read_text(encoding="utf-8")) for name in names]


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def applied(conn: AsyncConnection[Any]) -> dict[str, str]:
    """The migrations this database records, by name, with their checksums; empty on a database without any."""
    async with conn.cursor(row_factory=psycopg.rows.tuple_row) as rows:
        # Read from the table of tables: to_regclass() may answer from a cache that is older than the lock just granted.
        await rows.execute(
            "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'everyturn_migrations' AND pg_table_is_visible(oid)"
        )
        if await rows.fetchone() is None:
            return {}
        await rows.execute("SELECT name, checksum FROM everyturn_migrations ORDER BY name")
        return dict(await rows.fetchall())


def pending(done: dict[str, str]) -> list[str]:
    """The names of the migrations that are still to be applied.

    Raises MigrationError when one was edited after it had been applied, or comes from a newer version.
    """
    ours = migrations()
    newer = sorted(set(done) - {name for name, _ in ours})
    if newer:
        raise MigrationError(
            f"This database was brought up to date by a newer everyturn (it has {newer[-1]}). "
            "Upgrade the everyturn package."
        )
    for name, text in ours:
        if name in done and done[name] != _checksum(text):
            raise MigrationError(
                f"Migration {name} of this version differs from the one this database was migrated with. "
                "The database belongs to another build of everyturn: use that build, or move the data with "
                "`everyturn db dump` and `everyturn db restore`."
            )
    return [name for name, _ in ours if name not in done]


async def migrate(conn: AsyncConnection[Any]) -> list[str]:
    """Bring the database to this version; return the names of the migrations that were applied now.

    Safe to call from any number of processes at once, and again after one was killed half way: each migration is a
    transaction. Inside an open transaction each is a savepoint, and all of it is that transaction's.
    """
    now: list[str] = []
    for name, text in migrations():
        try:
            async with conn.transaction():
                # A transaction's lock, not a session's: it holds behind a transaction pooler too.
                await conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                done = await applied(conn)
                if name not in pending(done):
                    continue
                if not done:
                    await conn.execute(_LEDGER)
                    await _create_extension(conn)
                await conn.execute(text)
                await conn.execute(
                    "INSERT INTO everyturn_migrations (name, checksum) VALUES (%s, %s)",
                    (name, _checksum(text)),
                )
                if not now:  # in the first transaction: a process killed later leaves nothing out
                    await apply_database_settings(conn)
                now.append(name)
        except psycopg.errors.InsufficientPrivilege as error:
            raise MigrationError(
                f"This role may not apply migration {name} ({error.diag.message_primary}). "
                "Run `everyturn db migrate` once with a role that owns the database."
            ) from error
        except psycopg.OperationalError as error:
            raise translate(error) from error
        except psycopg.DatabaseError as error:
            raise MigrationError(
                f"Migration {name} failed and was rolled back: {error.diag.message_primary or error}. "
                "`everyturn db doctor` tells what this server lacks."
            ) from error
    return now


async def _create_extension(conn: AsyncConnection[Any]) -> None:
    try:
        await conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported) as error:
        raise MigrationError(
            "This server has no pgvector extension. Install the package (Debian: postgresql-NN-pgvector), or use a "
            "service that offers it; `everyturn db doctor` tells what else is missing."
        ) from error


async def apply_database_settings(conn: AsyncConnection[Any]) -> bool:
    """Set `DATABASE_SETTINGS` for the database, for sessions that start from now on.

    Returns False, and logs what to run, when the role may not: only the database's owner may.
    """
    try:
        async with conn.transaction():
            await conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            # The extension's settings are known only in a session that has loaded it.
            await conn.execute("SELECT '[1]'::vector")
            cursor = conn.cursor(row_factory=psycopg.rows.tuple_row)
            await cursor.execute("SELECT current_database()")
            row = await cursor.fetchone()
            assert row is not None
            for name, value in DATABASE_SETTINGS.items():
                await conn.execute(
                    sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                        sql.Identifier(row[0]), sql.SQL(name), sql.Literal(value)
                    )
                )
    except psycopg.Error as error:
        logger.warning(
            "The search settings could not be set for this database (%s); `everyturn db doctor` says what to run.",
            error.diag.message_primary or error,
        )
        return False
    return True
