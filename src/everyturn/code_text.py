"""The text of a function's code without what does not matter: its syntax tree, or its bytecode."""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IRRELEVANT = frozenset({"ctx", "kind", "type_comment"})


def code_text(code: CodeType) -> str:
    """The same for the same code, wherever it stands."""
    node = _find(code)
    if node is None:
        return f"bytecode[{_bytecode(code)}]"
    if isinstance(node, _FUNCTIONS):
        # Decorators are seen by what they made of the function, which also knows their arguments.
        node = type(node)(**{**dict(ast.iter_fields(node)), "decorator_list": []})
    return tree_text(node)


def references(code: CodeType) -> tuple[set[str], set[str]]:
    """The names of globals, and of attributes, that the code and the functions inside it mention.

    Globals that it assigns itself are not among them: they hold state.
    """
    names: set[str] = set()
    state: set[str] = set()
    attributes: set[str] = set()
    for part in _codes(code):
        for step in dis.get_instructions(part):
            if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")):
                names.add(str(step.argval))
            elif "ATTR" in step.opname or step.opname in ("LOAD_METHOD", "IMPORT_FROM"):
                attributes.add(str(step.argval))
            elif step.opname == "STORE_GLOBAL":
                state.add(str(step.argval))
    return names - state, attributes


def reassigned(code: CodeType) -> set[str]:
    """The captured variables that the code assigns: they hold state too."""
    return {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}


def assignment(module: str, name: str) -> tuple[ast.expr, str] | None:
    """The expression that a global constant is assigned, and the module where; None unless there is just one."""
    for _ in range(10):
        try:
            tree, _codes_of_it = _parsed(inspect.getsource(sys.modules[module]), module)
        except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
            return None
        found = [value for target, value in _bindings(tree.body) if target == name]
        if len(found) != 1:
            return None
        [value] = found
        if isinstance(value, ast.expr):
            return value, module
        if not isinstance(value, ast.ImportFrom):
            return None
        # Imported by name from elsewhere: look there.
        package = sys.modules[module].__package__ or ""
        source = f"{'.' * value.level}{value.module or ''}"
        module = importlib.util.resolve_name(source, package) if value.level else source
        name = next(alias.name for alias in value.names if (alias.asname or alias.name) == name)
    return None


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | ast.ImportFrom | None]]:
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            yield from ((alias.asname or alias.name, statement) for alias in statement.names)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            value = statement.value if isinstance(target, ast.Name) else None
            yield from ((part.id, value) for part in ast.walk(target) if isinstance(part, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.value is not None:
                yield statement.target.id, statement.value
        elif not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            # Loops, branches, augmented assignments: whatever they bind is not one plain constant.
            for part in ast.walk(statement):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id, None
                elif isinstance(part, ast.ImportFrom):
                    yield from ((alias.asname or alias.name, None) for alias in part.names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _find(code: CodeType) -> ast.AST | None:
    """The syntax tree of the code, or None when the source is not at hand or is not what runs."""
    try:
        lines, _ = inspect.findsource(code)
        tree, compiled = _parsed("".join(lines), code.co_filename)
    except (OSError, TypeError, SyntaxError, ValueError, IndexError, RecursionError):
        return None
    if code not in compiled:  # the file was edited since it was imported, or the code was made in another way
        return None
    if code.co_name == "<lambda>":
        return _lambda(tree, code)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _FUNCTIONS)
        and node.name == code.co_name
        and min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) == code.co_firstlineno
    ]
    return found[0] if len(found) == 1 else None


def _lambda(tree: ast.AST, code: CodeType) -> ast.AST | None:
    """Of the lambdas that begin on one line, the smallest that holds all the code's positions."""
    spots = [
        (line, column)
        for step, (line, _, column, _) in zip(dis.get_instructions(code), code.co_positions(), strict=False)
        if line is not None and column is not None and step.opname not in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL")
    ]
    if not spots:
        return None
    fitting = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and (node.body.lineno, node.body.col_offset) <= min(spots)
        and max(spots) <= (node.body.end_lineno or 0, node.body.end_col_offset or 0)
    ]
    return min(fitting, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0), default=None)


@functools.lru_cache(maxsize=64)
def _parsed(source: str, filename: str) -> tuple[ast.Module, frozenset[CodeType]]:
    tree = ast.parse(source)
    whole = compile(source, filename, "exec", dont_inherit=True)
    return tree, frozenset(_codes(whole))


def tree_text(node: Any) -> str:
    if isinstance(node, list):
        return f"[{','.join(map(tree_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts: list[str] = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            value = _without_docstring(value)
        if isinstance(node, ast.JoinedStr):
            value = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
        # Empty fields, and empty parts of f-strings, differ between versions of Python.
        if name not in _IRRELEVANT and value is not None and value != []:
            parts.append(f"{name}={tree_text(value)}")
        elif isinstance(node, ast.Constant) and name == "value":
            parts.append("value=None")
    return f"{type(node).__name__}({','.join(parts)})"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return [statement for statement in body if not (isinstance(statement, ast.Pass) and len(body) == 1)]


def _bytecode(code: CodeType) -> str:
    parts = [f"{code.co_argcount},{code.co_posonlyargcount},{code.co_kwonlyargcount}", repr(code.co_varnames)]
    for step in dis.get_instructions(code):
        if step.opname in ("NOP", "EXTENDED_ARG", "CACHE"):
            continue
        parts.append(f"{step.opname} {_argument(step.argval)}")
    return ";".join(parts)


def _argument(value: Any) -> str:
    if isinstance(value, CodeType):
        return f"{value.co_name}[{_bytecode(value)}]"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(repr, value)))}}}"
    if isinstance(value, tuple):
        return f"({','.join(map(_argument, value))})"
    return repr(value)
