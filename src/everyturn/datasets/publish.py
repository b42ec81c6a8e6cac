"""Datasets: cases frozen under a name and a version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload
from uuid import UUID

import psycopg

from everyturn import jsonable
from everyturn.database_errors import translate
from everyturn.errors import DatasetNotFound, InvalidValue, NotEnoughData
from everyturn.ids import uuid7
from everyturn.names import as_uuid

from .cases import filters
from .values import SUPERSEDED, Case, Dataset, DatasetRef, aware, case_of, dataset_name

if TYPE_CHECKING:
    import builtins
    import os
    from pathlib import Path

    from everyturn.database import Database

    from .compare import Diff
    from .gate import GateResult
    from .plan import Estimate
    from .replay import ReplayResult
    from .report import Line

_NEAREST = 50


async def _where(db: Database, condition: str) -> list[UUID]:
    """The cases for which a condition in the user's own SQL holds; it may not write."""
    try:
        async with db.transaction():
            await db.fetch("SET TRANSACTION READ ONLY")
            rows = await db.fetch(f"SELECT c.id FROM eval_case c WHERE (\n{condition}\n)")  # noqa: S608 - it is SQL
    except psycopg.Error as error:
        said = (error.diag.message_primary or str(error)).strip()
        raise InvalidValue(
            f"The condition {condition!r} is not one on the columns of eval_case (as c): {said}."
        ) from None
    return [row["id"] for row in rows]


async def _vector(db: Database, similar_to: UUID | str | None) -> tuple[str | None, str | None]:
    if similar_to is None:
        return None, None
    try:
        rows = await db.fetch(
            "SELECT embedding::text AS vector, embedded_by FROM eval_case WHERE id = %s", (UUID(str(similar_to)),)
        )
        vector = rows[0]["vector"] if rows else None
        name = rows[0]["embedded_by"] if rows else None
    except ValueError:
        vector, name = await db.vectors.question(str(similar_to)), db.vectors.embedded_by
    if vector is None:
        raise InvalidValue(
            f"There is no vector for {str(similar_to)[:80]!r} to compare cases with. Give the id of a case that has "
            "one, or a text and an embedder (pip install 'everyturn[local]')."
        )
    return vector, name


