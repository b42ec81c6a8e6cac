"""Verdicts: rows of `agent_evals`, each joined to the turn it judges."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from . import jsonable
from .database_errors import translate
from .errors import InvalidValue, TurnNotFound
from .ids import uuid7
from .names import as_uuid, check_name

if TYPE_CHECKING:
    from .database import Database

VERDICTS = ("good", "bad", "partial")


@dataclass(frozen=True, slots=True)
class Eval:
    """One row of `agent_evals`."""

    id: UUID
    turn_id: UUID
    conversation: UUID
    evaluator: str
    verdict: str
    rationale: str | None
    payload: Any
    created_at: datetime


class Evals:
    """`db.evals`."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self,
        turn_id: UUID | str,
        evaluator: str,
        verdict: str,
        rationale: str | None = None,
        payload: Any = None,
    ) -> Eval:
        """Store a verdict on a turn. Raises InvalidValue for an unknown verdict, TurnNotFound for an unknown turn."""
        if verdict not in VERDICTS:
            raise InvalidValue(f"The verdict {verdict!r} is not one of {', '.join(VERDICTS)}.")
        turn = as_uuid(turn_id, "turn_id")
        values = {
            "id": uuid7(),
            "turn_id": turn,
            "evaluator": check_name(evaluator, "evaluator"),
            "verdict": verdict,
            "rationale": self._rationale(rationale),
            "payload": None if payload is None else self._database.encode(payload),
        }
        try:
            [row] = await self._database.query("record_eval", **values)
        except psycopg.errors.UniqueViolation as error:
            # The connection was lost after the row was stored, and the statement sent again.
            found = [stored for stored in await self.list(turn_id=turn) if stored.id == values["id"]]
            if not found:
                raise translate(error) from error
            return found[0]
        except psycopg.errors.ForeignKeyViolation:
            raise TurnNotFound(f"There is no turn {turn}; a verdict needs the turn it judges.") from None
        except psycopg.Error as error:
            raise translate(error) from error
        return Eval(**row)

    def _rationale(self, rationale: str | None) -> str | None:
        if rationale is None:
            return None
        if not isinstance(rationale, str):
            raise InvalidValue(f"The rationale of a verdict is a text; got a {type(rationale).__name__}.")
        redact = self._database.redact
        return jsonable.clean_text(rationale if redact is None else str(redact(rationale)))

    async def list(
        self,
        *,
        turn_id: UUID | str | None = None,
        conversation: UUID | str | None = None,
        evaluator: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
    ) -> list[Eval]:
        """The verdicts that match, newest first."""
        rows = await self._database.query(
            "evals_recorded",
            turn_id=as_uuid(turn_id, "turn_id") if turn_id is not None else None,
            conversation=as_uuid(conversation, "conversation") if conversation is not None else None,
            evaluator=None if evaluator is None else jsonable.clean_text(evaluator),
            verdict=None if verdict is None else jsonable.clean_text(verdict),
            limit=limit,
        )
        return [Eval(**row) for row in rows]
