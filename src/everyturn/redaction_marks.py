"""One value being searched for secrets: a walk through its JSON that masks what the rules name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from .redaction_rules import credential, sensitive

if TYPE_CHECKING:
    from .redaction import Redaction

MASK = "[redacted]"
"""What stands where something was masked; `everyturn_redact` writes it too."""

_ALIASES = {"arguments": "args"}
_NESTED = 4


class Marks:
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
            if len(value) == 2 and self._pair(*value):
                new = self._named(value[0], value[1], (*place, segment(value[0])), nested)
                return value if new is value[1] else [value[0], new]
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
            inside = (*place, segment(key))
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

    def _pair(self, name: Any, value: Any) -> bool:
        """Whether two values are the name of a credential and what looks like one, as lists of headers hold them."""
        return (
            self.rules.known
            and isinstance(name, str)
            and isinstance(value, str)
            and sensitive(name)
            and any(map(str.isdigit, value))
            and not sensitive(value)
            and not self.rules.spans(value)
        )

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
            and (self.rules.always or self.rules.suspicious(text))
        ):
            try:
                inner = from_json(text)
            except ValueError:
                pass
            else:
                masked = self.walk(inner, place, nested + 1)
                return text if masked is inner else written(masked)
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
        pairs = {(segment(key), _hashable(v)) for key, v in self.named}

        def search(value: Any, key: str | int | None) -> Any:
            if isinstance(value, dict):
                return {name: search(part, segment(name)) for name, part in value.items()}
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


def _telling(text: str) -> bool:
    """Whether a masked text is so much its own that it may be masked inside other text of the value."""
    return len(text.strip()) >= 6 and (not text.isalpha() or len(text) >= 10)


def _hashable(value: Any) -> Any:
    # 1 and True are equal, and 1 and 1.0.
    return (type(value), value) if isinstance(value, str | int | float) else None


def segment(key: str) -> str:
    plain = key.casefold()
    return _ALIASES.get(plain, plain)


def written(value: Any) -> str:
    out: bytes = to_json(value)
    return out.decode()
