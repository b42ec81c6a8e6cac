"""The conversation log: append, load, search. Append-only; read in the order of `seq`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from . import jsonable
from .database_errors import translate
from .errors import ConversationNotFound, InvalidValue, TurnNotFound
from .ids import uuid7
from .names import as_uuid, check_name
from .payloads import MAX_INDEXED_BYTES
from .values import KINDS, Conversation, Turn
from .writer import TurnRow

if TYPE_CHECKING:
    from .database import Database
    from .retention import Pruned

# The columns of indexes: longer values would not fit a btree entry.
_INDEXED = ("toolName", "repo")


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to be appended."""

    conversation: UUID | str
    agent: str
    kind: str
    payload: Mapping[str, Any]
    created_at: datetime | None = None
    """When it happened, for imports; None is the database's clock. Reading goes by the order of appending."""
    id: UUID | None = None


class Turns:
    """`db.turns`."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(
        self,
        conversation: UUID | str,
        agent: str,
        kind: str,
        payload: Mapping[str, Any],
        *,
        created_at: datetime | None = None,
        id: UUID | None = None,
    ) -> Turn:
        """Append one turn, with its vector where its text has one; it is durable when this returns.

        `kind` is `user`, `model`, `tool_call`, `tool_result` or `error`. Inside `db.transaction()` it is committed with
        the rest. Raises InvalidValue before anything is written.
        """
        row = self.row(NewTurn(conversation, agent, kind, payload, created_at, id))
        if self._database.vectors.embedder is not None:
            await self.embed([row])
        if self._database.ambient is not None:
            return (await self.store([row]))[0]
        [new] = await self._database.writer.submit([row])
        return as_turn(row, new.seq, new.created_at)

    async def append_many(self, turns: Sequence[NewTurn]) -> list[Turn]:
        """Append turns together, all or none, in this order."""
        rows = [self.row(turn) for turn in turns]
        if not rows:
            return []
        await self.embed(rows)
        return await self.store(rows)

    def row(self, turn: NewTurn, *, lenient: bool = False) -> TurnRow:
        """The row of a turn, checked and cleaned, still without its vector. Raises InvalidValue."""
        if not isinstance(turn.kind, str) or turn.kind not in KINDS:
            raise InvalidValue(f"The kind {turn.kind!r} is not one of {', '.join(sorted(KINDS))}.")
        if not isinstance(turn.payload, Mapping):
            raise InvalidValue(
                f"The payload of a turn is a JSON object; got a {type(turn.payload).__name__}. Give a dict."
            )
        payload = turn.payload if type(turn.payload) is dict else dict(turn.payload)
        for key in _INDEXED:
            value = payload.get(key)
            # What is no string is indexed as JSON text.
            text = value if isinstance(value, str | None) else jsonable.dumps_lenient(value)
            if text is not None and len(text) * 4 > MAX_INDEXED_BYTES < len(text.encode(errors="replace")):
                raise InvalidValue(
                    f"payload[{key!r}] is longer than {MAX_INDEXED_BYTES} bytes, and it is indexed. Shorten it, or "
                    "store it under another key."
                )
        return TurnRow(
            uuid7() if turn.id is None else as_uuid(turn.id, "id"),
            as_uuid(turn.conversation, "conversation"),
            check_name(turn.agent, "agent"),
            turn.kind,
            self._database.encode(payload, lenient=lenient),
            created_at=_aware(turn.created_at),
        )

    async def embed(self, rows: Sequence[TurnRow]) -> None:
        """Give each row the vector of its text, in one call of the embedder."""
        vectors = self._database.vectors
        if vectors.embedder is None:
            return
        texts = [turn_text(row.kind, jsonable.loads(row.payload)) for row in rows]
        if not any(texts):
            return
        for row, vector in zip(rows, await vectors.documents(texts), strict=True):
            if vector is not None:
                row.embedding, row.embedded_by = vector, vectors.embedded_by

    async def store(self, rows: Sequence[TurnRow]) -> list[Turn]:
        """Write rows made by `row`, in the surrounding transaction or through the writer."""
        ambient = self._database.ambient
        if ambient is None:
            appended = await self._database.writer.append(rows)
            return [as_turn(row, new.seq, new.created_at) for row, new in zip(rows, appended, strict=True)]
        stored = []
        try:
            for row in rows:
                cursor = await ambient.execute(
                    self._database.statement("append_turn"),
                    row.values(),
                )
                new = await cursor.fetchone()
                assert new is not None
                stored.append(as_turn(row, new["seq"], new["created_at"]))
        except psycopg.Error as error:
            raise translate(error) from error
        return stored

    async def get(self, id: UUID | str) -> Turn:
        """One turn. Raises TurnNotFound."""
        rows = await self._database.read("turn", {"id": as_uuid(id, "id")})
        if not rows:
            raise TurnNotFound(f"There is no turn {id}. `everyturn turn list` shows the newest ones.")
        return _turn(rows[0])

    async def load(self, conversation: UUID | str, last: int | None = None) -> list[Turn]:
        """The turns of a conversation in order: all, or the last n and what they cannot be read without.

        With `last`, the cut is moved back to a user or model turn, so that no call is separated from its outcome.
        A conversation nobody wrote to is an empty list.
        """
        key = as_uuid(conversation, "conversation")
        if last is None:
            rows = await self._database.read("turns_of_conversation", {"conversation": key, "after": 0, "limit": None})
        else:
            _at_least_one(last, "last")
            rows = await self._database.read("last_turns_of_conversation", {"conversation": key, "last": last})
        return [_turn(row) for row in rows]

    async def pages(self, conversation: UUID | str, size: int = 1000) -> AsyncIterator[list[Turn]]:
        """The turns of a conversation in order, page by page: memory stays flat however long it is."""
        key = as_uuid(conversation, "conversation")
        _at_least_one(size, "size")
        after = 0
        while True:
            rows = await self._database.read(
                "turns_of_conversation", {"conversation": key, "after": after, "limit": size}
            )
            if rows:
                yield [_turn(row) for row in rows]
                after = rows[-1]["seq"]
            if len(rows) < size:
                return

    async def conversation(self, conversation: UUID | str) -> Conversation:
        """A whole conversation. Raises ConversationNotFound."""
        turns = await self.load(conversation)
        if not turns:
            raise ConversationNotFound(
                f"There is no conversation {conversation}. `everyturn conversation list` shows those there are."
            )
        return Conversation(turns[0].conversation, turns[0].agent, turns)

    async def prune(
        self,
        *,
        older_than: datetime | timedelta | None = None,
        keep_last: int | None = None,
        agent: str | None = None,
        conversation: UUID | str | None = None,
        run_id: str | None = None,
        dry_run: bool = False,
        progress: Callable[[Pruned], object] | None = None,
    ) -> Pruned:
        """Remove old turns and their verdicts, batch by batch; what was removed when it is stopped stays removed.

        All conditions must hold. An exchange is kept or removed whole: a cut is moved back to a user turn. What a
        memory that still exists is made from stays; an expired memory goes with its turn. Cases and datasets are not
        touched.
        Raises InvalidValue when nothing limits what goes.
        """
        from .retention import prune_turns

        return await prune_turns(
            self._database,
            older_than=older_than,
            keep_last=keep_last,
            agent=agent,
            conversation=conversation,
            run_id=run_id,
            dry_run=dry_run,
            progress=progress,
        )

    async def search(
        self,
        text: str,
        *,
        mode: str = "hybrid",
        agent: str | None = None,
        conversation: UUID | str | None = None,
        kind: str | None = None,
        where: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10,
    ) -> list[TurnHit]:
        """Turns whose text is like `text`: by its words (`lexical`), its meaning (`vector`), or both (`hybrid`).

        `where` compares top-level payload keys as text: `{"repo": "o/r", "pr": 7}`; None is a key that is missing. The
        words of user and model turns are indexed; vectors are those of the embedder in use. Raises InvalidValue.
        """
        if mode not in ("hybrid", "lexical", "vector"):
            raise InvalidValue(f"The search mode {mode!r} is not one of hybrid, lexical, vector.")
        if not isinstance(text, str):
            raise InvalidValue(f"What is searched for is a text; got a {type(text).__name__}.")
        if kind is not None and (not isinstance(kind, str) or kind not in KINDS):
            raise InvalidValue(f"The kind {kind!r} is not one of {', '.join(sorted(KINDS))}.")
        if mode == "vector" and self._database.embedder is None:
            raise InvalidValue(
                'There is no embedder to search by meaning with. Open the database with one (embedder="local" needs '
                'the extra everyturn[local]), or search by words: mode="lexical".'
            )
        _at_least_one(limit, "limit")
        vector = None if mode == "lexical" else await self._database.vectors.question(text)
        rows = await self._database.query(
            "turns_like",
            text=None if mode == "vector" else jsonable.clean_text(text),
            vector=vector,
            embedded_by=self._database.vectors.embedded_by,
            agent=None if agent is None else jsonable.clean_text(agent),
            conversation=as_uuid(conversation, "conversation") if conversation is not None else None,
            kind=kind,
            where=jsonable.dumps({key: _payload_text(value) for key, value in (where or {}).items()}),
            since=_aware(since),
            until=_aware(until),
            limit=limit,
        )
        return [TurnHit(_turn(row), row["score"], row["similarity"], row["lexical"]) for row in rows]


@dataclass(frozen=True, slots=True)
class TurnHit:
    """A turn found by `search`."""

    turn: Turn
    score: float
    similarity: float | None
    """The cosine similarity, -1 to 1; None where there is no vector to compare."""
    lexical: float
    """The share of the query's words found in the turn, 0 to 1."""


