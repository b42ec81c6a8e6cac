"""Masking what is stored of a run: events, turns and their vectors, and what was made from them, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from .errors import RunNotFound
from .event_rows import run_key
from .redaction import MASK, Redaction, replaced

if TYPE_CHECKING:
    from .database import Database

_DELTAS = {"text_delta": "delta", "reasoning_delta": "delta", "tool_call_delta": "argumentsDelta"}
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Redacted:
    """How many rows were masked, by what they are."""

    events: int = 0
    turns: int = 0
    memories: int = 0
    """Of episodic, semantic and procedural memory; their turns are counted as turns."""
    cases: int = 0
    verdicts: int = 0
    results: int = 0
    """Of replays."""
    masked: int = 0
    """Values masked in all of them."""

    @property
    def rows(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self) if part.name != "masked")


class Rules(Protocol):
    """What is to be masked, and by what."""

    mask: str
    masked: int

    def text(self, text: str, /) -> str:
        """The JSON text of a value, masked; the same object where nothing is."""

    def spans(self, text: str, /) -> list[tuple[int, int, str]]:
        """Where a piece of text is to be masked, in order and without overlap."""


async def redact_run(
    db: Database, run_id: str, *, paths: Iterable[str], patterns: Iterable[Any], dry_run: bool = False
) -> Redacted:
    paths, patterns = list(paths), list(patterns)
    rules = Redaction(paths=paths, patterns=patterns, known=not paths and not patterns, thorough=True)
    run_id = run_key(run_id)
    async with db.transaction():
        found = await _Stored.read(db, run_id)
        # Twice: what the first reading meets under a name is masked in what was read before it, too.
        found.masked(rules)
        rules.masked = 0
        changes = found.masked(rules)
        counts = {name: len(rows) for name, rows in changes.items()}
        turns = [UUID(row["id"]) for row in changes["turns"]]
        if not dry_run:
            for name, rows in changes.items():
                for start in range(0, len(rows), _BATCH):
                    given = json.dumps(rows[start : start + _BATCH])
                    await db.query(f"redact_{'eval_runs' if name == 'results' else name}", given=given)
            [row] = await db.query("redact_memories", turns=turns)
            counts["memories"] = row["memories"]
        else:
            counts["memories"] = sum(1 for row in changes["turns"] if _of_memory(row["payload"]))
    return Redacted(**counts, masked=rules.masked)


@dataclass(slots=True)
class _Stored:
    """What is stored of a run, and was made from it."""

    events: list[dict[str, Any]]
    turns: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    results: list[dict[str, Any]]

    @classmethod
    async def read(cls, db: Database, run_id: str) -> _Stored:
        events = _read(await db.query("event_texts_of_run", run_id=run_id), "event")
        own, children = _conversations(row["event"] for row in events)
        turns = _read(await db.query("turns_of_run", run_id=run_id, conversation=own, children=children), "payload")
        if not events and not turns:
            raise RunNotFound(
                f"Nothing is stored of a run {run_id!r}. `everyturn event runs` lists the runs that left events."
            )
        conversations = list({row["conversation"] for row in turns})
        cases = await db.query("cases_of_conversations", conversations=conversations)
        verdicts = await db.query("verdicts_of_turns", turns=[row["id"] for row in turns])
        results = await db.query("eval_runs_of", run_id=run_id, cases=[row["id"] for row in cases])
        return cls(
            events, turns, _read(cases, "context"), _read(verdicts, "payload"), _read(results, "scores", "drift")
        )

    def masked(self, rules: Redaction) -> dict[str, list[dict[str, Any]]]:
        """The rows that change, as they will be."""
        return {
            "turns": [_turn(row) for row in _changed(rules, self.turns, ("payload",))],
            "events": masked_events(rules, self.events),
            "cases": _changed(rules, self.cases, ("prompt", "context", "reference")),
            "verdicts": _changed(rules, self.verdicts, ("rationale", "payload")),
            "results": _changed(rules, self.results, ("output", "error", "judge_reason", "scores", "drift")),
        }


def _read(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The rows with these columns parsed: as JSON holds them, not as `loads` would read them back."""
    for row in rows:
        for name in names:
            if row[name] is not None:
                row[name] = json.loads(row[name])
    return rows


