"""Erasure: what forgotten memories said is taken out of the log and out of the streams of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from everyturn.redacting import masked_events

if TYPE_CHECKING:
    from everyturn.database import Database

MASK = "[forgotten]"
_DISTINCTIVE = 8
"""A text of fewer characters is looked for only in the conversations it was remembered in, as a word of its own."""
_BATCH = 500

_SAID_UNDER = frozenset(("args", "arguments", "result"))
_NAMES = frozenset(
    (
        *("type", "role", "id", "callId", "name", "toolName", "toolCallId", "internalCallId", "runId", "conversation"),
        *("agentId", "agentName", "promptRev", "defaultModel", "argumentsMode"),
    )
)
"""What tells events apart, and is nothing that anybody said."""


async def erase(database: Database, rows: Sequence[dict[str, Any]], scope: str | None) -> int:
    """Take what these memories said out of their own turns, of what quotes it, and of the streams; count the turns.

    `rows` are their ids and, where known, contents. Memories of another scope that say the same stay as they are.
    """
    if not rows:
        return 0
    own = await database.fetch(
        "SELECT id, conversation, coalesce(payload -> 'text', payload -> 'value') AS content FROM agent_turns"
        " WHERE payload ->> 'toolName' IN ('memory.remember', 'memory.supersede')"
        "   AND NOT payload ? 'toolCallId' AND payload ->> 'id' = ANY (%s)",
        ([str(row["id"]) for row in rows],),
    )
    texts: set[str] = set()
    near: set[str] = set()
    for content in (row["content"] for row in [*rows, *own]):
        whole = isinstance(content, str)
        for text in [content] if whole else _telling(content):
            if text.strip() and text != MASK:
                (texts if whole and len(text) >= _DISTINCTIVE else near).update(_forms(text))
    quotes, beside = _longest_first(texts), _longest_first(near)
    [found] = await database.query(
        "memory_erase",
        own=[row["id"] for row in own],
        conversations=list({row["conversation"] for row in own}),
        scope=scope,
        quotes=quotes,
        escaped=[_in_json(quote) for quote in quotes],
        near=beside,
        near_escaped=[_in_json(quote) for quote in beside],
        mask=MASK,
    )
    if found["memories"]:
        await database.query("redact_memories", turns=found["memories"])
    await _streams(database, quotes, beside, set(found["near_runs"]), set(found["runs"]))
    return int(found["turns"])


async def _streams(database: Database, quotes: list[str], beside: list[str], near: set[str], runs: set[str]) -> None:
    # A text may be cut between deltas, and a child agent's stream is in that of the run it belongs to.
    texts = [_in_json(text) for text in [*quotes, *near, *runs]]
    if not texts:
        return
    for row in await database.query("runs_with_texts", runs=[*near, *runs], texts=texts):
        rules = _Texts(_longest_first({*quotes, *beside}) if row["run_id"] in near else quotes)
        events = await database.query("event_texts_of_run", run_id=row["run_id"])
        for event in events:
            event["event"] = json.loads(event["event"])
        changed = masked_events(rules, events) if rules.texts else []
        for start in range(0, len(changed), _BATCH):
            await database.query("redact_events", given=json.dumps(changed[start : start + _BATCH]))


class _Texts:
    """Texts that are masked wherever an event says them."""

    mask = MASK

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.masked = 0
        self._pattern = re.compile("|".join(map(_as_pattern, texts)))

    def text(self, text: str, /) -> str:
        value = json.loads(text)
        new = self._without(value, said=not isinstance(value, dict))
        return text if new == value else json.dumps(new, ensure_ascii=False)

    def spans(self, text: str, /) -> list[tuple[int, int, str]]:
        return [(*match.span(), "forgotten") for match in self._pattern.finditer(text)]

    def _without(self, value: Any, *, said: bool) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(MASK, value)
        if isinstance(value, list):
            return [self._without(part, said=said) for part in value]
        if isinstance(value, dict):
            made: dict[str, Any] = {}
            for key, part in value.items():
                if not said and key in _NAMES and isinstance(part, str):
                    made[key] = part
                    continue
                name = key if re.fullmatch(r"\w+", key) else self._pattern.sub(MASK, key)
                name = name if name == key else f"{name} {len(made) + 1}"
                made[name] = self._without(part, said=said or key in _SAID_UNDER)
            return made
        return value


def _as_pattern(text: str) -> str:
    found = re.escape(text)
    return found if len(text) >= _DISTINCTIVE else rf"(?<![A-Za-z0-9_]){found}(?![A-Za-z0-9_])"


def _telling(value: Any) -> Iterable[str]:
    """The longer strings in a value that is not itself a string."""
    if isinstance(value, str):
        if len(value) >= _DISTINCTIVE:
            yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _telling(part)


def _forms(text: str) -> set[str]:
    """A text as it is, and as it stands in JSON that is itself stored as a string."""
    return {text, _in_json(text), json.dumps(text)[1:-1]}


def _in_json(text: str) -> str:
    """A text as JSON prints it inside its quotation marks."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))