class Datasets:
    """`db.datasets`."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(
        self,
        name: str,
        *,
        case_ids: Iterable[UUID | str] | None = None,
        tags: Iterable[str] | None = None,
        any_tags: Iterable[str] | None = None,
        not_tags: Iterable[str] | None = None,
        include_superseded: bool = False,
        source: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        where_sql: str | None = None,
        similar_to: UUID | str | None = None,
        limit: int | None = None,
        notes: str | None = None,
    ) -> Dataset:
        """Freeze the cases that match, in the order of their capture, as the next version of `name`.

        Superseded cases are left out unless they are asked for. `where_sql` is a condition on `eval_case c`;
        `similar_to` (a case's id or a text) with `limit` (50) picks the nearest; `limit` alone picks the newest.
        Where a version holds exactly these cases already, that one is returned (`created` is False). Raises
        NotEnoughData when nothing matches.
        """
        db = self._database
        chosen = dataset_name(name)
        if limit is not None and limit < 1:
            raise InvalidValue(f"limit={limit} asks for no cases; give a number from 1 up.")
        among = None if case_ids is None else [as_uuid(id, "case id") for id in case_ids]
        if where_sql is not None:
            matching = await _where(db, where_sql)
            among = matching if among is None else sorted(set(among) & set(matching))
        vector, embedded_by = await _vector(db, similar_to)
        excluded = list(not_tags or ()) + ([] if include_superseded else [SUPERSEDED])
        try:
            async with db.transaction():
                await db.fetch(
                    "SELECT pg_advisory_xact_lock(hashtextextended('everyturn dataset ' || %s, 0))", (chosen,)
                )
                # A statement of its own: it sees what was committed before the lock was granted.
                rows = await db.query(
                    "publish_dataset",
                    id=uuid7(),
                    name=chosen,
                    notes=None if notes is None else str(jsonable.loads(db.encode(notes, lenient=True))),
                    among=None if among is None else "{" + ",".join(map(str, among)) + "}",
                    **filters(tags, any_tags, excluded),
                    source=source,
                    since=aware(since),
                    until=aware(until),
                    vector=vector,
                    embedded_by=embedded_by,
                    limit=limit if limit is not None or vector is None else _NEAREST,
                )
                if not rows:
                    raise NotEnoughData(
                        f"No case matches, so there is nothing to publish as {chosen}. "
                        "`everyturn case list` shows the cases."
                    )
                row = rows[0]
                [hashed] = await db.fetch("SELECT everyturn_dataset_hash(%s::uuid[]) AS hash", (row["case_ids"],))
        except psycopg.Error as error:
            raise translate(error) from error
        return Dataset(**row, hash=hashed["hash"])

    async def get(self, dataset: DatasetRef | Dataset | str) -> Dataset:
        """A dataset by `NAME@VERSION`; without a version, the newest. Raises DatasetNotFound."""
        ref = DatasetRef.parse(dataset)
        rows = await self._database.query("dataset", name=ref.name, version=ref.version)
        if not rows:
            raise DatasetNotFound(f"There is no dataset {ref}. `everyturn dataset list` shows those there are.")
        return Dataset(**rows[0])

    async def cases(self, dataset: DatasetRef | Dataset | str) -> list[Case]:
        """The cases of a dataset, in its order. Raises DatasetNotFound."""
        found = await self.get(dataset)
        rows = await self._database.query("cases_of_dataset", dataset_id=found.id)
        return [case_of(row) for row in rows]

    async def coverage(self, dataset: DatasetRef | Dataset | str) -> list[dict[str, Any]]:
        """How many cases of a dataset have each tag. Raises DatasetNotFound."""
        found = await self.get(dataset)
        return await self._database.query("coverage", name=found.name, version=found.version)

    async def uncovered(
        self,
        dataset: DatasetRef | Dataset | str,
        since: datetime,
        *,
        agent: str | None = None,
        below: float = 0.75,
        limit: int = 500,
    ) -> list[dict[str, Any]]:
        """The real prompts since then that no case of a dataset is near, the least covered first.

        Compared are the vectors of the newest `limit` user turns; a prompt is covered by a case of similarity `below`
        or more. Raises DatasetNotFound.
        """
        found = await self.get(dataset)
        return await self._database.query(
            "uncovered_prompts",
            name=found.name,
            version=found.version,
            since=aware(since),
            agent=agent,
            below=below,
            limit=limit,
        )

    @overload
    async def replay(
        self, dataset: DatasetRef | Dataset | str, *, dry_run: Literal[True], **options: Any
    ) -> Estimate: ...
    @overload
    async def replay(
        self, dataset: DatasetRef | Dataset | str, *, dry_run: Literal[False] = False, **options: Any
    ) -> ReplayResult: ...
    async def replay(
        self, dataset: DatasetRef | Dataset | str, *, dry_run: bool = False, **options: Any
    ) -> ReplayResult | Estimate:
        """Put a dataset's cases to a model and score its answers; see `everyturn.datasets.replay.replay`."""
        from .replay import replay

        return await replay(self._database, await self.get(dataset), dry_run=dry_run, **options)

    async def resume(self, replay_id: UUID | str, **options: Any) -> ReplayResult:
        """Finish exactly what is missing of a replay; see `everyturn.datasets.replay.resume`."""
        from .replay import resume

        return await resume(self._database, as_uuid(replay_id, "replay id"), **options)

    async def report(self, dataset: DatasetRef | Dataset | str, **options: Any) -> builtins.list[Line]:
        """How each model and prompt does on a dataset; see `everyturn.datasets.report.report`."""
        from .report import report

        return await report(self._database, await self.get(dataset), **options)

    async def diff(self, dataset: DatasetRef | Dataset | str, **options: Any) -> Diff:
        """What changed between two models or prompts; see `everyturn.datasets.compare.diff`."""
        from .compare import diff

        return await diff(self._database, await self.get(dataset), **options)

    async def gate(self, dataset: DatasetRef | Dataset | str, **options: Any) -> GateResult:
        """Whether a candidate may be released; see `everyturn.datasets.gate.gate`."""
        from .gate import gate

        return await gate(self._database, await self.get(dataset), **options)

    async def export(self, dataset: DatasetRef | Dataset | str, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a dataset as a self-contained bundle; see `everyturn.datasets.exporting.export_dataset`."""
        from .exporting import export_dataset

        return await export_dataset(self._database, await self.get(dataset), path)

    async def list(self, name: str | None = None, *, limit: int | None = None) -> list[dict[str, Any]]:
        """The datasets, newest first: id, name, version, cases, published_at, notes, replayed_at."""
        return await self._database.query("datasets_published", dataset=name, limit=limit)


def summary(dataset: Dataset) -> Mapping[str, Any]:
    """What a list says of a dataset."""
    return {
        "name": dataset.name,
        "version": dataset.version,
        "id": dataset.id,
        "cases": len(dataset.case_ids),
        "hash": dataset.hash,
        "published_at": dataset.published_at,
        "notes": dataset.notes,
    }
