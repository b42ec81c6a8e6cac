"""Every block of the README and of CONTRIBUTING is run, in order, and prints what the text says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str) -> list[tuple[str, str]]:
    return _BLOCK.findall((ROOT / document).read_text("utf-8"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("EVERYTURN", "MODEL"))}
    return kept | {
        "EVERYTURN_DATABASE": str(tmp_path / "data"),
        "XDG_DATA_HOME": str(tmp_path / "share"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def normal(text: str) -> list[str]:
    """The lines of a text, without the spacing and the rules that a table may draw differently."""
    lines = (" ".join(line.replace("|", " ").split()) for line in text.splitlines())
    return [line for line in lines if line and not re.fullmatch(r"[-+ ]+|\(\d+ rows?\)", line)]


def test_the_readme_does_what_it_says(environment: dict[str, str], tmp_path: Path) -> None:
    said = ""
    kinds = []
    for kind, text in blocks("README.md"):
        kinds.append(kind)
        if kind == "python":
            script = tmp_path / "first_agent.py"
            script.write_text(text, "utf-8")
            said = run([sys.executable, str(script)], environment)
        elif kind == "sql":
            said = run(["everyturn", "db", "shell", "-c", text], environment)
        elif kind == "text":
            assert normal(said) == normal(text)
        elif kind == "sh":
            for line in text.splitlines():
                command = shlex.split(line)
                run([command[0], "-n", *command[1:]] if command[0] == "make" else command, environment)
        else:
            pytest.fail(f"The README has a block of {kind!r} that no test runs.")
    assert {"python", "sql", "text", "sh"} <= set(kinds)


def test_the_commands_of_contributing_exist(environment: dict[str, str]) -> None:
    for kind, text in blocks("CONTRIBUTING.md"):
        assert kind == "sh"
        for line in text.splitlines():
            command = shlex.split(line)
            if command[0] == "make":
                run(["make", "-n", *command[1:]], environment)
            else:
                assert command[:3] == [".venv/bin/python", "-m", "pytest"]
                run([sys.executable, "-m", "pytest", "--collect-only", "-q", *command[3:]], environment)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text("utf-8"))
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_make_help_names_every_target(environment: dict[str, str]) -> None:
    said = run(["make"], environment)
    for target in ("demo", "test", "check", "bench", "docs", "help"):
        assert f"make {target} " in said
