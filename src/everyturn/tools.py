"""Tools: what a model may call, as rows can hold it and as Python runs it.

A tool is a function with a JSON Schema. The schema comes from its signature and docstring (`tool`), or is
given by hand (`Tool(name, schema, handler)`). Arguments are validated before the handler runs; a violation is
a `ToolArgumentsError` whose message the model can act on. A parameter annotated `Context` is injected and
hidden from the model.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from pydantic_core import from_json

from everyturn import signature as signatures
from everyturn.docstrings import parse as parse_docstring
from everyturn.errors import InvalidValue, ToolArgumentsError, ToolDefinitionError
from everyturn.impl_hash import impl_hash
from everyturn.tool_call import invoke
from everyturn.tool_errors import brief

if TYPE_CHECKING:
    from everyturn.context import Context

Handler = Callable[..., Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_WINDOW = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class RateBudget:
    """At most `max_calls` calls of one tool by one agent in any `window_seconds`, over all processes."""

    window_seconds: float
    max_calls: int

    def __post_init__(self) -> None:
        window, calls = self.window_seconds, self.max_calls
        if isinstance(window, bool) or not isinstance(window, int | float) or not 0 < window <= _MAX_WINDOW:
            raise InvalidValue(
                f"window_seconds is {window!r}; a rate budget needs a number of seconds above 0, at most 100 years."
            )
        if isinstance(calls, bool) or not isinstance(calls, int) or not 0 <= calls < 1 << 31:
            raise InvalidValue(
                f"max_calls is {calls!r:.40}; a rate budget needs a whole number of calls, 0 to 2^31 - 1."
            )

    def as_json(self) -> dict[str, float]:
        """As the column `rate_budget` holds it."""
        return {"window_seconds": self.window_seconds, "max_calls": self.max_calls}


class Tool:
    """One tool: a name, a description, a JSON Schema for its arguments, and the handler."""

    def __init__(
        self,
        name: str,
        schema: dict[str, Any] | None,
        handler: Handler,
        rate_budget: RateBudget | None = None,
        *,
        description: str | None = None,
    ) -> None:
        self.name = _checked_name(name)
        if not callable(handler) and not isinstance(handler, classmethod):
            raise ToolDefinitionError(f"Tool {name!r}: its handler is {handler!r:.80}, which cannot be called.")
        if isinstance(handler, type):
            raise ToolDefinitionError(
                f"Tool {name!r}: its handler is the class {handler.__name__}. Give a function that makes one."
            )
        if rate_budget is not None and not isinstance(rate_budget, RateBudget):
            raise ToolDefinitionError(f"Tool {name!r}: rate_budget is {rate_budget!r:.80}, not an et.RateBudget.")
        if any(_yields(step) for step in (handler, type(handler).__call__)):
            raise ToolDefinitionError(f"Tool {name!r}: its handler yields. Let it return a list instead.")
        self.handler = handler
        self.rate_budget = rate_budget
        self.is_async = signatures.is_async(handler)
        self._given = schema is not None
        self._prepare(schema, description)

    def _prepare(self, schema: dict[str, Any] | None, description: str | None) -> None:
        documented, parameters = parse_docstring(_doc(self.handler))
        self.description = documented if description is None else description
        try:
            self._signature: signatures.Signature | None = signatures.read(self.handler, self.name)
        except ToolDefinitionError:
            if schema is None:
                raise
            self._signature = None  # a built-in: called with the schema's names as keywords
        self._context: tuple[str, ...] = self._signature.context if self._signature else ()
        # Both are imported only here: pydantic's model machinery and jsonschema take 30 to 40 ms each.
        if schema is not None:
            from everyturn.json_schema import GivenSchema

            given = GivenSchema(self.name, schema, self._signature)
            self._context += given.context
            self._arguments: Any = given
        else:
            from everyturn.schema import SignatureSchema

            assert self._signature is not None
            self._arguments = SignatureSchema(self.name, self._signature, parameters)
        self.schema: dict[str, Any] = self._arguments.schema

    @cached_property
    def impl_hash(self) -> str:
        """Which implementation this is; see `everyturn.impl_hash`.

        Made at the first use, when the module that defines the handler's helpers has been read to its end.
        """
        return impl_hash(self.handler)

    def parse(self, arguments: dict[str, Any] | str | None) -> dict[str, Any]:
        """Validated arguments for the handler, from a dict or from a model's text. Blank means none."""
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        if isinstance(arguments, str):
            try:
                arguments = from_json(arguments, allow_inf_nan=False)
            except ValueError as error:
                raise ToolArgumentsError(
                    f"The arguments of {self.name} are not valid JSON ({error}): {brief(arguments)}. "
                    "Send one complete JSON object."
                ) from None
        if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
            raise ToolArgumentsError(f"The arguments of {self.name} must be one JSON object, not {brief(arguments)}.")
        parsed: dict[str, Any] = self._arguments.parse(arguments)
        return parsed

    async def call(self, arguments: dict[str, Any], context: Context | None = None) -> Any:
        """Run the handler with parsed arguments. A sync one runs in a thread, with the blocking context."""
        if self._signature is not None and self._signature.owner is not None:
            raise ToolDefinitionError(
                f"Tool {self.name!r} is a method of a class. Take it from an instance: instance.{self.name}."
            )
        kwargs = dict(arguments)
        if self._context:
            injected = context if self.is_async or context is None else context.blocking()
            kwargs.update(dict.fromkeys(self._context, injected))
        return await invoke(self.handler, self._positional(kwargs), kwargs)

    def _positional(self, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Take out of `kwargs` what the handler takes by position only."""
        args: list[Any] = []
        for parameter in self._signature.positional if self._signature else ():
            if parameter.name in kwargs:
                args.append(kwargs.pop(parameter.name))
            elif parameter.default is not parameter.empty:
                args.append(parameter.default)
        return tuple(args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler as if it were not a tool."""
        return self.handler(*args, **kwargs)

    def __get__(self, instance: object | None, owner: type | None = None) -> Tool:
        """A tool written in a class body, bound to the instance or the class it is read from."""
        bind = getattr(self.handler, "__get__", None)
        needs = self._signature is not None and self._signature.owner is not None
        if bind is None or not needs or (instance is None and not isinstance(self.handler, classmethod)):
            return self
        schema = self._arguments.schema if self._given else None
        return Tool(self.name, schema, bind(instance, owner), self.rate_budget, description=self.description)

    def __repr__(self) -> str:
        return f"<everyturn.Tool {self.name}>"


@overload
def tool(handler: Handler, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    rate_budget: RateBudget | None = None,
    schema: dict[str, Any] | None = None,
) -> Callable[[Handler], Tool]: ...
def tool(
    handler: Handler | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    rate_budget: RateBudget | None = None,
    schema: dict[str, Any] | None = None,
) -> Tool | Callable[[Handler], Tool]:
    """Make a tool of a function, with or without parentheses: `@et.tool`, `@et.tool(rate_budget=…)`."""

    def make(function: Handler) -> Tool:
        return Tool(name or _name(function), schema, function, rate_budget, description=description)

    if handler is None:
        return make
    if isinstance(handler, str):
        raise ToolDefinitionError(f"et.tool takes a function, not {handler!r}. Write @et.tool(name={handler!r}).")
    return make(handler)


def as_tool(source: Any) -> Tool:
    """A tool from a tool, a function, a method, a partial or a callable object."""
    if isinstance(source, Tool):
        return source
    if not callable(source):
        raise ToolDefinitionError(f"{source!r:.80} is not a tool: give a function, or an et.Tool.")
    made: Any = tool(source)
    assert isinstance(made, Tool)
    return made


def unique(tools: Iterable[Any]) -> dict[str, Tool]:
    """The tools by name, in order. Two of one name are refused: neither replaces the other silently."""
    found: dict[str, Tool] = {}
    if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
        raise ToolDefinitionError(f"The tools of an agent are a list; got {tools!r:.80}. Write tools=[…].")
    for source in tools:
        made = as_tool(source)
        if made.name in found:
            raise ToolDefinitionError(
                f"Two tools are named {made.name!r}. Rename one of them: et.tool(name=…)(function)."
            )
        found[made.name] = made
    return found


def _name(handler: Any) -> str:
    for step in signatures.chain(handler):
        name = getattr(step, "__name__", None)
        if isinstance(name, str) and name != "__call__":
            return name
        if not isinstance(step, types.FunctionType | types.MethodType) and not hasattr(step, "func"):
            return type(step).__name__
    return ""


def _doc(handler: Any) -> str | None:
    """The docstring of the handler itself: that of `functools.partial` is not about the tool."""
    steps = list(signatures.chain(handler))
    for step in steps:
        own = step.__doc__ if inspect.isroutine(step) else getattr(step, "__dict__", {}).get("__doc__")
        if isinstance(own, str):
            return own
    objects = [step for step in steps if not inspect.isroutine(step) and not hasattr(step, "func")]
    return next((type(step).__doc__ for step in objects), None)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"{name!r:.100} is not a name for a tool: providers take 1 to 64 letters (a-z), digits, _ and -. "
            "Give one: et.tool(name=…)(function)."
        )
    return name


def _yields(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
