"""`python:module:name` and `python:file.py:name`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everyturn.cli.objects import ObjectImportError, load_object
from everyturn.errors import InvalidValue


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "agents.py").write_text("class Desk:\n    clerk = 'clerk'\nreviewer = object()\n")
    (tmp_path / "neighbour_of_file.py").write_text("VALUE = 7\n")
    (tmp_path / "my file.py").write_text("from neighbour_of_file import VALUE\nagent = VALUE\n")
    (tmp_path / "json.py").write_text("agent = 'mine'\n")
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('no key')\n")
    (tmp_path / "unparsable.py").write_text("def f(:\n")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(0)\n")
    (tmp_path / "needs.py").write_text("import a_module_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_name_of_a_module_in_the_current_directory() -> None:
    assert load_object("python:shop.agents:reviewer") is sys.modules["shop.agents"].reviewer
    assert load_object("python:shop.agents:Desk.clerk") == "clerk"


def test_a_name_of_a_file_and_of_its_neighbours(place: Path) -> None:
    assert load_object("python:my file.py:agent") == 7
    assert load_object(f"python:{place}/my file.py:agent") == 7


def test_a_file_does_not_take_the_place_of_a_loaded_module() -> None:
    import json

    assert load_object("python:json.py:agent") == "mine"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("shop.agents:reviewer", "does not name a Python object"),
        ("python:shop.agents", "does not name a Python object"),
        ("python::x", "does not name a Python object"),
        ("python:shop.agents:not a name", "is not a Python name"),
        ("python:shop/agents:reviewer", "neither a module nor a .py file"),
        ("python:shop.agents:reviever", "Did you mean 'reviewer'"),
        ("python:shop.nothing:x", "there is no module 'shop.nothing'"),
        ("python:no_such_thing:x", "there is no module 'no_such_thing'"),
        ("python:missing.py:x", "there is no file"),
    ],
)
def test_a_wrong_reference_is_explained(reference: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        load_object(reference)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("python:broken.py:x", "RuntimeError: no key .*broken.py, line 2"),
        ("python:broken:x", "RuntimeError: no key"),
        ("python:unparsable.py:x", "SyntaxError"),
        ("python:leaves.py:x", "SystemExit"),
        ("python:needs:x", "a_module_nobody_has"),
    ],
)
def test_a_module_that_fails_is_told_from_one_that_is_not_there(reference: str, said: str) -> None:
    with pytest.raises(ObjectImportError, match=said):
        load_object(reference)
