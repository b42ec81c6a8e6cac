"""The facade over the three kinds of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import psycopg

from everyturn import jsonable
from everyturn.database_errors import translate
from everyturn.errors import InvalidValue
from everyturn.names import as_uuid, check_name

from . import forgetting, rebuilding, remembering, superseding
from .filters import as_text, id_list, moment, row_filters, scope_name
from .values import KINDS, All, Forgotten, Hit, Kind, Rebuilt, Remembered, check_kind, hit
from .writing import UNSET, Binding

if TYPE_CHECKING:
    from everyturn.database import Database

_QUESTION = 2000
"""Characters of a question whose words are looked for; its vector is made of all of it."""
_CANDIDATES = 50
_RECENT_CANDIDATES = 200
_MOST = 2**63 - 1

OnDuplicate = Literal["keep", "skip", "supersede"]


class Memory:
    """`db.memory`, and `ctx.memory`: the same, bound to the agent, its scope and its run.

    A memory belongs to a scope (whose it is: a user, a tenant, a project) and an agent. `scope=None` is the bound one,
    else `"default"`; `everyturn.ALL` reads all. `agent=None` is any agent when reading, the bound one when writing.
    """

    __blocking_face__ = True

    def __init__(
        self,
        database: Database,
        agent: str | None = None,
        scope: str | None = None,
        conversation: UUID | None = None,
        run_id: str | None = None,
    ) -> None:
        self._database = database
        self._binding = Binding(agent, scope, conversation, run_id)

    async def remember(
        self,
        kind: Kind,
        *,
        text: str | None = None,
        subjects: Sequence[str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        scope: str | None = None,
        agent: str | None = None,
        occurred_at: datetime | None = None,
        expires_at: datetime | timedelta | None = None,
        cache_key: str | None = None,
        value: Any = UNSET,
        on_duplicate: OnDuplicate = "keep",
        threshold: float = 0.9,
    ) -> Remembered:
        """Remember one thing: an episodic or semantic `text`, or a procedural `value` under `cache_key`.

        `occurred_at` is when it happened, or since when a fact is true; by default now. The nearest memory of the same
        scope, agent and subjects is reported when its similarity reaches `threshold`; `on_duplicate` says whether the
        new one is then kept beside it, skipped, or put in its place (semantic only). Durable when this returns, except
        inside `db.transaction()`. Raises InvalidValue before anything is written.
        """
        return await remembering.remember(
            self._database,
            self._binding,
            check_kind(kind),
            text=text,
            subjects=subjects,
            attributes=attributes,
            scope=scope,
            agent=agent,
            occurred_at=occurred_at,
            expires_at=expires_at,
            cache_key=cache_key,
            value=value,
            on_duplicate=on_duplicate,
            threshold=threshold,
        )

    async def remember_many(
        self,
        kind: Kind,
        items: Iterable[Mapping[str, Any]],
        *,
        on_duplicate: OnDuplicate = "keep",
        threshold: float = 0.9,
    ) -> list[Remembered]:
        """Remember many things, all or none: one call of the embedder, one transaction.

        Each item holds the arguments of `remember` for one memory. Near-duplicates are looked for only when
        `on_duplicate` is not `keep`.
        """
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise InvalidValue(
                f"items must be a list with the arguments of remember, one dict each; got {items!r:.80}."
            )
        return await remembering.remember_many(
            self._database, self._binding, check_kind(kind), items, on_duplicate=on_duplicate, threshold=threshold
        )

    async def recall(
        self,
        kind: Kind,
        text: str | None = None,
        *,
        subjects: Sequence[str] | None = None,
        scope: str | All | None = None,
        agent: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        as_of: datetime | None = None,
        half_life: float | None = None,
        limit: int = 10,
    ) -> list[Hit]:
        """The memories that answer `text`, best first; without it, all that the filters leave, newest first.

        A memory must have all `subjects` and meet all conditions on `attributes`: `{"path": "a.py", "line": {">": 3}}`.
        `since` and `until` bound occurred_at, valid_from or updated_at. `as_of` asks what was true at that time
        (semantic). `half_life`, in days, lets a score halve with age (episodic). For procedural memory `text` is the
        exact key. Expired memories are never returned. It is one SQL statement: see queries/recall_*.sql.
        """
        check_kind(kind)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue(f"limit={limit!r} is not a number of memories: give a whole number from 1 up.")
        if text is not None and not isinstance(text, str):
            raise InvalidValue(f"text must be a string, not {text!r}.")
        # Only its beginning is searched for by words: that must not be white space. A key is exact.
        text = text if text is None or kind == "procedural" else text.strip()
        if as_of is not None and kind != "semantic":
            raise InvalidValue(f"as_of asks what was true; {kind} memory has no history. Use since and until.")
        if half_life is not None and kind != "episodic":
            raise InvalidValue(f"half_life weighs what happened by its age; {kind} memory does not age.")
        if half_life is not None and (
            isinstance(half_life, bool) or not isinstance(half_life, int | float) or not 0 < half_life < float("inf")
        ):
            raise InvalidValue(f"half_life={half_life!r} is not a number of days above 0.")
        params = row_filters(
            scope=scope_name(scope, self._binding.scope),
            agent=agent,
            subjects=subjects,
            attributes=attributes,
            since=since,
            until=until,
            procedural=kind == "procedural",
        ) | {"row_limit": min(limit, _MOST)}
        question = jsonable.clean_text(text) if text is not None else None
        if question is not None and not question.strip():
            return []
        if kind == "procedural":
            params["key"] = question
        else:
            params |= await self._evidence(question, limit, half_life)
            params |= {"as_of": moment(as_of, "as_of")} if kind == "semantic" else {"half_life": half_life}
        try:
            rows = await self._database.query(f"recall_{kind}", **as_text(params))
        except psycopg.Error as error:
            raise translate(error) from error
        return [hit(kind, row) for row in rows]

    async def _evidence(self, question: str | None, limit: int, half_life: float | None) -> dict[str, Any]:
        vectors = self._database.vectors
        return {
            "text": question[:_QUESTION] if question is not None else None,
            "vector": await vectors.question(question) if question else None,
            "embedded_by": vectors.embedded_by,
            "candidates": max(min(limit, _MOST), _CANDIDATES if half_life is None else _RECENT_CANDIDATES),
        }

    async def supersede(
        self,
        id: UUID | str,
        *,
        text: str | None = None,
        subjects: Sequence[str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        scope: str | None = None,
        occurred_at: datetime | None = None,
        expires_at: datetime | timedelta | None = None,
    ) -> Remembered:
        """Replace a current fact by a new one, in one transaction; what is left out is taken over.

        The old fact stays, closed, for `recall(as_of=…)`. `occurred_at` is since when the new one is true. A memory
        bound to a scope supersedes only there. Raises MemoryNotFound, and InvalidValue for a fact that is not current.
        """
        return await superseding.supersede(
            self._database,
            self._binding,
            as_uuid(id, "id"),
            scope=check_name(scope, "scope") if scope is not None else self._binding.scope,
            text=text,
            subjects=subjects,
            attributes=attributes,
            occurred_at=occurred_at,
            expires_at=expires_at,
        )

    async def forget(
        self,
        kind: Kind,
        *,
        ids: Sequence[UUID | str] | None = None,
        subjects: Sequence[str] | None = None,
        scope: str | All | None = None,
        agent: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        older_than: timedelta | None = None,
        from_log: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Forgotten:
        """Remove memories, with their vectors, current or not; say which. The log records the removal.

        At least one filter must be given, and they mean what they mean in `recall`. With `from_log` the text is also
        taken out of every turn of the log that holds it, and those turns' vectors go: for a request of erasure. Many
        memories are removed in batches, each a transaction; `progress` is told the number so far.
        """
        check_kind(kind)
        bounds = (moment(since, "since"), moment(until, "until"))
        params = row_filters(
            scope=scope_name(scope, self._binding.scope),
            agent=agent,
            subjects=subjects,
            attributes=attributes,
            since=since,
            until=forgetting.older(*bounds, older_than),
            procedural=kind == "procedural",
        )
        params["ids"] = id_list(ids)
        own_scope = params["scope"] if scope is not None else None
        given = [value for name, value in params.items() if name != "scope" and value is not None]
        if not given and own_scope is None:
            raise InvalidValue(
                "forget() without a filter would remove everything. Give ids, subjects, attributes, agent, since, "
                "until, older_than, or the scope that is to be emptied."
            )
        if params["ids"] == []:
            return Forgotten(0, [])
        return await forgetting.forget(
            self._database, self._binding, kind, params, from_log=from_log, progress=progress
        )

    async def expire(self, *, progress: Callable[[int], object] | None = None) -> dict[Kind, Forgotten]:
        """Forget what has expired, in every scope: recall does not return it, but until then it takes its place."""
        done: dict[Kind, Forgotten] = {}
        for kind in KINDS:
            filters = row_filters(
                scope=None,
                agent=None,
                subjects=None,
                attributes=None,
                since=None,
                until=None,
                procedural=kind == "procedural",
            ) | {"ids": None, "expired": True}
            done[kind] = await forgetting.forget(
                self._database, self._binding, kind, filters, from_log=False, progress=progress
            )
        return done

    async def rebuild(
        self,
        agent: str | None = None,
        scope: str | None = None,
        *,
        progress: Callable[[Rebuilt], object] | None = None,
    ) -> list[Rebuilt]:
        """Make the three tables again from the log alone; None is every agent, every scope.

        One transaction, no embedding. Rows that are as the log tells them are left alone: the result says, for each
        table, how many were not, and how many were missing; `progress` is told the same as it comes about.
        """
        return await rebuilding.rebuild(
            self._database,
            agent=check_name(agent, "agent") if agent is not None else None,
            scope=check_name(scope, "scope") if scope is not None else None,
            progress=progress,
        )
