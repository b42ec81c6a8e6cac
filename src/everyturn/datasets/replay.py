"""Replays: every case of a dataset put to a model or an agent, each case and trial exactly once, in flat memory.

What is to be done is one row, and what is done are rows: a replay that was killed is finished by asking the database
what is missing. An output is stored before a judge is asked, so that a crash in between costs no second answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn import jsonable
from everyturn.errors import ConversationConflict, InvalidValue, ReplayConflict, ReplayNotFound
from everyturn.ids import uuid7
from everyturn.locks import ConversationLock
from everyturn.names import check_name

from .plan import Estimate, Target, choose, default_scorers, estimate
from .values import Dataset
from .work import Progress, Work, read_progress

if TYPE_CHECKING:
    from everyturn.database import Database

CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay came to."""

    id: UUID
    dataset: str
    model: str
    prompt_rev: str
    status: str
    """`finished`, or `stopped` before everything was done."""
    progress: Progress
    stopped_because: str | None = None


async def replay(
    db: Database,
    dataset: Dataset,
    *,
    model: Any = None,
    agent: Any = None,
    prompt: str | None = None,
    prompt_rev: str | None = None,
    model_name: str | None = None,
    scorers: Sequence[Any] | None = None,
    concurrency: int = CONCURRENCY,
    trials: int = 1,
    sample: int | None = None,
    seed: int | None = None,
    max_cost: Decimal | float | None = None,
    timeout: float | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    dry_run: bool = False,
    queue: bool = False,
) -> ReplayResult | Estimate:
    """Put the cases of a dataset to a model (or an agent, with recorded tool results) and score what it says.

    `prompt` is the text of the system prompt; its revision is its git blob SHA. Without `scorers`, cases with a
    reference are compared exactly, and the outputs of others are stored unjudged. `sample` cases are picked by
    `seed`. No new case is begun once the next could go beyond `max_cost` US dollars. `timeout` is in seconds, for
    each answer. With `dry_run` nothing is done, and the result is an `Estimate`; with `queue` the work is left to
    `everyturn worker`.

    Errors of the model or of a judge are rows, never passes. When it is cancelled, what is stored stays, and `resume`
    finishes the rest.
    """
    if concurrency < 1 or trials < 1:
        raise InvalidValue(f"concurrency={concurrency} and trials={trials} must be from 1 up.")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidValue(f"timeout={timeout} leaves no answer any time; give seconds above 0.")
    target = Target(model, agent, prompt, prompt_rev, model_name, dict(settings or {}), timeout)
    resolved, names = default_scorers(db, scorers)
    case_ids, seed = choose(dataset.case_ids, sample, seed)
    if dry_run:
        return await estimate(db, dataset, target, resolved, case_ids, trials)
    replay_id = uuid7()
    asker = await target.asker(db, replay_id)
    check_name(asker.model, "model name")
    check_name(asker.prompt_rev, "prompt revision")
    if queue:
        from .queue import check_queueable

        check_queueable(target, scorers)
    await db.query(
        "begin_replay",
        id=replay_id,
        dataset_id=dataset.id,
        model=asker.model,
        prompt_rev=asker.prompt_rev,
        prompt=None if prompt is None else str(jsonable.loads(db.encode(prompt, lenient=True))),
        settings=db.encode(target.named() | {"promptRev": prompt_rev, "maxCost": _text(max_cost), "queue": queue}),
        scorers=names,
        case_ids="{" + ",".join(map(str, case_ids)) + "}",
        trials=trials,
        seed=seed,
    )
    work = Work(db, replay_id, dataset, asker, resolved, _decimal(max_cost), report=progress)
    if queue:
        from .queue import enqueue

        await enqueue(db, replay_id)
        return await _result(work, "running")
    return await _carry_out(work, concurrency)


