"""Redaction: what is masked before anything reaches the disk.

`Redaction` works on JSON, the one form in which every value is stored: events, turns, cases, memories and verdicts pass
through it, and vectors are made of what it leaves. Known credentials are masked by default; one's own rules are field
paths, regular expressions and functions. What was masked is counted, and kept nowhere.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from pydantic_core import from_json

from . import jsonable
from .errors import InvalidValue
from .redaction_marks import MASK, Marks, replaced, segment, written
from .redaction_rules import SHAPES, placeholder
from .redaction_rules import suspicious as looks_suspicious

__all__ = ["MASK", "Redact", "Redaction", "replaced"]

Function: TypeAlias = Callable[[Any], Any]
Rule: TypeAlias = "str | re.Pattern[str] | Function | Redaction"
Redact: TypeAlias = "bool | Rule | Sequence[Rule] | None"
"""What `connect(redact=…)` takes: False for nothing at all, or further rules to those that hold by default."""

_MOST_KNOWN = 64
_SPLIT = re.compile(r"[.\[\]]+")


class Redaction:
    """Rules, and the counts of what they masked.

    `paths` are names of keys joined by dots: `customer.email` masks what stands under `email` in a `customer`, however
    deep, and `*` is any key. Lists are passed through, and so is JSON inside a string. `patterns` are regular
    expressions over every text; a group named `secret` limits what is masked. A function is given each value that is
    stored, as JSON holds it, and returns what is stored instead. With `known=False` only these hold. Raises
    InvalidValue.

    A value that was masked for its name or place is masked wherever else the process meets it: a password in an
    argument comes again in the message of an exception.
    """

    mask = MASK

    def __init__(
        self,
        *,
        paths: Iterable[str] = (),
        patterns: Iterable[str | re.Pattern[str]] = (),
        functions: Iterable[Function] = (),
        known: bool = True,
        thorough: bool = False,
    ) -> None:
        self.known = known
        self.thorough = thorough
        """Whether everything that was masked for its name or place is masked wherever it stands, short as it may be."""
        self.paths = tuple(_path(path) for path in paths)
        self.patterns = tuple(_compiled(pattern) for pattern in patterns)
        self.functions = tuple(functions)
        self.counts: Counter[str] = Counter()
        """How many values each rule masked since this was made."""
        self.masked = 0
        """How many in all."""
        self._ends = {path[-1] for path in self.paths}
        self.always = bool(self.patterns or self.paths)
        """Whether every value has to be searched: what rules of one's own can match is not known before."""
        # Secrets met under a name: as text, and as JSON holds the text.
        self._met: dict[str, str] = {}
        self._pairs: list[tuple[str, Any]] = []

    @classmethod
    def of(cls, redact: Redact) -> Redaction | None:
        """What `connect(redact=…)` means. Raises InvalidValue."""
        if redact is False:
            return None
        if isinstance(redact, Redaction):
            return redact
        if redact is None or redact is True:
            return cls()
        rules = list(redact) if isinstance(redact, list | tuple | set | frozenset) else [redact]
        paths = [rule for rule in rules if isinstance(rule, str)]
        patterns = [rule for rule in rules if isinstance(rule, re.Pattern)]
        functions = [rule for rule in rules if callable(rule)]
        if len(paths) + len(patterns) + len(functions) < len(rules):
            wrong = next(rule for rule in rules if not isinstance(rule, str | re.Pattern) and not callable(rule))
            raise InvalidValue(
                f"redact={wrong!r} is no rule. Give False, a field path (a string), a compiled regular expression, a "
                "function, or a list of them."
            )
        return cls(paths=paths, patterns=patterns, functions=functions)

    @property
    def piecewise(self) -> bool:
        """Whether text may be masked in pieces: a pattern or a function of one's own must see all of it."""
        return not self.patterns and not self.functions

    def __call__(self, value: Any) -> Any:
        """What is stored of a value: the same value where nothing is masked. Not counted."""
        text = jsonable.dumps_lenient(value)
        masked = self.text(text, count=False)
        if masked == text:
            return value
        return jsonable.loads(masked)

    def text(self, text: str, *, count: bool = True) -> str:
        """The JSON text of a value with what the rules name masked; the same object where that is nothing."""
        if self.functions:
            text = self._through_functions(text)
        if not self.always and not self.suspicious(text):
            return text
        marks = Marks(self)
        value = _deep(marks.document, from_json(text))
        if not marks.count:
            return text
        if count:
            self.counts.update(marks.count)
            self.masked += marks.count.total()
        return written(value)

    def plain(self, text: str) -> str:
        """A text that is stored on its own, such as a rationale."""
        masked = self.text(jsonable.dumps_lenient(text))
        return str(from_json(masked))

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """Where a piece of text holds secrets, in order and without overlap, and the rule that says so."""
        found: list[tuple[int, int, str]] = []
        if self.known and looks_suspicious(text):
            low = text.lower()
            for shape in SHAPES:
                if any(map(low.__contains__, shape.triggers)):
                    for match in shape.pattern.finditer(text):
                        start, end = _masked_part(match)
                        part = text[start:end]
                        if not placeholder(part) and (shape.valid is None or shape.valid(part)):
                            found.append((start, end, shape.name))
        for pattern in self.patterns:
            for match in pattern.finditer(text):
                start, end = _masked_part(match)
                if end > start:
                    found.append((start, end, pattern.pattern))
        for secret in self._met:
            start = text.find(secret)
            while start >= 0:
                found.append((start, start + len(secret), "met before"))
                start = text.find(secret, start + len(secret))
        return _disjoint(found)

    def meet(self, secret: str) -> None:
        """Mask this text from now on wherever it is met, if it is one that nobody would write by chance."""
        if self.thorough:
            words = [secret] if len(secret.strip()) >= 4 else []
        else:
            words = [word for word in secret.split() if 8 <= len(word) <= 512 and not word.isalpha()]
        new = {word: written(word)[1:-1] for word in words if word not in self._met and MASK not in word}
        if new:
            # Another dict, not more in this one: other threads may be reading it.
            kept = {**self._met, **new}
            surplus = 0 if self.thorough else max(len(kept) - _MOST_KNOWN, 0)
            self._met = dict(list(kept.items())[surplus:])

    @property
    def pairs(self) -> list[tuple[str, Any]]:
        """Names of keys with values that are masked under them, when it is thorough."""
        return self._pairs

    @property
    def met(self) -> Iterable[str]:
        """The secrets met under a name, which are masked wherever they come again."""
        return self._met

    def suspicious(self, text: str) -> bool:
        """Whether anything can be masked: the cheap question, asked for every value."""
        if self._met and any(map(text.__contains__, self._met.values())):
            return True
        return self.known and looks_suspicious(text)

    def _through_functions(self, text: str) -> str:
        before = text
        for function in self.functions:
            text = jsonable.dumps_lenient(function(from_json(text)))
        if text != before:
            self.counts["function"] += 1
            self.masked += 1
        return text

    def at(self, place: tuple[str | int, ...]) -> bool:
        """Whether a field path leads to this place."""
        return any(_leads(path, place) for path in self.paths)

    @property
    def ends(self) -> set[str]:
        """The last names of the field paths."""
        return self._ends


