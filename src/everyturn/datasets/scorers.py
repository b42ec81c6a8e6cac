"""Scorers: whether an output is right, each by one documented rule.

Written as text: `exact`, `contains[:TEXT]`, `regex[:PATTERN]`, `json`, `numeric[:TOLERANCE]`, `similarity[:MINIMUM]`,
`judge:MODEL`, `python:module:function`. Those that compare with the reference do not apply to a case without one.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from everyturn import jsonable
from everyturn.errors import InvalidValue
from everyturn.judge import Judge
from everyturn.objects import is_reference, load_object
from everyturn.threads import in_thread, without_exit

if TYPE_CHECKING:
    from everyturn.embed import Embedder

    from .values import Case

# A sign right behind a word or a number is a hyphen, as in gpt-4 and 2024-12-05.
_NUMBER = re.compile(r"(?:(?<![\w.])[-+\u2212])?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FENCE = re.compile(r"\s*```[\w-]*[ \t]*\n(.*?)```\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Score:
    """What one scorer says of one output."""

    passed: bool
    score: float | None = None
    """From 0 to 1."""
    reason: str | None = None
    cost_usd: Decimal | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.passed, bool):
            raise InvalidValue(f"The passed of a Score is True or False; got {self.passed!r:.80}.")
        if self.score is not None and not 0 <= self.score <= 1:
            raise InvalidValue(f"The score {self.score!r} is not between 0 and 1.")


class Scorer(Protocol):
    """One rule."""

    name: str
    """As it was written; the key in `eval_run.scores`."""
    waits: bool
    """Whether it takes time: then the output is stored before it is scored."""

    def applies(self, case: Case) -> bool:
        """Whether it can say anything about this case."""

    async def score(self, case: Case, output: str) -> Score:
        """Score an output. What it raises is the run's error, and its `pass` is NULL."""


def normalised(text: str) -> str:
    """What is compared: Unicode NFC, \\n for line ends, no white space at either end. Case and word order count."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n")).strip()


class Rule:
    """A scorer that compares at once with the reference, or with a text of its own."""

    waits = False

    def __init__(self, name: str, compare: Callable[[str, str], Score], own: str | None = None) -> None:
        self.name = name
        self._compare = compare
        self._own = own

    def applies(self, case: Case) -> bool:
        return self._own is not None or case.reference is not None

    async def score(self, case: Case, output: str) -> Score:
        expected = self._own if self._own is not None else case.reference
        assert expected is not None
        return self._compare(output, expected)


def _scored(passed: bool, reason: str) -> Score:
    return Score(passed, float(passed), None if passed else reason)


def exact(output: str, expected: str) -> Score:
    """Equal once both are normalised."""
    return _scored(normalised(output) == normalised(expected), f"The output is not {_shown(expected)}.")


def contains(output: str, expected: str) -> Score:
    """The expected text is in the output, both normalised. A blank one asks for a blank output."""
    wanted = normalised(expected)
    if not wanted:
        return _scored(not output.strip(), "The output is not blank.")
    return _scored(wanted in normalised(output), f"The output does not contain {_shown(expected)}.")


def regex(output: str, pattern: str) -> Score:
    """The pattern is found in the output (`re.search`; flags go into the pattern, as in `(?i)`)."""
    try:
        found = re.search(pattern, output)
    except re.error as error:
        raise InvalidValue(f"{_shown(pattern)} is not a regular expression: {error}.") from None
    return _scored(found is not None, f"The output does not match {_shown(pattern)}.")


def json_value(output: str, expected: str) -> Score:
    """Both are JSON, and equal by value: key order does not count, 1 equals 1.0. The output may be fenced."""
    try:
        wanted = _json(expected)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"The reference {_shown(expected)} is not JSON: {error}.") from None
    fence = _FENCE.fullmatch(output)
    try:
        found = _json(fence[1] if fence else output)
    except (ValueError, RecursionError) as error:
        return _scored(False, f"The output is not JSON: {error}.")
    same = jsonable.canonical(found) == jsonable.canonical(wanted)
    return _scored(same, f"The output is another value than {_shown(expected)}.")


def _json(text: str) -> Any:
    """JSON as the standard has it: Python alone reads NaN, and takes one number too large for another."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no number that can be compared")
    return value


def numeric(tolerance: str) -> Callable[[str, str], Score]:
    """The last number of the output is the reference, within a tolerance: absolute (`0.01`) or relative (`1%`)."""
    try:
        allowed = float(tolerance.removesuffix("%")) / (100 if tolerance.endswith("%") else 1) if tolerance else 1e-9
    except ValueError:
        allowed = math.nan
    if not 0 <= allowed < math.inf:
        raise InvalidValue(f"numeric:{tolerance} is not a tolerance. Write numeric:0.01 or numeric:1%.")
    relative = not tolerance or tolerance.endswith("%")

    def compare(output: str, expected: str) -> Score:
        wanted = _numbers(expected)
        if len(wanted) != 1 or not math.isfinite(wanted[0]):
            raise InvalidValue(f"The reference {_shown(expected)} is not a number.")
        found = _numbers(output)
        if not found:
            return _scored(False, "The output holds no number.")
        near = abs(found[-1] - wanted[0]) <= (abs(wanted[0]) * allowed if relative else allowed)
        return _scored(near, f"The output's number is {found[-1]:g}, where {wanted[0]:g} is wanted.")

    return compare


def _numbers(text: str) -> list[float]:
    found = (match[0] for match in _NUMBER.finditer(text) if any(c.isdigit() for c in match[0]))
    return [float(number.replace(",", "").replace("\u2212", "-")) for number in found]


