"""The rules for Python: one small function per rule, over a node of the syntax tree and where it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from .secrets import is_secret
from .syntax import FUNCTIONS, Check, Place, dotted

LONGEST_FUNCTION = 120

_DEBUG_WORDS = re.compile(r"^\W*(debug|here|got here|xxx+)\b", re.IGNORECASE)
_SHELLS = {"run", "call", "check_call", "check_output", "Popen", "getoutput"}
_QUERY_METHODS = {"filter", "where", "having", "select", "and_", "or_", "not_", "on", "join", "outerjoin"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
RULES: dict[str, tuple[tuple[type[ast.AST], ...], Check]] = {}


def rule(name: str, *kinds: type[ast.AST]) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        RULES[name] = (kinds, check)
        return check

    return register


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


@rule("leftover-print", ast.Call)
def leftover_print(node: ast.Call, place: Place) -> str | None:
    if dotted(node.func) != "print" or node.keywords or not node.args or place.is_script or place.is_test:
        return None
    first = node.args[0]
    says_debug = isinstance(first, ast.Constant) and isinstance(first.value, str) and _DEBUG_WORDS.search(first.value)
    dumps = isinstance(first, ast.Call) and dotted(first.func) in {"type", "dir", "vars", "locals", "globals"}
    # f"{x=}" is parsed into the text "x=" before the value.
    shows = isinstance(first, ast.JoinedStr) and any(
        isinstance(part, ast.Constant) and re.search(r"\w=$", str(part.value))
        for part, after in zip(first.values, first.values[1:], strict=False)
        if isinstance(after, ast.FormattedValue) and after.conversion == ord("r")
    )
    if says_debug or dumps or shows:
        return "This looks like debugging output that was left in; remove it, or use logging."
    return None


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


@rule("eval-input", ast.Call)
def eval_input(node: ast.Call, place: Place) -> str | None:
    if dotted(node.func) in {"eval", "exec"} and node.args and not isinstance(node.args[0], ast.Constant):
        return None if place.is_test else f"`{dotted(node.func)}` runs whatever it is given; parse the value instead."
    return None


@rule("shell-injection", ast.Call)
def shell_injection(node: ast.Call, place: Place) -> str | None:
    name = dotted(node.func)
    by_shell = name.split(".")[-1] in _SHELLS and any(
        keyword.arg == "shell" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
    )
    if (by_shell or name in {"os.system", "os.popen"}) and node.args and not isinstance(node.args[0], ast.Constant):
        return "A shell reads whatever was put into this command; pass a list of arguments without a shell."
    return None


@rule("request-without-timeout", ast.Call)
def request_without_timeout(node: ast.Call, place: Place) -> str | None:
    names = {f"requests.{verb}" for verb in ("get", "post", "put", "patch", "delete", "head", "request")}
    names |= {"urllib.request.urlopen"}
    given = any(keyword.arg in {"timeout", None} for keyword in node.keywords)
    if dotted(node.func) in names and not given and len(node.args) < 3:
        return "Without a timeout this waits for ever when the other side goes quiet."
    return None


@rule("unsafe-yaml", ast.Call)
def unsafe_yaml(node: ast.Call, place: Place) -> str | None:
    if dotted(node.func) == "yaml.load" and len(node.args) == 1 and not node.keywords:
        return "yaml.load builds any Python object the text names; use yaml.safe_load."
    return None


@rule("blocking-sleep", ast.Call)
def blocking_sleep(node: ast.Call, place: Place) -> str | None:
    if dotted(node.func) == "time.sleep" and isinstance(place.function, ast.AsyncFunctionDef):
        return "This stops the whole event loop; await asyncio.sleep."
    return None


@rule("naive-utcnow", ast.Call)
def naive_utcnow(node: ast.Call, place: Place) -> str | None:
    if dotted(node.func) in {"datetime.utcnow", "datetime.datetime.utcnow"}:
        return "utcnow() has no time zone and is read as local time elsewhere; use datetime.now(UTC)."
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
