"""An event store in memory, for tests."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from . import jsonable
from .event_records import EventRecord
from .event_rows import event_row, run_key


class MemoryEventStore:
    """An `EventStore` that keeps what it is given for as long as it lives."""

    def __init__(self) -> None:
        self._runs: dict[str, list[EventRecord]] = {}
        self._ids = count(1)

    async def append(self, record: EventRecord) -> None:
        """Keep an event. Raises InvalidValue."""
        await asyncio.sleep(0)  # as every other store, it lets others go on
        row = event_row(record, jsonable.dumps_lenient)
        kept = replace(
            record,
            run_id=row.run_id,
            event=jsonable.loads(row.event),
            id=next(self._ids),
            created_at=datetime.now(UTC),
        )
        self._runs.setdefault(row.run_id, []).append(kept)

    async def load(self, run_id: str) -> list[EventRecord]:
        """The events of a run, in order."""
        return [replace(record, event=deepcopy(record.event)) for record in self._runs.get(run_key(run_id), [])]

    async def clear(self, run_id: str) -> None:
        """Remove the events of this run."""
        self._runs.pop(run_key(run_id), None)
