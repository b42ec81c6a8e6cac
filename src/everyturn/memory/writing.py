"""Writing memories: rows and turns in one statement, the memory row first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

import psycopg

from everyturn.database_errors import translate
from everyturn.errors import InvalidValue
from everyturn.ids import uuid7
from everyturn.names import check_name

from .filters import expiry, moment, short_text, subject_list
from .values import All, Kind, Remembered

if TYPE_CHECKING:
    from everyturn.database import Database

_SEPARATOR = "\x1f"
_NULL = "\x1e"
UNSET: Any = object()
ON_DUPLICATE = ("keep", "skip", "supersede")


@dataclass(frozen=True, slots=True)
class Binding:
    """On whose behalf memory is used: the agent, its scope, and the run inside which it happens."""

    agent: str | None = None
    scope: str | None = None
    conversation: UUID | None = None
    run_id: str | None = None

    def writer(self, agent: str | None) -> str:
        """The agent whose turn is logged."""
        return self.agent or agent or "default"

    def log(self, agent: str | None) -> UUID:
        """The conversation that the turn is logged in: the run's, or one that the agent keeps for its memory."""
        return self.conversation or uuid5(NAMESPACE_URL, f"everyturn:memory:{self.writer(agent)}")


@dataclass(slots=True)
class Draft:
    """A memory that is to be written."""

    kind: Kind
    id: UUID
    turn: UUID
    scope: str
    agent: str
    subjects: list[str]
    text: str | None = None
    attributes: Mapping[str, Any] | None = None
    occurred_at: datetime | None = None
    expires_at: datetime | None = None
    cache_key: str | None = None
    value: Any = None
    vector: str | None = None

    def row(self, binding: Binding) -> dict[str, Any]:
        """What the statement is given."""
        row: dict[str, Any] = {
            "id": str(self.id),
            "turn": str(self.turn),
            "conversation": str(binding.log(self.agent)),
            "writer": binding.writer(self.agent),
            "run_id": binding.run_id,
            "agent": self.agent,
            "scope": self.scope,
            "subjects": self.subjects,
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }
        if self.kind == "procedural":
            return row | {"cache_key": self.cache_key, "value": self.value}
        if self.kind == "episodic":
            row["about"] = str(binding.conversation) if binding.conversation else None
        return row | {
            "text": self.text,
            "attributes": self.attributes,
            "occurred_at": self.occurred_at.isoformat() if self.occurred_at else None,
        }


def draft(
    database: Database,
    binding: Binding,
    kind: Kind,
    *,
    text: Any = None,
    subjects: Any = None,
    attributes: Any = None,
    scope: Any = None,
    agent: Any = None,
    occurred_at: Any = None,
    expires_at: Any = None,
    cache_key: Any = None,
    value: Any = UNSET,
) -> Draft:
    """A memory as it was asked for, checked, redacted and cleaned. Raises InvalidValue."""
    if isinstance(scope, All):
        raise InvalidValue("A memory is written into one scope; everyturn.ALL is for reading. Name the scope.")
    made = Draft(
        kind,
        uuid7(),
        uuid7(),
        check_name(scope, "scope") if scope is not None else binding.scope or "default",
        check_name(agent, "agent") if agent is not None else binding.agent or "default",
        subject_list(subjects),
        expires_at=expiry(expires_at),
    )
    stray: dict[str, Any]
    content: dict[str, Any]
    if kind == "procedural":
        stray = {"text": text, "attributes": attributes or None, "occurred_at": occurred_at}
        if cache_key is None or value is UNSET:
            raise InvalidValue("Procedural memory is a value under a key: give cache_key= and value=.")
        short_text(cache_key, "cache_key")
        content = {"cache_key": cache_key, "subjects": made.subjects, "value": value}
    else:
        stray = {"cache_key": cache_key, "value": None if value is UNSET else value}
        if not isinstance(text, str):
            raise InvalidValue(f"{kind.capitalize()} memory is a text: give text= a string, not {text!r}.")
        if attributes is not None and not isinstance(attributes, Mapping):
            raise InvalidValue(f"attributes must be a dict, not {attributes!r}.")
        made.occurred_at = moment(occurred_at, "occurred_at")
        content = {"text": text, "subjects": made.subjects, "attributes": dict(attributes or {})}
    for name, given in stray.items():
        if given is not None:
            raise InvalidValue(f"{kind.capitalize()} memory has no {name}. Leave it out, or use another kind.")
    kept = stored(database, content)
    made.subjects = subject_list(kept["subjects"])
    if kind == "procedural":
        made.cache_key, made.value = short_text(kept["cache_key"], "cache_key"), kept["value"]
    else:
        made.text, made.attributes = str(kept["text"]), kept["attributes"]
    return made


def stored(database: Database, content: dict[str, Any]) -> dict[str, Any]:
    """What of this is stored: redacted and cleaned, as plain JSON values. Raises InvalidValue."""
    found = json.loads(database.encode(content))
    if not isinstance(found, dict) or found.keys() < content.keys():
        raise InvalidValue("The redact function of this database must return the dict it was given, with its keys.")
    return found


async def write(database: Database, binding: Binding, kind: Kind, drafts: Sequence[Draft]) -> list[Remembered]:
    """Write these memories and their turns in one statement. A key may occur once."""
    params: dict[str, Any] = {"rows": json.dumps([d.row(binding) for d in drafts], ensure_ascii=False)}
    if kind != "procedural":
        params["vectors"] = _SEPARATOR.join([_NULL if d.vector is None else d.vector for d in drafts])
        params["embedded_by"] = database.vectors.embedded_by
    rows = await once(database, f"memory_remember_{kind}", params, drafts[0].turn)
    if kind != "procedural":
        return [Remembered(d.id) for d in drafts]
    if not rows:
        rows = await database.fetch(
            "SELECT source_turn AS turn, id FROM agent_procedural WHERE source_turn = ANY (%s)",
            ([d.turn for d in drafts],),
        )
    ids = {row["turn"]: row["id"] for row in rows}
    kept = [(d.id, ids.get(d.turn, d.id)) for d in drafts]
    return [Remembered(id, action="added" if id == new else "updated") for new, id in kept]


async def once(database: Database, name: str, params: Mapping[str, Any], turn: UUID) -> list[dict[str, Any]]:
    """Run a writing query exactly once, even when the connection is lost while it is under way.

    It may then be sent again: the id of the turn it logs tells whether it had taken effect.
    """
    try:
        return await database.read(name, params)
    except psycopg.errors.UniqueViolation as error:
        if database.ambient is None and await database.fetch("SELECT 1 FROM agent_turns WHERE id = %s", (turn,)):
            return []
        raise translate(error) from error
    except psycopg.Error as error:
        raise translate(error) from error
