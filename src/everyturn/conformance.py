"""What every store of events must do, tried on one; what is wrong is said in sentences."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any
from uuid import uuid4

from .event_records import EventRecord, EventStore

_EVENTS: list[Any] = [
    {"type": "turn_start", "turn": 1, "prompt": {"role": "user", "content": [{"type": "text", "text": "é 🐙 \n"}]}},
    {"type": "text_delta", "turn": 1, "delta": ""},
    {"type": "text_delta", "turn": 1, "delta": "the same"},
    {"type": "text_delta", "turn": 1, "delta": "the same"},
    {"type": "tool_result", "turn": 1, "toolName": "t", "args": '{"a": 1}', "result": "\u2028", "extra": None},
    {"type": "a type of another program", "deep": [{"n": 1.5}, [], {}]},
    "an event that is only a text",
    None,
    {"type": "final", "runId": "r", "output": "done", "messages": []},
]


async def event_store_conformance(store: EventStore, *, patience: float = 10.0) -> None:
    """Try a store: it keeps all that `append` said it kept, in order, run by run, and clears one run only.

    Raises AssertionError with one sentence for each thing that is wrong.
    """
    wrong: list[str] = []
    name = type(store).__name__
    for method in ("append", "load", "clear"):
        if not callable(getattr(store, method, None)):
            wrong.append(f"{name} has no method {method}().")
    if not wrong:
        for check in (_order, _columns, _apart, _concurrent, _clearing):
            try:
                wrong += await asyncio.wait_for(check(store, name), patience)
            except TimeoutError:
                wrong.append(f"{name} did not answer within {patience:g} s ({_what(check)}).")
            except Exception as error:
                wrong.append(f"{name} raised {type(error).__name__}: {error} ({_what(check)}).")
    if wrong:
        raise AssertionError("\n".join(wrong))


def _what(check: Any) -> str:
    return " ".join((check.__doc__ or "").split()).rstrip(".")


def _run() -> str:
    return f"conformance-{uuid4()}"


async def _append(store: EventStore, run: str, events: Sequence[Any]) -> None:
    for event in events:
        await _awaited(store.append(EventRecord(run, "agent", event, agent_name="Agent", turn=1)))


async def _load(store: EventStore, run: str) -> list[Any]:
    return [record.event for record in await _awaited(store.load(run))]


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def _order(store: EventStore, name: str) -> list[str]:
    """events are kept in order"""
    run = _run()
    if found := await _load(store, run):
        return [f"{name}.load() of a run that was never written gives {len(found)} events; it must give an empty list."]
    for count, event in enumerate(_EVENTS, 1):
        await _append(store, run, [event])
        found = await _load(store, run)
        if len(found) < count:
            return [
                f"{name} drops events: {count} were appended to a run, and load() gives {len(found)} "
                f"({_type(event)} came last)."
            ]
        if len(found) > count:
            return [f"{name} gives events twice: {count} were appended to a run, and load() gives {len(found)}."]
        if found != _EVENTS[:count]:
            if sorted(map(repr, found)) == sorted(map(repr, _EVENTS[:count])):
                return [f"{name} reorders events: load() does not give them in the order in which they were appended."]
            at = next(n for n, (a, b) in enumerate(zip(found, _EVENTS, strict=False)) if a != b)
            return [f"{name} changes events: {_EVENTS[at]!r} was appended, and load() gives {found[at]!r}."]
    return []


async def _columns(store: EventStore, name: str) -> list[str]:
    """the fields beside the event are kept"""
    run = _run()
    given = EventRecord(run, "agent", {"type": "tool_result"}, "Agent", 3, "tool", "call_1", "internal_1")
    bare = EventRecord(run, "agent", {"type": "text_delta"})
    await store.append(given)
    await store.append(bare)
    wrong = []
    for want, got in zip((given, bare), await store.load(run), strict=False):
        for field in ("run_id", "agent_id", "agent_name", "turn", "tool_name", "tool_call_id", "internal_call_id"):
            if getattr(got, field, None) != getattr(want, field):
                wrong.append(
                    f"{name} loses {field}: {getattr(want, field)!r} was appended, and load() gives "
                    f"{getattr(got, field, None)!r}."
                )
    return wrong


async def _apart(store: EventStore, name: str) -> list[str]:
    """runs are kept apart"""
    one, other = _run(), _run()
    # Names of which one begins the other, and that differ in case only, are different runs.
    runs = [one, other, one + "-more", one.upper()]
    for n in range(4):
        for run in runs:
            await _append(store, run, [{"type": "text_delta", "delta": f"{run} {n}"}])
    for run in runs:
        found = await _load(store, run)
        strangers = [event for event in found if not str(event.get("delta")).startswith(f"{run} ")]
        if strangers:
            return [
                f"{name} shares events between runs: load() of {run!r} gives {strangers[0]['delta']!r}, "
                "which was appended to another."
            ]
        if len(found) != 4:
            return [
                f"{name} drops events when runs are written by turns: of 4 appended to a run it gives {len(found)}."
            ]
    return []


async def _concurrent(store: EventStore, name: str) -> list[str]:
    """runs are written side by side"""
    runs = [_run() for _ in range(8)]

    async def write(run: str) -> None:
        await _append(store, run, [{"type": "text_delta", "delta": str(n)} for n in range(25)])

    await asyncio.gather(*map(write, runs))
    for run in runs:
        found = [event["delta"] for event in await _load(store, run)]
        if len(found) != 25:
            return [f"{name} drops events when runs are written side by side: of 25 it gives {len(found)}."]
        if found != [str(n) for n in range(25)]:
            return [f"{name} reorders events when runs are written side by side."]
    return []


async def _clearing(store: EventStore, name: str) -> list[str]:
    """clear() removes one run"""
    gone, kept = _run(), _run()
    for run in (gone, kept, gone + "-more"):
        await _append(store, run, _EVENTS[:3])
    await store.clear(gone)
    wrong = []
    if left := await _load(store, gone):
        wrong.append(f"{name}.clear() leaves {len(left)} of 3 events of the run it was given.")
    for run in (kept, gone + "-more"):
        if len(found := await _load(store, run)) != 3:
            wrong.append(f"{name}.clear() of one run touches another: {run!r} has {len(found)} of 3 events left.")
    await store.clear(gone)
    await _append(store, gone, _EVENTS[:1])
    if await _load(store, gone) != _EVENTS[:1]:
        wrong.append(f"{name} does not keep what is appended to a run after clear().")
    return wrong


def _type(event: Any) -> str:
    return f"the type {event['type']!r}" if isinstance(event, dict) else f"the event {event!r}"
