"""A change of embedder, and paying for vectors that are owed.

Vectors of one dimension are replaced row by row. Vectors of another dimension are first made beside the tables, in
`everyturn_reembedding`, and then put in their place in one transaction. Either can be ended at any time, and goes on
from there when it is started again. Vectors of two embedders are never compared: `embedded_by` tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg import sql

from .database_errors import translate
from .errors import EmbedderError
from .vectors import literal

if TYPE_CHECKING:
    from .database import Database
    from .embed import Embedder

TABLES = ("agent_turns", "agent_episodic", "agent_semantic", "eval_case")
_BATCH = 256
_MAX_DIMENSIONS = 2000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one table is."""

    table: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Reembedded:
    """What `reembed` did."""

    embedder: str
    dimensions: int
    vectors: dict[str, int]
    """For each table, how many rows were given a vector."""
    owed: dict[str, int]
    """For each table, how many rows have a text and still no vector of this embedder: it made none of them."""


Report = Callable[[Progress], object]


async def reembed(
    database: Database, embedder: Embedder, *, batch: int = _BATCH, progress: Report | None = None
) -> Reembedded:
    """Give every row with a text a vector of this embedder.

    Open the database without an embedder, and anew when this is done. While the dimension changes, other processes may
    read and write until the vectors are put in their place; what they wrote meanwhile is embedded afterwards. Raises
    EmbedderError when the embedder fails: what was done until then is kept.
    """
    work = _Work(database, embedder, batch, progress or (lambda _: None))
    try:
        dimensions = await work.dimensions()
        if dimensions != await work.stored_dimensions():
            await work.change(dimensions)
        await work.pay()
        owed = await work.owed()
    except psycopg.Error as error:
        raise translate(error) from error
    return Reembedded(embedder.name, dimensions, work.made, owed)


