"""Tools as they are made, named, called and refused."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import subprocess
import sys
import textwrap
import threading
import time
import types
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyturn.context import Context
from everyturn.errors import InvalidValue, ToolArgumentsError, ToolDefinitionError
from everyturn.tools import RateBudget, Tool, as_tool, tool, unique


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


class Adder:
    """Adds what it was made with."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, a: int) -> int:
        return a + self.by

    def method(self, a: int) -> int:
        """Add by a method."""
        return a + self.by

    @classmethod
    def of_class(cls, a: int) -> str:
        return f"{cls.__name__}{a}"

    @staticmethod
    def of_none(a: int) -> int:
        return a

    async def later(self, a: int) -> int:
        return a + self.by


class AsyncAdder(Adder):
    async def __call__(self, a: int) -> int:  # type: ignore[override]
        return a + self.by


def fake_context() -> Context:
    return cast("Context", types.SimpleNamespace(blocking=lambda: "blocking"))


def test_a_tool_is_still_the_function() -> None:
    made = tool(add)
    assert made(1, b=2) == 3
    assert (made.name, made.description, made.rate_budget) == ("add", "Add two numbers.", None)
    assert repr(made) == "<everyturn.Tool add>"


def test_the_decorator_with_arguments() -> None:
    budget = RateBudget(60, 3)

    @tool(name="plus", description="Sum.", rate_budget=budget)
    def f(a: int) -> int:
        return a

    assert (f.name, f.description, f.rate_budget) == ("plus", "Sum.", budget)
    assert budget.as_json() == {"window_seconds": 60, "max_calls": 3}
    assert as_tool(f) is f
    with pytest.raises(ToolDefinitionError, match="takes a function"):
        tool("plus")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("window", "calls"),
    [
        (0, 1),
        (-1, 1),
        (math.inf, 1),
        (math.nan, 1),
        ("60", 1),
        (True, 1),
        (1, -1),
        (1, 1.5),
        (1, None),
        (1, True),
        (1e300, 1),
        (1, 10**30),
    ],
)
def test_budgets_that_mean_nothing(window: Any, calls: Any) -> None:
    with pytest.raises(InvalidValue, match=r"window_seconds|max_calls"):
        RateBudget(window, calls)


async def run(made: Tool, arguments: Any, context: Any = None) -> Any:
    return await made.call(made.parse(arguments), context)


async def test_all_kinds_of_callables() -> None:
    """field case 76: their own names and texts, bound arguments hidden, or a clear refusal."""
    by_position = functools.partial(add, 5)
    by_name = functools.partial(add, b=7)
    nested = functools.partial(functools.partial(add, b=7), 5)
    for source, name, parameters, result in [
        (add, "add", ["a", "b"], 3),
        (by_position, "add", ["b"], 6),
        (by_name, "add", ["a"], 8),
        (nested, "add", [], 12),
        (Adder(2), "Adder", ["a"], 3),
        (AsyncAdder(2), "AsyncAdder", ["a"], 3),
        (Adder(2).method, "method", ["a"], 3),
        (Adder(2).later, "later", ["a"], 3),
        (Adder.of_class, "of_class", ["a"], "Adder1"),
        (Adder.of_none, "of_none", ["a"], 1),
        (functools.partial(Adder(2).method), "method", ["a"], 3),
        (functools.lru_cache(add), "add", ["a", "b"], 3),
    ]:
        made = as_tool(source)
        assert made.name == name
        assert list(made.schema["properties"]) == parameters
        assert (
            await run(
                made,
                {key: 1 for key in parameters if key != "b"}
                | ({"b": 1} if parameters == ["b"] else {"b": 2} if "b" in parameters else {}),
            )
            == result
        )
    assert as_tool(by_name).description == "Add two numbers."
    assert as_tool(Adder(1)).description == "Adds what it was made with."
    assert as_tool(Adder(1).method).description == "Add by a method."
    with pytest.raises(ToolDefinitionError, match="Two tools are named 'add'"):
        unique([by_position, by_name])
    named = functools.partial(add, 1)
    named.__name__ = "add_one"  # type: ignore[attr-defined]
    named.__doc__ = "Add one."
    assert (as_tool(named).name, as_tool(named).description) == ("add_one", "Add one.")
    assert list(unique([by_name, named, tool(name="third")(nested)])) == ["add", "add_one", "third"]


