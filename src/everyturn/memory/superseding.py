"""`supersede`: a fact is replaced, and its history kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.errors import InvalidValue, MemoryNotFound
from everyturn.ids import uuid7

from .filters import expiry, moment, subject_list
from .values import Remembered
from .writing import Binding, Draft, once, stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from everyturn.database import Database


async def supersede(
    database: Database,
    binding: Binding,
    old: UUID,
    *,
    scope: str | None,
    text: Any,
    subjects: Any,
    attributes: Mapping[str, Any] | None,
    occurred_at: Any,
    expires_at: Any,
) -> Remembered:
    if text is not None and not isinstance(text, str):
        raise InvalidValue(f"text must be a string, not {text!r}.")
    if text is None and subjects is None and attributes is None and expires_at is None:
        raise InvalidValue("Say what is new about the fact: text=, subjects=, attributes= or expires_at=.")
    made = Draft("semantic", uuid7(), uuid7(), "", "", subject_list(subjects))
    made.occurred_at = moment(occurred_at, "occurred_at")
    made.expires_at = expiry(expires_at)
    given = {"text": text, "subjects": made.subjects, "attributes": attributes}
    kept = stored(database, {name: value for name, value in given.items() if value is not None})
    made.text = kept.get("text")
    made.subjects = subject_list(kept["subjects"])
    if made.text is not None:
        [made.vector] = await database.vectors.documents([made.text])
    new = await replace_fact(
        database,
        binding,
        old,
        made,
        scope=scope,
        subjects=made.subjects if subjects is not None else None,
        attributes=kept.get("attributes"),
    )
    return Remembered(new, old, None, "superseded")


async def replace_fact(
    database: Database,
    binding: Binding,
    old: UUID,
    made: Draft,
    *,
    scope: str | None = None,
    subjects: Any = ...,
    attributes: Any = ...,
) -> UUID:
    """Put `made` in the place of a current fact. Raises MemoryNotFound, InvalidValue for one that is not current."""
    known = await database.fetch("SELECT agent, scope, superseded_by FROM agent_semantic WHERE id = %s", (old,))
    if not known or (scope is not None and known[0]["scope"] != scope):
        where = f" in scope {scope!r}" if scope is not None else ""
        raise MemoryNotFound(f"There is no semantic memory {old}{where}. `recall` finds those there are.")
    attributes = made.attributes if attributes is ... else attributes
    agent = known[0]["agent"]
    rows = []
    if known[0]["superseded_by"] is None:
        params = {
            "id": made.id,
            "old": old,
            "scope": scope,
            "text": made.text,
            "subjects": made.subjects if subjects is ... else subjects,
            "attributes": json.dumps(attributes, ensure_ascii=False) if attributes is not None else None,
            "vector": made.vector,
            "embedded_by": database.vectors.embedded_by,
            "occurred_at": made.occurred_at,
            "expires_at": made.expires_at,
            "turn": made.turn,
            "conversation": binding.log(agent),
            "writer": binding.writer(agent),
            "run_id": binding.run_id,
        }
        rows = await once(database, "memory_supersede", params, made.turn)
        if rows:
            return made.id
    after = await database.fetch("SELECT superseded_by FROM agent_semantic WHERE id = %s", (old,))
    successor = after[0]["superseded_by"] if after else None
    if successor == made.id:
        return made.id
    if successor is None:
        raise MemoryNotFound(f"Semantic memory {old} was forgotten meanwhile. Remember the new fact on its own.")
    raise InvalidValue(f"Semantic memory {old} was superseded by {successor} before. Supersede that one.")
