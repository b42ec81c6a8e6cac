"""`import everyturn as et`: what type checkers are told is what there is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import everyturn as et


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse(Path(et.__file__).read_text("utf-8"))
    told = {
        f"{node.module}.{name.name}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.asname == name.name
    }
    assert told == {f"{module}.{name}" for name, module in et._HOME.items()}
    for name in et.__all__:
        assert getattr(et, name) is not None
    assert set(et.__all__) <= set(dir(et))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = et.nothing  # type: ignore[attr-defined]


def test_the_import_loads_nothing_heavy() -> None:
    program = (
        "import sys, everyturn; print([m for m in ('psycopg', 'pydantic', 'pydantic_ai', 'typer') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
