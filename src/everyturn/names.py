"""Names and ids as they are accepted: checked before anything is written."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from .errors import InvalidValue

MAX_NAME_BYTES = 512
# A run names its agent on every turn.
_accepted: set[str] = set()
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def check_name(value: Any, what: str) -> str:
    """A name of an agent, evaluator, scope …: not blank, no control characters, short enough for every index."""
    if type(value) is str and value in _accepted:
        return value
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"The {what} {value!r} is not a name. Give a string that is not blank.")
    if found := _CONTROL.search(value):
        raise InvalidValue(
            f"The {what} {value[:80]!r} holds the character {found.group()!r}, which a name may not. Leave it out."
        )
    if len(size := value.encode()) > MAX_NAME_BYTES:
        raise InvalidValue(
            f"The {what} {value[:40]!r}… is {len(size)} bytes long; a name has at most {MAX_NAME_BYTES}. Shorten it."
        )
    if len(_accepted) < 1000:
        _accepted.add(str(value))
    return value


def as_uuid(value: Any, what: str) -> UUID:
    """A UUID from a UUID or its text."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (TypeError, ValueError, AttributeError):
        raise InvalidValue(f"The {what} {value!r} is not a UUID.") from None
