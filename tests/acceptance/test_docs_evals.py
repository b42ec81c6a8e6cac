"""docs/evals.md: its programs and commands are run in order, and print what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from everyturn.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "evals.md"
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_does_what_it_says(
    everyturn_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("EVERYTURN_DATABASE", everyturn_url)
    monkeypatch.setenv("EVERYTURN_EMBEDDER", "none")
    names: dict[str, object] = {}
    commands = 0
    for kind, text in _BLOCK.findall(PAGE.read_text("utf-8")):
        if text.startswith("# my_evals.py"):
            (tmp_path / "my_evals.py").write_text(text, "utf-8")
        elif text.startswith("# in my_evals.py"):
            compile(text, "my_evals.py", "exec")
        elif kind == "python":
            exec(compile(text.replace("et.connect()", "et.connect(embedder=False)"), "docs/evals.md", "exec"), names)
        else:
            for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, expected = entry.partition("\n")
                command, _, remark = line.partition(" #")
                code = re.search(r"exits with (\d)", remark)
                capsys.readouterr()
                assert main(shlex.split(command)[1:]) == (int(code[1]) if code else 0), line
                said, errors = capsys.readouterr()
                assert "Traceback" not in errors
                if expected:
                    assert said.startswith(expected), f"{line}\n{said}"
                commands += 1
    assert commands > 10
