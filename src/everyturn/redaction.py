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

from pydantic_core import from_json, to_json

from . import jsonable
from .errors import InvalidValue
from .redaction_rules import SHAPES, credential, placeholder, sensitive, suspicious

MASK = "[redacted]"
"""What stands where something was masked; `everyturn_redact` writes it too."""

Function: TypeAlias = Callable[[Any], Any]
Rule: TypeAlias = "str | re.Pattern[str] | Function | Redaction"
Redact: TypeAlias = "bool | Rule | Sequence[Rule] | None"
"""What `connect(redact=…)` takes: False for nothing at all, or further rules to those that hold by default."""

_ALIASES = {"arguments": "args"}
_NESTED = 4
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
        self._always = bool(self.patterns or self.paths)
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
        if not self._always and not self._suspicious(text):
            return text
        marks = _Marks(self)
        value = _deep(marks.document, from_json(text))
        if not marks.count:
            return text
        if count:
            self.counts.update(marks.count)
            self.masked += marks.count.total()
        return _written(value)

    def plain(self, text: str) -> str:
        """A text that is stored on its own, such as a rationale."""
        masked = self.text(jsonable.dumps_lenient(text))
        return str(from_json(masked))

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """Where a piece of text holds secrets, in order and without overlap, and the rule that says so."""
        found: list[tuple[int, int, str]] = []
        if self.known and suspicious(text):
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
        new = {word: _written(word)[1:-1] for word in words if word not in self._met and MASK not in word}
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

    def _suspicious(self, text: str) -> bool:
        """Whether anything can be masked: the cheap question, asked for every value."""
        if self._met and any(map(text.__contains__, self._met.values())):
            return True
        return self.known and suspicious(text)

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


