"""What goes with time: old stream events, and turns nothing needs any more; in batches, each its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from .errors import InvalidValue
from .event_records import checked_types
from .names import as_uuid

if TYPE_CHECKING:
    from .database import Database

_EVENT_WINDOW = 10_000
_CONVERSATIONS = 200
_TURNS = 2000


@dataclass(frozen=True, slots=True)
class Expired:
    """What `db.events.expire` removed, or would."""

    events: int = 0
    bytes: int = 0
    """Of what the rows hold, near enough. The file shrinks when Postgres' vacuum has come by, or not at all."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `db.turns.prune` removed, or would."""

    turns: int = 0
    verdicts: int = 0
    memories: int = 0
    """Expired ones, which go with the turns they were made from."""
    bytes: int = 0
    conversations: int = 0
    """How many were looked at."""


async def expire_events(
    db: Database,
    older_than: datetime | timedelta,
    *,
    types: Iterable[str] | None,
    agent: str | None,
    run_id: str | None,
    keep_failed: bool,
    dry_run: bool,
    progress: Callable[[Expired, float], object] | None,
) -> Expired:
    wanted = checked_types(types)
    if wanted == []:
        raise InvalidValue("types=[] names no type of event; leave it out for all.")
    before = moment(older_than, "older_than")
    [span] = await db.query("expire_span", before=before, run_id=run_id)
    done = Expired()
    if span["first_id"] is None:
        return done
    first, last = span["first_id"] - 1, span["last_id"]
    for after in range(first, last, _EVENT_WINDOW):
        until = min(after + _EVENT_WINDOW, last)
        [row] = await db.query(
            "expire_events",
            after=after,
            until=until,
            before=before,
            types=wanted,
            agent=agent,
            run_id=run_id,
            keep_failed=keep_failed,
            dry_run=dry_run,
        )
        done = Expired(done.events + row["events"], done.bytes + row["bytes"])
        if progress is not None:
            progress(done, (until - first) / (last - first))
    return done


async def prune_turns(
    db: Database,
    *,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
    agent: str | None,
    conversation: UUID | str | None,
    run_id: str | None,
    dry_run: bool,
    progress: Callable[[Pruned], object] | None,
) -> Pruned:
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise InvalidValue(f"keep_last={keep_last!r} is not a number of turns; give a whole number from 1 up.")
    if run_id is not None and not run_id.strip():
        raise InvalidValue("The run whose turns are to go has no name.")
    if older_than is None and keep_last is None and conversation is None and run_id is None:
        raise InvalidValue(
            "Pruning without a limit would remove every turn. Give older_than, keep_last, a conversation or a run."
        )
    wanted = {
        "only": as_uuid(conversation, "conversation") if conversation is not None else None,
        "agent": agent,
        "older_than": moment(older_than, "older_than") if older_than is not None else None,
        "keep_last": keep_last,
        "batch": _CONVERSATIONS,
    }
    done = Pruned()
    after: UUID | None = None
    while True:
        page = await db.query("prune_cuts", after=after, **wanted)
        if page:
            params = {
                "conversations": ",".join(str(row["conversation"]) for row in page),
                "cuts": ",".join(str(row["cut"]) for row in page),
                "agent": agent,
                "run_id": run_id,
            }
            done = _sum(done, conversations=len(page))
            while True:
                if dry_run:
                    [row] = await db.query("prune_count", **params)
                else:
                    [row] = await db.query("prune_turns", **params, batch=_TURNS)
                done = _sum(done, **row)
                if progress is not None:
                    progress(done)
                # Until nothing goes: what says that a memory was forgotten goes after the memory's own turn.
                if dry_run or not row["turns"]:
                    break
            after = page[-1]["conversation"]
        if len(page) < _CONVERSATIONS:
            return done


def _sum(
    done: Pruned, turns: int = 0, verdicts: int = 0, memories: int = 0, bytes: int = 0, conversations: int = 0
) -> Pruned:
    return Pruned(
        done.turns + turns,
        done.verdicts + verdicts,
        done.memories + memories,
        done.bytes + bytes,
        done.conversations + conversations,
    )


def moment(when: datetime | timedelta, what: str) -> datetime:
    """A point in time; an age is counted back from now, and a naive time read as UTC. Raises InvalidValue."""
    if isinstance(when, timedelta):
        if when < timedelta(0):
            raise InvalidValue(f"{what}={when!r} lies in the future; give an age from 0 up.")
        return datetime.now(UTC) - when
    if not isinstance(when, datetime):
        raise InvalidValue(f"{what}={when!r} is neither a datetime nor a timedelta.")
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when
