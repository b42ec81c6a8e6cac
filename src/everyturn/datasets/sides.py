"""Naming one side of a comparison: `MODEL`, `MODEL@REV`, or the id of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.errors import InvalidValue, NotEnoughData

from .values import Dataset

if TYPE_CHECKING:
    from everyturn.database import Database

_SHORT = 12


@dataclass(frozen=True, slots=True)
class Side:
    """A model under a prompt, and the replay that counts for it; None where its runs were written by hand."""

    model: str
    prompt_rev: str
    replay_id: UUID | None
    status: str
    label: str
    """As reports name it: with `@REV` where the model ran under several prompts."""


async def sides(db: Database, dataset: Dataset) -> list[Side]:
    """All models and prompts a dataset was replayed with, the newest first."""
    rows = await db.fetch(
        "SELECT * FROM everyturn_newest_replays(%s) ORDER BY started_at DESC NULLS LAST, model, prompt_rev",
        (dataset.id,),
    )
    return [_side(row, rows) for row in rows]


def _side(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Side:
    return Side(
        row["model"],
        row["prompt_rev"],
        row["replay"],
        row["status"],
        label(
            row["model"], row["prompt_rev"], [other["prompt_rev"] for other in rows if other["model"] == row["model"]]
        ),
    )


def label(model: str, prompt_rev: str, revisions: Sequence[str]) -> str:
    """A model's name, with as much of the revision as tells its prompts apart."""
    if len(set(revisions)) < 2:
        return model
    length = _SHORT
    while length < len(prompt_rev) and sum(rev.startswith(prompt_rev[:length]) for rev in set(revisions)) > 1:
        length += 1
    return f"{model}@{prompt_rev[:length]}"


async def find(db: Database, dataset: Dataset, spec: str, known: Sequence[Side]) -> Side:
    """The side a text names. Raises InvalidValue where it names several, NotEnoughData where it names none."""
    replay_id = _uuid(spec)
    if replay_id is not None:
        rows = await db.fetch(
            "SELECT model, prompt_rev, id AS replay, status FROM eval_replay WHERE id = %s AND dataset_id = %s",
            (replay_id, dataset.id),
        )
        if not rows:
            raise NotEnoughData(f"There is no replay {spec} of {dataset}.")
        return Side(rows[0]["model"], rows[0]["prompt_rev"], replay_id, rows[0]["status"], f"replay {spec}")
    matching = [side for side in known if side.model == spec]
    if not matching and "@" in spec:
        model, _, rev = spec.rpartition("@")
        matching = [side for side in known if side.model == model and rev and side.prompt_rev.startswith(rev)]
    if not matching:
        names = ", ".join(side.label for side in known) or "none"
        raise NotEnoughData(f"{dataset} was not replayed with {spec}. It was with: {names}.")
    if len(matching) > 1:
        names = ", ".join(side.label for side in matching)
        raise InvalidValue(f"{spec} names several replays of {dataset}. Name one of: {names}.")
    return matching[0]


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
