"""The command tree, its exit codes, and how errors are said."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from everyturn import __version__
from everyturn.cli import main
from everyturn.cli.app import NOUNS
from everyturn.cli.command import Settings
from everyturn.cli.exits import report, sentence
from everyturn.errors import ConversationNotFound, DatabaseUnavailable, InvalidValue

Capture = pytest.CaptureFixture[str]


def test_help_names_every_noun(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(noun in shown for noun in NOUNS)
    assert "130 Ctrl-C" in shown


@pytest.mark.parametrize("noun", list(NOUNS))
def test_every_noun_has_help(noun: str, capsys: Capture) -> None:
    assert main([noun, "--help"]) == 0
    assert f"everyturn {noun}" in capsys.readouterr().out


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"everyturn {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["turn", "nothing"],
        ["turn", "list", "--nothing"],
        ["turn", "show"],
        ["turn", "show", "no-uuid"],
        ["turn", "list", "--limit", "0"],
        ["turn", "list", "--kind", "other"],
        ["turn", "list", "--since", "soon"],
        ["turn", "list", "--where", "no equals sign"],
        ["turn", "list", "--where", "a=1", "--where", "a=2"],
        ["conversation", "resume", "--agent", "python:a:b"],
        ["-d", "mysql://host/db", "turn", "list"],
        ["-d", "", "turn", "list"],
    ],
)
def test_wrong_usage_is_2(words: list[str], capsys: Capture) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: " in captured.err
    assert "Traceback" not in captured.err


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("EVERYTURN_DATABASE", raising=False)
    monkeypatch.setenv("EVERYTURN_DB", "postgresql://elsewhere/x")
    assert main(["turn", "list"]) == 2
    assert "EVERYTURN_DB" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_4_and_its_password_is_not_shown(capsys: Capture) -> None:
    assert main(["turn", "list", "-d", "postgresql://me:hunter2@127.0.0.1:1/x"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cannot be reached" in captured.err
    assert "Traceback" not in captured.err
    assert "hunter2" not in captured.err
    assert "me@127.0.0.1:1/x" in captured.err


def test_errors_are_one_sentence(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERYTURN_DEBUG", raising=False)
    assert report(InvalidValue("Not\nthat \x1b[31m.")) == 2
    assert report(ConversationNotFound("No such thing.")) == 4
    assert report(KeyboardInterrupt()) == 130
    assert report(RuntimeError("oh")) == 4
    assert capsys.readouterr().err.splitlines() == [
        "Error: Not that \\x1b[31m.",
        "Error: No such thing.",
        "Error: RuntimeError: oh (EVERYTURN_DEBUG=1 shows where)",
    ]
    assert sentence(FileNotFoundError(2, "No such file or directory", "x.py")) == "No such file or directory: x.py"
    group = ExceptionGroup("several", [DatabaseUnavailable("Gone."), ValueError()])
    assert sentence(group) == "Gone.; ValueError (EVERYTURN_DEBUG=1 shows where)"


def test_debug_shows_where(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYTURN_DEBUG", "1")
    try:
        raise RuntimeError("oh")
    except RuntimeError as error:
        report(error)
    assert "Traceback" in capsys.readouterr().err


def test_options_after_the_verb_win() -> None:
    before = Settings("a", quiet=True)
    assert before.over(None, False) == before
    assert before.over("b", False) == Settings("b", quiet=True)
    assert before.over("", False).database == ""


def test_stdin_that_is_not_utf8_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """field case 4"""
    from everyturn.cli.filters import readable, text_argument

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9 \xff"), encoding="ascii"))
    main(["--version"])
    assert text_argument("-") == "caf\ufffd \ufffd"
    assert readable("caf\udce9") == "caf\ufffd"


def test_help_imports_no_database_driver() -> None:
    program = (
        "import sys; from everyturn.cli import main; main(['--help'])\n"
        "heavy = {'psycopg', 'pydantic', 'rich', 'asyncio', 'pydantic_ai', 'httpx'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
