"""The model leaf: one shape for every way to ask a model.

`resolve` makes a `Leaf` of a string (`"anthropic:claude-opus-4-7"`), a pydantic-ai model or a callable.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from everyturn.errors import ModelError, StreamBroken
from everyturn.messages import (
    AssistantMessage,
    Delta,
    FinishReason,
    Message,
    ModelRequest,
    ModelTurn,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolMessage,
    UserMessage,
)
from everyturn.threads import in_thread, submit, without_exit

if TYPE_CHECKING:
    from everyturn.values import Usage

__all__ = [
    "AssistantMessage",
    "Delta",
    "FinishReason",
    "Leaf",
    "Message",
    "ModelRequest",
    "ModelTurn",
    "ReasoningDelta",
    "TextDelta",
    "ToolCall",
    "ToolCallDelta",
    "ToolMessage",
    "UserMessage",
    "resolve",
]

_DELTAS = (TextDelta, ReasoningDelta, ToolCallDelta)
_END = object()

Source: TypeAlias = str | Callable[[ModelRequest], Any]


@runtime_checkable
class Leaf(Protocol):
    """A model, ready to be asked."""

    @property
    def name(self) -> str:
        """The name recorded where the answer does not bring its own."""

    def stream(self, request: ModelRequest, *, streaming: bool = True) -> AsyncIterator[Delta | ModelTurn]:
        """Deltas as they come, then exactly one `ModelTurn`, last.

        With `streaming=False` a provider is asked for the whole answer in one plain response. A stream that
        ends before its answer raises `StreamBroken` after what came. To stop early, close the iterator
        (`contextlib.aclosing`).
        """

    def cost(self, usage: Usage, model: str | None = None) -> Decimal | None:
        """What this usage costs in US dollars; None where the price is not known."""


def resolve(model: Source | Leaf) -> Leaf:
    """The leaf for a model string, a pydantic-ai model, a callable, or a leaf itself."""
    if isinstance(model, str):
        return _resolve_string(model)
    if isinstance(model, Leaf):
        return model
    if _is_pydantic_ai_model(model):
        from everyturn.providers import ProviderLeaf

        return ProviderLeaf(cast("Any", model))
    if callable(model):
        return FunctionLeaf(model)
    raise ModelError(
        f'A model is a string such as "anthropic:claude-opus-4-7" or a function taking a ModelRequest; '
        f"got {type(model).__name__}."
    )


def _resolve_string(model: str) -> Leaf:
    provider, colon, name = model.strip().partition(":")
    if not colon or not provider or not name.strip():
        raise ModelError(
            f'The model {model!r} does not name a provider. Write "provider:model", such as '
            '"anthropic:claude-opus-4-7" or "openai:gpt-5", or pass a function.'
        )
    if provider == "python":
        raise ModelError(f"{model!r} is how the command line names a Python object. In Python pass the object itself.")
    from everyturn.providers import ProviderLeaf

    return ProviderLeaf(model.strip())


def _is_pydantic_ai_model(model: object) -> bool:
    # By name: importing pydantic-ai to ask would cost half a second where it is not used.
    return any(c.__name__ == "Model" and c.__module__.startswith("pydantic_ai.models") for c in type(model).__mro__)


class FunctionLeaf:
    """A Python callable as a model: sync (in a thread) or async, answering at once or as a generator."""

    __slots__ = ("_direct", "_function", "name")

    def __init__(self, function: Callable[[ModelRequest], Any]) -> None:
        self._function = function
        self.name = _name_of(function)
        target = _innermost(function)
        # These return a coroutine or a generator at once; whatever else is called may block.
        self._direct = (
            inspect.iscoroutinefunction(target)
            or inspect.isasyncgenfunction(target)
            or inspect.isgeneratorfunction(target)
        )

    def __repr__(self) -> str:
        return f"FunctionLeaf({self.name!r})"

    async def stream(self, request: ModelRequest, *, streaming: bool = True) -> AsyncGenerator[Delta | ModelTurn]:
        """The function's deltas, if it makes any, and its `ModelTurn`."""
        with without_exit(f"The model {self.name!r}"):
            async with aclosing(self._stream(request)) as items:
                async for item in items:
                    yield item

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[Delta | ModelTurn]:
        answer = self._function(request) if self._direct else await in_thread(self._function, request)
        if inspect.isawaitable(answer):
            answer = await answer
        if hasattr(answer, "__aiter__"):
            items: AsyncIterator[Any] = answer.__aiter__()
        elif isinstance(answer, Iterator):
            items = _in_threads(answer)
        else:
            yield self._turn(answer)
            return
        try:
            async with aclosing(self._checked(items)) as checked:
                async for item in checked:
                    yield item
        finally:
            await _aclose(items)

    def cost(self, usage: Usage, model: str | None = None) -> Decimal | None:
        """What this usage costs, by the name the answer gave, or else the leaf's own."""
        from everyturn.prices import cost

        return cost(usage, model or self.name)

    async def _checked(self, items: AsyncIterator[Any]) -> AsyncGenerator[Delta | ModelTurn]:
        turn: ModelTurn | None = None
        deltas = 0
        async for item in items:
            if turn is not None:
                what = "a second ModelTurn" if isinstance(item, ModelTurn) else f"a {type(item).__name__}"
                raise ModelError(
                    f"The model {self.name!r} yielded {what} after its ModelTurn. The ModelTurn comes once, last."
                )
            if isinstance(item, ModelTurn):
                turn = item
            elif isinstance(item, _DELTAS):
                deltas += 1
                yield item
            else:
                raise ModelError(
                    f"The model {self.name!r} yielded {_described(item)}. A generator yields TextDelta, "
                    "ReasoningDelta and ToolCallDelta, and last a ModelTurn."
                )
        if turn is None:
            raise StreamBroken(
                f"The stream of the model {self.name!r} ended after {deltas} deltas without a ModelTurn: "
                "its answer is incomplete."
            )
        yield turn

    def _turn(self, answer: object) -> ModelTurn:
        if isinstance(answer, ModelTurn):
            return answer
        if isinstance(answer, str):
            return ModelTurn(text=answer)
        raise ModelError(
            f"The model {self.name!r} returned {_described(answer)}. It must return a ModelTurn, or a str for its text."
        )


async def _in_threads(items: Iterator[Any]) -> AsyncGenerator[Any]:
    """A blocking iterator, one step at a time in a thread."""
    step: Future[Any] | None = None
    try:
        while True:
            step = submit(next, items, _END)
            item = await asyncio.wrap_future(step)
            step = None
            if item is _END:
                return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            if step is not None and not step.cancel():
                # Cancelled within a step: a generator that is running can only be closed once it stops.
                step.add_done_callback(lambda _: _close_quietly(close))
            else:
                await in_thread(close)


def _close_quietly(close: Callable[[], None]) -> None:
    with suppress(Exception):
        close()


async def _aclose(items: AsyncIterator[Any]) -> None:
    aclose = getattr(items, "aclose", None)
    if aclose is not None:
        await aclose()


def _innermost(function: Any) -> Any:
    """The function behind partials, and behind `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        call = getattr(type(function), "__call__", None)  # noqa: B004 - the method is wanted, not whether it exists
        if inspect.isfunction(call):
            return call
    return function


def _name_of(function: Any) -> str:
    while True:
        name = getattr(function, "name", None)
        if isinstance(name, str) and name:
            return name
        if not isinstance(function, functools.partial):
            break
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _described(value: object) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '…'}"
