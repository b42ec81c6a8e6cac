"""The values of eval datasets: cases, datasets, and what is said about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from everyturn.errors import InvalidValue
from everyturn.names import check_name

SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of `eval_case`."""

    id: UUID
    source: str
    prompt: str
    context: Any
    reference: str | None
    tags: list[str]
    captured_at: datetime
    captured_by: str
    turn_id: UUID | None
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured(Case):
    """A case as `capture` leaves it, and what is already there that is like it."""

    stored: bool = True
    """False where an exact duplicate was there already, and is what is returned."""
    duplicates: list[UUID] = field(default_factory=list)
    """Other cases with the same prompt, context and reference."""
    nearest: UUID | None = None
    """The most similar other case, where there is an embedder."""
    similarity: float | None = None
    """Its cosine similarity; from 0.95 up the two are near-duplicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarCase(Case):
    """A case found by `similar`."""

    similarity: float | None
    """The cosine similarity, -1 to 1; None where only words were compared."""
    score: float
    """What the list is ordered by: the similarity, or the share of the words asked for."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A published dataset: frozen."""

    id: UUID
    name: str
    version: int
    case_ids: list[UUID]
    notes: str | None
    published_at: datetime
    hash: str
    """sha256 over the ids and content hashes of its cases, in order."""
    created: bool = False
    """True where this call published it; False where it was there already."""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    imported: int
    """Cases stored."""
    duplicates: int = 0
    """Cases left out, because the same content is stored already or came before in the file."""
    dataset: Dataset | None = None
    """The dataset of a bundle."""
    ids: list[UUID] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """`NAME@VERSION`; without a version, the newest."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: DatasetRef | Dataset | str) -> DatasetRef:
        """Read `core@4` or `core`. Raises InvalidValue."""
        if isinstance(text, DatasetRef):
            return text
        if isinstance(text, Dataset):
            return cls(text.name, text.version)
        name, at, version = text.rpartition("@") if "@" in text else (text, "", "")
        if at and not (version.isascii() and version.isdigit() and 0 < int(version) < 2**31):
            raise InvalidValue(f"{text!r} does not name a dataset. Write NAME@VERSION, such as core@4, or NAME.")
        return cls(check_name(name, "dataset name"), int(version) if at else None)


_UNSAFE_NAME = re.compile(r"[/\\@:]|^\.|^-")


def dataset_name(name: Any) -> str:
    """A name a dataset may be published under: it is also part of file names and of `NAME@VERSION`."""
    checked = check_name(name, "dataset name")
    if found := _UNSAFE_NAME.search(checked):
        raise InvalidValue(
            f"The dataset name {checked!r} holds {found.group()!r} where it may not: names are parts of file names and "
            "of NAME@VERSION. Use letters, digits, dots and hyphens."
        )
    return checked


def checked_tags(tags: Iterable[str] | str | None) -> list[str]:
    """Tags, each once, in their order. Raises InvalidValue."""
    if tags is None:
        return []
    if isinstance(tags, str):
        raise InvalidValue(f"Tags are a list of strings; got the string {tags!r}.")
    return list(dict.fromkeys(check_name(tag, "tag") for tag in tags))


def aware(moment: datetime | None) -> datetime | None:
    """A naive datetime is read as UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def case_of(row: Mapping[str, Any]) -> Case:
    """The case a row is; other columns are ignored."""
    return Case(**{name: row[name] for name in Case.__dataclass_fields__})
