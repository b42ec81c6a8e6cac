"""The tutorial of the review bot does what it says, command by command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from github_server import TOKEN, GitHubServer, github_server
from test_github_bot import LOAD, LOAD_LATER, OTHER

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "review-bot.md").read_text("utf-8")
BOT = (ROOT / "examples" / "review_bot.py").read_text("utf-8")


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    with github_server() as server:
        server.repo = "owner/name"
        server.open(7, LOAD)
        server.open(8, LOAD_LATER + OTHER)
        yield server


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def normal(text: str) -> list[str]:
    lines = (" ".join(line.replace("|", " ").split()) for line in text.splitlines())
    return [line for line in lines if line and not re.fullmatch(r"[-+ ]+|\(\d+ rows?\)", line)]


def answer(server: GitHubServer) -> None:
    """What the reviewers of the tutorial do before `sync`."""
    by_rule = {each["body"].partition("]")[0][1:]: each["id"] for each in server.by_bot(7)}
    server.reply(by_rule["mutable-default"], "ann", "False positive: the list is a cache.")
    server.resolved[by_rule["none-comparison"]] = "ann"


def test_the_tutorial(server: GitHubServer, everyturn_url: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVERYTURN", "MODEL", "GITHUB"))}
    environment = kept | {
        "GITHUB_TOKEN": TOKEN,
        "GITHUB_API_URL": server.url,
        "EVERYTURN_DATABASE": everyturn_url,
        "XDG_DATA_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    said = ""
    kinds = set()
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        kinds.add(kind)
        if kind == "python":
            assert text in BOT
        elif kind == "sql":
            said = run(["everyturn", "db", "shell", "-c", text], environment)
        elif kind == "text":
            assert normal(said) == normal(text)
        elif kind == "sh":
            for line in text.splitlines():
                if " sync " in line:
                    answer(server)
                said = run(shlex.split(line), environment)
                if " wrong " in line:
                    assert "False positive" in said
        elif kind == "yaml":
            assert re.findall(r"review_bot\.py (\w+)", text) == ["sync", "review"]
        else:
            pytest.fail(f"The page has a block of {kind!r} that no test runs.")
    assert kinds == {"python", "sh", "sql", "text", "yaml"}
    assert "[none-comparison]" in said
    assert "[mutable-default]" not in said


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links)
