"""The rules of stored values, one test each; see the table in `everyturn.jsonable`."""

from __future__ import annotations

import array
import asyncio
import contextlib
import dataclasses
import enum
import ipaddress
import json
import re
import sys
import threading
import uuid
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PureWindowsPath
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyturn.errors import InvalidValue
from everyturn.jsonable import (
    MAX_BYTES,
    MAX_LENIENT_BYTES,
    canonical,
    clean,
    clean_lenient,
    clean_text,
    dumps,
    dumps_lenient,
    loads,
)


class Color(enum.Enum):
    RED = "red"
    DEEP = ("a", 1)


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    ON = "on"


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Data:
    a: int
    at: datetime | None = None
    child: Any = None


@attrs.define
class Attr:
    a: int
    b: bytes = b""


class Model(pydantic.BaseModel):
    a: int
    d: Decimal = Decimal("1.10")
    raw: bytes = b"\xff"


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "a lie"


class LyingDict(dict[str, Any]):
    def items(self) -> Any:
        return [("lie", 1)]

    def __iter__(self) -> Any:
        raise RuntimeError("no")


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    def __hash__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        raise RuntimeError("no iter")


def round_trip(value: Any) -> Any:
    return loads(dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -5,
        2**64,
        10**400,
        10**4299,
        -(10**4300),
        10**140_000,
        1.5,
        1e15,
        1e16,
        1e22,
        1e23,
        1.7976931348623157e308,
        5e-324,
        -0.0,
        float("inf"),
        float("-inf"),
        complex(1, -2.5),
        "",
        "plain",
        "日本 😀 \u2028 \x85 \x1f",
        b"",
        b"\x89PNG\xff",
        [],
        {},
        [[], {}, [None]],
        {"a": {"b": [1, {"c": b"x"}]}},
        {1: "x", "1": "y"},
        {True: 1, None: 2, (1, 2): 3, ((1, "a"), None): 4, 1.5: 5, b"k": 6},
        {"$bytes": "AA=="},
        {"$literal": {"$bytes": "AA=="}},
        {"$map": [[1, 2]]},
        {"$float": "NaN", "b": 1},
        {"$ref": "#/x"},
        {"$bytes": b"real"},
        {"$int": {"$map": {1: {"$literal": 2}}}},
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_round_trips(value: Any) -> None:
    """field case 11; field case 13: what comes back is equal, and so is what is written again."""
    assert round_trip(value) == value
    assert dumps(round_trip(value)) == dumps(value)
    assert round_trip([value, {"in": value}]) == [value, {"in": value}]
    assert dumps_lenient(value) == dumps(value)


def test_nan_is_tagged() -> None:
    """field case 6: valid JSON, told apart from null and from text."""
    stored = dumps({"p": float("nan"), "hi": float("inf"), "lo": float("-inf")})
    assert json.loads(stored) == {
        "p": {"$float": "NaN"},
        "hi": {"$float": "Infinity"},
        "lo": {"$float": "-Infinity"},
    }
    back = loads(stored)
    assert back["p"] != back["p"]
    assert back["hi"] == float("inf")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "2024-05-06T07:08:09+00:00"),
        (datetime(2024, 5, 6, 7, 8, 9, 5), "2024-05-06T07:08:09.000005+00:00"),
        (datetime(2024, 5, 6, tzinfo=timezone(timedelta(hours=9))), "2024-05-06T00:00:00+09:00"),
        (date(2024, 5, 6), "2024-05-06"),
        (time(1, 2, 3), "01:02:03"),
        (timedelta(days=1, seconds=2), "P1DT2S"),
        (Decimal("1.10"), "1.10"),
        (Decimal("NaN"), "NaN"),
        (Fraction(1, 3), "1/3"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Path("/a/b"), "/a/b"),
        (PureWindowsPath("c:\\x"), "c:\\x"),
        (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
        (re.compile("a+"), "a+"),
        (pydantic.HttpUrl("http://a.example/x"), "http://a.example/x"),
        (pydantic.SecretStr("hidden"), "**********"),
        (Color.RED, "red"),
        (Color.DEEP, ["a", 1]),
        (Level.LOW, 1),
        (Mode.ON, "on"),
        (Text("t"), "t"),
        (bytearray(b"a"), {"$bytes": "YQ=="}),
        (memoryview(b"abc")[::2], {"$bytes": "YWM="}),
        ((1, (2,)), [1, [2]]),
        (Point(1, 2.0), {"x": 1, "y": 2.0}),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({1: 2}.keys(), [1]),
        ({1: 2}.values(), [2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Counter("aa"), {"a": 2}),
        (defaultdict(int, a=1), {"a": 1}),
        (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (LyingDict(a=1), {"a": 1}),
        (Data(1, date(2024, 1, 1), Data(2)), None),
        (Attr(1, b"a"), {"a": 1, "b": {"$bytes": "YQ=="}}),
        (Model(a=1), {"a": 1, "d": "1.10", "raw": {"$bytes": "/w=="}}),
        (ValueError("bad"), {"name": "ValueError", "message": "bad"}),
        (np.float64(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, np.nan]), [1.0, {"$float": "NaN"}]),
        (np.datetime64("2024-01-02T03:04:05.123456789"), "2024-01-02T03:04:05.123456+00:00"),
        (np.datetime64("NaT"), None),
        ({Color.RED: 1, Mode.ON: 2, uuid.UUID(int=1): 3}, None),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_stored_form(value: Any, stored: Any) -> None:
    """field case 9; field case 10; field case 11: one readable form, alone and nested, in both modes."""
    if isinstance(value, Data):
        stored = {
            "a": 1,
            "at": "2024-01-01",
            "child": {"a": 2, "at": None, "child": None},
        }
    if isinstance(value, dict) and stored is None:
        stored = {"red": 1, "on": 2, "00000000-0000-0000-0000-000000000001": 3}
    assert json.loads(dumps(value)) == stored
    assert json.loads(dumps({"in": [value]})) == {"in": [stored]}
    assert json.loads(dumps_lenient(value)) == stored


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (object(), "object"),
        ((n for n in range(3)), "generator"),
        (iter([1]), "list_iterator"),
        (print, "builtin_function_or_method"),
        (int, "type"),
        (Data, "type"),
        (Model, "ModelMetaclass"),
        (sys, "module"),
        (array.array("i", [1]), "array.array"),
        (threading.Lock(), "lock"),
        (np.longdouble(1), "longdouble"),
        (Hostile(), "Hostile"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_form_is_refused_by_path(value: Any, type_name: str) -> None:
    """field case 11: an error naming path and type before anything is written; leniently a placeholder."""
    with pytest.raises(InvalidValue) as caught:
        dumps({"a": [1, {"b": value}]}, name="payload")
    assert "payload.a[1].b cannot be stored" in str(caught.value)
    assert type_name in str(caught.value)
    found = loads(dumps_lenient({"a": [1, {"b": value}], "kept": True}))
    assert type_name in found["a"][1]["b"]["$object"]["type"]
    assert isinstance(found["a"][1]["b"]["$object"]["repr"], str)
    assert found["kept"] is True


def test_a_generator_is_not_used_up() -> None:
    numbers = (n for n in range(3))
    dumps_lenient({"g": numbers})
    assert list(numbers) == [0, 1, 2]


@pytest.mark.parametrize("text", ["a\0b", "\0", "a\udc81b", "\ud83d", "\ud83d x \udc00"])
def test_text_postgres_cannot_hold(text: str) -> None:
    """field case 1; field case 4: U+FFFD in its place, in values, keys and plain text alike."""
    expected = re.sub("[\0\ud800-\udfff]", "\ufffd", text)
    assert clean_text(text) == expected
    assert round_trip({"t": text, "in": [{text: text}]}) == {"t": expected, "in": [{expected: expected}]}
    expected.encode()


def test_halves_of_a_pair_are_joined() -> None:
    assert clean_text("\ud83d\ude00\ud83d") == "\U0001f600\ufffd"


def test_text_that_only_looks_like_a_nul_is_kept() -> None:
    assert round_trip({"t": "\\u0000", "u": '{"$bytes": 1}'}) == {"t": "\\u0000", "u": '{"$bytes": 1}'}


@pytest.mark.parametrize(
    "value",
    [
        {"a\0": 1, "a\ufffd": 2},
        {Decimal("1.5"): 1, "1.5": 2},
        {uuid.UUID(int=1): 1, str(uuid.UUID(int=1)): 2},
        {Color.RED: 1, "red": 2},
        {(1, 2): 1, frozenset({1, 2}): 2},
    ],
    ids=str,
)
def test_two_keys_never_become_one(value: Any) -> None:
    """field case 13: refused by path, or both kept."""
    with pytest.raises(InvalidValue, match="two of its keys"):
        dumps({"in": value})
    kept = json.loads(dumps_lenient({"in": value}))["in"]["$map"]
    assert [item for _, item in kept] == [1, 2]
    assert loads(dumps_lenient({"in": value}))["in"] == {"$map": kept}


def test_cycles() -> None:
    """field case 14: a placeholder where the value meets itself, also when it meets itself many times."""
    d: dict[Any, Any] = {}
    d["me"] = d
    assert "inside itself" in loads(dumps(d))["me"]["$omitted"]
    wide: dict[Any, Any] = {}
    wide.update({"a": wide, "b": [wide, wide]})
    assert "$omitted" in loads(dumps(wide))["a"]
    mixed = Data(1)
    mixed.child = {"x": (mixed,)}
    assert "inside itself" in loads(dumps(mixed))["child"]["x"][0]["$omitted"]


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = {"a": b"x"}
    assert round_trip([shared, shared]) == [{"a": b"x"}, {"a": b"x"}]


def _nest(levels: int, wrap: Any) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize("levels", [190, 250, 1_200, 20_000])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: [v],
        lambda v: {"a": v},
        lambda v: {1: v},
        lambda v: (v,),
        lambda v: {"$literal": v},
        lambda v: Data(1, None, v),
    ],
    ids=["list", "dict", "int key", "tuple", "tag", "dataclass"],
)
def test_depth(levels: int, wrap: Any) -> None:
    """field case 14: no RecursionError at any depth, and what is stored can be read by any parser."""
    value = _nest(levels, wrap)
    stored = dumps({"deep": value, "kept": 1})
    assert json.loads(stored)["kept"] == 1
    assert loads(stored)["kept"] == 1
    assert ("deeper than" in stored) == (levels > 190 or wrap(0) in ({1: 0}, {"$literal": 0}))
    assert loads(dumps({"again": clean(value)}))["again"] is not None


def test_a_used_up_stack() -> None:
    """field case 14: the caller's own recursion leaves no room for the walk."""

    def deep(levels: int) -> str:
        return deep(levels - 1) if levels else dumps({"a": _nest(150, lambda v: (v,)), "b": b"x"})

    assert loads(deep(700))["b"] == b"x"


def test_an_object_that_never_ends() -> None:
    class Endless(pydantic.BaseModel):
        def model_dump(self, **_: Any) -> Any:
            return self.model_dump()

    assert "$object" in loads(dumps_lenient({"e": Endless()}))["e"]
    with pytest.raises(InvalidValue, match="never ends"):
        dumps({"e": Endless()})


class TestSize:
    """field case 16: 20 MB is stored whole, more than the cap is clipped or refused, the rest is kept."""

    def test_large_text_is_whole(self) -> None:
        text = "é" * 10_000_000
        assert loads(dumps({"t": text, "d": date(2024, 1, 1)}))["t"] == text

    def test_a_text_past_the_cap(self) -> None:
        text = "x" * (MAX_BYTES + 1)
        with pytest.raises(InvalidValue, match=r"payload\.r cannot be stored: .*128 MiB"):
            dumps({"r": text}, name="payload")
        back = loads(dumps_lenient({"before": 1, "r": text, "after": "kept"}))
        assert back["r"].startswith("xxx")
        assert back["r"].endswith("[clipped: 1,048,576 of 134,217,729 characters are kept]")
        assert (back["before"], back["after"]) == (1, "kept")

    def test_bytes_past_the_cap(self) -> None:
        back = loads(dumps_lenient({"r": bytes(MAX_BYTES), "after": 1}))
        assert back == {"r": {"$omitted": "bytes of 134,217,728 bytes"}, "after": 1}
        with pytest.raises(InvalidValue, match="128 MiB"):
            dumps({"r": bytes(MAX_BYTES)})

    def test_many_parts_past_the_cap(self) -> None:
        part = "y" * 1_000_000
        for value in ([part] * 140, {str(n): part for n in range(140)}):
            stored = dumps_lenient(value)
            assert len(stored) < MAX_LENIENT_BYTES + 2_000_000
            assert "more" in stored[-200:]
            with pytest.raises(InvalidValue, match="128 MiB"):
                dumps(value)

    def test_what_was_clipped_fits_a_row(self) -> None:
        result = clean_lenient({"parts": ["y" * 1_000_000] * 140})
        assert json.loads(dumps({"args": result, "result": result}))

    def test_an_endless_range_and_a_growing_tree(self) -> None:
        assert len(dumps_lenient({"a": np.broadcast_to(np.array(1.0), (10**9,))})) < 100
        tree: Any = "leaf" * 1000
        for _ in range(25):
            tree = [tree, tree]
        assert len(dumps_lenient(tree)) < MAX_LENIENT_BYTES + 2_000_000


def test_clean_composes() -> None:
    """What is cleaned may be put into a bigger value: it is not escaped a second time."""
    value = {"b": b"x", 1: float("inf"), "tag": {"$bytes": "no"}, "deep": [{"$literal": {"$map": 1}}]}
    once = clean(value)
    assert loads(dumps({"result": once})) == {"result": value}
    assert dumps(clean(clean(value))) == dumps(value)
    assert clean(value) == json.loads(dumps(value))


def test_clean_shares_nothing_with_the_original() -> None:
    value = {"a": [1]}
    copy = clean(value)
    value["a"].append(2)
    assert copy == {"a": [1]}


def test_order_of_keys_is_kept() -> None:
    """field case 17: as written; only jsonb reorders."""
    assert list(round_trip({"zeta": 1, "a": b"", "bb": 2})) == ["zeta", "a", "bb"]


def test_canonical_compares_by_value() -> None:
    """field case 17."""
    assert canonical({"b": 2, "a": 1.0}) == canonical({"a": 1, "b": 2.0})
    assert canonical(1e22) == canonical(10**22)
    assert canonical(1e23) == canonical(loads(dumps(1e23)))
    assert canonical(-0.0) == canonical(0)
    assert canonical({1: "a", 2: "b"}) == canonical({2: "b", 1: "a"})
    assert canonical({1, "a", None}) == canonical({None, "a", 1})
    assert canonical({1: "a"}) != canonical({"1": "a"})
    assert canonical({"$map": [[2, 1], [1, 1]]}) != canonical({"$map": [[1, 1], [2, 1]]})
    assert canonical({"$map": None}) != canonical({"$map": {}})
    assert canonical([1, 2]) != canonical([2, 1])
    assert canonical(True) != canonical(1)


def test_loads_leaves_foreign_objects_alone() -> None:
    for value in (
        {"$bytes": "not base64!"},
        {"$bytes": 1},
        {"$float": "many"},
        {"$int": "ten"},
        {"$complex": [1]},
        {"$map": [[[{}], 1]]},
        {"$map": 1},
        {"$literal": 1},
    ):
        assert loads(json.dumps(value)) == value
        assert loads(value) == value
        assert round_trip(value) == value


def test_loads_of_other_programs() -> None:
    assert loads("[" * 250 + "]" * 250)
    assert loads(b'{"a": {"$bytes": "eA=="}}') == {"a": b"x"}
    assert loads("1" * 5000) == 10**5000 // 9
    assert "$omitted" in loads("[" * 6000 + "]" * 6000)
    with pytest.raises(InvalidValue, match="not JSON"):
        loads("{")


async def test_a_value_changed_by_another_thread() -> None:
    shared: dict[str, Any] = {str(n): n for n in range(200)}
    stop = threading.Event()

    def churn() -> None:
        n = 0
        while not stop.is_set():
            shared[f"k{n % 300}"] = n
            shared.pop(f"k{(n + 150) % 300}", None)
            n += 1

    thread = asyncio.create_task(asyncio.to_thread(churn))
    for _ in range(300):
        assert loads(dumps(shared))["0"] == 0
        await asyncio.sleep(0)
    stop.set()
    await thread


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.binary()
    | st.sampled_from(["$bytes", "$literal", "$map", "$int", "$float", "$complex", '{"$'])
)
_keys = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
    | st.sampled_from(["$bytes", "$literal", "$map", "$int", "$float", "$complex"])
    | st.integers(-3, 3)
    | st.none()
    | st.tuples(st.integers(0, 2), st.text("ab", max_size=1))
)
json_like = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=20,
)
anything = st.recursive(
    st.none() | st.floats() | st.text() | st.complex_numbers() | st.datetimes() | st.decimals() | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2) | st.integers() | st.dates(), inner, max_size=3)
        | st.builds(Data, st.integers(), child=inner)
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=200)
@given(json_like)
def test_any_json_like_value_round_trips(value: Any) -> None:
    """field case 11; field case 13."""
    stored = dumps(value)
    assert loads(stored) == value
    assert dumps(loads(stored)) == stored
    assert isinstance(value, str) or loads(json.loads(stored)) == value
    assert loads(dumps([clean(value)])) == [value]
    assert canonical(loads(stored)) == canonical(value)


@settings(deadline=None, max_examples=200)
@given(anything)
def test_anything_is_stored_or_refused(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    stored = dumps_lenient(value)
    json.loads(stored, parse_constant=refuse)
    stored.encode()
    assert "\\u0000" not in stored.replace("\\\\", "")
    assert clean_lenient(loads(stored)) == json.loads(stored)
    with contextlib.suppress(InvalidValue):
        assert dumps(value) == stored
