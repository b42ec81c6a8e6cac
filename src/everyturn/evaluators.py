"""Evaluators: functions that judge turns, or whole conversations, after the fact. `db.evals.run` sets them to work."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid5

from .blocking import Portal
from .errors import InvalidValue
from .names import check_name
from .threads import in_thread, without_exit
from .values import KINDS, Conversation, Turn

VERDICTS = ("good", "bad", "partial")
CONVERSATION = "conversation"
DEFAULT_TIMEOUT = 600.0
_MOST_FAILURES_KEPT = 100


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an evaluator thinks of a turn or a conversation."""

    verdict: str
    """`good`, `bad` or `partial`."""
    rationale: str | None = None
    score: float | None = None
    """From 0 to 1; stored as `payload.score`."""
    payload: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidValue(f"The verdict {self.verdict!r:.80} is not one of {', '.join(VERDICTS)}.")
        if self.rationale is not None and not isinstance(self.rationale, str):
            raise InvalidValue(f"The rationale of a verdict is text; got a {type(self.rationale).__name__}.")
        if self.score is not None:
            number = isinstance(self.score, int | float) and not isinstance(self.score, bool)
            if not number or math.isnan(self.score) or not 0 <= self.score <= 1:
                raise InvalidValue(f"The score {self.score!r:.80} is not a number from 0 to 1.")
        if self.payload is not None and not isinstance(self.payload, Mapping):
            raise InvalidValue(f"The payload of a verdict is a dict; got a {type(self.payload).__name__}.")


@dataclass(frozen=True, slots=True)
class Failure:
    """An evaluation that ended in an error; nothing was recorded, and it is tried again another time."""

    turn_id: UUID
    error: Exception

    def __str__(self) -> str:
        said = " ".join(str(self.error).split())
        return f"{type(self.error).__name__}: {said}" if said else type(self.error).__name__


@dataclass
class Evaluated:
    """What a worker has done so far."""

    evaluator: str
    good: int = 0
    bad: int = 0
    partial: int = 0
    abstained: int = 0
    """The evaluator had no opinion."""
    failed: int = 0
    elsewhere: int = 0
    """Another worker's verdict was there first."""
    failures: list[Failure] = field(default_factory=list)
    """The last of them."""

    @property
    def recorded(self) -> int:
        """How many verdicts were recorded."""
        return self.good + self.bad + self.partial

    def add_failure(self, turn_id: UUID, error: Exception) -> Failure:
        """Count an evaluation that failed."""
        failure = Failure(turn_id, error)
        self.failed += 1
        self.failures = [*self.failures[1 - _MOST_FAILURES_KEPT :], failure]
        return failure


class Evaluator:
    """A function with the name its verdicts go by, and which turns it judges.

    The function takes a `Turn`, or a `Conversation` where `kinds` is `"conversation"` or its parameter is annotated
    so, and the database as a second argument if it has one. It returns `"good"`, `"bad"` or `"partial"`, a bool
    (good or bad), a `Verdict`, a `(verdict, rationale)` pair, or None for no opinion: no row is written then, and it
    is asked again another time. A synchronous function runs in a thread, and its database blocks.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        kinds: str | Sequence[str] | None = None,
        agent: str | None = None,
        tool: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        self.name = check_name(name, "evaluator")
        if not callable(function):
            raise InvalidValue(f"The evaluator {name!r} needs a function; got a {type(function).__name__}.")
        self.function = function
        given = [kinds] if isinstance(kinds, str) else None if kinds is None else list(kinds)
        if given is None and _takes_conversation(function):
            given = [CONVERSATION]
        self.whole = given == [CONVERSATION]
        """Whether it judges whole conversations."""
        self.kinds = None if given is None or self.whole else given
        for kind in self.kinds or ():
            if kind not in KINDS:
                raise InvalidValue(
                    f"The evaluator {name!r} names the kind {kind!r}, which is not one of "
                    f'{", ".join(sorted(KINDS))}. For whole conversations write kinds="conversation".'
                )
        if self.kinds == []:
            raise InvalidValue(f"The evaluator {name!r} names no kind; leave kinds out to judge turns of every kind.")
        self.agent = None if agent is None else check_name(agent, "agent")
        self.tool = tool
        self.timeout = timeout
        self._takes_database = _positional(function) > 1

    def __repr__(self) -> str:
        return f"<everyturn.Evaluator {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def verdict_id(self, turn_id: UUID) -> UUID:
        """The id of this evaluator's verdict on a turn: the same on every machine."""
        return uuid5(turn_id, self.name)

    async def judge(self, subject: Turn | Conversation, db: Any) -> Verdict | None:
        """The verdict on a turn or conversation, at most `timeout` seconds later.

        Raises what the function raises, TimeoutError, and InvalidValue for what is not a verdict.
        """
        try:
            with without_exit(f"The evaluator {self.name}"):
                async with asyncio.timeout(self.timeout) as limit:
                    value = await self._call(subject, db)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"The evaluator {self.name} did not end within {self.timeout:g} s.") from None
        return as_verdict(value)

    async def _call(self, subject: Turn | Conversation, db: Any) -> Any:
        function = self.function
        called = getattr(function, "__call__", None)  # noqa: B004
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
            return await function(*((subject, db) if self._takes_database else (subject,)))
        arguments: tuple[Any, ...] = (subject,)
        if self._takes_database:
            arguments = (subject, Portal(asyncio.get_running_loop()).face(db))
        value = await in_thread(function, *arguments)
        return await value if inspect.isawaitable(value) else value


def evaluator(
    name: str,
    *,
    kinds: str | Sequence[str] | None = None,
    agent: str | None = None,
    tool: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> Callable[[Callable[..., Any]], Evaluator]:
    """Make a function an `Evaluator`: `@et.evaluator("rubric:v3", kinds=["model"])`.

    `kinds` are kinds of turns, or `"conversation"`; `agent` and `tool` narrow it to their turns. Verdicts are tied to
    the name: when what the function looks for changes, give it a new one.
    """

    def wrap(function: Callable[..., Any]) -> Evaluator:
        return Evaluator(name, function, kinds=kinds, agent=agent, tool=tool, timeout=timeout)

    return wrap


def as_verdict(value: Any) -> Verdict | None:
    """What an evaluator returned, as a verdict. Raises InvalidValue."""
    if value is None or isinstance(value, Verdict):
        return value
    if isinstance(value, bool):
        return Verdict("good" if value else "bad")
    if isinstance(value, str):
        return Verdict(value)
    if isinstance(value, tuple) and len(value) == 2:
        verdict = as_verdict(value[0])
        if verdict is not None:
            return replace(verdict, rationale=value[1])
    raise InvalidValue(
        f"An evaluator returned {value!r:.80}. It must return good, bad, partial, a bool, an et.Verdict, "
        "a (verdict, rationale) pair, or None for no opinion."
    )


def _positional(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and (i == 0 or p.default is p.empty)
        for i, p in enumerate(parameters)
    )


def _takes_conversation(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated as a Conversation."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    annotation = parameters[0].annotation if parameters else None
    return annotation is Conversation or (
        isinstance(annotation, str) and annotation.strip("'\"").rpartition(".")[2] == "Conversation"
    )