def _conversations(events: Iterable[Any]) -> tuple[UUID | None, list[UUID]]:
    """The conversation of the run, and those of the child agents it used, as the events tell."""
    own: UUID | None = None
    children: list[UUID] = []
    for event in events:
        depth = 0
        while isinstance(event, Mapping) and event.get("type") == "agent_tool_event":
            event, depth = event.get("event"), depth + 1
        told = event.get("conversation") if isinstance(event, Mapping) and event.get("type") == "turn_start" else None
        try:
            conversation = UUID(told) if isinstance(told, str) else None
        except ValueError:
            continue
        if conversation is not None and depth:
            children.append(conversation)
        elif conversation is not None:
            own = own or conversation
    return own, children


def _changed(rules: Redaction, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    made = []
    for row in rows:
        # One by one, so that a path is read from the top of each, as it was when the row was written.
        new = {name: _masked(rules, row[name]) for name in names}
        if any(new[name] != row[name] for name in names):
            made.append({"id": str(row["id"]), **new})
    return made


def _masked(rules: Rules, value: Any) -> Any:
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    masked = rules.text(text)
    return value if masked is text else json.loads(masked)


def _turn(row: dict[str, Any]) -> dict[str, Any]:
    payload = row["payload"]
    if _of_memory(payload) and MASK in str(payload.get("cacheKey", "")):
        # A key is unique in its scope, masked or not.
        payload["cacheKey"] = f"{MASK} {payload.get('id')}"
    return row


def _of_memory(payload: Any) -> bool:
    return (
        isinstance(payload, dict)
        and str(payload.get("toolName", "")).startswith("memory.")
        and "toolCallId" not in payload
        and "id" in payload
    )


def masked_events(rules: Rules, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that change, with their secrets masked, also where one is cut between deltas."""
    new = {row["id"]: _masked(rules, row["event"]) for row in rows}
    for pieces in _runs_of_deltas(rows):
        _mask_pieces(rules, pieces, new)
    return [{"id": str(row["id"]), "event": new[row["id"]]} for row in rows if new[row["id"]] != row["event"]]


def _runs_of_deltas(rows: Sequence[dict[str, Any]]) -> list[list[tuple[int, tuple[str, ...], str]]]:
    """The deltas that make one text: the id of each, where its text is, and the text."""
    channels: dict[tuple[Any, ...], list[tuple[int, tuple[str, ...], str]]] = {}
    for row in rows:
        event: Any = row["event"]
        above: tuple[str, ...] = ()
        source: list[Any] = []
        while isinstance(event, dict) and event.get("type") == "agent_tool_event":
            source.append(event.get("internalCallId"))
            event, above = event.get("event"), (*above, "event")
        field = _DELTAS.get(str(event.get("type"))) if isinstance(event, dict) else None
        if field is not None and isinstance(event.get(field), str):
            key = (*source, event.get("turn"), event["type"], event.get("id"))
            channels.setdefault(key, []).append((row["id"], (*above, field), event[field]))
    return [pieces for pieces in channels.values() if len(pieces) > 1]


def _mask_pieces(rules: Rules, pieces: Sequence[tuple[int, tuple[str, ...], str]], new: dict[int, Any]) -> None:
    whole = "".join(text for _, _, text in pieces)
    if pieces[0][1][-1] == "argumentsDelta" and whole[:1] in "{[":
        masked = _masked(rules, whole)
        shares = [masked, *[""] * (len(pieces) - 1)] if masked != whole else []
    else:
        spans = rules.spans(whole)
        rules.masked += len(spans)
        shares = _shares(whole, spans, [len(text) for _, _, text in pieces], rules.mask) if spans else []
    for (id, path, _), share in zip(pieces, shares, strict=False):
        new[id] = _with(new[id], path, share)


def _shares(whole: str, spans: Sequence[tuple[int, int, str]], lengths: Sequence[int], mask: str) -> list[str]:
    """Each piece as it is left: the mask stands in the piece that a secret begins in."""
    made, start = [], 0
    for length in lengths:
        end = start + length
        cut = [(max(a, start) - start, min(b, end) - start, rule) for a, b, rule in spans if a < end and b > start]
        begun = {at for at, (a, _, _) in enumerate([s for s in spans if s[0] < end and s[1] > start]) if a < start}
        part = whole[start:end]
        for at in reversed(range(len(cut))):
            a, b, rule = cut[at]
            part = part[:a] + part[b:] if at in begun else replaced(part, [(a, b, rule)], mask)
        made.append(part)
        start = end
    return made


def _with(event: Any, path: tuple[str, ...], text: str) -> Any:
    return {**event, path[0]: text if len(path) == 1 else _with(event[path[0]], path[1:], text)}