async def test_a_bound_argument_cannot_be_given() -> None:
    """field case 76."""
    with pytest.raises(ToolArgumentsError, match="b is unknown"):
        as_tool(functools.partial(add, b=7)).parse({"a": 1, "b": 2})


async def test_tools_of_a_class() -> None:
    """field case 76: written in the class body, taken from an instance."""

    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        @tool
        def sell(self: Shop, count: int, ctx: Context) -> int:
            """Sell some."""
            return self.stock - count

        @tool(name="brand")
        @classmethod
        def name(cls) -> str:
            return cls.__name__

        @tool
        @staticmethod
        def double(n: int) -> int:
            return 2 * n

    shop = Shop(5)
    assert list(shop.sell.schema["properties"]) == ["count"]
    assert await run(shop.sell, {"count": 2}, fake_context()) == 3
    assert await run(Shop(9).sell, {"count": 2}, fake_context()) == 7
    assert await run(shop.name, None) == "Shop"
    assert await run(Shop.name, None) == "Shop"
    assert await run(shop.double, {"n": 4}) == 8
    assert list(unique([shop.sell, shop.name, shop.double])) == ["sell", "brand", "double"]
    with pytest.raises(ToolDefinitionError, match=r"instance\.sell"):
        await Shop.sell.call({"count": 1})


def _generator(a: int) -> Any:
    yield a


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (5, "is not a tool"),
        (None, "is not a tool"),
        (Adder, "the class Adder"),
        (_generator, "yields"),
        (max, r"cannot be read.*Wrap it"),
        (lambda a: a, "'<lambda>' is not a name"),
    ],
    ids=["number", "none", "class", "generator", "built-in", "lambda"],
)
def test_what_is_no_tool(source: Any, words: str) -> None:
    with pytest.raises(ToolDefinitionError, match=words):
        as_tool(source)


@pytest.mark.parametrize(
    "name", ["my tool!", "a" * 100, "a" * 65, "выборка", "", "a.b", "a\n", "é", None, 5, "x\0", "<lambda>"]
)
def test_bad_names(name: Any) -> None:
    """field case 82: refused when the tool is made."""
    with pytest.raises(ToolDefinitionError, match="is not a name for a tool"):
        Tool(name, {"type": "object", "properties": {}}, add_nothing)


def add_nothing() -> None:
    pass


@pytest.mark.parametrize("name", ["a", "a" * 64, "A-b_9"])
def test_good_names(name: str) -> None:
    """field case 82."""
    assert Tool(name, None, add_nothing).name == name


def test_duplicates_are_explicit() -> None:
    """field case 82: the same name twice, also of the same tool."""
    with pytest.raises(ToolDefinitionError, match="Two tools are named 'add'"):
        unique([add, tool(name="add")(add_nothing)])
    with pytest.raises(ToolDefinitionError, match="Two tools"):
        unique([tool(add)] * 2)


@pytest.mark.parametrize("tools", [None, 5, "add", tool(add), {"add": add}])
def test_what_is_no_list_of_tools_is_refused(tools: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="The tools of an agent are a list"):
        unique(tools)


