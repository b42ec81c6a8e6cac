"""Vectors on rows: which embedder makes them, and the dimension of the columns that hold them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from .connection import Connection
from .database_errors import translate
from .errors import EmbedderError
from .migrate import LOCK
from .names import check_name

if TYPE_CHECKING:
    from .database import Database
    from .embed import Embedder

logger = logging.getLogger("everyturn")

_TABLES = ("agent_turns", "agent_episodic", "agent_semantic", "eval_case")
# What pgvector can index with HNSW as vector.
_MAX_DIMENSIONS = 2000
_LONGEST_WAIT = "5s"


class Vectors:
    """The embedder of a database, and what it makes."""

    def __init__(self, database: Database, embedder: Embedder | None) -> None:
        if embedder is not None:
            check_name(embedder.name, "embedder's name")
        self._database = database
        self.embedder = embedder
        self._column: int | None = None

    @property
    def embedded_by(self) -> str | None:
        """The name that goes beside each vector."""
        return self.embedder.name if self.embedder is not None else None

    async def adopt(self, *, explicit: bool) -> None:
        """Fit the columns to the embedder while no vector is stored.

        When vectors of another dimension are stored, an embedder that was asked for is refused (EmbedderError), and one
        that is only the default is not used.
        """
        if self.embedder is None or self.embedder.dimensions is None:
            return
        try:
            await self._fit(self.embedder.dimensions)
        except EmbedderError as error:
            if explicit:
                raise
            logger.warning("%s Until then rows are found by their words only.", error)
            self.embedder = None

    async def documents(self, texts: Sequence[str | None]) -> list[str | None]:
        """The vectors of these texts as pgvector literals; None for a blank text, and for all while the embedder fails.

        A row without its vector is kept and owed: `everyturn db reembed` pays.
        Raises EmbedderError only for vectors of a size that the columns cannot hold.
        """
        embedder = self.embedder
        wanted = [index for index, text in enumerate(texts) if text and not text.isspace()]
        vectors: list[str | None] = [None] * len(texts)
        if embedder is None or not wanted:
            return vectors
        try:
            made = await embedder.embed([texts[index] or "" for index in wanted], "document")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.warning("The embedder %s failed (%s); the rows are kept without vectors.", embedder.name, error)
            return vectors
        size = next((len(vector) for vector in made if vector is not None), None)
        if size is not None:
            await self._fit(size)
        for index, vector in zip(wanted, made, strict=True):
            vectors[index] = literal(vector) if vector is not None else None
        return vectors

    async def question(self, text: str) -> str | None:
        """The vector of a query as a pgvector literal; None without an embedder, for a blank text, or when it fails."""
        embedder = self.embedder
        if embedder is None or not text or text.isspace():
            return None
        try:
            [vector] = await embedder.embed([text], "query")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.warning("The embedder %s failed (%s); searching by words only.", embedder.name, error)
            return None
        if vector is None:
            return None
        await self._fit(len(vector))
        return literal(vector)

    async def _fit(self, dimensions: int) -> None:
        if self._column == dimensions:
            return
        if dimensions > _MAX_DIMENSIONS:
            raise EmbedderError(
                f"Embedder {self.embedded_by} makes vectors of {dimensions} dimensions; pgvector indexes up to "
                f"{_MAX_DIMENSIONS}. Ask the provider for fewer dimensions, or take another model."
            )
        self._column = await self._fitted(dimensions)
        if self._column != dimensions:
            raise EmbedderError(
                f"Embedder {self.embedded_by} makes vectors of {dimensions} dimensions; this database holds vectors "
                f"of {self._column}. Run `everyturn db reembed` to change over, or connect with the embedder it has."
            )

    async def _fitted(self, dimensions: int) -> int:
        try:
            # A connection of its own: the change is durable at once, whatever transaction surrounds.
            async with self._database.own_connection() as conn:
                column = await _dimension(conn)
                if column == dimensions or await _any_vector(conn):
                    return column
                # What was read above must hold no lock below: eight processes may open an empty database at once.
                async with conn.transaction():
                    return await _fit_columns(conn, dimensions)
        except psycopg.errors.InsufficientPrivilege as error:
            raise EmbedderError(
                f"The vector columns hold another dimension than the {dimensions} of embedder {self.embedded_by}, and "
                "this role may not change them. Connect once as the owner of the tables with this embedder."
            ) from error
        except psycopg.errors.LockNotAvailable as error:
            raise EmbedderError(
                f"The vector columns could not be changed to the {dimensions} dimensions of embedder "
                f"{self.embedded_by}: other transactions use the tables. Try again when they have ended; an embedder "
                "that states its dimensions is fitted when the database is opened."
            ) from error
        except psycopg.Error as error:
            raise translate(error) from error


def literal(vector: Sequence[float]) -> str:
    """A vector as pgvector reads it; nine digits keep every float4 exactly."""
    return "[" + ",".join([format(number, ".9g") for number in vector]) + "]"


async def _fit_columns(conn: Connection, dimensions: int) -> int:
    """Give all vector columns this dimension unless a vector is stored; return the dimension they have then."""
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    column = await _dimension(conn)
    if column == dimensions:
        return column
    await conn.execute("SELECT set_config('lock_timeout', %s, true)", (_LONGEST_WAIT,))
    tables = [sql.Identifier(table) for table in _TABLES]
    # Nobody may store a vector between the look and the change.
    await conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(tables)))
    if await _any_vector(conn):
        return column
    for table in tables:
        await conn.execute(
            sql.SQL("ALTER TABLE {} ALTER COLUMN embedding TYPE vector({}) USING NULL").format(
                table, sql.Literal(dimensions)
            )
        )
    return dimensions


async def _any_vector(conn: Connection) -> bool:
    for table in _TABLES:
        cursor = await conn.execute(
            sql.SQL("SELECT 1 FROM {} WHERE embedding IS NOT NULL LIMIT 1").format(sql.Identifier(table))
        )
        if await cursor.fetchone() is not None:
            return True
    return False


async def _dimension(conn: Connection) -> int:
    cursor = await conn.execute(
        "SELECT atttypmod FROM pg_attribute"
        " WHERE attrelid = 'agent_turns'::regclass AND attname = 'embedding' AND NOT attisdropped"
    )
    row = await cursor.fetchone()
    return int(row["atttypmod"]) if row is not None else 0
