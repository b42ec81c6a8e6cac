"""Writes runs: those that end while a write is under way go together in the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.ids import uuid7

from .asking import Answer
from .scoring import Judgement

if TYPE_CHECKING:
    from everyturn.database import Database

_MOST = 200
_MAX_INT = 2**31 - 1
_MAX_COST = Decimal("9999.999999")


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which run of which replay."""

    replay_id: UUID
    dataset_id: UUID
    case_id: UUID
    trial: int
    model: str
    prompt_rev: str


def row_of(db: Database, key: RunKey, answer: Answer, judgement: Judgement | None) -> dict[str, Any]:
    """A run as it is stored: redacted and cleaned."""
    found = judgement or Judgement()
    failed = answer.error is not None
    said = {
        "output": answer.output,
        "error": answer.error if failed else found.error,
        "judge_reason": found.reason,
        "scores": found.scores or None,
        "drift": answer.drift,
    }
    row: dict[str, Any] = json.loads(db.encode(said, lenient=True))
    return row | {
        "id": str(uuid7()),
        "replay_id": str(key.replay_id),
        "dataset_id": str(key.dataset_id),
        "case_id": str(key.case_id),
        "trial": key.trial,
        "model": key.model,
        "prompt_rev": key.prompt_rev,
        "pass": False if failed else found.passed,
        "judge_score": None if found.score is None else str(round(Decimal(str(found.score)), 2)),
        "latency_ms": min(answer.latency_ms, _MAX_INT),
        "input_tokens": min(answer.usage.input_tokens, _MAX_INT),
        "output_tokens": min(answer.usage.output_tokens, _MAX_INT),
        "cost_usd": _storable(answer.cost_usd),
        "judge_cost_usd": _storable(found.cost_usd),
        "run_id": answer.run_id,
        "ran_at": datetime.now(UTC).isoformat(),
    }


def _storable(cost: Decimal | None) -> str | None:
    """A cost as numeric(10,6) holds it; one that it cannot hold is unknown rather than wrong."""
    return None if cost is None or not 0 <= cost <= _MAX_COST else f"{cost:.6f}"


class Recorder:
    """Writes in the order in which it is given rows."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: list[tuple[Mapping[str, Any], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    def submit(self, row: Mapping[str, Any]) -> asyncio.Future[None]:
        """Begin to store one run; the future is done once it is durable, and fails where it could not be stored."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return future

    async def record(self, row: Mapping[str, Any]) -> None:
        """Store one run. A cancellation does not undo it."""
        await asyncio.shield(self.submit(row))

    async def flush(self) -> None:
        """Wait until everything is written."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            try:
                await self._db.query("record_runs", records=json.dumps([row for row, _ in batch]))
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                        future.exception()  # a task that was cancelled does not ask for it
            else:
                for _, future in batch:
                    if not future.done():
                        future.set_result(None)