@pytest.mark.parametrize("blank", [None, "", "  \n", {}, "{}"])
def test_blank_means_no_arguments(blank: Any) -> None:
    """field case 81."""
    assert as_tool(add_nothing).parse(blank) == {}
    with pytest.raises(ToolArgumentsError, match="a is required"):
        as_tool(add).parse(blank)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"a": 1', "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1} {"a": 2}', "not valid JSON"),
        ('```json\n{"a": 1}\n```', "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ("[" * 5_000, "not valid JSON"),
        ("null", "must be one JSON object, not null"),
        ("[]", r"must be one JSON object, not \[\]"),
        ("5", "must be one JSON object, not 5"),
        ('"{}"', "must be one JSON object"),
        ([], "must be one JSON object"),
        (5, "must be one JSON object"),
        ({1: 2}, "must be one JSON object"),
        ({"a": "x"}, 'a = "x": Input should be a valid integer'),
        ({"a": 1, "c": 2}, "c is unknown. It takes: a, b"),
        ({"a": None}, "a = null"),
    ],
)
def test_arguments_that_are_refused(arguments: Any, words: str) -> None:
    """field case 81: not executed; a sentence that a model can act on."""
    with pytest.raises(ToolArgumentsError, match=words) as caught:
        as_tool(add).parse(arguments)
    assert "add" in str(caught.value)
    assert len(str(caught.value)) < 500


@settings(deadline=None, max_examples=100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
    | st.text()
    | st.binary()
)
def test_any_arguments_are_parsed_or_refused(arguments: Any) -> None:
    """field case 81."""
    for made in (
        as_tool(add),
        Tool("t", {"type": "object", "properties": {"x": {"type": "number"}}}, lambda args: args),
    ):
        try:
            parsed = made.parse(arguments)
        except ToolArgumentsError:
            continue
        assert isinstance(parsed, dict)


async def test_sync_handlers_do_not_block() -> None:
    """field case 78: two sleepers take the time of one, the loop goes on, context variables are kept."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    beats = 0

    def sleeper() -> tuple[str, bool]:
        time.sleep(0.3)
        return variable.get(), threading.current_thread() is threading.main_thread()

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    variable.set("kept")
    task = asyncio.create_task(heart())
    made = as_tool(sleeper)
    started = time.monotonic()
    results = await asyncio.gather(*(made.call({}) for _ in range(20)))
    took = time.monotonic() - started
    task.cancel()
    assert results == [("kept", False)] * 20
    assert took < 0.6
    assert beats > 10


async def test_the_context_of_sync_and_async_handlers() -> None:
    async def later(ctx: Context) -> Any:
        return ctx

    def now(ctx: Context) -> Any:
        return ctx

    @functools.wraps(later)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return later(*args, **kwargs)

    context = fake_context()
    assert await as_tool(later).call({}, context) is context
    assert await as_tool(now).call({}, context) == "blocking"
    assert as_tool(wrapped).is_async
    assert await as_tool(wrapped).call({}, context) is context


async def test_what_a_sync_handler_returns_is_awaited() -> None:
    async def inner() -> int:
        return 5

    assert await as_tool(lambda_named(lambda: inner())).call({}) == 5


def lambda_named(function: Any) -> Any:
    function.__name__ = "named"
    return function


@pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration("x"), SystemExit(3)])
@pytest.mark.parametrize("is_async", [True, False])
async def test_errors_that_would_vanish(error: BaseException, is_async: bool) -> None:
    def now() -> None:
        raise error

    async def later() -> None:
        raise error

    with pytest.raises((RuntimeError, StopAsyncIteration)) as caught:
        await as_tool(later if is_async else now).call({})
    assert error in (caught.value, caught.value.__cause__)


async def test_a_cancelled_call_returns_at_once() -> None:
    release = threading.Event()
    started = time.monotonic()
    task = asyncio.create_task(as_tool(lambda_named(lambda: release.wait(5))).call({}))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1
    release.set()
    await asyncio.sleep(0.05)


def test_a_hanging_handler_does_not_hold_up_the_exit() -> None:
    """field case 78: not even after the loop has closed."""
    code = """
        import asyncio, time
        from everyturn.tools import tool

        @tool
        def hang() -> None:
            time.sleep(60)

        async def main() -> None:
            try:
                await asyncio.wait_for(hang.call({}), 0.1)
            except TimeoutError:
                print("timed out", flush=True)

        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\n", "")