def turn_text(kind: str, payload: Mapping[str, Any]) -> str | None:
    """The text of a turn that is embedded: what was said, or a tool result's text.

    The same rule as the SQL function `everyturn_turn_text`.
    """
    keys = {"user": ("text",), "model": ("text",), "tool_result": ("text", "body", "result")}.get(kind, ())
    for key in keys:
        value = payload.get(key)
        if isinstance(value, str):
            return value
    return None


def as_turn(row: TurnRow, seq: int, created_at: datetime) -> Turn:
    """The turn that a stored row is."""
    return Turn(row.id, seq, row.conversation, row.agent, row.kind, jsonable.loads(row.payload), created_at)


def _turn(row: dict[str, Any]) -> Turn:
    payload = row["payload"]
    return Turn(
        row["id"],
        row["seq"],
        row["conversation"],
        row["agent"],
        row["kind"],
        payload if isinstance(payload, dict) else {"value": payload},
        row["created_at"],
    )


def _payload_text(value: Any) -> str | None:
    """A value as `payload ->> key` gives it."""
    return value if isinstance(value, str | None) else jsonable.dumps(value)


def _at_least_one(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise InvalidValue(f"{what}={value!r} asks for no turns; give a whole number from 1 up.")


def _aware(moment: datetime | None) -> datetime | None:
    """A naive datetime is read as UTC."""
    if moment is not None and not isinstance(moment, datetime):
        raise InvalidValue(f"A point in time is a datetime; got {moment!r:.80}.")
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
