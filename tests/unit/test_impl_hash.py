"""What changes the hash of an implementation, and what does not."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everyturn.impl_hash import UNKNOWN, impl_hash, same_implementation
from everyturn.tools import as_tool

_numbers = itertools.count()


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., str]:
    """Hash of `f` (or another name) in a module of this source, in a directory of its own."""

    def make(source: str, name: str = "f", *, file: str | None = None, source_kept: bool = True) -> str:
        number = next(_numbers)
        folder = tmp_path / f"d{number}"
        folder.mkdir()
        path = folder / (file or f"module_{number}.py")
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        if not source_kept:
            path.unlink()
        found = impl_hash(eval(name, module.__dict__))
        assert re.fullmatch("v1:[0-9a-f]{32}", found), found
        return found

    return make


BASE = """
    LIMIT = 3

    def helper(x):
        return x + LIMIT

    class Box:
        size = 4
        def area(self):
            return self.size ** 2

    def f(a, b=2, *, c=(1, "x")):
        total = helper(a) * b
        for n in range(3):
            if n in (1, 2):
                total += Box().area()
        return {"total": total, "s": f"{total!r:>4}", "c": c}
"""

SAME = {
    "comment": BASE.replace("        return x + LIMIT", "        # a comment\n        return x + LIMIT  # more"),
    "docstring": BASE.replace("        total = helper", '        """Do it."""\n        total = helper'),
    "docstring of a helper": BASE.replace("        return x + LIMIT", '        "Help."\n        return x + LIMIT'),
    "docstring of a class": BASE.replace("        size = 4", '        """A box."""\n        size = 4'),
    "moved down": "\n" * 10 + BASE,
    "other functions": BASE + "\n    def unrelated():\n        return 1\n",
    "formatting": BASE.replace("helper(a) * b", "(\n            helper( a )\n              * b )"),
    "quotes": BASE.replace('"total": total', "'total': total"),
    "order of definitions": BASE.replace("    LIMIT = 3\n", "") + "\n    LIMIT = 3\n",
    "blank lines": BASE.replace("        for n", "\n\n        for n"),
    "everyturn's decorator": "    import everyturn.tools as et\n"
    + BASE.replace(
        "    def f(",
        "    @et.tool(rate_budget=et.RateBudget(60, 5), description='d')\n    def f(",
    ),
}

OTHER = {
    "code": BASE.replace("total += Box", "total -= Box"),
    "constant in code": BASE.replace("range(3)", "range(4)"),
    "default": BASE.replace("b=2", "b=3"),
    "keyword default": BASE.replace('c=(1, "x")', 'c=(1, "y")'),
    "helper": BASE.replace("x + LIMIT", "x - LIMIT"),
    "global constant": BASE.replace("LIMIT = 3", "LIMIT = 4"),
    "class constant": BASE.replace("size = 4", "size = 5"),
    "method of a class": BASE.replace("size ** 2", "size ** 3"),
    "format": BASE.replace(">4", ">5"),
    "parameter": BASE.replace("def f(a, b=2,", "def f(a, bb=2,").replace("* b\n", "* bb\n"),
}


@pytest.mark.parametrize("kept", [True, False], ids=["source", "bytecode"])
@pytest.mark.parametrize("what", SAME)
def test_what_does_not_matter(made: Callable[..., str], what: str, kept: bool) -> None:
    """field case 84: comments, docstrings, formatting, line numbers and moves change nothing."""
    assert made(SAME[what], source_kept=kept) == made(BASE, source_kept=kept)


@pytest.mark.parametrize("kept", [True, False], ids=["source", "bytecode"])
@pytest.mark.parametrize("what", OTHER)
def test_what_matters(made: Callable[..., str], what: str, kept: bool) -> None:
    assert made(OTHER[what], source_kept=kept) != made(BASE, source_kept=kept)


def test_a_file_moved_and_renamed(made: Callable[..., str]) -> None:
    """field case 84."""
    assert made(BASE, file="one.py") == made(BASE, file="two.py")


DECORATED = """
    import functools, time

    def retry(times, wait=0.1):
        def decorate(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                for _ in range(times):
                    try:
                        return function(*args, **kwargs)
                    except ValueError:
                        time.sleep(wait)
            return wrapper
        return decorate

    @retry(3)
    def f(a):
        return a
"""


@pytest.mark.parametrize("kept", [True, False], ids=["source", "bytecode"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@retry(3)", "@retry(5)"),
        ("@retry(3)", "@retry(3, wait=1)"),
        ("    @retry(3)\n", ""),
        ("wait=0.1", "wait=0.2"),
        ("except ValueError", "except OSError"),
        ("return a\n", "return -a\n"),
    ],
)
def test_a_changed_decorator(made: Callable[..., str], old: str, new: str, kept: bool) -> None:
    """field case 86: its arguments, its defaults and its code."""
    assert old in DECORATED
    assert made(DECORATED, source_kept=kept) != made(DECORATED.replace(old, new), source_kept=kept)


def test_decorators_in_two_layers_and_async(made: Callable[..., str]) -> None:
    """field case 86."""
    stacked = DECORATED.replace("    @retry(3)\n", "    @retry(1)\n    @retry(3)\n")
    assert made(stacked) != made(stacked.replace("retry(3)", "retry(4)"))
    assert made(stacked) != made(stacked.replace("retry(1)", "retry(2)"))
    later = DECORATED.replace("def wrapper", "async def wrapper").replace("def f", "async def f")
    assert made(later) != made(later.replace("retry(3)", "retry(4)"))


def test_a_decorator_of_an_installed_package(made: Callable[..., str], tmp_path: Path) -> None:
    """field case 86: its own code is not looked at, its arguments are, in the object that holds them too."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    vendored = packages / "vendored.py"
    sys.path.insert(0, str(packages))
    source = """
        import functools

        class Stop:
            def __init__(self, after):
                self.after = after

        class Retrying:
            def __init__(self, stop, wait):
                self.stop, self.wait = stop, wait

        def retry(stop, wait=1):
            retrying = Retrying(stop, wait)
            def decorate(function):
                @functools.wraps(function)
                def wrapped(*args):
                    return function(*args), retrying
                return wrapped
            return decorate
    """
    vendored.write_text(textwrap.dedent(source))
    try:
        used = "import vendored\n@vendored.retry(vendored.Stop(3))\ndef f(a): return a"
        before = made(used)
        assert made(used) == before
        assert made(used.replace("Stop(3)", "Stop(4)")) != before
        assert made(used.replace("Stop(3)", "Stop(3), 2")) != before
        assert made(used.replace("return a", "return -a")) != before
        vendored.write_text(
            textwrap.dedent(source).replace("return function(*args), retrying", "return retrying, function")
        )
        del sys.modules["vendored"]
        assert made(used) == before
    finally:
        sys.path.remove(str(packages))
        sys.modules.pop("vendored", None)


def test_a_decorator_made_by_a_class_and_by_partial(made: Callable[..., str]) -> None:
    """field case 86."""
    by_class = """
        class Retry:
            def __init__(self, function, times):
                self.function, self.times = function, times
            def __call__(self, a):
                return [self.function(a) for _ in range(self.times)]

        def inner(a):
            return a

        f = Retry(inner, 3)
    """
    assert made(by_class) == made(by_class)
    assert made(by_class) != made(by_class.replace("Retry(inner, 3)", "Retry(inner, 4)"))
    assert made(by_class) != made(by_class.replace("return a\n", "return -a\n"))
    by_partial = "import functools\ndef g(a, n): return a * n\nf = functools.partial(g, n=2)"
    assert made(by_partial) != made(by_partial.replace("n=2", "n=3"))
    assert made(by_partial) != made(by_partial.replace("a * n", "a + n"))
    cached = "import functools\n@functools.lru_cache(maxsize=8)\ndef f(a): return a"
    assert made(cached) != made(cached.replace("return a", "return -a"))
    assert made(cached) != made(cached.replace("8", "9"))


METHOD = """
    class Shop:
        rate = 2
        def __init__(self, stock, name):
            self.stock, self.name, self.token = stock, name, object()
        def __call__(self, n):
            return self.sell(n)
        def sell(self, n):
            return self._price(n) - self.stock
        def _price(self, n):
            return n * self.rate + self.tax
        @property
        def tax(self):
            return 0.2
        def unrelated(self):
            return self.name

    shop = Shop(5, "a")
    f = shop.sell
    g = shop
"""


@pytest.mark.parametrize("name", ["f", "g"])
def test_methods_and_objects(made: Callable[..., str], name: str) -> None:
    assert made(METHOD, name) == made(METHOD, name)
    for old, new in [
        ("Shop(5", "Shop(6"),
        ("rate = 2", "rate = 3"),
        ("n * self.rate", "n + self.rate"),
        ("0.2", "0.3"),
        ("- self.stock", "+ self.stock"),
    ]:
        assert made(METHOD, name) != made(METHOD.replace(old, new), name), (old, new)
    assert made(METHOD, name) == made(METHOD.replace('"a")', '"b")'), name)
    assert made(METHOD, name) == made(METHOD.replace("return self.name", "return 1"), name)


def test_captured_values(made: Callable[..., str]) -> None:
    """field case 86: closures, loops over them, and values that only differ by type."""
    closure = """
        import enum, dataclasses, pathlib

        class Mode(enum.Enum):
            A = 1
            B = 2

        @dataclasses.dataclass
        class Config:
            depth: int = 1

        def build(value):
            def f(a):
                return a, value
            return f

        f = build(VALUE)
    """
    values = [
        "1",
        "1.0",
        "True",
        "'1'",
        "b'1'",
        "None",
        "[1]",
        "(1,)",
        "{'a': 1}",
        "{1}",
        "Mode.A",
        "Mode.B",
        "Config(2)",
        "Config(3)",
        "build(1)",
        "build(2)",
        "len",
        "max",
        "Config",
        "2**70",
    ]
    hashes = [made(closure.replace("VALUE", value)) for value in values]
    assert len(set(hashes)) == len(values)
    assert made(closure.replace("VALUE", "{3, 1, 'b', 'a'}")) == made(closure.replace("VALUE", "{'a', 'b', 1, 3}"))
    assert made(closure.replace("VALUE", "pathlib.Path(__file__).parent")) is not None
    assert made(closure.replace("VALUE", "object()")) == made(closure.replace("VALUE", "object()"))


def test_cycles(made: Callable[..., str]) -> None:
    source = """
        def f(n):
            return g(n - 1) if n else 0
        def g(n):
            return f(n - 1) + (LOOP is None)
        LOOP = [1]
        LOOP.append(LOOP)
    """
    assert made(source) == made(source)
    assert made(source) != made(source.replace("(LOOP is None)", "1"))


def test_lambdas_on_one_line(made: Callable[..., str]) -> None:
    """field case 83."""
    source = "f, g = (lambda a: a + 1), (lambda a: a + 2)\nh = {'x': lambda a: a + 1}['x']"
    assert made(source, "f") != made(source, "g")
    assert made(source, "f") == made(source, "h")
    assert made(source, "f") == made("f = lambda a:  a+1  # same", "f")


def test_nested_and_decorated_functions_are_found(made: Callable[..., str]) -> None:
    source = """
        def outer():
            def f(a):
                'doc'
                def inner(b):
                    return b
                return inner(a)
            return f
        f = outer()
    """
    assert made(source) == made(source.replace("'doc'", "# doc"))
    assert made(source) != made(source.replace("return b", "return -b"))


def test_a_file_edited_after_the_import(tmp_path: Path) -> None:
    """field case 84: the hash is of what runs, not of what the file says now."""
    path = tmp_path / "edited.py"
    path.write_text("def f(a):\n    return a\n")
    spec = importlib.util.spec_from_file_location("edited", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text("def f(a):\n    return -a\n")
    edited = impl_hash(module.f)
    path.write_text("def f(a):\n    return a * 5\n")
    assert impl_hash(module.f) == edited


def test_code_without_source() -> None:
    """field case 83: a hash, or a marked unknown; never an error."""
    scope: dict[str, Any] = {}
    exec("def f(a):\n    'doc'\n    return [x for x in a if x in {1, 'a', None}]", scope)
    again: dict[str, Any] = {}
    exec("\n\n\ndef f(a):\n    return [x for x in a if x in {None, 'a', 1}]", again)
    other: dict[str, Any] = {}
    exec("def f(a):\n    return [x for x in a if x in {1, 'a', 2}]", other)
    assert impl_hash(scope["f"]) == impl_hash(again["f"]) != impl_hash(other["f"])
    for nothing in (len, print, int, "".join, [].append, re.compile, 5, None, object(), dict.get):
        assert impl_hash(nothing) == UNKNOWN or nothing is re.compile


def test_unknown_equals_nothing() -> None:
    """field case 83."""
    assert not same_implementation(UNKNOWN, UNKNOWN)
    assert not same_implementation(None, None)
    assert not same_implementation("", "")
    assert not same_implementation("v1:a", "v1:b")
    assert same_implementation("v1:a", "v1:a")


def test_objects_that_refuse_to_be_looked_at() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

        def __hash__(self) -> int:
            raise RuntimeError("no")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        def __call__(self) -> int:
            return 1

    hostile = Hostile()
    assert impl_hash(hostile).startswith("v1:")
    assert impl_hash(functools.partial(lambda a: a, hostile)).startswith("v1:")
    assert impl_hash(lambda: hostile).startswith("v1:")


PROCESS = """
import functools, sys
sys.path.insert(0, {folder!r})
from everyturn.impl_hash import impl_hash
import project.tools as tools
f = lambda a: a in {{"x", "y", "z"}}
exec("def g(a, s=frozenset(['q', 'w', 'e'])): return a in {{'x', 'y', 'z'}}")
print(impl_hash(tools.f), impl_hash(f), impl_hash(g), impl_hash(len))
"""


def test_stable_across_processes_and_folders(tmp_path: Path) -> None:
    """field case 83; field case 84: no addresses, no order of sets, no path; lambdas of `python -c`."""
    outputs = set()
    for seed, name in [("1", "here"), ("2", "there"), ("77", "with space")]:
        folder = tmp_path / name
        (folder / "project").mkdir(parents=True)
        (folder / "project" / "__init__.py").write_text("")
        (folder / "project" / "rules.py").write_text(
            "import pathlib\nHERE = pathlib.Path(__file__)\nNAMES = {'a', 'b', 'c'}\n"
            "def check(x):\n    return x in NAMES\n"
        )
        (folder / "project" / "tools.py").write_text(
            "from . import rules\nfrom .rules import HERE\n"
            "class Thing:\n    pass\nTHING = Thing()\n"
            "def f(a, marker=object()):\n    return rules.check(a), HERE, THING, __file__\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", PROCESS.format(folder=str(folder))],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    first, second, third, unknown = outputs.pop().split()
    assert len({first, second, third}) == 3
    assert unknown == UNKNOWN


def test_functions_of_project_modules_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = []
    for number, body in enumerate(["x + 1", "x + 2"]):
        package = f"followed{number}"
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "deep.py").write_text(f"def add(x):\n    return {body}\n")
        (folder / "top.py").write_text("from . import deep\ndef f(a):\n    return deep.add(a)\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        hashes.append(impl_hash(importlib.import_module(f"{package}.top").f))
    assert hashes[0] != hashes[1]


def test_a_tool_hashes_when_it_is_asked(tmp_path: Path) -> None:
    """The helpers that a module defines after the tool count too."""
    path = tmp_path / "late.py"
    path.write_text(
        "from everyturn.tools import tool\n@tool\ndef f(a: int) -> int:\n    return later(a)\n"
        "def later(a):\n    return a\n"
    )
    spec = importlib.util.spec_from_file_location("late", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert as_tool(module.f).impl_hash == impl_hash(module.f.handler)
    path.write_text(path.read_text().replace("    return a\n", "    return -a\n"))
    changed = importlib.util.module_from_spec(spec)
    sys.modules["late"] = changed
    spec.loader.exec_module(changed)
    assert changed.f.impl_hash != module.f.impl_hash


def test_state_is_no_implementation(made: Callable[..., str]) -> None:
    """Caches and counters do not count: the same before and after the tool has run, in any process."""
    source = """
        import functools, os

        CACHE = {}
        count = 0
        TOKEN = os.environ.get("EVERYTURN_TEST_TOKEN")

        def counted(function):
            n = 0
            @functools.wraps(function)
            def wrapper(a):
                nonlocal n
                n += 1
                return function(a)
            return wrapper

        @counted
        def f(a):
            global count
            count += 1
            CACHE[a] = TOKEN
            return a
    """
    before = made(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERYTURN_TEST_TOKEN", "secret")
        assert made(source + "\n        f(1); f(2)") == before
    assert made(source.replace("CACHE = {}", "CACHE = {1: 2}")) != before
    assert made(source.replace("TEST_TOKEN", "OTHER_TOKEN")) != before


def test_constants_of_other_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = []
    for number, (base, use) in enumerate([(1, "BASE * 2"), (2, "BASE * 2"), (1, "BASE * 3"), (1, "BASE * 2")]):
        package = f"constants{number}"
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "base.py").write_text(f"BASE = {base}\n")
        (folder / "rules.py").write_text(f"from .base import BASE\nLIMIT: int = {use}\nLOOP = [1]\n")
        (folder / "top.py").write_text(
            "from . import rules\nfrom .rules import LIMIT as L, LOOP\ndef f(a):\n    return L, LOOP, rules.LIMIT\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        hashes.append(impl_hash(importlib.import_module(f"{package}.top").f))
    assert len(set(hashes[:3])) == 3
    assert hashes[0] == hashes[3]


def test_the_hash_is_the_same_for_every_version(made: Callable[..., str]) -> None:
    """Rows hold it: another version of everyturn, or of Python with the same source, must not make another."""
    assert made(BASE) == "v1:00447ee5dd692f0db175c0803ae5a940"
    assert made(DECORATED) == "v1:e2534e945acd7a61bbfa874e493ce552"
    assert made(METHOD) == "v1:f7d098bdc6784ba8984a31e538fca065"
