"""Storing cases: checked, redacted and cleaned, each written with its vector."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from everyturn import jsonable
from everyturn.database_errors import translate
from everyturn.errors import CaseNotFound, InvalidValue
from everyturn.ids import uuid7
from everyturn.names import as_uuid, check_name

from .capture import Draft
from .values import Captured, Case, aware, case_of, checked_tags

if TYPE_CHECKING:
    from everyturn.database import Database

NEAR = 0.95
"""The similarity from which two cases are near-duplicates."""


class CaseStore:
    """What every way of capturing a case comes to."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, id: UUID | str) -> Case:
        """One case. Raises CaseNotFound."""
        rows = await self._database.query("case", id=as_uuid(id, "case id"))
        if not rows:
            raise CaseNotFound(f"There is no case {id}. `everyturn case list` shows the newest ones.")
        return case_of(rows[0])

    async def store(
        self,
        draft: Draft,
        *,
        source: str,
        context: Mapping[str, Any] | None = None,
        reference: str | None = None,
        tags: Iterable[str] = (),
        captured_by: str | None = None,
        on_duplicate: str = "store",
    ) -> Captured:
        """Store what `capture` has drafted, and look for what is like it."""
        if on_duplicate not in ("store", "skip"):
            raise InvalidValue(f"on_duplicate={on_duplicate!r} is not one of store, skip.")
        if context is not None and not isinstance(context, Mapping):
            raise InvalidValue(f"The context of a case is a JSON object; got a {type(context).__name__}.")
        record = self.record(
            prompt=draft.prompt,
            context={**draft.context, **dict(context or {})},
            reference=reference,
            tags=tags,
            source=source,
            captured_by=captured_by or whoami(),
            turn_id=draft.turn_id,
        )
        db = self._database
        duplicates = [row["id"] for row in await db.query("cases_with_content", records=jsonable.dumps([record]))]
        [vector] = await self.embed([record])
        stored = not (duplicates and on_duplicate == "skip")
        case = (await self.insert([record]))[0] if stored else await self.get(duplicates.pop(0))
        near = None
        if vector is not None:
            rows = await db.query(
                "similar_cases", id=case.id, vector=vector, embedded_by=db.vectors.embedded_by, limit=1
            )
            near = rows[0] if rows else None
        return Captured(
            **{name: getattr(case, name) for name in Case.__dataclass_fields__},
            stored=stored,
            duplicates=duplicates,
            nearest=near["id"] if near else None,
            similarity=near["similarity"] if near else None,
        )

    def record(
        self,
        *,
        prompt: Any,
        context: Any = None,
        reference: Any = None,
        tags: Iterable[str] = (),
        source: str = "handcrafted",
        captured_by: str | None = None,
        turn_id: UUID | None = None,
        captured_at: datetime | None = None,
        id: UUID | None = None,
    ) -> dict[str, Any]:
        """A case as it will be stored: checked, redacted and cleaned. Raises InvalidValue."""
        if not isinstance(prompt, str) or not prompt.strip():
            raise InvalidValue("The prompt of a case is blank; give the text a model is to answer.")
        if reference is not None and not isinstance(reference, str):
            raise InvalidValue(f"The reference of a case is a string or None; got a {type(reference).__name__}.")
        if context is not None and not isinstance(context, Mapping):
            raise InvalidValue(f"The context of a case is a JSON object; got a {type(context).__name__}.")
        content = {"prompt": prompt, "context": dict(context or {}), "reference": reference}
        from pydantic_core import from_json

        # As JSON holds it, not as `loads` would read it back.
        record: dict[str, Any] = from_json(self._database.encode(content))
        record |= {
            "id": str(id or uuid7()),
            "source": check_name(source, "source"),
            "tags": checked_tags(tags),
            "captured_by": check_name(captured_by or whoami(), "captured_by"),
        }
        if turn_id is not None:
            record["turn_id"] = str(turn_id)
        if captured_at is not None:
            moment = aware(captured_at)
            assert moment is not None
            record["captured_at"] = moment.isoformat()
        return record

    async def embed(self, records: Sequence[dict[str, Any]]) -> list[str | None]:
        """Give each record the vector of its prompt, in one call of the embedder; it is owed where that fails."""
        vectors = await self._database.vectors.documents([record["prompt"] for record in records])
        for record, vector in zip(records, vectors, strict=True):
            if vector is not None:
                record |= {"embedding": vector, "embedded_by": self._database.vectors.embedded_by}
        return vectors

    async def insert(self, records: Sequence[dict[str, Any]]) -> list[Case]:
        """Write records made by `record`, in one statement."""
        try:
            rows = await self._database.query("capture_cases", records=json.dumps(records))
        except psycopg.errors.UniqueViolation as error:
            raise InvalidValue(f"A case with this id is stored already: {error.diag.message_detail}") from None
        except psycopg.Error as error:
            raise translate(error) from error
        found = {row["id"]: case_of(row) for row in rows}
        return [found[UUID(record["id"])] for record in records]


def whoami() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry in the user database
        return "unknown"
