"""What the conformance run says of stores that are wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import everyturn as et
from everyturn.testing import event_store_conformance


async def test_the_store_in_memory_conforms() -> None:
    store = et.MemoryEventStore()
    assert isinstance(store, et.EventStore)
    await event_store_conformance(store)
    await store.append(et.EventRecord("r", "a", {"bytes": b"\x00", "n": {1: 2}}))
    [record] = await store.load("r")
    assert record.event == {"bytes": b"\x00", "n": {1: 2}}
    record.event["bytes"] = "changed"
    assert (await store.load("r"))[0].event["bytes"] == b"\x00"
    with pytest.raises(et.InvalidValue):
        await store.append(et.EventRecord("", "a", {}))
    with pytest.raises(et.InvalidValue, match="tool_name 5"):
        await store.append(et.EventRecord("r", "a", {}, tool_name=5))  # type: ignore[arg-type]
    with pytest.raises(et.InvalidValue):
        await store.load("")
    await store.append(et.EventRecord("nul\x00", "a", {}))
    assert len(await store.load("nul\x00")) == 1
    await store.clear("nul\x00")
    assert await store.load("nul\x00") == []


class Drops(et.MemoryEventStore):
    async def append(self, record: Any) -> None:
        if record.type != "text_delta" or record.event["delta"] != "":
            await super().append(record)


class Reorders(et.MemoryEventStore):
    async def load(self, run_id: str) -> Any:
        return sorted(await super().load(run_id), key=lambda record: str(record.type))


class Shares(et.MemoryEventStore):
    async def load(self, run_id: str) -> Any:
        return [record for run in self._runs if run.startswith(run_id) for record in self._runs[run]]


class ClearsAll(et.MemoryEventStore):
    async def clear(self, run_id: str) -> None:
        self._runs.clear()


class Repeats(et.MemoryEventStore):
    async def append(self, record: Any) -> None:
        await super().append(record)
        await super().append(record)


class Changes(et.MemoryEventStore):
    async def load(self, run_id: str) -> Any:
        return [replace(record, event=record.event or {}) for record in await super().load(run_id)]


class Forgets(et.MemoryEventStore):
    async def load(self, run_id: str) -> Any:
        return [replace(record, tool_call_id=None) for record in await super().load(run_id)]


class Loses(et.MemoryEventStore):
    """Two appends at once: one of them is lost."""

    async def append(self, record: Any) -> None:
        before = len(self._runs.get(record.run_id, []))
        others = sum(map(len, self._runs.values()))
        await asyncio.sleep(0.001)
        if sum(map(len, self._runs.values())) == others or before == 0:
            await super().append(record)


class Hangs(et.MemoryEventStore):
    async def load(self, run_id: str) -> Any:
        await asyncio.sleep(60)


class Breaks(et.MemoryEventStore):
    async def clear(self, run_id: str) -> None:
        raise KeyError(run_id)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (Drops(), "Drops drops events: 2 were appended to a run, and load() gives 1"),
        (Reorders(), "Reorders reorders events: load() does not give them in the order in which they were appended."),
        (Shares(), "Shares shares events between runs: load() of "),
        (ClearsAll(), "ClearsAll.clear() of one run touches another"),
        (Repeats(), "Repeats gives events twice: 1 were appended to a run, and load() gives 2."),
        (Changes(), "Changes changes events: None was appended, and load() gives {}."),
        (Forgets(), "Forgets loses tool_call_id: 'call_1' was appended, and load() gives None."),
        (Loses(), "Loses drops events when runs are written side by side"),
        (Hangs(), "Hangs did not answer within 0.05 s"),
        (Breaks(), "Breaks raised KeyError"),
        (object(), "object has no method append()."),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_it_says_in_a_sentence_what_is_wrong(store: Any, said: str) -> None:
    with pytest.raises(AssertionError) as caught:
        await event_store_conformance(store, patience=0.05 if isinstance(store, Hangs) else 10)
    assert said in str(caught.value)