class _Marks:
    """One value being masked: what was found in it, and how often each rule applied."""

    def __init__(self, rules: Redaction) -> None:
        self.rules = rules
        self.count: Counter[str] = Counter()
        self.named: list[tuple[str, Any]] = []
        """What was masked for its name or place: it may stand elsewhere in the same value too."""

    def document(self, value: Any) -> Any:
        value = self.walk(value, (), 0)
        self.named += self.rules.pairs
        if self.named:
            value = self.again(value)
        return value

    def walk(self, value: Any, place: tuple[str | int, ...], nested: int) -> Any:
        """The value with its secrets masked; what holds none is left as it is."""
        if isinstance(value, dict):
            return self._object(value, place, nested)
        if isinstance(value, list):
            changed = [self.walk(part, (*place, index), nested) for index, part in enumerate(value)]
            return changed if any(new is not old for new, old in zip(changed, value, strict=True)) else value
        if isinstance(value, str):
            return self._string(value, place, nested)
        return value

    def _object(self, value: dict[str, Any], place: tuple[str | int, ...], nested: int) -> Any:
        made: dict[str, Any] = {}
        different = False
        header = self._header(value)
        for key, part in value.items():
            name = self._string(key, (), _NESTED) if len(key) > 15 else key
            if name in made:
                name = next(f"{name} {n}" for n in range(2, len(value) + 2) if f"{name} {n}" not in made)
            inside = (*place, _segment(key))
            if self._by_place(key, inside) and part is not None:
                new = self._mask(key, part, "field path")
            elif self.rules.known and (sensitive(key) or (header is not None and key == header)):
                new = self._named(key if header is None else str(value.get("name", key)), part, inside, nested)
            else:
                new = self.walk(part, inside, nested)
            made[name] = new
            different = different or new is not part or name is not key
        return made if different else value

    def _by_place(self, key: str, place: tuple[str | int, ...]) -> bool:
        ends = self.rules.ends
        if not ends or (place[-1] not in ends and "*" not in ends):
            return False
        if len(place) == 1:
            # The fields of a call's arguments and of its result stand at the top of a tool result too.
            return any(self.rules.at((*above, *place)) for above in ((), ("args",), ("result",)))
        return self.rules.at(place)

    def _header(self, value: dict[str, Any]) -> str | None:
        """The key that holds the credential in an object such as {"name": "Authorization", "value": "…"}."""
        name = value.get("name")
        if self.rules.known and isinstance(name, str) and isinstance(value.get("value"), str) and sensitive(name):
            return "value"
        return None

    def _named(self, key: str, part: Any, place: tuple[str | int, ...], nested: int) -> Any:
        """What stands under the name of a credential."""
        if isinstance(part, str):
            return self._mask(key, part, f"key {key}") if credential(key, part) else self.walk(part, place, nested)
        if isinstance(part, list):
            made = [self._named(key, inner, (*place, index), nested) for index, inner in enumerate(part)]
            return made if any(new is not old for new, old in zip(made, part, strict=True)) else part
        if isinstance(part, int | float) and not isinstance(part, bool) and key.lower().endswith(("word", "pin")):
            return self._mask(key, part, f"key {key}")
        return self.walk(part, place, nested)

    def _mask(self, key: str, value: Any, rule: str) -> Any:
        if value == MASK:
            return value
        self.count[rule] += 1
        self._keep(key, value)
        return MASK

    def _keep(self, key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                self._keep(name, part)
        elif isinstance(value, list):
            for part in value:
                self._keep(key, part)
        elif value is not None and value is not True and value is not False and value not in ("", MASK):
            self.named.append((key, value))
            if self.rules.thorough:
                self.rules.pairs.append((key, value))
            if isinstance(value, str):
                self.rules.meet(value)

    def _string(self, text: str, place: tuple[str | int, ...], nested: int) -> str:
        if (
            nested < _NESTED
            and len(text) > 2
            and text[0] in "{["
            and (self.rules._always or self.rules._suspicious(text))
        ):
            try:
                inner = from_json(text)
            except ValueError:
                pass
            else:
                masked = self.walk(inner, place, nested + 1)
                return text if masked is inner else _written(masked)
        if len(text) < 4:
            return text
        spans = self.rules.spans(text)
        for start, end, rule in spans:
            self.count[rule] += 1
            if rule in _TO_MEET:
                self.rules.meet(text[start:end])
        return replaced(text, spans) if spans else text

    def again(self, value: Any) -> Any:
        """Mask what was masked for its name or place wherever else it stands in the value."""
        texts = sorted({v for _, v in self.named if isinstance(v, str) and _telling(v)}, key=len, reverse=True)
        pairs = {(_segment(key), _hashable(v)) for key, v in self.named}

        def search(value: Any, key: str | int | None) -> Any:
            if isinstance(value, dict):
                return {name: search(part, _segment(name)) for name, part in value.items()}
            if isinstance(value, list):
                return [search(part, key) for part in value]
            masked = value
            if key is not None and value is not None and (key, _hashable(value)) in pairs:
                masked = MASK
            elif isinstance(value, str):
                for text in texts:
                    masked = masked.replace(text, MASK)
            if masked is not value and masked != value:
                self.count["met before"] += 1
            return masked

        return search(value, None)


_TO_MEET = frozenset(("password in a URL", "named secret", "authorization header", "bearer token"))


def replaced(text: str, spans: Sequence[tuple[int, int, str]], mask: str = MASK) -> str:
    """The text with each span masked."""
    parts, end = [], 0
    for start, stop, _ in spans:
        parts += [text[end:start], mask]
        end = stop
    return "".join([*parts, text[end:]])


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


def _telling(text: str) -> bool:
    """Whether a masked text is so much its own that it may be masked inside other text of the value."""
    return len(text.strip()) >= 6 and (not text.isalpha() or len(text) >= 10)


def _hashable(value: Any) -> Any:
    # 1 and True are equal, and 1 and 1.0.
    return (type(value), value) if isinstance(value, str | int | float) else None


def _segment(key: str) -> str:
    plain = key.casefold()
    return _ALIASES.get(plain, plain)


def _path(path: str) -> tuple[str, ...]:
    parts = [_segment(part) for part in _SPLIT.split(path.removeprefix("$.")) if part] if isinstance(path, str) else []
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


def _written(value: Any) -> str:
    out: bytes = to_json(value)
    return out.decode()


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
