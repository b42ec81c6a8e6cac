"""The drift guard: verdicts from before and after a change are compared only while the tool itself is the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import ImplementationChanged, InvalidValue
from .impl_hash import UNKNOWN
from .statistics import wilson

if TYPE_CHECKING:
    from .database import Database


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: which turns are meant. What is None is left open."""

    since: datetime | None = None
    until: datetime | None = None
    """Appended within [since, until)."""
    model: str | None = None
    """Of the answer that made the call, as its payload names it."""
    prompt_rev: str | None = None
    """Of that answer; its first digits are enough."""


SideLike: TypeAlias = Side | Mapping[str, Any] | tuple[datetime | None, datetime | None]


@dataclass(frozen=True, slots=True)
class Tally:
    """The verdicts of one side, one per turn."""

    good: int
    partial: int
    bad: int
    implementations: dict[str, dict[str, int]]
    """By tool: how many judged turns each implHash made; `v1:unknown` where none was recorded."""

    @property
    def turns(self) -> int:
        return self.good + self.partial + self.bad

    @property
    def good_rate(self) -> float | None:
        return self.good / self.turns if self.turns else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdicts of two sides. `difference` is the candidate's share of good verdicts less the baseline's."""

    agent: str
    tool: str | None
    baseline: Tally
    candidate: Tally
    difference: float | None
    low: float | None
    high: float | None
    """The 95 % interval of the difference."""
    changed: dict[str, str]
    """What the guard found, by tool; empty unless it was told to go on."""

    @property
    def more_than_noise(self) -> bool | None:
        """Whether the interval leaves zero out; None where a side has no verdicts."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


async def compare(
    database: Database,
    agent: str,
    tool: str | None,
    baseline: SideLike,
    candidate: SideLike,
    *,
    evaluator: str | None,
    allow_changed: bool,
) -> Comparison:
    """See `Evals.compare`."""
    before = await _tally(database, agent, tool, as_side(baseline, "baseline"), evaluator)
    after = await _tally(database, agent, tool, as_side(candidate, "candidate"), evaluator)
    changed = changes(agent, before, after)
    if changed and not allow_changed:
        raise ImplementationChanged(
            f"{' '.join(changed.values())} Verdicts on different implementations are not compared; pass "
            "allow_changed=True (on the command line --allow-changed) to do it all the same."
        )
    low = high = difference = None
    if before.good_rate is not None and after.good_rate is not None:
        difference = after.good_rate - before.good_rate
        low, high = difference_interval(after.good, after.turns, before.good, before.turns)
    return Comparison(agent, tool, before, after, difference, low, high, changed)


async def _tally(database: Database, agent: str, tool: str | None, side: Side, evaluator: str | None) -> Tally:
    rows = await database.query(
        "verdicts_by_implementation", agent=agent, tool=tool, evaluator=evaluator, **asdict(side)
    )
    verdicts = dict.fromkeys(("good", "partial", "bad"), 0)
    implementations: dict[str, dict[str, int]] = {}
    for row in rows:
        verdicts[row["verdict"]] += row["turns"]
        hashes = implementations.setdefault(row["tool"], {})
        name = row["impl_hash"] or UNKNOWN
        hashes[name] = hashes.get(name, 0) + row["turns"]
    return Tally(**verdicts, implementations=implementations)


def changes(agent: str, before: Tally, after: Tally) -> dict[str, str]:
    """A sentence for every tool whose judged results are not all known to come from one implementation."""
    if not before.turns or not after.turns:
        return {}
    found = {}
    for tool in sorted(before.implementations.keys() | after.implementations.keys()):
        one, other = before.implementations.get(tool, {}), after.implementations.get(tool, {})
        hashes = one.keys() | other.keys()
        if len(hashes) > 1:
            found[tool] = (
                f"The implementation of the tool {tool!r} of agent {agent!r} changed: baseline {_counted(one)}, "
                f"candidate {_counted(other)}."
            )
        elif UNKNOWN in hashes:
            found[tool] = (
                f"The implementation of the tool {tool!r} of agent {agent!r} is not known ({UNKNOWN}), and an unknown "
                "one equals nothing."
            )
    return found


def _counted(hashes: Mapping[str, int]) -> str:
    return " and ".join(f"{name} ({count} turns)" for name, count in sorted(hashes.items())) or "not used"


def as_side(value: SideLike, what: str) -> Side:
    """A side from its other forms: a dict of its fields, or a (since, until) pair. Raises InvalidValue."""
    if isinstance(value, Side):
        side = value
    elif isinstance(value, Mapping):
        known = [field.name for field in fields(Side)]
        if unknown := sorted(set(value) - set(known)):
            raise InvalidValue(f"The {what} has no {unknown[0]!r}; it is told by {', '.join(known)}.")
        side = Side(**value)
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        side = Side(since=value[0], until=value[1])
    else:
        raise InvalidValue(f"The {what} {value!r:.80} is neither an et.Side, a dict of its fields, nor a time window.")
    for moment in (side.since, side.until):
        if moment is not None and not isinstance(moment, datetime):
            raise InvalidValue(f"The {what} names the time {moment!r:.80}; give a datetime.")
    return Side(_aware(side.since), _aware(side.until), side.model, side.prompt_rev)


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def difference_interval(good: int, n: int, other_good: int, other_n: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two rates of different turns.

    R. G. Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17
    (1998), 873–890, method 10: made of the score intervals of the two rates.
    """
    p, (low, high) = good / n, wilson(good / n, n)
    q, (other_low, other_high) = other_good / other_n, wilson(other_good / other_n, other_n)
    return (
        max(-1.0, p - q - math.hypot(p - low, other_high - q)),
        min(1.0, p - q + math.hypot(high - p, q - other_low)),
    )
