"""From signatures and docstrings to JSON Schema, and arguments held against it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import subprocess
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import pydantic
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from everyturn.context import Context
from everyturn.errors import ToolArgumentsError, ToolDefinitionError
from everyturn.tools import Tool, as_tool, tool

if typing.TYPE_CHECKING:
    pass


class Shade(enum.Enum):
    LIGHT = "light"
    DARK = "dark"


@dataclasses.dataclass
class Filter:
    kind: Optional[Literal[1, "a"]] = None  # noqa: UP045
    limit: int = 5


class Options(TypedDict, total=False):
    depth: typing.Required[int]
    tags: list[str]


class Pair(NamedTuple):
    left: int
    right: int


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Marker:
    pass


def properties(handler: Any) -> dict[str, Any]:
    made = as_tool(handler)
    Draft202012Validator.check_schema(made.schema)
    assert list(made.schema)[:4] == ["type", "properties", "required", "additionalProperties"]
    assert made.schema["type"] == "object"
    assert made.schema["additionalProperties"] is False
    found: dict[str, Any] = made.schema["properties"]
    return found


def test_defaults_of_none() -> None:
    """field case 71: both may be left out, and the handler then gets Python's own defaults."""

    def f(a: str | None = None, n: int = 3, sloppy: int = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
        return a, n, sloppy

    assert properties(f) == {
        "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "n": {"type": "integer", "default": 3},
        "sloppy": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    }
    made = as_tool(f)
    assert made.schema["required"] == []
    assert made.parse({}) == {}
    assert made.parse({"a": None, "n": 4, "sloppy": None}) == {"a": None, "n": 4, "sloppy": None}


def test_literals_and_enums() -> None:
    """field case 72: an enum in the schema, no parameter dropped."""

    def f(mode: Literal["a", "b"], mixed: Literal[1, "a", None], flt: Filter, shade: Shade = Shade.DARK) -> None:
        pass

    found = properties(f)
    assert found["mode"] == {"type": "string", "enum": ["a", "b"]}
    assert found["mixed"]["enum"] == [1, "a", None]
    assert found["flt"]["properties"]["kind"]["anyOf"][0]["enum"] == [1, "a"]
    assert found["shade"] == {"type": "string", "enum": ["light", "dark"], "default": "dark"}
    made = as_tool(f)
    parsed = made.parse({"mode": "a", "mixed": None, "flt": {"kind": "a"}, "shade": "light"})
    assert parsed == {"mode": "a", "mixed": None, "flt": Filter("a"), "shade": Shade.LIGHT}
    with pytest.raises(ToolArgumentsError, match=r"mode = \"c\": Input should be 'a' or 'b'"):
        made.parse({"mode": "c", "mixed": 1, "flt": {}})


def test_types_with_parts() -> None:
    def f(
        options: Options, pair: Pair, when: datetime, price: Decimal, where: Path, raw: bytes, many: set[int]
    ) -> None:
        pass

    properties(f)
    assert as_tool(f).parse(
        {
            "options": {"depth": 1},
            "pair": [1, 2],
            "when": "2024-01-02T03:04:05Z",
            "price": "1.10",
            "where": "/a",
            "raw": "x",
            "many": [1, 1],
        }
    ) == {
        "options": {"depth": 1},
        "pair": Pair(1, 2),
        "when": datetime.fromisoformat("2024-01-02T03:04:05+00:00"),
        "price": Decimal("1.10"),
        "where": Path("/a"),
        "raw": b"x",
        "many": {1},
    }


def test_typed_dicts_inside_other_types() -> None:
    """field case 75: TypedDicts of `typing`, wherever they stand."""

    def f(a: list[Options], b: Options | None = None, c: dict[str, tuple[Options, ...]] = {}) -> None:  # noqa: B006
        pass

    found = properties(f)
    assert found["a"]["items"]["required"] == ["depth"]
    with pytest.raises(ToolArgumentsError, match=r"a\[0\]\.depth is required"):
        as_tool(f).parse({"a": [{}]})


def test_references_are_written_out() -> None:
    def f(
        a: Filter, b: Annotated[Filter, "the second"], pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    ) -> None:
        pass

    assert "$ref" not in json.dumps(properties(f))
    assert "#/$defs" not in json.dumps(properties(f))
    assert properties(f)["b"]["description"] == "the second"
    assert "title" not in json.dumps(properties(f))


def test_a_recursive_type_keeps_its_reference() -> None:
    def f(root: Node, title: str) -> None:
        pass

    made = as_tool(f)
    assert made.schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "title" in made.schema["properties"]
    assert (
        made.parse({"root": {"name": "a", "children": [{"name": "b"}]}, "title": "t"})["root"].children[0].name == "b"
    )


@pytest.mark.parametrize("stars", ["*args", "**kwargs", "*args, **kwargs", "a: int, **extra: str"])
def test_stars_are_refused(stars: str) -> None:
    """field case 74: a model cannot be told what they take."""
    scope: dict[str, Any] = {}
    exec(f"def f({stars}): pass", scope)
    with pytest.raises(ToolDefinitionError, match=r"'f'.*(args|kwargs|extra)"):
        as_tool(scope["f"])


async def test_positional_only() -> None:
    def f(a: int, b: int = 2, c: int = 3, /, d: int = 4) -> list[int]:
        return [a, b, c, d]

    made = as_tool(f)
    assert await made.call(made.parse({"a": 1, "c": 5})) == [1, 2, 5, 4]
    assert await made.call(made.parse({"a": 1, "d": 5})) == [1, 2, 3, 5]

    async def g(ctx: Context, a: int, /, b: int = 2) -> Any:
        return ctx, a, b

    assert await as_tool(g).call({"a": 1}, "context") == ("context", 1, 2)  # type: ignore[arg-type]


def _module(source: str) -> types.ModuleType:
    module = types.ModuleType("made_up")
    sys.modules["made_up"] = module
    exec(textwrap.dedent(source), module.__dict__)
    return module


BODY = """
    from typing import Annotated, Literal, Optional
    from pydantic import BaseModel, Field
    from everyturn.context import Context

    class Box(BaseModel):
        size: int

    def f(box: Box, mode: Literal["a", 1], ctx: Context, name: Optional[str] = None,
          n: Annotated[int, "how many", Field(ge=1)] = 1, other: "list[Box] | None" = None) -> str:
        "Do it."
"""


def test_postponed_annotations() -> None:
    """field case 75: the same schema with and without the future import, the context hidden in both."""
    plain = as_tool(_module(BODY).f)
    postponed = as_tool(_module("from __future__ import annotations\n" + textwrap.dedent(BODY)).f)
    assert plain.schema == postponed.schema
    assert "ctx" not in plain.schema["properties"]


def test_local_classes() -> None:
    """field case 75: what is defined beside the handler, in a function."""

    class Local(BaseModel):
        a: int

    def f(x: Local, y: list[Local]) -> None:
        pass

    assert properties(f)["x"]["required"] == ["a"]


@pytest.mark.parametrize(
    "annotation",
    [
        Context,
        Context | None,
        Optional[Context],  # noqa: UP045
        Union[Context, None],  # noqa: UP007
        Annotated[Context, "the run"],
        "Context",
        "Context | None",
        "Optional[Context]",
        "et.Context",
        "et.Context | None",
        "typing.Optional[et.Context]",
        "'et.Context'",
    ],
    ids=str,
)
async def test_the_context_is_hidden_and_injected(annotation: Any) -> None:
    """field case 75."""

    def f(a: int, where=None, *, b: int = 2):  # type: ignore[no-untyped-def]
        return a, where, b

    f.__annotations__["where"] = annotation
    made = as_tool(f)
    assert list(made.schema["properties"]) == ["a", "b"]
    marker = types.SimpleNamespace(blocking=lambda: "blocking")
    assert await made.call(made.parse({"a": 1}), marker) == (1, "blocking", 2)  # type: ignore[arg-type]


def test_the_context_with_something_else_is_refused() -> None:
    def f(ctx: Context | str) -> None:
        pass

    with pytest.raises(ToolDefinitionError, match=r"parameter 'ctx'.*alone"):
        as_tool(f)


def test_a_context_without_annotation_is_refused() -> None:
    def f(a: int, ctx) -> None:  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(ToolDefinitionError, match=r"parameter 'ctx' has no annotation.*et\.Context"):
        as_tool(f)


def test_notes_inside_a_union() -> None:
    """field case 79."""

    def f(n: Annotated[int, "how many", Field(ge=1)] | None = None) -> None:
        pass

    assert properties(f)["n"] == {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
        "default": None,
        "description": "how many",
    }


def test_names_that_pydantic_reserves() -> None:
    def f(
        schema: str, model_config: int, json: str, copy: str, self_: int, _private: int, model_dump: int, p0: int
    ) -> Any:
        return locals()

    made = as_tool(f)
    given = {
        "schema": "s",
        "model_config": 1,
        "json": "j",
        "copy": "c",
        "self_": 2,
        "_private": 3,
        "model_dump": 4,
        "p0": 5,
    }
    assert list(made.schema["properties"]) == list(given)
    assert made.parse(given) == given


def test_no_annotation_takes_anything() -> None:
    def f(a, b=3):  # type: ignore[no-untyped-def]
        pass

    assert properties(f) == {"a": {}, "b": {"default": 3}}
    assert as_tool(f).parse({"a": [1]}) == {"a": [1]}


@pytest.mark.parametrize("annotation", ["Nowhere", "list[Nowhere]", "1 +"])
def test_an_annotation_that_names_nothing(annotation: str) -> None:
    def f(first: int, second) -> None:  # type: ignore[no-untyped-def]
        pass

    f.__annotations__["second"] = annotation
    with pytest.raises(ToolDefinitionError, match=r"Tool 'f'.*parameter 'second'"):
        as_tool(f)


@pytest.mark.parametrize("kind", [Marker, list[Marker], Callable[[], int], typing.NamedTuple])
def test_a_type_without_schema_is_named(kind: Any) -> None:
    """field case 72: never dropped silently."""

    def f(first: int, second) -> None:  # type: ignore[no-untyped-def]
        pass

    f.__annotations__["second"] = kind
    with pytest.raises(ToolDefinitionError, match=r"Tool 'f'.*parameter 'second'"):
        as_tool(f)


async def test_a_default_that_is_not_json() -> None:
    unset = object()

    def f(a: Any = unset, b: Decimal = Decimal("1.5"), c: Any = float("nan")) -> bool:
        return a is unset

    assert "default" not in properties(f)["a"]
    json.dumps(as_tool(f).schema, allow_nan=False)
    assert await as_tool(f).call({}) is True


async def test_defaults_written_as_fields() -> None:
    def f(n: int = Field(5, ge=1, description="how many"), m: Annotated[int, Field(default=2)] = 3) -> Any:
        return n, m

    assert properties(f)["n"] == {"type": "integer", "default": 5, "minimum": 1, "description": "how many"}
    made = as_tool(f)
    assert await made.call(made.parse({})) == (5, 3)


def test_an_alias_is_the_name_for_the_model() -> None:
    def f(from_: Annotated[str, Field(alias="from")]) -> None:
        pass

    assert list(properties(f)) == ["from"]
    assert as_tool(f).parse({"from": "x"}) == {"from_": "x"}
    with pytest.raises(ToolArgumentsError, match="from is required"):
        as_tool(f).parse({})


GOOGLE = """Fetch it.

    More about it.

    Args:
        n: From the
            docstring.
        other (str): The other.

    Returns:
        The text.
    """
NUMPY = """Fetch it.

    More about it.

    Parameters
    ----------
    n : int
        From the docstring.
    other
        The other.
    """
SPHINX = """Fetch it.

    More about it.

    :param n: From the docstring.
    :param str other: The other.
    :returns: The text.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_descriptions_of_annotated_and_docstring(doc: str) -> None:
    """field case 79: both in the schema, the bounds too, and 999 is refused."""

    def f(n: Annotated[int, "how many", Field(ge=1, le=10)], other: str) -> str:
        return other

    f.__doc__ = doc
    assert properties(f) == {
        "n": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10,
            "description": "how many\nFrom the docstring.",
        },
        "other": {"type": "string", "description": "The other."},
    }
    made = as_tool(f)
    assert made.description.startswith("Fetch it.\n\nMore about it.")
    assert ("The text." in made.description) == (doc is not NUMPY)
    assert "docstring" not in made.description
    with pytest.raises(ToolArgumentsError, match="n = 999: Input should be less than or equal to 10"):
        made.parse({"n": 999, "other": "x"})


def test_a_plain_docstring_is_the_description() -> None:
    def f() -> None:
        """Say hello.

        Note: nothing to see.
            indented
        """

    assert as_tool(f).description == "Say hello.\n\nNote: nothing to see.\n    indented"
    assert as_tool(lambda_named(lambda: 1)).description == ""


def lambda_named(function: Any) -> Any:
    function.__name__ = "named"
    return function


def test_bounds_of_nested_models() -> None:
    class Deep(BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        items: list[Annotated[int, Field(le=3)]]

    def f(deep: Deep) -> None:
        pass

    with pytest.raises(ToolArgumentsError) as caught:
        as_tool(f).parse({"deep": {"items": [1, 9], "more": 1}, "nope": 1})
    assert "deep.items[1] = 9: Input should be less than or equal to 3" in str(caught.value)
    assert "deep.more = 1: Extra inputs are not permitted" in str(caught.value)
    assert "nope is unknown" in str(caught.value)
    assert str(caught.value).endswith("It takes: deep.")


def test_errors_stay_short() -> None:
    def f(n: list[int]) -> None:
        pass

    with pytest.raises(ToolArgumentsError) as caught:
        as_tool(f).parse({"n": ["x" * 10_000] * 500})
    assert len(str(caught.value)) < 3_000
    assert "and 490 more" in str(caught.value)


def test_partial_of_a_wrapped_method() -> None:
    class Shop:
        def find(self, kind: str, limit: int = 3, *, ctx: Context) -> str:
            """Find a thing."""
            return kind

    found = functools.partial(Shop().find, limit=5)
    made = as_tool(found)
    assert (made.name, made.description) == ("find", "Find a thing.")
    assert list(made.schema["properties"]) == ["kind"]


class TestGivenByHand:
    SEEDS: typing.ClassVar[list[dict[str, Any]]] = [
        {
            "type": "object",
            "properties": {"repo": {"type": "string"}, "pr": {"type": "number"}},
            "required": ["repo", "pr"],
        },
        {
            "type": "object",
            "properties": {"repo": {"type": "string"}, "hunk_hash": {"type": "string"}},
            "required": ["repo", "hunk_hash"],
        },
        {
            "type": "object",
            "properties": {
                name: {"type": kind}
                for name, kind in {
                    "repo": "string",
                    "pr": "number",
                    "path": "string",
                    "line": "number",
                    "body": "string",
                    "hunk_hash": "string",
                }.items()
            },
            "required": ["repo", "pr", "path", "line", "body", "hunk_hash"],
        },
    ]

    @pytest.mark.parametrize("schema", SEEDS)
    async def test_the_seeds(self, schema: dict[str, Any]) -> None:
        seen: list[Any] = []

        async def handler(args, ctx):  # type: ignore[no-untyped-def]
            seen.append((args, ctx))
            return "ok"

        made = Tool("t", schema, handler)
        assert made.schema == schema
        arguments = {name: "x" if part["type"] == "string" else 7 for name, part in schema["properties"].items()}
        assert await made.call(made.parse(arguments), "context") == "ok"  # type: ignore[arg-type]
        assert seen == [(arguments, "context")]
        with pytest.raises(ToolArgumentsError, match="repo is required"):
            made.parse({})
        with pytest.raises(ToolArgumentsError, match="extra is unknown"):
            made.parse({**arguments, "extra": 1})

    async def test_keywords(self) -> None:
        def handler(repo: str, pr: int = 1, *, ctx: Context) -> Any:
            return repo, pr, ctx

        made = Tool("t", self.SEEDS[0] | {"required": []}, handler)
        context = types.SimpleNamespace(blocking=lambda: "blocking")
        assert await made.call(made.parse({"repo": "a"}), context) == ("a", 1, "blocking")  # type: ignore[arg-type]
        with pytest.raises(ToolArgumentsError, match="repo is required"):
            made.parse({"pr": 1})
        with pytest.raises(ToolArgumentsError, match='pr = "seven": must be of type number'):
            made.parse({"repo": "a", "pr": "seven"})

    def test_order_of_keys_is_kept(self) -> None:
        """field case 17: the model sees the schema as it was written."""
        schema = {
            "properties": {"zeta": {"type": "string"}, "a": {"type": "string"}, "bb": {"type": "string"}},
            "type": "object",
        }
        made = Tool("t", schema, lambda args: args)
        assert list(made.schema) == ["properties", "type"]
        assert list(made.schema["properties"]) == ["zeta", "a", "bb"]
        schema["properties"]["late"] = {}  # type: ignore[index]
        assert "late" not in made.schema["properties"]

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ([], "must be a dict"),
            ({"type": "array"}, "type 'array'"),
            ({"type": "object", "properties": []}, "at properties"),
            ({"type": "object", "properties": {"a": {"type": "strin"}}}, "at properties/a"),
            ({"type": "object", "properties": {}, "required": ["a"]}, "requires 'a'"),
            ({"type": "object", "properties": {"a": {"default": object()}}}, "not JSON"),
            ({"type": "object", "properties": {"b": {}}}, "'a'"),
            ({"type": "object", "properties": {"a": {}, "b": {}}}, "'b', which the handler does not take"),
        ],
    )
    def test_what_cannot_work_is_refused(self, schema: Any, words: str) -> None:
        def handler(a: str) -> None:
            pass

        with pytest.raises(ToolDefinitionError, match=words):
            Tool("t", schema, handler)

    def test_open_schemas(self) -> None:
        made = Tool("t", {"type": "object", "additionalProperties": {"type": "integer"}}, lambda args: args)
        assert made.parse({"x": 1}) == {"args": {"x": 1}}
        with pytest.raises(ToolArgumentsError, match='x = "a"'):
            made.parse({"x": "a"})

        def kwargs(**values: Any) -> Any:
            return values

        assert Tool("t", {"type": "object", "additionalProperties": True}, kwargs).parse({"x": 1}) == {"x": 1}

    def test_a_reference_elsewhere_is_never_fetched(self) -> None:
        schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
        with pytest.raises(ToolDefinitionError, match="does not hold"):
            Tool("t", schema, lambda args: args)

    def test_a_reference_inside(self) -> None:
        schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}}
        with pytest.raises(ToolArgumentsError, match="a = 1: must be of type string"):
            Tool("t", schema, lambda args: args).parse({"a": 1})

    @pytest.mark.parametrize("empty", [{}, {"type": "object"}, {"type": "object", "properties": {}}])
    async def test_no_parameters(self, empty: dict[str, Any]) -> None:
        made = Tool("t", empty, lambda: "ok")
        assert made.schema == {"type": "object", "properties": {}}
        assert await made.call(made.parse(None)) == "ok"

    async def test_a_builtin(self) -> None:
        made = Tool("length", {"type": "object", "properties": {"obj": {"type": "string"}}}, len)
        assert await made.call(made.parse({"obj": "four"})) == 4

    async def test_a_decorated_function(self) -> None:
        @tool(name="by-hand", schema=self.SEEDS[0])
        async def handler(repo, pr):  # type: ignore[no-untyped-def]
            """Documented."""
            return repo

        assert (handler.name, handler.description) == ("by-hand", "Documented.")
        assert await handler.call(handler.parse('{"repo": "r", "pr": 1.5}')) == "r"


def test_importing_tools_does_not_import_the_heavy_parts() -> None:
    code = (
        "import sys, everyturn.tools\n"
        "print([m for m in ('pydantic.main', 'pydantic_ai', 'griffe', 'jsonschema') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
