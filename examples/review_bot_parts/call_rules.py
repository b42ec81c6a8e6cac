"""The rules for calls in Python: what is called, and what the call leaves out."""

from __future__ import annotations

import ast
import re

from .syntax import Place, dotted, registry

_DEBUG_WORDS = re.compile(r"^\W*(debug|here|got here|xxx+)\b", re.IGNORECASE)
_SHELLS = {"run", "call", "check_call", "check_output", "Popen", "getoutput"}
_EXECUTES = {"execute", "executemany", "executescript", "fetch", "fetchrow", "fetchval"}
_STATEMENT = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|TRUNCATE|WITH|COPY|GRANT)\s", re.IGNORECASE
)

RULES, rule = registry()


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


@rule("naive-time", ast.Call)
def naive_time(node: ast.Call, place: Place) -> str | None:
    name = dotted(node.func).removeprefix("datetime.")
    if name in {"datetime.utcnow", "utcnow"}:
        return "utcnow() has no time zone and is read as local time elsewhere; use datetime.now(UTC)."
    if name == "datetime.now" and not node.args and not node.keywords:
        return "A time without a zone means something else on the next machine; use datetime.now(UTC)."
    return None


@rule("open-without-encoding", ast.Call)
def open_without_encoding(node: ast.Call, place: Place) -> str | None:
    if place.is_test or any(keyword.arg in {"encoding", None} for keyword in node.keywords):
        return None
    if dotted(node.func) == "open" and node.args:
        mode = node.args[1] if len(node.args) > 1 else _keyword(node, "mode")
        text = mode is None or (isinstance(mode, ast.Constant) and "b" not in str(mode.value))
        left_out = text and len(node.args) < 4
    else:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        left_out = (method == "read_text" and not node.args) or (method == "write_text" and len(node.args) == 1)
    return 'The encoding is the machine\'s unless one is named; say encoding="utf-8".' if left_out else None


@rule("sql-from-strings", ast.Call)
def sql_from_strings(node: ast.Call, place: Place) -> str | None:
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method not in _EXECUTES or not node.args or place.is_test:
        return None
    first = _start_of_composed(node.args[0])
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and _STATEMENT.match(first.value):
        return "This statement is put together from strings; pass values as parameters, and quote names as names."
    return None


@rule("unchecked-command", ast.Expr)
def unchecked_command(node: ast.Expr, place: Place) -> str | None:
    call = node.value
    if not isinstance(call, ast.Call) or dotted(call.func) not in {"subprocess.run", "subprocess.call"}:
        return None
    if any(keyword.arg in {"check", None} for keyword in call.keywords):
        return None
    return "Nobody looks at how this command ended; pass check=True, or check=False where that is meant."


@rule("discarded-task", ast.Expr)
def discarded_task(node: ast.Expr, place: Place) -> str | None:
    if isinstance(node.value, ast.Call) and dotted(node.value.func) in {"asyncio.create_task", "asyncio.ensure_future"}:
        return "A task that nothing refers to may vanish before it is done; keep it, and await it somewhere."
    return None


@rule("sleep-in-test", ast.Call)
def sleep_in_test(node: ast.Call, place: Place) -> str | None:
    if not place.is_test or dotted(node.func) not in {"time.sleep", "asyncio.sleep"} or len(node.args) != 1:
        return None
    seconds = node.args[0]
    if isinstance(seconds, ast.Constant) and isinstance(seconds.value, int | float) and 0.5 <= seconds.value < 10:
        return "A fixed wait is slow here and too short on a busy machine; wait for the condition itself."
    return None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _start_of_composed(text: ast.expr) -> ast.expr | None:
    """The first piece of a string that is put together by `%`, `+`, `.format` or placeholders in an f-string."""
    if isinstance(text, ast.Call):
        method = text.func
        return method.value if isinstance(method, ast.Attribute) and method.attr == "format" else None
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Mod | ast.Add):
        return text.left
    if isinstance(text, ast.JoinedStr) and any(isinstance(part, ast.FormattedValue) for part in text.values):
        return text.values[0]
    return None
