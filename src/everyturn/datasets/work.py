"""A replay at work in one process: what is missing is asked, scored and stored, with a count of it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.errors import ReplayNotFound
from everyturn.values import Usage

from .asking import Answer, Asker
from .recorder import Recorder, RunKey, row_of
from .scorers import Scorer
from .scoring import Judgement, applicable, judge
from .values import Dataset, case_of

if TYPE_CHECKING:
    from everyturn.database import Database

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replay is; the counts and costs are of all its runs, also of those made before it was resumed."""

    replay_id: UUID
    total: int
    done: int
    passed: int
    failed: int
    errors: int
    unjudged: int
    cost_usd: Decimal
    judge_cost_usd: Decimal
    unpriced: int
    """Runs whose price is not known; they are not in `cost_usd`."""
    elapsed: float
    """Seconds since this process began."""
    eta: float | None
    """Seconds still to go at this process's rate."""

    @property
    def pass_rate(self) -> float:
        """The share that passed of all that are done: an error is no pass, and stays in the denominator."""
        return self.passed / self.done if self.done else 0.0


@dataclass
class Work:
    """A replay at work in this process."""

    db: Database
    replay_id: UUID
    dataset: Dataset
    asker: Asker
    scorers: Sequence[Scorer]
    max_cost: Decimal | None = None
    retry_errors: bool = False
    report: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.db)
        self._buffer: list[dict[str, Any]] = []
        self._ahead: asyncio.Task[list[dict[str, Any]]] | None = None
        self._place = 1
        self._cases = 0
        self._reading = asyncio.Lock()
        self._started = time.perf_counter()
        self._made = 0
        self._flying = 0
        self._landed = asyncio.Condition()
        self._priced = False
        self.stopped: str | None = None
        self.progress: Progress | None = None

    async def run(self, concurrency: int) -> Progress:
        """Do everything that is missing."""
        self.progress = await read_progress(self.db, self.replay_id)
        [row] = await self.db.query("replay", id=self.replay_id)
        self._cases = row["cases"]
        self._priced = self._has_a_price()
        self._tell()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._worker())
        except BaseExceptionGroup as errors:
            # The others are cancelled already; the first says what happened.
            raise errors.exceptions[0] from None
        finally:
            if self._ahead is not None:
                self._ahead.cancel()
            await self._recorder.flush()
        return self.progress

    async def _worker(self) -> None:
        # The next answer is asked for while the last is being written: the database's time is not the model's.
        stored: asyncio.Future[None] | None = None
        while (row := await self._next()) is not None:
            self._flying += 1
            try:
                last, stored = stored, await self.begin(row)
            finally:
                self._flying -= 1
                if self.max_cost is not None:
                    self._priced = self._has_a_price()
                    async with self._landed:
                        self._landed.notify_all()
            if last is not None:
                await asyncio.shield(last)
        if stored is not None:
            await asyncio.shield(stored)

    async def _next(self) -> Mapping[str, Any] | None:
        async with self._reading:
            if self.max_cost is not None:
                # Until it is known what an answer costs, one is asked for at a time.
                async with self._landed:
                    await self._landed.wait_for(lambda: self._priced or not self._flying)
            if self.stopped is not None or self._beyond_budget():
                return None
            if not self._buffer:
                self._buffer = await (self._ahead or self._page())
                self._ahead = None
            if not self._buffer:
                return None
            if self._ahead is None and len(self._buffer) <= _PAGE // 2:
                self._ahead = asyncio.create_task(self._page())
            return self._buffer.pop()

    async def _page(self) -> list[dict[str, Any]]:
        """The next things to do, the last first; an empty list at the end."""
        rows: list[dict[str, Any]] = []
        while not rows and self._place <= self._cases:
            first, self._place = self._place, self._place + _PAGE
            rows = await self.db.query(
                "replay_pending",
                id=self.replay_id,
                first=first,
                last=first + _PAGE - 1,
                retry_errors=self.retry_errors,
            )
        rows.reverse()
        return rows

    def _has_a_price(self) -> bool:
        return self.progress is not None and self.progress.done > self.progress.unpriced

    def _beyond_budget(self) -> bool:
        """Whether another answer, with those under way, could go beyond what may be spent."""
        if self.max_cost is not None and self.progress is not None:
            self.stopped = over_budget(self.max_cost, self.progress, self._flying + 1)
        return self.stopped is not None

    async def one(self, row: Mapping[str, Any]) -> None:
        """One case and trial, stored when this returns."""
        stored = await self.begin(row)
        if stored is not None:
            await asyncio.shield(stored)

    async def begin(self, row: Mapping[str, Any]) -> asyncio.Future[None] | None:
        """The answer, unless it is stored already, and the verdict on it; the future is done once both are stored."""
        case = case_of(row)
        key = RunKey(self.replay_id, self.dataset.id, case.id, row["trial"], self.asker.model, self.asker.prompt_rev)
        earlier = row["outcome"]
        chosen = applicable(self.scorers, case)
        if earlier == "unjudged" and not chosen:
            return None
        if earlier == "unjudged" or (earlier == "error" and row["output"].strip()):
            answer = Answer(
                row["output"],
                row["latency_ms"],
                Usage(row["input_tokens"], row["output_tokens"]),
                row["cost_usd"],
                None,
                row["run_id"],
                row["drift"],
            )
        else:
            answer = await self.asker.ask(case, row["trial"])
            if answer.error is None and any(scorer.waits for scorer in chosen):
                await self._recorder.record(row_of(self.db, key, answer, None))
                self._count(earlier, "unjudged", answer.cost_usd, None, priced=row["cost_usd"])
                earlier, row = "unjudged", {**row, "cost_usd": answer.cost_usd}
        judgement = await judge(chosen, case, answer.output) if answer.error is None and chosen else Judgement()
        earlier_judge = row["judge_cost_usd"]
        if earlier_judge is not None:  # a judge that failed was paid, too
            judgement = replace(judgement, cost_usd=(judgement.cost_usd or Decimal(0)) + earlier_judge)
        stored = self._recorder.submit(row_of(self.db, key, answer, judgement))
        outcome = (
            "error"
            if answer.error is not None or judgement.error is not None
            else "unjudged"
            if judgement.passed is None
            else "pass"
            if judgement.passed
            else "fail"
        )
        new_judging = (judgement.cost_usd or Decimal(0)) - (earlier_judge or Decimal(0))
        self._count(earlier, outcome, answer.cost_usd, new_judging, priced=row["cost_usd"])
        if judgement.unpriced and self.max_cost is not None:
            self.stopped = f"The price of a judge is not known, so that a limit of {self.max_cost} USD cannot be kept."
        return stored

    def _count(
        self,
        earlier: str | None,
        outcome: str,
        cost: Decimal | None,
        judging: Decimal | None,
        *,
        priced: Decimal | None,
    ) -> None:
        now = self.progress
        if now is None:
            return
        names = {"pass": "passed", "fail": "failed", "error": "errors", "unjudged": "unjudged"}
        counts = {name: getattr(now, name) for name in names.values()}
        if earlier is not None:
            counts[names[earlier]] -= 1
        counts[names[outcome]] += 1
        self._made += outcome != "unjudged" or earlier is None
        was_unpriced = earlier is not None and priced is None
        self.progress = replace(
            now,
            **counts,
            done=sum(counts.values()),
            cost_usd=now.cost_usd + (cost or 0) - ((priced or 0) if earlier is not None else 0),
            judge_cost_usd=now.judge_cost_usd + (judging or 0),
            unpriced=now.unpriced - was_unpriced + (cost is None),
        )
        self._tell()

    def _tell(self) -> None:
        now = self.progress
        if now is None:
            return
        elapsed = time.perf_counter() - self._started
        left = now.total - now.done + now.unjudged
        eta = elapsed / self._made * left if self._made else None
        self.progress = replace(now, elapsed=elapsed, eta=eta)
        if self.report is not None:
            self.report(self.progress)


def over_budget(limit: Decimal, now: Progress, flying: int) -> str | None:
    """Why so many answers may not be under way; None where they may."""
    if now.unpriced > now.errors:  # a call that failed has no price, and little cost
        return f"The price of {now.unpriced} answers is unknown; a limit of {limit} USD needs it."
    spent = now.cost_usd + now.judge_cost_usd
    each = spent / now.done if now.done else Decimal(0)
    if spent + each * flying > limit or spent >= limit:
        return f"It has cost {spent:.6f} USD, and may cost {limit} USD."
    return None


async def read_progress(db: Database, replay_id: UUID) -> Progress:
    """How far a replay is, as the database has it. Raises ReplayNotFound."""
    rows = await db.query("replay_progress", id=replay_id)
    if not rows:
        raise ReplayNotFound(f"There is no replay {replay_id}. `everyturn dataset show` lists those of a dataset.")
    return Progress(replay_id, **rows[0], elapsed=0.0, eta=None)
