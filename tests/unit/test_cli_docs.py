"""docs/cli.md is what the help says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_page_of_the_commands_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("everyturn_docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == docs.command_line(), "run `make docs`"
