"""Verdicts: rows of `agent_evals`, each joined to the turn it judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from . import jsonable
from .agreement import Agreement, agreement
from .comparing import Comparison, SideLike, compare
from .database_errors import translate
from .errors import InvalidValue, TurnNotFound
from .evaluating import Evaluation
from .evaluators import VERDICTS, Evaluated, Evaluator
from .ids import uuid7
from .names import as_uuid, check_name
from .values import Turn

if TYPE_CHECKING:
    from .database import Database


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


@dataclass(frozen=True, slots=True)
class Dismissed:
    """Turns with one text, and one path, whose standing verdict is bad."""

    comment_body: str | None
    path: str | None
    times_dismissed: int
    last_reason: str | None
    last_evaluator: str
    last_judged_at: datetime
    last_turn: UUID


@dataclass(frozen=True, slots=True)
class SimilarTurn:
    """A turn that is like a text."""

    turn: Turn
    similarity: float
    """The cosine of the vectors; without vectors the share of the text's words that it holds."""
    verdict: str | None
    """Its standing verdict; None where nobody judged it."""


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
        if rationale is not None and not isinstance(rationale, str):
            raise InvalidValue(f"The rationale of a verdict is text; got a {type(rationale).__name__}.")
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

    async def run(
        self,
        evaluator: Evaluator,
        *,
        agent: str | None = None,
        since: datetime | None = None,
        concurrency: int = 8,
        limit: int | None = None,
        watch: bool = False,
        interval: float = 1.0,
        on_progress: Callable[[Evaluated], None] | None = None,
    ) -> Evaluated:
        """Judge every turn, or conversation, that lacks this evaluator's verdict; safe beside any number of others.

        An evaluator that fails leaves no verdict and is counted; the next run tries again. With `watch` it goes on with
        what is appended, until it is cancelled. `limit` is how many verdicts to record at most.
        """
        if not isinstance(evaluator, Evaluator):
            raise InvalidValue(
                f"{evaluator!r:.80} is not an evaluator: put @et.evaluator(name) in front of the function."
            )
        evaluation = Evaluation(
            self._database,
            evaluator,
            agent=agent,
            since=_aware(since),
            concurrency=concurrency,
            limit=limit,
            on_progress=on_progress,
        )
        return await (evaluation.watch(interval) if watch else evaluation.once())

    async def agree(
        self,
        evaluator: str,
        against: str = "human",
        *,
        agent: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Agreement:
        """How far an evaluator agrees with another about the turns that both judged."""
        rows = await self._database.query(
            "agreement", evaluator=evaluator, against=against, agent=agent, since=_aware(since), until=_aware(until)
        )
        return agreement(evaluator, against, {(row["verdict"], row["against_verdict"]): row["turns"] for row in rows})

    async def compare(
        self,
        agent: str,
        tool: str | None = None,
        *,
        baseline: SideLike,
        candidate: SideLike,
        evaluator: str | None = None,
        allow_changed: bool = False,
    ) -> Comparison:
        """Compare the verdicts on a tool's results between two time windows, models or prompt revisions.

        A side is an `et.Side`, a dict of its fields, or a `(since, until)` pair. A turn counts once, by its standing
        verdict, or by the latest of `evaluator`. Without a tool, the results of all tools of the agent.

        Raises ImplementationChanged when the judged results are not all of one known implementation of their tool,
        unless `allow_changed`.
        """
        return await compare(
            self._database, agent, tool, baseline, candidate, evaluator=evaluator, allow_changed=allow_changed
        )

    async def wrong(
        self,
        agent: str,
        *,
        tool: str | None = None,
        where: Mapping[str, str] | None = None,
        days: float | None = 90,
        since: datetime | None = None,
        evaluator: str | None = None,
        limit: int | None = 20,
    ) -> list[Dismissed]:
        """What the agent got wrong: texts whose standing verdict is bad, the most often dismissed first.

        The standing verdict of a turn is the latest human one; where no human has spoken, the latest of any evaluator.
        """
        rows = await self._database.query(
            "what_did_i_get_wrong",
            agent=agent,
            tool=tool,
            **payload_conditions(where),
            days=days if since is None else None,
            since=_aware(since),
            evaluator=evaluator,
            limit=limit,
        )
        return [Dismissed(**row) for row in rows]

    async def similar(
        self,
        text: str,
        *,
        agent: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        where: Mapping[str, str] | None = None,
        not_verdict: str = "bad",
        since: datetime | None = None,
        limit: int = 10,
    ) -> list[SimilarTurn]:
        """Past turns that are like this text and whose standing verdict is not `not_verdict`, the most alike first.

        Without an embedder the newest 500 turns that match are ranked by the words they share with the text.
        """
        if not_verdict not in VERDICTS:
            raise InvalidValue(f"The verdict {not_verdict!r} is not one of {', '.join(VERDICTS)}.")
        if limit < 1:
            raise InvalidValue(f"limit={limit} asks for no turns; give a number from 1 up.")
        vectors = self._database.vectors
        rows = await self._database.query(
            "similar_accepted_turns",
            text=jsonable.clean_text(text),
            vector=await vectors.question(text),
            embedded_by=vectors.embedded_by,
            agent=agent,
            kind=kind,
            tool=tool,
            **payload_conditions(where),
            not_verdict=not_verdict,
            since=_aware(since),
            limit=limit,
        )
        return [SimilarTurn(Turn(**row), similarity, verdict) for row, similarity, verdict in map(_split, rows)]

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


def _split(row: dict[str, Any]) -> tuple[dict[str, Any], float, str | None]:
    return row, row.pop("sim"), row.pop("verdict")


def payload_conditions(where: Mapping[str, str] | None) -> dict[str, str | None]:
    """The parameters for conditions on the payload; `repo` apart, because there is an index on it."""
    wanted = {key: str(value) for key, value in (where or {}).items()}
    repo = wanted.pop("repo", None)
    return {"repo": repo, "matching": jsonable.dumps(wanted) if wanted else None}


def _aware(moment: datetime | None) -> datetime | None:
    """A naive datetime is read as UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
