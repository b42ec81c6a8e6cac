"""`remember`: one memory or many, and what happens to near-duplicates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everyturn.errors import InvalidValue

from .superseding import replace_fact
from .values import Kind, Remembered
from .writing import ON_DUPLICATE, Binding, Draft, draft, write

if TYPE_CHECKING:
    from everyturn.database import Database

_BATCH_ROWS = 500
_BATCH_CHARACTERS = 8_000_000


async def remember(
    database: Database,
    binding: Binding,
    kind: Kind,
    *,
    on_duplicate: str,
    threshold: float,
    **fields: Any,
) -> Remembered:
    check_duplicates(kind, on_duplicate, threshold)
    made = draft(database, binding, kind, **fields)
    if kind == "procedural":
        [done] = await write(database, binding, kind, [made])
        return done
    await embed(database, [made])
    if on_duplicate == "keep":
        if database.ambient is None:
            # Two connections at once: it is only for the report.
            near, [done] = await asyncio.gather(
                nearest(database, made, threshold), write(database, binding, kind, [made])
            )
        else:
            near = await nearest(database, made, threshold)
            [done] = await write(database, binding, kind, [made])
        return replace(done, nearest=near[0], similarity=near[1]) if near else done
    async with database.transaction():
        return await unless_known(database, binding, made, on_duplicate, threshold)


async def remember_many(
    database: Database,
    binding: Binding,
    kind: Kind,
    items: Iterable[Mapping[str, Any]],
    *,
    on_duplicate: str,
    threshold: float,
) -> list[Remembered]:
    check_duplicates(kind, on_duplicate, threshold)
    drafts = []
    for place, item in enumerate(items):
        try:
            drafts.append(draft(database, binding, kind, **item))
        except TypeError as error:
            raise InvalidValue(
                f"Item {place} cannot be remembered: {error}. Items are remember()'s arguments."
            ) from None
        except InvalidValue as error:
            raise InvalidValue(f"Item {place} cannot be remembered, and nothing was: {error}") from None
    if not drafts:
        return []
    if kind != "procedural":
        await embed(database, drafts)
    async with database.transaction():
        if on_duplicate != "keep":
            return [await unless_known(database, binding, d, on_duplicate, threshold) for d in drafts]
        done: list[Remembered] = []
        for batch in _batches(kind, drafts):
            done += await write(database, binding, kind, batch)
        return done


async def embed(database: Database, drafts: Sequence[Draft]) -> None:
    """Give each draft the vector of its text, in one call of the embedder."""
    for made, vector in zip(drafts, await database.vectors.documents([d.text for d in drafts]), strict=True):
        made.vector = vector


async def nearest(database: Database, made: Draft, threshold: float) -> tuple[Any, float] | None:
    """The nearest memory of the same scope, agent and subjects, if it is near enough."""
    if made.text is None or not made.text.strip():
        return None
    rows = await database.query(
        f"memory_nearest_{made.kind}",
        id=made.id,
        scope=made.scope,
        agent=made.agent,
        subjects=made.subjects,
        text=made.text,
        vector=made.vector,
        embedded_by=database.vectors.embedded_by,
        threshold=threshold,
    )
    return (rows[0]["id"], rows[0]["similarity"]) if rows else None


async def unless_known(
    database: Database, binding: Binding, made: Draft, on_duplicate: str, threshold: float
) -> Remembered:
    """Write a memory, inside a transaction, unless one near enough stands for it or is to be replaced by it."""
    # One at a time in a scope: of two writers of the same fact, the second finds the first's.
    await database.fetch(
        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
        (f"everyturn memory {made.kind}\n{made.scope}\n{made.agent}",),
    )
    near = await nearest(database, made, threshold)
    if near is None:
        [done] = await write(database, binding, made.kind, [made])
        return done
    id, similarity = near
    if on_duplicate == "skip":
        return Remembered(id, id, similarity, "skipped")
    new = await replace_fact(database, binding, id, made)
    return Remembered(new, id, similarity, "superseded")


def check_duplicates(kind: Kind, on_duplicate: Any, threshold: Any) -> None:
    if on_duplicate not in ON_DUPLICATE:
        raise InvalidValue(f"on_duplicate={on_duplicate!r} is not one of {', '.join(ON_DUPLICATE)}.")
    if on_duplicate == "supersede" and kind != "semantic":
        raise InvalidValue(f"Only semantic memory is superseded; {kind} memory can keep or skip a duplicate.")
    if on_duplicate != "keep" and kind == "procedural":
        raise InvalidValue(
            "Procedural memory has one value a key: a new one always replaces it. Leave on_duplicate out."
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise InvalidValue(f"threshold={threshold!r} is not a similarity: give a number from 0 to 1.")


def _batches(kind: Kind, drafts: Sequence[Draft]) -> Iterable[list[Draft]]:
    """Parts of what is to be written, each small enough for one statement and without a key twice."""
    batch: list[Draft] = []
    keys: set[tuple[str, str, str | None]] = set()
    size = 0
    for made in drafts:
        key = (made.scope, made.agent, made.cache_key)
        length = len(made.text or "") + len(str(made.value)) if kind == "procedural" else len(made.text or "")
        full = len(batch) >= _BATCH_ROWS or size + length > _BATCH_CHARACTERS
        if batch and (full or (kind == "procedural" and key in keys)):
            yield batch
            batch, size, keys = [], 0, set()
        batch.append(made)
        keys.add(key)
        size += length
    if batch:
        yield batch