def _masked_part(match: re.Match[str]) -> tuple[int, int]:
    for name in ("secret", "double", "single", "bare"):
        if name in match.re.groupindex and match.start(name) >= 0:
            return match.span(name)
    return match.span()


def _disjoint(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    made: list[tuple[int, int, str]] = []
    for start, end, rule in sorted(spans):
        if made and start < made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]), made[-1][2])
        else:
            made.append((start, end, rule))
    return made


def _path(path: str) -> tuple[str, ...]:
    parts = [segment(part) for part in _SPLIT.split(path.removeprefix("$.")) if part] if isinstance(path, str) else []
    if not parts:
        raise InvalidValue(f"{path!r} is not a field path. Write names of keys joined by dots, such as customer.email.")
    return tuple(parts)


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidValue(f"The pattern {pattern!r} is not a regular expression: {error}.") from None


def _leads(path: tuple[str, ...], place: tuple[str | int, ...]) -> bool:
    """Whether the place ends in the path; positions in lists need no name of their own."""
    at = len(place)
    for name in reversed(path):
        at -= 1
        while at >= 0 and isinstance(place[at], int) and name != "*" and name != str(place[at]):
            at -= 1
        if at < 0 or (name != "*" and name != str(place[at])):
            return False
    return True


def _deep(work: Callable[[Any], Any], value: Any) -> Any:
    """Run on a stack of its own where the caller has used up this one."""
    try:
        return work(value)
    except RecursionError:
        pass
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work(value)), name="everyturn-redaction")
    thread.start()
    thread.join()
    if not done:
        raise InvalidValue("A value is nested too deep to be searched for secrets. Nothing of it was stored.")
    return done[0]
