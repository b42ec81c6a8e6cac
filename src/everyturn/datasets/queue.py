"""Replays over several machines: one job for each case and trial, in the same database, taken by `everyturn worker`.

The jobs are procrastinate's (the extra `queue`). A worker that is killed leaves its jobs to the others once its
heartbeat is missed; a job that finds its run stored does nothing, and two jobs of one run never work at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn.errors import EveryturnError, InvalidValue

from .plan import Target

if TYPE_CHECKING:
    import procrastinate

    from everyturn.database import Database

    from .work import Work

logger = logging.getLogger("everyturn")

QUEUE = "everyturn"
_BATCH = 1000
_FINISH_PRIORITY = -1
_FINISH_AGAIN = 5
_LOCK = 0x6576_6572_7175_6575


def _procrastinate() -> Any:
    try:
        import procrastinate
    except ImportError:
        raise EveryturnError(
            "A queue needs the package procrastinate. Install it with: pip install 'everyturn[queue]'"
        ) from None
    return procrastinate


def check_queueable(target: Target, scorers: Sequence[Any] | None) -> None:
    """Another process has to find the model, the agent and the scorers by their names. Raises InvalidValue."""
    _procrastinate()
    named = [target.model, target.agent, *(scorers or ())]
    for part in named:
        if part is not None and not isinstance(part, str):
            raise InvalidValue(
                f"{part!r:.100} cannot be put into a queue: another process has to find it. "
                "Name it as python:module:name."
            )


def app(db: Database) -> procrastinate.App:
    """The procrastinate app of a database, with the tasks of replays."""
    package = _procrastinate()
    made: procrastinate.App = package.App(
        connector=package.PsycopgConnector(conninfo=db.url, min_size=0, max_size=4),
    )
    works: dict[str, asyncio.Task[Work]] = {}

    async def work_of(replay_id: str) -> Work:
        from .replay import load

        if replay_id not in works or (works[replay_id].done() and works[replay_id].exception() is not None):
            works[replay_id] = asyncio.ensure_future(load(db, UUID(replay_id)))
        return await asyncio.shield(works[replay_id])

    retry = package.RetryStrategy(max_attempts=5, exponential_wait=2)

    @made.task(name="everyturn.replay_case", queue=QUEUE, retry=retry)
    async def replay_case(replay_id: str, place: int, trial: int) -> None:
        rows = await db.query("replay_pending", id=UUID(replay_id), first=place, last=place, retry_errors=False)
        for row in rows:
            if row["trial"] == trial:
                work = await work_of(replay_id)
                if work.max_cost is None or await _affordable(db, work, work.max_cost):
                    await work.one(row)
                if work.stopped is not None:
                    await _stop(db, work, work.stopped)

    @made.task(name="everyturn.finish_replay", queue=QUEUE, retry=retry)
    async def finish_replay(replay_id: str) -> None:
        from .work import read_progress

        now = await read_progress(db, UUID(replay_id))
        [row] = await db.query("replay", id=UUID(replay_id))
        if row["status"] == "stopped" and row["settings"].get("maxCost") is not None:
            return
        if now.done == now.total:
            await db.query("replay_status", id=UUID(replay_id), status="finished")
        else:
            await finish_replay.configure(
                schedule_in={"seconds": _FINISH_AGAIN}, priority=_FINISH_PRIORITY
            ).defer_async(replay_id=replay_id)

    return made


async def _affordable(db: Database, work: Work, limit: Decimal) -> bool:
    """Whether the replay may cost one answer more, whoever makes the others. A replay that may not is stopped."""
    from .work import over_budget, read_progress

    [row] = await db.query("replay", id=work.replay_id)
    if row["status"] == "stopped":
        return False
    # Counted before what is spent is read: an answer that is stored in between is counted twice, never left out.
    [flying] = await db.fetch(
        "SELECT count(*) AS jobs FROM procrastinate_jobs j JOIN eval_replay p ON p.id = %(id)s::uuid"
        "  LEFT JOIN eval_run r ON r.replay_id = p.id AND r.trial = (j.args ->> 'trial')::int"
        "                      AND r.case_id = p.case_ids[(j.args ->> 'place')::int] AND r.outcome <> 'unjudged'"
        " WHERE j.queue_name = %(queue)s AND j.status = 'doing' AND j.task_name = 'everyturn.replay_case'"
        "   AND j.args ->> 'replay_id' = p.id::text AND r.id IS NULL",
        {"id": str(work.replay_id), "queue": QUEUE},
    )
    why = over_budget(limit, await read_progress(db, work.replay_id), flying["jobs"])
    if why is not None:
        await _stop(db, work, why)
    return why is None


async def _stop(db: Database, work: Work, why: str) -> None:
    logger.warning("Replay %s is stopped: %s", work.replay_id, why)
    work.stopped = None  # it may be put into the queue again
    await db.query("replay_status", id=work.replay_id, status="stopped", scorers=None)


async def prepare(db: Database) -> None:
    """Make procrastinate's tables where they are missing."""
    package = _procrastinate()
    async with db.transaction():
        await db.fetch("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        [row] = await db.fetch("SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS there")
        if not row["there"]:
            await db.fetch(package.schema.SchemaManager.get_schema())


async def enqueue(db: Database, replay_id: UUID) -> int:
    """Put what is missing of a replay into the queue; return how many jobs there are."""
    await prepare(db)
    [row] = await db.query("replay", id=replay_id)
    await db.query("replay_status", id=replay_id, status="running")
    count = 0
    queue = app(db)
    async with queue.open_async():
        for first in range(1, row["cases"] + 1, _BATCH):
            pending = await db.fetch(
                "SELECT m.place, t.trial, m.id AS case_id FROM eval_replay p"
                " CROSS JOIN LATERAL unnest(p.case_ids[%(first)s::int:%(last)s::int]) WITH ORDINALITY AS m (id, place)"
                " CROSS JOIN LATERAL generate_series(1, p.trials) AS t (trial)"
                " LEFT JOIN eval_run r ON r.replay_id = p.id AND r.case_id = m.id AND r.trial = t.trial"
                " WHERE p.id = %(id)s AND (r.id IS NULL OR r.outcome = 'unjudged')",
                {"id": replay_id, "first": first, "last": first + _BATCH - 1},
            )
            jobs = [
                queue.configure_task(
                    "everyturn.replay_case", lock=f"{replay_id} {one['case_id']} {one['trial']}"
                ).make_new_job(replay_id=str(replay_id), place=first + one["place"] - 1, trial=one["trial"])
                for one in pending
            ]
            if jobs:
                await queue.job_manager.batch_defer_jobs_async(jobs)
            count += len(jobs)
        await queue.configure_task("everyturn.finish_replay", priority=_FINISH_PRIORITY).defer_async(
            replay_id=str(replay_id)
        )
    return count


async def work(db: Database, *, concurrency: int = 8, drain: bool = False, stalled_after: float = 30) -> None:
    """Take jobs until cancelled, or with `drain` until none is left, here or at a worker that died.

    A worker that has not been heard of for `stalled_after` seconds is taken for dead, and its jobs are done again.
    """
    if concurrency < 1 or stalled_after <= 0:
        raise InvalidValue(f"concurrency={concurrency} must be from 1 up, stalled_after={stalled_after} above 0.")
    await prepare(db)
    queue = app(db)
    options: dict[str, Any] = {
        "queues": [QUEUE],
        "concurrency": concurrency,
        "delete_jobs": "successful",
        "update_heartbeat_interval": stalled_after / 3,
        "stalled_worker_timeout": max(stalled_after * 4, 30),
        "install_signal_handlers": False,
        "shutdown_graceful_timeout": 0.5,
    }
    async with queue.open_async():
        rescue = asyncio.create_task(_rescue(queue, stalled_after))
        try:
            if not drain:
                await queue.run_worker_async(**options)
                return
            while await _left(db):
                await queue.run_worker_async(**options, wait=False)
                await asyncio.sleep(0.05)
        finally:
            rescue.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await rescue


async def _left(db: Database) -> int:
    [row] = await db.fetch(
        "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE queue_name = %s AND status IN ('todo', 'doing')",
        (QUEUE,),
    )
    return int(row["jobs"])


async def _rescue(queue: procrastinate.App, stalled_after: float) -> None:
    """Give the jobs of dead workers back to the queue."""
    while True:
        try:
            for job in await queue.job_manager.get_stalled_jobs(queue=QUEUE, seconds_since_heartbeat=stalled_after):
                await queue.job_manager.retry_job(job)
        except Exception as error:
            logger.warning("Looking for stalled jobs failed (%s: %s).", type(error).__name__, error)
        await asyncio.sleep(stalled_after / 3)