class Similarity:
    """The output means the same as the reference: the cosine of their vectors."""

    waits = True

    def __init__(self, name: str, minimum: str, embedder: Embedder | None) -> None:
        self.name = name
        try:
            self._minimum = float(minimum or 0.8)
        except ValueError:
            self._minimum = math.nan
        if not 0 < self._minimum <= 1:
            raise InvalidValue(f"{name!r} names no similarity between 0 and 1. Write similarity:0.8.")
        if embedder is None:
            raise InvalidValue(
                "The scorer similarity needs an embedder: pip install 'everyturn[local]', or --embedder."
            )
        self._embedder = embedder

    def applies(self, case: Case) -> bool:
        return case.reference is not None and bool(case.reference.strip())

    async def score(self, case: Case, output: str) -> Score:
        one, other = await self._embedder.embed([output, case.reference or ""], "document")
        if one is None or other is None:
            return _scored(False, "The output is blank.")
        cosine = math.sumprod(one, other) if hasattr(math, "sumprod") else sum(a * b for a, b in zip(one, other))  # noqa: B905
        cosine /= math.hypot(*one) * math.hypot(*other)
        score = min(max(cosine, 0.0), 1.0)
        passed = score >= self._minimum
        return Score(passed, score, None if passed else f"The similarity is {score:.2f}, below {self._minimum:g}.")


class Judged:
    """A model decides."""

    waits = True

    def __init__(self, name: str, judge: Judge) -> None:
        self.name = name
        self.judge = judge

    def applies(self, case: Case) -> bool:
        return True

    async def score(self, case: Case, output: str) -> Score:
        texts = {"prompt": case.prompt, "reference": case.reference, "output": output}
        notes = case.context.get("verdicts") if isinstance(case.context, dict) else None
        if notes:
            # Why the original answer was judged bad: what this one must not repeat.
            texts["verdicts-on-an-earlier-output"] = json.dumps(notes, ensure_ascii=False)
        verdict = await self.judge.judge(texts)
        return Score(verdict.passed, verdict.score, verdict.reason, verdict.cost_usd)


class Function:
    """A function of the output and the case; it returns a bool, a number from 0 to 1 (passing from 0.5), or a Score.

    It may be async; its parameters are `output` and `case`, or any of `output`, `reference`, `prompt`, `context`,
    `case`.
    """

    waits = True

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        known = {"output", "reference", "prompt", "context", "case"}
        try:
            parameters = set(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            parameters = set()
        self._by_name = parameters & known if parameters and parameters <= known else None
        self._is_async = inspect.iscoroutinefunction(function)

    def applies(self, case: Case) -> bool:
        return True

    async def score(self, case: Case, output: str) -> Score:
        given = {
            "output": output,
            "reference": case.reference,
            "prompt": case.prompt,
            "context": case.context,
            "case": case,
        }
        args = () if self._by_name is not None else (output, case)
        kwargs = {name: given[name] for name in self._by_name or ()}
        with without_exit(f"The scorer {self.name}"):
            if self._is_async:
                found = await self._function(*args, **kwargs)
            else:
                found = await in_thread(self._function, *args, **kwargs)
                found = await found if isinstance(found, Awaitable) else found
        if isinstance(found, Score):
            return found
        if isinstance(found, bool):
            return Score(found, float(found))
        if isinstance(found, int | float) and 0 <= found <= 1:
            return Score(found >= 0.5, float(found))
        raise InvalidValue(
            f"The scorer {self.name} returned {found!r:.80}. It must return a bool, a number from 0 to 1, or a Score."
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


def resolve(spec: Any, embedder: Embedder | None = None) -> Scorer:
    """The scorer for a text, a function, a Judge or a scorer. Raises InvalidValue."""
    if isinstance(spec, Judge):
        return Judged(f"judge:{spec.leaf.name}", spec)
    if not isinstance(spec, str):
        if callable(getattr(spec, "score", None)) and hasattr(spec, "applies"):
            scorer: Scorer = spec
            return scorer
        if callable(spec):
            return Function(getattr(spec, "__name__", type(spec).__name__), spec)
        raise InvalidValue(f"{spec!r:.80} is not a scorer: give its text, a function, or a Judge.")
    if is_reference(spec):
        found = load_object(spec)
        scorer = resolve(found, embedder) if not callable(found) or isinstance(found, Judge) else Function(spec, found)
        scorer.name = spec
        return scorer
    kind, colon, rest = spec.partition(":")
    own = rest if colon else None
    if kind == "exact" and own is None:
        return Rule(spec, exact)
    if kind == "contains":
        return Rule(spec, contains, own)
    if kind == "regex":
        if own is not None:
            regex("", own)
        return Rule(spec, regex, own)
    if kind == "json" and own is None:
        return Rule(spec, json_value)
    if kind == "numeric":
        return Rule(spec, numeric(rest))
    if kind == "similarity":
        return Similarity(spec, rest, embedder)
    if kind == "judge" and rest:
        model = load_object(rest) if is_reference(rest) else rest
        return Judged(spec, model if isinstance(model, Judge) else Judge(model))
    raise InvalidValue(
        f"{spec!r} is not a scorer. There are exact, contains[:TEXT], regex[:PATTERN], json, numeric[:TOLERANCE], "
        "similarity[:MINIMUM], judge:MODEL and python:module:function."
    )


def resolve_all(specs: Sequence[Any], embedder: Embedder | None = None) -> list[Scorer]:
    """The scorers, each once."""
    found: dict[str, Scorer] = {}
    for spec in specs:
        scorer = resolve(spec, embedder)
        if scorer.name in found:
            raise InvalidValue(f"The scorer {scorer.name!r} is given twice.")
        found[scorer.name] = scorer
    return list(found.values())
