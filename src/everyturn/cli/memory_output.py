"""How memories are shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from everyturn.cli.output import Column, Row
from everyturn.cli.text import clip, plain

if TYPE_CHECKING:
    from everyturn.memory import Hit

SUMMARY = 500
LISTED = [
    Column("created_at"),
    Column("id", whole=True),
    Column("kind"),
    Column("scope"),
    Column("agent"),
    Column("subjects"),
    Column("text", flexible=True),
    Column("expires_at", only_piped=True),
    Column("superseded_by", only_piped=True),
]
HITS = [
    Column("score", right=True),
    Column("words", right=True),
    Column("vector", right=True),
    Column("similarity", right=True),
    Column("matched"),
    Column("id", whole=True),
    Column("scope", only_piped=True),
    Column("agent", only_piped=True),
    Column("subjects"),
    Column("text", flexible=True),
]


def as_row(hit: Hit) -> Row:
    return {
        "hit": hit,
        "score": None if hit.score is None else f"{hit.score:.3f}",
        "words": hit.lexical_rank,
        "vector": hit.vector_rank,
        "similarity": None if hit.similarity is None else f"{hit.similarity:.3f}",
        "matched": " ".join(hit.matched),
        "id": hit.id,
        "scope": hit.scope,
        "agent": hit.agent,
        "subjects": " ".join(hit.subjects),
        "text": clip(_content(hit), SUMMARY),
    }


def _content(hit: Hit) -> str:
    if hit.kind != "procedural":
        return hit.text or ""
    value = hit.value if isinstance(hit.value, str) else json.dumps(plain(hit.value), ensure_ascii=False, default=str)
    return f"{hit.cache_key}: {value}"
