"""The rules for Python's definitions, handlers and expressions: one small function each."""

from __future__ import annotations

import ast

from .secrets import is_secret
from .syntax import FUNCTIONS, Place, dotted, registry

LONGEST_FUNCTION = 120

_QUERY_METHODS = {"filter", "where", "having", "select", "and_", "or_", "not_", "on", "join", "outerjoin"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
RULES, rule = registry()


@rule("bare-except", ast.ExceptHandler)
def bare_except(node: ast.ExceptHandler, place: Place) -> str | None:
    if node.type is None and not _reraises(node):
        return "This also catches KeyboardInterrupt and SystemExit; name the exceptions that are expected here."
    return None


@rule("swallowed-exception", ast.ExceptHandler)
def swallowed_exception(node: ast.ExceptHandler, place: Place) -> str | None:
    broad = node.type is not None and dotted(node.type) in {"Exception", "BaseException"}
    if broad and all(isinstance(statement, ast.Pass) or _is_ellipsis(statement) for statement in node.body):
        return "Any error disappears here; catch the one that is expected, or log it."
    return None


@rule("mutable-default", *FUNCTIONS, ast.Lambda)
def mutable_default(node: Function | ast.Lambda, place: Place) -> str | None:
    for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
        made = isinstance(default, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        empty = isinstance(default, ast.Call) and dotted(default.func) in {"list", "dict", "set"}
        if made or empty:
            return f"The default `{ast.unparse(default)[:40]}` is made once and shared by all calls; use None."
    return None


@rule("leftover-debugger", ast.Import, ast.ImportFrom, ast.Call)
def leftover_debugger(node: ast.Import | ast.ImportFrom | ast.Call, place: Place) -> str | None:
    if isinstance(node, ast.Call):
        found = dotted(node.func) in {"breakpoint", "pdb.set_trace", "ipdb.set_trace", "pudb.set_trace"}
    else:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        found = any(name.split(".")[0] in {"ipdb", "pudb"} or name == "pdb" for name in names)
    return "A debugger was left in." if found else None


@rule("hard-coded-secret", ast.Assign, ast.AnnAssign, ast.Call, ast.Dict)
def hard_coded_secret(node: ast.Assign | ast.AnnAssign | ast.Call | ast.Dict, place: Place) -> str | None:
    if place.is_test:
        return None
    pairs: list[tuple[str, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        pairs = [(dotted(target).split(".")[-1], node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign):
        pairs = [(dotted(node.target).split(".")[-1], node.value)]
    elif isinstance(node, ast.Call):
        pairs = [(keyword.arg or "", keyword.value) for keyword in node.keywords]
    else:
        items = zip(node.keys, node.values, strict=True)
        pairs = [(k.value, v) for k, v in items if isinstance(k, ast.Constant) and isinstance(k.value, str)]
    for name, value in pairs:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and is_secret(name, value.value):
            return f"The value of `{name}` is in the code; revoke it, and read it from the environment."
    return None


@rule("none-comparison", ast.Compare)
def none_comparison(node: ast.Compare, place: Place) -> str | None:
    for operator, right in zip(node.ops, node.comparators, strict=True):
        compares = isinstance(operator, ast.Eq | ast.NotEq)
        if compares and isinstance(right, ast.Constant) and right.value is None and not _in_query(place):
            better = "is" if isinstance(operator, ast.Eq) else "is not"
            return f"Compare with None by `{better}`: a class may answer `==` as it likes."
    return None


@rule("literal-identity", ast.Compare)
def literal_identity(node: ast.Compare, place: Place) -> str | None:
    for operator, right in zip(node.ops, node.comparators, strict=True):
        literal = isinstance(right, ast.Constant) and isinstance(right.value, str | bytes | int | float)
        if isinstance(operator, ast.Is | ast.IsNot) and literal and not isinstance(right.value, bool):  # type: ignore[attr-defined]
            return "Whether two equal literals are one object is up to the interpreter; compare by `==`."
    return None


@rule("always-true-assert", ast.Assert)
def always_true_assert(node: ast.Assert, place: Place) -> str | None:
    if isinstance(node.test, ast.Tuple) and node.test.elts:
        return "A tuple is always true, so this never fails; drop the parentheses."
    return None


@rule("raised-not-implemented", ast.Raise)
def raised_not_implemented(node: ast.Raise, place: Place) -> str | None:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    if raised is not None and dotted(raised) == "NotImplemented":
        return "NotImplemented is a value and cannot be raised; this wants NotImplementedError."
    return None


@rule("return-in-finally", ast.Return)
def return_in_finally(node: ast.Return, place: Place) -> str | None:
    inner: ast.AST = node
    for outer in reversed(place.parents):
        if isinstance(outer, (*FUNCTIONS, ast.Lambda)):
            return None
        if isinstance(outer, ast.Try) and inner in outer.finalbody:
            return "A return in `finally` drops the exception that was on its way."
        inner = outer
    return None


@rule("long-function", *FUNCTIONS)
def long_function(node: Function, place: Place) -> str | None:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > LONGEST_FUNCTION:
        return f"`{node.name}` is {length} lines long; it will be easier to follow, and to test, in parts."
    return None


def _reraises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _in_query(place: Place) -> bool:
    """Whether the comparison is an argument of a query builder, where `== None` is how it is written."""
    calls = [node for node in place.parents if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in _QUERY_METHODS for call in calls)
