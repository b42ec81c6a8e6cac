"""Vectors on rows: which embedder makes them, and the dimension of the columns that hold them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from .errors import EmbedderError

if TYPE_CHECKING:
    from .database import Database
    from .embed import Embedder

logger = logging.getLogger("everyturn")

_TABLES = ("agent_turns", "agent_episodic", "agent_semantic", "eval_case")
# What pgvector can index with HNSW as vector.
_MAX_DIMENSIONS = 2000


class Vectors:
    """The embedder of a database, and what it makes."""

    def __init__(self, database: Database, embedder: Embedder | None) -> None:
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
        try:
            async with await psycopg.AsyncConnection.connect(self._database.url) as conn:
                self._column = await _fit_columns(conn, dimensions)
        except psycopg.errors.InsufficientPrivilege as error:
            raise EmbedderError(
                f"The vector columns hold another dimension than the {dimensions} of embedder {self.embedded_by}, and "
                "this role may not change them. Connect once as the owner of the tables with this embedder."
            ) from error
        if self._column != dimensions:
            raise EmbedderError(
                f"Embedder {self.embedded_by} makes vectors of {dimensions} dimensions; this database holds vectors "
                f"of {self._column}. Run `everyturn db reembed` to change over, or connect with the embedder it has."
            )


def literal(vector: Sequence[float]) -> str:
    """A vector as pgvector reads it; nine digits keep every float4 exactly."""
    return "[" + ",".join([format(number, ".9g") for number in vector]) + "]"


async def _fit_columns(conn: psycopg.AsyncConnection[Any], dimensions: int) -> int:
    """Give all vector columns this dimension unless a vector is stored; return the dimension they have then."""
    column = await _dimension(conn)
    if column == dimensions:
        return column
    # The lock of the migrations: eight processes may open an empty database at once.
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", (0x6576_6572_7974_7572,))
    column = await _dimension(conn)
    if column == dimensions:
        return column
    tables = [table for table in _TABLES if await _has_column(conn, table)]
    for table in tables:
        stored = await conn.execute(
            psycopg.sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE embedding IS NOT NULL)").format(
                psycopg.sql.Identifier(table)
            )
        )
        row = await stored.fetchone()
        if row is not None and row[0]:
            return column
    for table in tables:
        await conn.execute(
            psycopg.sql.SQL("ALTER TABLE {} ALTER COLUMN embedding TYPE vector({}) USING NULL").format(
                psycopg.sql.Identifier(table), psycopg.sql.Literal(dimensions)
            )
        )
    return dimensions


async def _dimension(conn: psycopg.AsyncConnection[Any]) -> int:
    cursor = await conn.execute(
        "SELECT atttypmod FROM pg_attribute"
        " WHERE attrelid = 'agent_turns'::regclass AND attname = 'embedding' AND NOT attisdropped"
    )
    row = await cursor.fetchone()
    return int(row[0]) if row is not None else 0


async def _has_column(conn: psycopg.AsyncConnection[Any], table: str) -> bool:
    cursor = await conn.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'embedding')",
        (table,),
    )
    row = await cursor.fetchone()
    return bool(row is not None and row[0])
