"""What a handler takes: its parameters with resolved annotations, and which of them get the context."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union

from everyturn.context import Context
from everyturn.errors import ToolDefinitionError

Handler = Callable[..., Any]

_CONTEXT_TEXT = re.compile(
    r"""^['"]?(?:(?:\w+\.)*Optional\[)?['"]?(?:\w+\.)*Context['"]?\]?(?:\s*\|\s*None)?['"]?$""",
)


@dataclass(frozen=True, slots=True)
class Signature:
    parameters: dict[str, inspect.Parameter]
    """What the model may give, with the annotations as types. Star parameters are not among them."""
    positional: tuple[inspect.Parameter, ...]
    """Those that Python takes by position only, the context among them."""
    context: tuple[str, ...]
    """The parameters that the context is injected into."""
    stars: tuple[str, ...]
    """The names of `*args` and `**kwargs`, with their stars."""
    owner: str | None
    """The first parameter, when the handler is a function of a class that is not bound yet."""


def chain(handler: Any) -> Iterator[Any]:
    """The handler and what it stands for: below a partial, a decorator with `functools.wraps`, a method."""
    seen: set[int] = set()
    while id(handler) not in seen:
        seen.add(id(handler))
        yield handler
        if isinstance(handler, functools.partial):
            handler = handler.func
        elif isinstance(handler, types.MethodType | staticmethod | classmethod):
            handler = handler.__func__
        elif callable(getattr(handler, "__wrapped__", None)):
            handler = handler.__wrapped__
        elif not isinstance(handler, type) and not inspect.isroutine(handler):
            handler = type(handler).__call__


def is_async(handler: Any) -> bool:
    """Whether calling it gives a coroutine, at least by what it wraps."""
    return any(inspect.iscoroutinefunction(step) for step in chain(handler))


def read(handler: Handler, name: str) -> Signature:
    """The signature of a handler; `name` is the tool's, for errors."""
    *_, origin = chain(handler)
    try:
        given = inspect.signature(_callable(handler))
    except (ValueError, TypeError, NameError) as error:
        raise ToolDefinitionError(
            f"Tool {name!r}: the parameters of its handler cannot be read ({error}). "
            "Wrap it in a function with annotated parameters."
        ) from None
    bound = _bound_by_name(handler)
    scope = _Scope(origin)
    parameters: dict[str, inspect.Parameter] = {}
    context: list[str] = []
    stars: list[str] = []
    owner: str | None = None
    for position, parameter in enumerate(given.parameters.values()):
        if parameter.name in bound:
            continue
        if position == 0 and _is_owner(parameter, handler):
            owner = parameter.name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars.append(str(parameter).partition(":")[0])
        elif parameter.annotation is parameter.empty:
            parameters[parameter.name] = parameter
        elif _is_context(annotation := scope.resolve(parameter, name), parameter.name, name):
            context.append(parameter.name)
        else:
            parameters[parameter.name] = parameter.replace(annotation=annotation)
    positional = [
        parameter
        for parameter in given.parameters.values()
        if parameter.kind is parameter.POSITIONAL_ONLY and (parameter.name in parameters or parameter.name in context)
    ]
    return Signature(parameters, tuple(positional), tuple(context), tuple(stars), owner)


def _callable(handler: Any) -> Handler:
    function: Handler = handler.__func__ if isinstance(handler, classmethod | staticmethod) else handler
    return function


def _bound_by_name(handler: Any) -> set[str]:
    """Names that a partial has bound: `inspect` still shows them, as defaults."""
    return {key for step in chain(handler) if isinstance(step, functools.partial) for key in step.keywords}


def _is_owner(parameter: inspect.Parameter, handler: Any) -> bool:
    if isinstance(handler, classmethod):
        return True
    if not inspect.isfunction(handler):
        return False
    *_, container, _name = ["", *handler.__qualname__.split(".")]
    return parameter.name in ("self", "cls") and container not in ("", "<locals>")


class _Scope:
    """The names that the annotations of one function may use."""

    def __init__(self, origin: Any) -> None:
        self._globals: dict[str, Any] = getattr(origin, "__globals__", {})
        self._locals: dict[str, Any] = {}
        # Classes defined in a function are known to annotations that are text only while that function runs.
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_globals is self._globals:
                self._locals = {**frame.f_locals, **self._locals}
        free = getattr(getattr(origin, "__code__", None), "co_freevars", ())
        for name, cell in zip(free, getattr(origin, "__closure__", None) or (), strict=False):
            try:
                self._locals[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue

    def resolve(self, parameter: inspect.Parameter, tool: str) -> Any:
        raw = parameter.annotation

        def holder() -> None: ...

        holder.__annotations__ = {"it": raw}
        try:
            return typing.get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]
        except Exception as error:
            if isinstance(raw, str) and _CONTEXT_TEXT.match(raw.strip()):
                return Context  # imported for type checkers only
            raise ToolDefinitionError(
                f"Tool {tool!r}: the annotation of parameter {parameter.name!r}, {raw!r}, cannot be resolved "
                f"({error}). Import what it names at the top of the module, outside of TYPE_CHECKING."
            ) from None


def _is_context(annotation: Any, parameter: str, tool: str) -> bool:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, type):
        return issubclass(annotation, Context)
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return False
    members = set(typing.get_args(annotation)) - {type(None)}
    if Context in members and len(members) > 1:
        raise ToolDefinitionError(
            f"Tool {tool!r}: parameter {parameter!r} is annotated {annotation}. "
            "Annotate it et.Context alone: the context is injected, the model cannot give it."
        )
    return members == {Context}
