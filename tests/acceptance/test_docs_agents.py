"""The examples of docs/agents.md and docs/log.md run as they stand there."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import everyturn as et

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["agents.md", "log.md"])
async def test_examples(everyturn_db: et.Database, page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)
    assert len(blocks) >= 3
    names: dict[str, object] = {"db": everyturn_db, "__name__": "docs"}
    for number, block in enumerate(blocks):
        code = compile(block, f"{page}[{number}]", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