class _Work:
    def __init__(self, database: Database, embedder: Embedder, batch: int, report: Report) -> None:
        self._database = database
        self._embedder = embedder
        self._batch = batch
        self._report = report
        self.made = dict.fromkeys(TABLES, 0)

    async def dimensions(self) -> int:
        """The dimension of the embedder's vectors."""
        size = self._embedder.dimensions
        if size is None:
            [vector] = await self._embedder.embed(["How long is a vector?"])
            size = len(vector or ())
        if not 1 <= size <= _MAX_DIMENSIONS:
            raise EmbedderError(
                f"Embedder {self._embedder.name} makes vectors of {size} dimensions; pgvector indexes up to "
                f"{_MAX_DIMENSIONS}. Ask the provider for fewer dimensions, or take another model."
            )
        return size

    async def stored_dimensions(self) -> int:
        """The dimension of the tables' columns."""
        [row] = await self._database.fetch(
            "SELECT atttypmod FROM pg_attribute WHERE attrelid = 'agent_turns'::regclass AND attname = 'embedding'"
        )
        return int(row["atttypmod"])

    async def owed(self) -> dict[str, int]:
        [row] = await self._database.query("reembed_owed_count", embedder=self._embedder.name)
        return {table: row[table] for table in TABLES}

    async def pay(self) -> None:
        """Give rows their vectors where they are."""
        totals = await self.owed()
        done = dict.fromkeys(TABLES, 0)
        for table in TABLES:
            if table == "agent_episodic":
                await self._copy(done, totals)
            after: UUID | None = None
            while True:
                rows = await self._database.query(
                    "reembed_owed", relation=table, embedder=self._embedder.name, after=after, page=self._batch
                )
                if not rows:
                    break
                after = rows[-1]["id"]
                vectors = await self._embedder.embed([row["text"] for row in rows])
                pairs = [(row["id"], literal(vector)) for row, vector in zip(rows, vectors, strict=True) if vector]
                if pairs:
                    await self._database.query(
                        "reembed_store",
                        relation=table,
                        embedder=self._embedder.name,
                        ids=[id for id, _ in pairs],
                        vectors=[vector for _, vector in pairs],
                    )
                self.made[table] += len(pairs)
                done[table] += len(rows)
                self._report(Progress(table, done[table], totals[table]))

    async def _copy(self, done: dict[str, int], totals: dict[str, int]) -> None:
        """Memories have the text of their turn: what was embedded once is not embedded again."""
        while True:
            [copied] = await self._database.query("reembed_copy", embedder=self._embedder.name, page=self._batch)
            if not any(copied.values()):
                return
            for table, count in copied.items():
                self.made[table] += count
                done[table] += count
                if count:
                    self._report(Progress(table, done[table], totals[table]))

    async def change(self, dimensions: int) -> None:
        """Make all vectors anew beside the tables, then put them in their place."""
        await self._beside()
        totals = await self.owed()
        for table in TABLES:
            await self._fill(table, totals[table])
        await self._swap(dimensions)

    async def _beside(self) -> None:
        """Make the table beside, or go on with the one that an earlier change to the same embedder left."""
        name = self._embedder.name
        [found] = await self._database.fetch(
            "SELECT obj_description(to_regclass('everyturn_reembedding'), 'pg_class') AS embedder"
        )
        async with self._database.transaction() as conn:
            if found["embedder"] != name:
                await conn.execute("DROP TABLE IF EXISTS everyturn_reembedding")
            await conn.execute(
                "CREATE TABLE IF NOT EXISTS everyturn_reembedding"
                " (relation text, id uuid, embedding vector, PRIMARY KEY (relation, id))"
            )
            await conn.execute(sql.SQL("COMMENT ON TABLE everyturn_reembedding IS {}").format(sql.Literal(name)))

    async def _fill(self, table: str, total: int) -> None:
        [row] = await self._database.fetch(
            "SELECT count(*) AS done FROM everyturn_reembedding WHERE relation = %s", (table,)
        )
        done = row["done"]
        after: UUID | None = None
        while True:
            rows = await self._database.query(
                "reembed_owed", relation=table, embedder=self._embedder.name, after=after, page=self._batch
            )
            if not rows:
                return
            after = rows[-1]["id"]
            known = await self._database.fetch(
                "SELECT id FROM everyturn_reembedding WHERE relation = %s AND id = ANY (%s)",
                (table, [row["id"] for row in rows]),
            )
            have = {row["id"] for row in known}
            rows = [row for row in rows if row["id"] not in have]
            if not rows:
                continue
            done += len(rows)
            rows = await self._from_turns(table, rows)
            vectors = await self._embedder.embed([row["text"] for row in rows]) if rows else []
            await self._database.execute(
                "INSERT INTO everyturn_reembedding (relation, id, embedding)"
                " SELECT %s, u.id, u.vector::vector FROM unnest(%s::uuid[], %s::text[]) AS u (id, vector)"
                " ON CONFLICT DO NOTHING",
                (table, [row["id"] for row in rows], [literal(vector) if vector else None for vector in vectors]),
            )
            self._report(Progress(table, min(done, total), total))

    async def _from_turns(self, table: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take over the vectors of turns with the same text; return the rows that are left."""
        if table not in ("agent_episodic", "agent_semantic"):
            return rows
        taken = await self._database.fetch(
            "INSERT INTO everyturn_reembedding (relation, id, embedding)"
            " SELECT %(table)s, m.id, b.embedding"
            "   FROM (SELECT id, text, source_turn FROM agent_episodic WHERE id = ANY (%(ids)s::uuid[])"
            "         UNION ALL SELECT id, text, source_turn FROM agent_semantic WHERE id = ANY (%(ids)s::uuid[])) AS m"
            "   JOIN agent_turns t ON t.id = m.source_turn AND t.payload ->> 'text' = m.text"
            "   JOIN everyturn_reembedding b ON b.relation = 'agent_turns' AND b.id = t.id"
            " ON CONFLICT DO NOTHING RETURNING id",
            {"table": table, "ids": [row["id"] for row in rows]},
        )
        have = {row["id"] for row in taken}
        return [row for row in rows if row["id"] not in have]

    async def _swap(self, dimensions: int) -> None:
        tables = [sql.Identifier(table) for table in TABLES]
        async with self._database.transaction() as conn:
            # The vector indexes are built anew: they should fit into memory while they are.
            await conn.execute("SET LOCAL maintenance_work_mem = '512MB'")
            await conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(tables)))
            await conn.execute(
                "CREATE OR REPLACE FUNCTION everyturn_reembedded(text, uuid) RETURNS vector LANGUAGE sql STABLE"
                " AS 'SELECT embedding FROM everyturn_reembedding WHERE relation = $1 AND id = $2'"
            )
            for table, identifier in zip(TABLES, tables, strict=True):
                await conn.execute(
                    sql.SQL(
                        "ALTER TABLE {table}"
                        " ALTER COLUMN embedding TYPE vector({size}) USING everyturn_reembedded({name}, id),"
                        " ALTER COLUMN embedded_by TYPE text"
                        " USING CASE WHEN everyturn_reembedded({name}, id) IS NOT NULL THEN {embedder} END"
                    ).format(
                        table=identifier,
                        size=sql.Literal(dimensions),
                        name=sql.Literal(table),
                        embedder=sql.Literal(self._embedder.name),
                    )
                )
            await conn.execute("DROP FUNCTION everyturn_reembedded")
            counted = await conn.execute(
                "SELECT relation, count(embedding) AS n FROM everyturn_reembedding GROUP BY relation"
            )
            for row in await counted.fetchall():
                self.made[row["relation"]] += row["n"]
            await conn.execute("DROP TABLE everyturn_reembedding")
