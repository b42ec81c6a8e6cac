"""Which implementation a tool has: one hash of everything its behaviour comes from.

Covered: the handler's code, defaults, captured values and bound arguments; what decorators with
`functools.wraps` put around it, with their arguments; and, through and through, the functions, classes and
constants of the same project that it uses. Not covered, so that they change nothing: comments, docstrings,
formatting, line numbers, module and file names, the standard library and installed packages, and the decorators
of everyturn itself.

The code is taken as a syntax tree when its source is at hand and is really what runs; that is the same for all
versions of Python. Without source it is the bytecode, which a new minor version of Python changes.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from everyturn.code_text import assignment, code_text, reassigned, references, tree_text
from everyturn.value_text import class_parts, plain_text, value_object

UNKNOWN = "v1:unknown"
"""For handlers with nothing to hash, such as built-ins. It equals nothing, itself included."""

_known: WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, str]] = WeakKeyDictionary()
"""Hashes of functions, made once: what they capture may change as they run."""

_SKIPPED = frozenset({"__file__", "__name__", "__doc__", "__builtins__", "__path__", "__package__", "__spec__"})


def impl_hash(handler: Any) -> str:
    """`v1:` and 32 hexadecimal digits, or `v1:unknown`. Never raises."""
    try:
        if not isinstance(handler, types.FunctionType):
            return _hash(handler)
        code, known = _known.get(handler, (None, UNKNOWN))
        if code is not handler.__code__:
            known = _hash(handler)
            _known[handler] = handler.__code__, known
        return known
    except Exception:  # whatever an object answers to being looked at
        return UNKNOWN


def _hash(handler: Any) -> str:
    walk = _Walk(handler)
    text = walk.text(handler)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"v1:{digest[:32]}" if walk.found_code else UNKNOWN


def same_implementation(first: str | None, second: str | None) -> bool:
    """Whether two hashes are known to be of one implementation."""
    return bool(first) and first == second and first != UNKNOWN


class _Walk:
    """One text of everything that is reached from a handler; each object once, then by number."""

    def __init__(self, handler: Any) -> None:
        self.found_code = False
        self._numbers: dict[int, int] = {}
        self._constants: set[tuple[str, str]] = set()
        self._alive: list[Any] = []  # so that no id is given twice
        self._top = _top(_module(_innermost(handler)))

    def text(self, value: Any) -> str:
        if type(value).__module__ == "everyturn.tools":
            value = value.handler
        plain = plain_text(value)
        if plain is not None:
            return plain
        if id(value) in self._numbers:
            return f"#{self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return f"({' '.join(self._parts(value))})"

    def _parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, list | tuple):
            yield type(value).__name__
            yield from map(self.text, value)
        elif isinstance(value, set | frozenset):
            yield "set"
            yield from sorted(_Walk.text(self, item) for item in sorted(value, key=repr))
        elif isinstance(value, dict):
            yield "dict"
            for key, item in sorted(value.items(), key=lambda pair: str(plain_text(pair[0]))):
                yield f"{self.text(key)}={self.text(item)}"
        elif isinstance(value, functools.partial):
            yield "partial"
            yield from (self.text(value.func), self.text(value.args), self.text(dict(value.keywords)))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, None)
        elif isinstance(value, types.MethodType):
            yield from self._method(value.__func__, value.__self__)
        elif isinstance(value, staticmethod | classmethod):
            yield self.text(value.__func__)
        elif isinstance(value, property):
            yield from map(self.text, (value.fget, value.fset, value.fdel))
        elif isinstance(value, type):
            yield from self._class(value)
        elif callable(getattr(value, "__wrapped__", None)):  # functools.lru_cache and the like
            parameters = getattr(value, "cache_parameters", None)
            yield f"{_label(type(value))} {self.text(parameters()) if callable(parameters) else ''}"
            yield self.text(value.__wrapped__)
        elif inspect.isroutine(value):
            yield _label(value)
        else:
            yield from self._instance(value)

    def _function(self, function: types.FunctionType, owner: Any) -> Iterator[str]:
        wraps = callable(getattr(function, "__wrapped__", None))
        if self._is_ours(function) or (not self.found_code and not wraps):
            self.found_code = True
            yield code_text(function.__code__)
            yield from self._used(function, owner)
        else:
            yield _label(function)
            if not wraps:
                return
        if wraps:
            yield self.text(function.__wrapped__)  # type: ignore[attr-defined]
        yield self.text(function.__defaults__)
        yield self.text(function.__kwdefaults__)
        state = reassigned(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in state:
                continue
            try:
                captured = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            yield f"{name}={self._captured(captured) if wraps else self.text(captured)}"

    def _captured(self, value: Any) -> str:
        """What a decorator keeps: its arguments may sit in an object of a package, so look into that too."""
        if self._is_ours(type(value)) or not hasattr(value, "__dict__") or callable(value):
            return self.text(value)
        parts = {key: item for key, item in vars(value).items() if plain_text(item) is not None}
        inner = {
            key: vars(item)
            for key, item in vars(value).items()
            if key not in parts and hasattr(item, "__dict__") and not inspect.isroutine(item)
        }
        plain = {key: {k: v for k, v in held.items() if plain_text(v) is not None} for key, held in inner.items()}
        return f"{_label(type(value))}{self.text(parts)}{self.text(plain)}"

    def _used(self, function: types.FunctionType, owner: Any) -> Iterator[str]:
        """The globals that the code names, and what it names on its own project's modules."""
        names, attributes = references(function.__code__)
        scope = function.__globals__
        for name in sorted(names - _SKIPPED):
            if name not in scope:
                continue
            found = scope[name]
            if isinstance(found, types.ModuleType):
                yield from self._module_parts(name, found, attributes)
            else:
                yield f"{name}={self._global(_module(function), name, found)}"
        if owner is not None:
            yield from self._owner_parts(owner, attributes)

    def _global(self, module: str, name: str, found: Any) -> str:
        if callable(found) or isinstance(found, types.ModuleType):
            return self.text(found)
        # What the source says, rather than the value: it is the same on all machines and at all times, also for
        # caches, and for settings and secrets that come from the environment.
        source = assignment(module, name)
        if source is None:
            is_value = plain_text(found) is not None or _is_constant(found)
            return self.text(found) if is_value else _label(type(found))
        expression, home = source
        if (home, name) in self._constants:
            return name
        self._constants.add((home, name))
        scope = vars(sys.modules[home])
        used = {part.id for part in ast.walk(expression) if isinstance(part, ast.Name)}
        parts = [f"{n}={self._global(home, n, scope[n])}" for n in sorted(used - _SKIPPED) if n in scope]
        return f"({tree_text(expression)} {' '.join(parts)})"

    def _module_parts(self, name: str, module: types.ModuleType, attributes: set[str]) -> Iterator[str]:
        if not self._is_ours(module):
            yield f"{name}:{module.__name__}"
            return
        for attribute in sorted(attributes & vars(module).keys()):
            found = vars(module)[attribute]
            if not isinstance(found, types.ModuleType):
                yield f"{name}.{attribute}={self._global(module.__name__, attribute, found)}"

    def _method(self, function: Any, owner: Any) -> Iterator[str]:
        if not isinstance(function, types.FunctionType):
            yield self.text(function)
            return
        yield from self._function(function, owner)
        inner = getattr(function, "__wrapped__", None)
        while isinstance(inner, types.FunctionType):  # the owner is handed on to what is wrapped
            yield from self._owner_parts(owner, references(inner.__code__)[1])
            inner = getattr(inner, "__wrapped__", None)

    def _owner_parts(self, owner: Any, attributes: set[str]) -> Iterator[str]:
        """What a method names on its object: other methods, and plain values."""
        kind = owner if isinstance(owner, type) else type(owner)
        held = {} if isinstance(owner, type) else getattr(owner, "__dict__", {})
        for name in sorted(attributes):
            if name in held:
                yield f"self.{name}={self.text(held[name])}"
                continue
            found = inspect.getattr_static(kind, name, None)
            if isinstance(found, types.MemberDescriptorType) and not isinstance(owner, type):
                yield f"self.{name}={self.text(getattr(owner, name, None))}"
            elif found is not None and id(found) not in self._numbers:
                function = getattr(found, "fget", None) or getattr(found, "__func__", found)
                if isinstance(function, types.FunctionType) and self._is_ours(function):
                    self._numbers[id(found)] = len(self._numbers)
                    self._alive.append(found)
                    yield f"self.{name}=({' '.join(self._function(function, owner))})"
                elif plain_text(found) is not None:
                    yield f"self.{name}={plain_text(found)}"

    def _class(self, kind: type) -> Iterator[str]:
        if not self._is_ours(kind):
            yield _label(kind)
            return
        yield "class"
        yield from map(self.text, kind.__bases__)
        for name, part in class_parts(kind):
            yield f"{name}={part if isinstance(part, str) else self.text(part[0])}"

    def _instance(self, value: Any) -> Iterator[str]:
        kind = type(value)
        if not self._is_ours(kind):
            yield _label(kind)
            return
        call = inspect.getattr_static(kind, "__call__", None)
        if isinstance(call, types.FunctionType):
            yield from self._method(call, value)
            return
        yield self.text(kind)
        yield self.text(value_object(value) or {})

    def _is_ours(self, value: Any) -> bool:
        """Whether it belongs to the handler's package, or to no installed one."""
        module = value if isinstance(value, types.ModuleType) else sys.modules.get(_module(value))
        top = _top(module.__name__ if module else _module(value))
        if top == self._top:
            return True
        if not top or top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "everyturn":
            return False
        code = getattr(value, "__code__", None)
        file = str(getattr(module, "__file__", None) or getattr(code, "co_filename", ""))
        return "site-packages" not in file and "dist-packages" not in file


def _is_constant(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset | dict) or value_object(value) is not None


def _innermost(handler: Any) -> Any:
    from everyturn.signature import chain

    *_, last = chain(handler)
    return last


def _module(value: Any) -> str:
    # functools.wraps gives a wrapper the module of what it wraps; its globals tell where it was written.
    is_function = isinstance(value, types.FunctionType)
    module = value.__globals__.get("__name__") if is_function else getattr(value, "__module__", None)
    return module if isinstance(module, str) else ""


def _top(module: str) -> str:
    return module.partition(".")[0]


def _label(value: Any) -> str:
    if isinstance(value, types.FunctionType):
        return f"{_module(value)}.{value.__code__.co_qualname}"
    return f"{_module(value)}.{getattr(value, '__qualname__', type(value).__qualname__)}"
