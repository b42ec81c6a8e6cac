"""Filters, checked and turned into the parameters of the named queries. No value ever becomes SQL text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from everyturn import jsonable
from everyturn.errors import InvalidValue
from everyturn.names import as_uuid, check_name

from .values import All

OPERATORS = ("=", "in", "<", "<=", ">", ">=", "exists")
_COMPARISONS = frozenset(("<", "<=", ">", ">="))
_MAX_SUBJECT_BYTES = 1024


def moment(value: Any, what: str) -> datetime | None:
    """A point in time; a naive datetime is read as UTC."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidValue(f"{what} must be a datetime, not {value!r}.")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def expiry(value: Any) -> datetime | None:
    """When something expires: a point in time, or how long from now."""
    if isinstance(value, timedelta):
        try:
            return datetime.now(UTC) + value
        except OverflowError:
            raise InvalidValue(
                f"expires_at={value!r} lies beyond the year 9999. Leave it out to keep for ever."
            ) from None
    return moment(value, "expires_at")


def scope_name(value: Any, default: str | None) -> str | None:
    """The scope asked for; None is all of them."""
    if isinstance(value, All):
        return None
    return check_name(value, "scope") if value is not None else default or "default"


def subject_list(values: Any) -> list[str]:
    """Subjects without repeats, in order; one string is one subject."""
    if values is None:
        return []
    if isinstance(values, str):
        values = [values]
    if isinstance(values, bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidValue(f"subjects must be a list of strings, not {values!r}.")
    found: dict[str, None] = {}
    for value in values:
        found[short_text(value, "subject")] = None
    return list(found)


def short_text(value: Any, what: str) -> str:
    """A subject or a key: a string that is not blank and fits an index."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"The {what} {value!r} must be a string that is not blank.")
    text = jsonable.clean_text(value)
    if (size := len(text.encode())) > _MAX_SUBJECT_BYTES:
        raise InvalidValue(
            f"The {what} {text[:40]!r}… is {size} bytes long; {_MAX_SUBJECT_BYTES} are the most an index takes. "
            "Shorten it, or use a hash of it."
        )
    return text


def id_list(values: Any) -> list[UUID] | None:
    """The ids asked for; None is no such filter."""
    if values is None:
        return None
    if isinstance(values, str | UUID):
        values = [values]
    if not isinstance(values, Iterable):
        raise InvalidValue(f"ids must be a list of ids, not {values!r}.")
    return [as_uuid(value, "id") for value in values]


def attribute_filters(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parameters `has`, `path`, `exactly`, `present` and `absent` for conditions on attributes.

    `{"path": "a.py"}` is equality, `{"line": {">": 3, "<=": 9}}` compares numbers or strings of the same kind,
    `{"lang": {"in": ["py", "c"]}}`, `{"url": {"exists": True}}`.
    """
    has: dict[str, Any] = {}
    exactly: dict[str, Any] = {}
    path: list[str] = []
    present: list[str] = []
    absent: list[str] = []
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidValue(f"attributes must be a dict of conditions, not {attributes!r}.")
    for key, condition in (attributes or {}).items():
        if not isinstance(key, str):
            raise InvalidValue(f"The attribute {key!r} must be a string.")
        name = jsonable.clean_text(key)
        accessor = f"$.{json.dumps(name, ensure_ascii=False)}"
        for operator, operand in _conditions(name, condition):
            wanted = jsonable.clean(operand, name=f"attributes[{name!r}]")
            if operator == "=":
                has[name] = wanted
                if isinstance(wanted, dict | list):
                    exactly[name] = wanted
            elif operator == "in":
                options = [f"{accessor} == {_scalar(name, operator, option)}" for option in _sequence(name, wanted)]
                path.append(f"({' || '.join(options) or '1 == 2'})")
            elif operator in _COMPARISONS:
                if isinstance(wanted, bool) or not isinstance(wanted, str | int | float):
                    raise InvalidValue(
                        f"attributes[{name!r}] cannot be compared with {operand!r} by {operator}: "
                        "numbers and strings have an order."
                    )
                path.append(f"{accessor} {operator} {_scalar(name, operator, wanted)}")
            elif not isinstance(wanted, bool):
                raise InvalidValue(f"attributes[{name!r}]: exists is True or False, not {operand!r}.")
            else:
                (present if wanted else absent).append(name)
    return {
        "has": json.dumps(has) if has else None,
        "path": f"strict {' && '.join(path)}" if path else None,
        "exactly": json.dumps(exactly) if exactly else None,
        "present": present or None,
        "absent": absent or None,
    }


def _conditions(name: str, condition: Any) -> list[tuple[str, Any]]:
    if not isinstance(condition, Mapping):
        return [("=", condition)]
    unknown = [operator for operator in condition if operator not in OPERATORS]
    if unknown or not condition:
        raise InvalidValue(
            f"attributes[{name!r}] uses the operator {unknown[0] if unknown else condition!r}; there are "
            f'{", ".join(OPERATORS)}. To compare with an object write {{"=": {{…}}}}.'
        )
    return list(condition.items())


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InvalidValue(f"attributes[{name!r}]: in takes a list, not {value!r}.")
    return value


def _scalar(name: str, operator: str, value: Any) -> str:
    """A JSON scalar as jsonpath writes it."""
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidValue(
            f"attributes[{name!r}]: {operator} compares strings, numbers, booleans and null, not {value!r}."
        )
    return json.dumps(value, ensure_ascii=False)


def row_filters(
    *,
    scope: str | None,
    agent: str | None,
    subjects: Any,
    attributes: Mapping[str, Any] | None,
    since: Any,
    until: Any,
    procedural: bool,
) -> dict[str, Any]:
    """The parameters that recall and forget share."""
    filters: dict[str, Any] = {
        "scope": scope,
        "agent": check_name(agent, "agent") if agent is not None else None,
        "subjects": subject_list(subjects) or None,
        "since": moment(since, "since"),
        "until": moment(until, "until"),
    }
    if not procedural:
        filters |= attribute_filters(attributes)
    elif attributes:
        raise InvalidValue("Procedural memory has no attributes to filter by. Use subjects, or the key.")
    return filters


def as_text(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as psql would give them: the planner sees through a text, which it would not through an array."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, list):
            quoted = (str(part).replace("\\", "\\\\").replace('"', '\\"') for part in value)
            found[name] = "{" + ",".join(f'"{part}"' for part in quoted) + "}"
        else:
            found[name] = value.isoformat() if isinstance(value, datetime) else value
    return found
