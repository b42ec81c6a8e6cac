"""Everything `dumps` returns is jsonb to a real Postgres, and comes back with the same value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everyturn.errors import InvalidValue
from everyturn.jsonable import MAX_BYTES, canonical, clean_text, dumps, dumps_lenient, loads
from everyturn.testing import server

Through = Callable[[str], Any]


@pytest.fixture(scope="module")
def through() -> Iterator[Through]:
    """JSON text → jsonb → the value read back."""
    with psycopg.connect(server().url, autocommit=True) as connection:

        def run(text: str) -> Any:
            row = connection.execute("SELECT %s::jsonb::text", [text]).fetchone()
            assert row is not None
            return loads(row[0])

        yield run


@pytest.mark.parametrize(
    "value",
    [
        {"t": "a\0b", "in": [{"k\0": 1}]},
        {"t": "a\udc81b", "u": "\ud83d"},
        {"p": float("inf"), "n": float("-inf")},
        {"at": datetime(2024, 1, 2, tzinfo=UTC), "in": {"d": date(2024, 1, 2)}},
        {"img": b"\x89PNG\xff"},
        {"d": Decimal("1.10"), "u": UUID(int=1), "s": {1, "a"}, "p": Path("/a"), "c": 1j},
        {(1, 2): "a", 1: "x", "1": "y"},
        {"a": 1e22, "b": 1e23, "c": -0.0, "d": 5e-324, "e": 1.7976931348623157e308, "f": 123456789012345678.0},
        {"i": 10**400, "j": 10**4299, "k": 10**140_000},
        {"zeta": 1, "a": 2, "bb": 3},
        "text",
        None,
        [],
    ],
)
def test_odd_values(through: Through, value: Any) -> None:
    """field case 1; field case 4; field case 6; field case 9; field case 10; field case 11;
    field case 13; field case 17.
    """
    stored = dumps(value)
    assert through(stored) == loads(stored)
    assert canonical(through(stored)) == canonical(value)


def test_deep_and_cyclic(through: Through) -> None:
    """field case 14."""
    deep: Any = "end"
    for level in range(20_000):
        deep = [deep] if level % 2 else {level % 3: deep}
    cycle: dict[str, Any] = {}
    cycle["me"] = [cycle]
    assert through(dumps({"deep": deep, "cycle": cycle, "kept": 1}))["kept"] == 1


def test_large(through: Through) -> None:
    """field case 16: 20 MB whole, 300 MB clipped."""
    assert len(through(dumps({"t": "x" * 20_000_000}))["t"]) == 20_000_000
    assert len(through(dumps({"t": "\x01é😀" * 2_000_000}))["t"]) == 6_000_000
    back = through(dumps_lenient({"r": "x" * 300_000_000, "kept": 1}))
    assert back["kept"] == 1
    assert "clipped" in back["r"][-100:]


def test_the_largest_that_is_not_refused(through: Through) -> None:
    """field case 16: up to our own cap Postgres takes it, as text and as many parts."""
    text = "x" * (MAX_BYTES - 100)
    assert len(through(dumps([text]))[0]) == len(text)
    with pytest.raises(InvalidValue):
        dumps([text, "y" * 200])


_text = st.text(st.characters(codec=None))
_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _text | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            _text | st.integers() | st.none() | st.sampled_from(["$map", "$literal", "$bytes"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_anything)
def test_any_value_is_stored(through: Through, value: Any) -> None:
    """field case 11; field case 13: what comes back is what would come back without a database between."""
    stored = dumps_lenient(value)
    back = through(stored)
    assert back == loads(stored)
    assert canonical(back) == canonical(value)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_text)
def test_any_text_is_stored(text: str) -> None:
    """field case 1; field case 4: as a text parameter too."""
    with psycopg.connect(server().url, autocommit=True) as connection:
        row = connection.execute("SELECT %s::text", [clean_text(text)]).fetchone()
    assert row is not None
    assert row[0] == clean_text(text)
