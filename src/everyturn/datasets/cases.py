"""Cases: captured interactions, each with its vector. A case never changes; it is superseded by another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.errors import CaseNotFound, InvalidValue
from everyturn.evaluators import VERDICTS
from everyturn.names import as_uuid

from .capture import Draft, from_conversation, from_turn
from .storing import CaseStore
from .values import SUPERSEDED, Captured, Case, Imported, SimilarCase, aware, case_of, checked_tags

if TYPE_CHECKING:
    import os


_WORD = re.compile(r"[^\W_][\w.:/#@-]*")


class Cases(CaseStore):
    """`db.cases`."""

    async def capture(
        self,
        prompt: str | None = None,
        *,
        turn: UUID | str | None = None,
        conversation: UUID | str | None = None,
        context: Mapping[str, Any] | None = None,
        reference: str | None = None,
        tags: Iterable[str] = (),
        source: str | None = None,
        captured_by: str | None = None,
        instructions: str | None = None,
        on_duplicate: str = "store",
    ) -> Captured:
        """Capture one case: a prompt, the run a turn belongs to, or the last run of a conversation.

        `context` is added to what a run's own context holds. `reference` is the answer that is right; without one a
        replay's output is judged. `instructions` is the text a captured run was made under. With
        `on_duplicate="skip"` a case whose content is stored already is returned instead. The vector is written with
        the row.
        """
        if sum(given is not None for given in (prompt, turn, conversation)) != 1:
            raise InvalidValue("A case is captured from one of: prompt, turn, conversation. Give exactly one.")
        if prompt is not None:
            draft = Draft(prompt, {} if instructions is None else {"instructions": instructions}, None)
        elif turn is not None:
            draft = await from_turn(self._database, turn, instructions)
        else:
            assert conversation is not None
            draft = await from_conversation(self._database, conversation, instructions)
        return await self.store(
            draft,
            context=context,
            reference=reference,
            tags=tags,
            source=("handcrafted" if prompt is not None else "production") if source is None else source,
            captured_by=captured_by,
            on_duplicate=on_duplicate,
        )

    async def capture_evals(
        self,
        verdict: str = "bad",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        evaluator: str | None = None,
        agent: str | None = None,
        tags: Iterable[str] = (),
        source: str = "production",
        captured_by: str | None = None,
        limit: int | None = None,
    ) -> list[Captured]:
        """Capture the runs whose turns got this verdict and are not cases yet; the verdicts go into their contexts."""
        if verdict not in VERDICTS:
            raise InvalidValue(f"The verdict {verdict!r} is not one of {', '.join(VERDICTS)}.")
        rows = await self._database.query(
            "turns_judged",
            verdict=verdict,
            since=aware(since),
            until=aware(until),
            evaluator=evaluator,
            agent=agent,
            limit=limit,
            again=False,
        )
        captured = []
        for row in rows:
            draft = await from_turn(self._database, row["turn_id"])
            captured.append(
                await self.store(
                    draft,
                    context={"verdicts": row["verdicts"]},
                    tags=tags,
                    source=source,
                    captured_by=captured_by,
                    on_duplicate="skip",
                )
            )
        return captured

    async def tag(
        self, ids: UUID | str | Iterable[UUID | str], *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> list[Case]:
        """Add tags to cases and take others away. Raises CaseNotFound before anything is changed."""
        several = [ids] if isinstance(ids, UUID | str) else ids
        wanted = list(dict.fromkeys(as_uuid(id, "case id") for id in several))
        async with self._database.transaction():
            rows = await self._database.query(
                "tag_cases", ids=wanted, add=checked_tags(add), remove=checked_tags(remove)
            )
            found = {row["id"]: case_of(row) for row in rows}
            if missing := [id for id in wanted if id not in found]:
                raise CaseNotFound(f"There is no case {missing[0]}; nothing was changed.")
        return [found[id] for id in wanted]

    async def supersede(self, old: UUID | str, new: UUID | str) -> Case:
        """Tag a case superseded, and by which other; datasets that hold it stay as they are."""
        replacement = await self.get(new)
        if as_uuid(old, "case id") == replacement.id:
            raise InvalidValue(f"Case {old} cannot supersede itself.")
        [case] = await self.tag(old, add=[SUPERSEDED, f"{SUPERSEDED}-by:{replacement.id}"])
        return case

    async def similar(
        self,
        to: UUID | str,
        *,
        tags: Iterable[str] | None = None,
        not_tags: Iterable[str] | None = None,
        dataset_id: UUID | None = None,
        limit: int = 10,
    ) -> list[SimilarCase]:
        """The cases most like a case (its id) or a text, by meaning; by words where there is no vector to compare."""
        if limit < 1:
            raise InvalidValue(f"limit={limit} asks for no cases; give a number from 1 up.")
        db = self._database
        case = await self.get(to) if isinstance(to, UUID) or _is_uuid(to) else None
        narrowed = {**filters(tags, None, not_tags), "dataset_id": dataset_id, "limit": limit}
        del narrowed["any_tags"]
        vector = await db.vectors.question(str(to)) if case is None else None
        if case is not None or vector is not None:
            rows = await db.query(
                "similar_cases",
                id=case.id if case else None,
                vector=vector,
                embedded_by=db.vectors.embedded_by,
                **narrowed,
            )
            if rows or vector is not None:
                return [_similar(row, row["similarity"], row["similarity"]) for row in rows]
        text = case.prompt if case is not None else str(to)
        words = sorted(set(_WORD.findall(text.lower())), key=lambda word: (-len(word), word))[:16]
        if not words:
            return []
        rows = await db.query("cases_with_words", id=case.id if case else None, words=words, **narrowed)
        return [_similar(row, None, row["score"]) for row in rows]

    async def import_file(
        self, path: str | os.PathLike[str], *, on_duplicate: str = "skip", **defaults: Any
    ) -> Imported:
        """Import cases from a .jsonl, .csv or .tsv file, or a dataset's bundle: all of them, or none.

        `defaults` are `source`, `tags` and `captured_by` for cases that do not say. Raises InvalidValue with the
        numbers of the lines that are wrong.
        """
        from .importing import import_file

        return await import_file(self._database, path, on_duplicate=on_duplicate, **defaults)

    async def import_rows(
        self, rows: Iterable[Mapping[str, Any]], *, on_duplicate: str = "skip", **defaults: Any
    ) -> Imported:
        """Import cases from mappings, such as the records of a data frame; NaN is read as missing."""
        from .importing import import_rows

        return await import_rows(self._database, rows, on_duplicate=on_duplicate, **defaults)

    async def list(
        self,
        *,
        tags: Iterable[str] | None = None,
        any_tags: Iterable[str] | None = None,
        not_tags: Iterable[str] | None = None,
        source: str | None = None,
        captured_by: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = 1000,
    ) -> list[Case]:
        """The cases that match, newest first: those with all of `tags`, one of `any_tags`, none of `not_tags`."""
        rows = await self._database.query(
            "cases_matching",
            **filters(tags, any_tags, not_tags),
            source=source,
            captured_by=captured_by,
            since=aware(since),
            until=aware(until),
            limit=limit,
        )
        return [case_of(row) for row in rows]


def filters(
    tags: Iterable[str] | None, any_tags: Iterable[str] | None, not_tags: Iterable[str] | None
) -> dict[str, Any]:
    """Tags as the queries take them: NULL where nothing is asked."""
    return {
        "tags": checked_tags(tags) or None,
        "any_tags": checked_tags(any_tags) or None,
        "not_tags": checked_tags(not_tags) or None,
    }


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _similar(row: Mapping[str, Any], similarity: float | None, score: float) -> SimilarCase:
    case = case_of(row)
    return SimilarCase(
        **{name: getattr(case, name) for name in Case.__dataclass_fields__}, similarity=similarity, score=score
    )
