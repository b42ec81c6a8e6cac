"""`forget`: rows and vectors are removed, the removal is logged, and on demand the log loses the text as well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.errors import InvalidValue
from everyturn.ids import uuid7

from .erasing import erase
from .values import Forgotten, Kind
from .writing import Binding, once

if TYPE_CHECKING:
    from everyturn.database import Database

_BATCH = 2000
_ERASING_BATCH = 100


def older(since: datetime | None, until: datetime | None, older_than: Any) -> datetime | None:
    """The upper bound in time that `until` and `older_than` make together."""
    if older_than is None:
        return until
    if not isinstance(older_than, timedelta):
        raise InvalidValue(f"older_than must be a timedelta, not {older_than!r}.")
    bound = datetime.now(UTC) - older_than
    return bound if until is None else min(until, bound)


async def forget(
    database: Database,
    binding: Binding,
    kind: Kind,
    filters: dict[str, Any],
    *,
    from_log: bool,
    progress: Callable[[int], object] | None,
) -> Forgotten:
    """Remove all that the filters leave, batch by batch; each batch is one transaction and one turn."""
    gone: list[UUID] = []
    redacted = 0
    size = _ERASING_BATCH if from_log else _BATCH
    after: UUID | None = None
    while True:
        async with database.transaction() if from_log else contextlib.nullcontext():
            rows = await _batch(database, binding, kind, filters, after, size)
            if from_log and rows:
                redacted += await erase(database, rows, filters.get("scope"))
        gone += [row["id"] for row in rows]
        if progress is not None and rows:
            progress(len(gone))
        if len(rows) < size:
            break
        after = rows[-1]["id"]
    if from_log and filters.get("ids"):
        # Those that were forgotten before, and whose text the log still holds.
        earlier = [id for id in filters["ids"] if id not in set(gone)]
        async with database.transaction():
            told = await _told(database, earlier, filters.get("scope"))
            redacted += await erase(database, told, filters.get("scope"))
    return Forgotten(len(gone), gone, redacted)


async def _batch(
    database: Database, binding: Binding, kind: Kind, filters: dict[str, Any], after: UUID | None, size: int
) -> list[dict[str, Any]]:
    turn = uuid7()
    agent = filters.get("agent")
    params = (
        {"expired": False}
        | filters
        | {
            "after": after,
            "batch": size,
            "turn": turn,
            "conversation": binding.log(agent),
            "writer": binding.writer(agent),
            "run_id": binding.run_id,
        }
    )
    rows = await once(database, f"memory_forget_{kind}", params, turn)
    if not rows:  # nothing matched, or the answer was lost with its connection
        listed = await database.fetch("SELECT payload -> 'ids' AS ids FROM agent_turns WHERE id = %s", (turn,))
        rows = [{"id": UUID(id), "content": None} for row in listed for id in row["ids"]]
    return rows


async def _told(database: Database, ids: list[UUID], scope: str | None) -> list[dict[str, Any]]:
    return await database.fetch(
        "SELECT (payload ->> 'id')::uuid AS id, coalesce(payload -> 'text', payload -> 'value') AS content"
        "  FROM agent_turns"
        " WHERE payload ->> 'toolName' IN ('memory.remember', 'memory.supersede')"
        "   AND payload ->> 'id' = ANY (%(ids)s)"
        "   AND (%(scope)s::text IS NULL OR payload ->> 'scope' = %(scope)s)",
        {"ids": [str(id) for id in ids], "scope": scope},
    )