async def resume(
    db: Database,
    replay_id: UUID,
    *,
    model: Any = None,
    agent: Any = None,
    scorers: Sequence[Any] | None = None,
    concurrency: int = CONCURRENCY,
    max_cost: Decimal | float | None = None,
    retry_errors: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> ReplayResult:
    """Finish exactly what is missing of a replay: outputs that wait for a verdict are only judged.

    `model` and `agent` are needed again where they were Python objects. `scorers` may be added to a replay that was
    begun without. With `retry_errors` runs that ended in an error are made again. Raises ReplayNotFound, and
    ReplayConflict while another process works on it.
    """
    work = await load(db, replay_id, model=model, agent=agent, scorers=scorers)
    work.max_cost = _decimal(max_cost) if max_cost is not None else work.max_cost
    work.retry_errors = retry_errors
    work.report = progress
    return await _carry_out(work, concurrency, scorers=None if scorers is None else [s.name for s in work.scorers])


async def load(
    db: Database, replay_id: UUID, *, model: Any = None, agent: Any = None, scorers: Sequence[Any] | None = None
) -> Work:
    """A replay as its row describes it."""
    rows = await db.query("replay", id=replay_id)
    if not rows:
        raise ReplayNotFound(f"There is no replay {replay_id}. `everyturn dataset show` lists those of a dataset.")
    row = rows[0]
    kept = row["settings"] if isinstance(row["settings"], dict) else {}
    target = Target(
        model if model is not None else kept.get("model"),
        agent if agent is not None else kept.get("agent"),
        row["prompt"],
        kept.get("promptRev"),
        kept.get("modelName"),
        kept.get("settings") or {},
        kept.get("timeout"),
    )
    if target.model is None and target.agent is None:
        raise InvalidValue(
            f"Replay {replay_id} was begun with a Python object as its model ({row['model']}). Give that object again."
        )
    try:
        resolved, names = default_scorers(db, scorers if scorers is not None else row["scorers"])
    except InvalidValue as error:
        if scorers is not None:
            raise
        raise InvalidValue(f"Replay {replay_id} was begun with a scorer that has to be given again. {error}") from None
    if row["scorers"] and names != row["scorers"]:
        raise InvalidValue(
            f"Replay {replay_id} was begun with the scorers {', '.join(row['scorers'])}; others would not be "
            "comparable. Begin a new replay."
        )
    asker = await target.asker(db, replay_id)
    if (asker.model, asker.prompt_rev) != (row["model"], row["prompt_rev"]):
        raise InvalidValue(
            f"Replay {replay_id} was begun with {row['model']} under the prompt {row['prompt_rev'][:12]}, and what it "
            f"would go on with is {asker.model} under {asker.prompt_rev[:12]}. Begin a new replay."
        )
    dataset = await db.datasets.get(f"{row['name']}@{row['version']}")
    limit = kept.get("maxCost")
    return Work(db, replay_id, dataset, asker, resolved, Decimal(limit) if limit else None)


async def _carry_out(work: Work, concurrency: int, *, scorers: Sequence[str] | None = None) -> ReplayResult:
    lock = ConversationLock(work.db, work.replay_id)
    try:
        await lock.acquire()
    except ConversationConflict:
        raise ReplayConflict(
            f"Replay {work.replay_id} is being worked on by another process. Wait for it to end, or stop it."
        ) from None
    status = "stopped"
    try:
        await _set_status(work, "running", scorers)
        await work.run(concurrency)
        status = "stopped" if work.stopped is not None else "finished"
    finally:
        ending = asyncio.ensure_future(_set_status(work, status))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait({ending}, timeout=5)
            raise
        finally:
            lock.release()
    return await _result(work, status)


async def _set_status(work: Work, status: str, scorers: Sequence[str] | None = None) -> None:
    await work.db.query(
        "replay_status", id=work.replay_id, status=status, scorers=None if scorers is None else list(scorers)
    )


async def _result(work: Work, status: str) -> ReplayResult:
    now = work.progress or await read_progress(work.db, work.replay_id)
    asker = work.asker
    return ReplayResult(work.replay_id, str(work.dataset), asker.model, asker.prompt_rev, status, now, work.stopped)


def _decimal(cost: Decimal | float | None) -> Decimal | None:
    if cost is None:
        return None
    limit = Decimal(str(cost))
    if not limit.is_finite() or limit <= 0:
        raise InvalidValue(f"max_cost={cost} lets nothing be asked; give US dollars above 0.")
    return limit


def _text(cost: Decimal | float | None) -> str | None:
    return None if cost is None else str(_decimal(cost))
