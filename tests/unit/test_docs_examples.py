"""The examples of docs/values.md and docs/tools.md do what the pages say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["values.md", "tools.md"])
def test_examples(page: str) -> None:
    text = (DOCS / page).read_text()
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if ">>>" in block]
    assert blocks
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        test = doctest.DocTestParser().get_doctest(block, names, f"{page}[{number}]", page, 0)
        report: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=report.append, clear_globs=False)
        names = test.globs
        assert not report, "".join(report)
