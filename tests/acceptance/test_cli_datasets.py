"""`case`, `dataset`, `replay`, `report`, `diff`, `gate` and `worker`, and the tutorial's commands."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from everyturn import testing
from everyturn.cli import main

Capture = pytest.CaptureFixture[str]
EVERYTURN = Path(sys.executable).parent / "everyturn"
TUTORIAL = Path(__file__).parents[2] / "docs" / "datasets.md"
LEAVES = """
import time
import everyturn as et

def words(request):
    return request.messages[-1].text.split()

def old(request):
    return et.ModelTurn(text=words(request)[-1], usage=et.Usage(10, 2), cost_usd="0.001")

def new(request):
    word = words(request)[-1]
    return et.ModelTurn(text="wrong" if word == "2" else word, usage=et.Usage(10, 2), cost_usd="0.001")

def broken(request):
    raise RuntimeError("no such model")

def slow(request):
    time.sleep(0.2)
    return old(request)

def judge(request):
    return et.ModelTurn(text='{"reason": "I say so", "score": 1}', cost_usd="0.01")

def polite(output, reference):
    return "please" in output
"""


class Line:
    """The command line on one database."""

    def __init__(self, url: str, capsys: Capture) -> None:
        self.url = url
        self.capsys = capsys
        self.err = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        found = main(["-q", "-d", self.url, *words])
        captured = self.capsys.readouterr()
        self.err = captured.err
        assert found == code, captured.err
        assert "Traceback" not in captured.err
        return captured.out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    testing.server(durable=False)
    made = tmp_path_factory.mktemp("work")
    (made / "leaves.py").write_text(LEAVES)
    (made / "system.md").write_text("Answer with the last word.\n")
    before = Path.cwd()
    os.chdir(made)
    os.environ["EVERYTURN_EMBEDDER"] = "none"
    yield made
    os.environ.pop("EVERYTURN_EMBEDDER")
    os.chdir(before)


@pytest.fixture
def cli(everyturn_url: str, capsys: Capture) -> Line:
    return Line(everyturn_url, capsys)


def fill(cli: Line, count: int = 4) -> None:
    for n in range(count):
        cli(
            "case", "capture", "--prompt", f"say {n}", "--reference", str(n), "--tag", f"{'odd' if n % 2 else 'even'},t"
        )
    assert cli("dataset", "publish", "core") == "core@1\n"


def test_cases(cli: Line, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = cli(
        "case", "capture", "--prompt", "say 'hi' | 50%", "--tag", "a,b", "--tag", "c", "--source", "incident"
    ).strip()
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin"))
    made = cli.json("case", "capture", "--stdin", "--reference", "r", "--context", '{"k": 1}', "--by", "ana")
    assert (made["prompt"], made["context"], made["captured_by"]) == ("from stdin", {"k": 1}, "ana")
    (folder / "prompt.txt").write_text("from a file")
    cli("case", "capture", "--file", "prompt.txt")
    found = cli.json("case", "list")
    assert [row["prompt"] for row in found] == ["from a file", "from stdin", "say 'hi' | 50%"]
    assert [row["id"] for row in cli.json("case", "list", "--tag", "a,b", "--not-tag", "z")] == [id]
    assert cli.json("case", "list", "--source", "incident", "--limit", "1")[0]["tags"] == ["a", "b", "c"]
    assert cli.json("case", "show", id)["prompt"] == "say 'hi' | 50%"
    assert [row["id"] for row in cli.json("case", "similar", "say")] == [id]
    cli("case", "tag", id, "--add", "d", "--remove", "a,b")
    assert cli.json("case", "show", id)["tags"] == ["c", "d"]
    cli("case", "supersede", id, made["id"])
    assert "superseded" in cli.json("case", "show", id)["tags"]
    cli("case", "capture", "--prompt", "x", "--stdin", code=2)
    cli("case", "capture", "--turn", str(uuid4()), code=4)
    cli("case", "capture", "--prompt", "x", "--context", "[1]", code=2)
    cli("case", "capture", "--from-evals", "bad", code=3)
    cli("case", "show", str(uuid4()), code=4)


def test_duplicates_are_said(everyturn_url: str, capsys: Capture) -> None:
    for _ in range(2):
        main(["-d", everyturn_url, "case", "capture", "--prompt", "same"])
    assert "exactly this content" in capsys.readouterr().err
    main(["-d", everyturn_url, "case", "capture", "--prompt", "same", "--on-duplicate", "skip"])
    assert "Not stored again" in capsys.readouterr().err


def test_import_and_export(cli: Line, folder: Path, everyturn_url: str) -> None:
    (folder / "cases.csv").write_text("prompt,expected,tags\nsay 1,1,x\nsay 2,NaN,\n")
    assert cli("case", "import", "cases.csv", "--tag", "csv") == "Imported 2 cases.\n"
    assert cli.json("case", "import", "cases.csv", "--tag", "csv")["duplicates"] == 2
    lines = [json.loads(line) for line in cli("case", "export").splitlines()]
    assert [(line["prompt"], line["reference"]) for line in lines] == [("say 1", "1"), ("say 2", None)]
    rows = list(csv.DictReader(io.StringIO(cli("case", "export", "--csv"))))
    assert rows[0]["tags"] == '["x", "csv"]'
    (folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt"\n')
    cli("case", "import", "bad.jsonl", code=2)
    assert "line 2" in cli.err
    cli("case", "import", "missing.jsonl", code=4)
    cli("dataset", "publish", "core")
    bundle = cli("dataset", "export", "core@1", "-o", "-")
    cli("dataset", "export", "core@1")
    assert (folder / "core@1.jsonl").read_text() == bundle
    with testing.database_url() as other:
        there = Line(other, cli.capsys)
        assert "core@1" in there("dataset", "import", "core@1.jsonl")
        assert there.json("dataset", "show", "core")["hash"] == cli.json("dataset", "show", "core")["hash"]


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a@b"])
def test_a_dataset_name_is_no_path(cli: Line, name: str) -> None:
    """Field case 148."""
    cli("case", "capture", "--prompt", "p")
    cli("dataset", "publish", name, code=2)
    cli("dataset", "export", name, code=2 if name == "a@b" else 4)


def test_datasets(cli: Line) -> None:
    cli("dataset", "publish", "empty", code=3)
    fill(cli)
    assert cli.json("dataset", "publish", "core")["created"] is False
    odd = cli.json("dataset", "publish", "core", "--tag", "odd", "--notes", "half")
    assert (odd["version"], odd["cases"]) == (2, 2)
    assert [row["version"] for row in cli.json("dataset", "list")] == [2, 1]
    assert len(cli.json("dataset", "show", "core@1")["cases"]) == 4
    assert cli.json("dataset", "coverage", "core@2") == [
        {"tag": "odd", "cases": 2, "share": 1},
        {"tag": "t", "cases": 2, "share": 1},
    ]
    cli("dataset", "coverage", "core", "--against", "30d", code=3)
    cli("dataset", "show", "core@9", code=4)
    assert cli.json("dataset", "publish", "sql", "--where-sql", "c.reference = '3'")["cases"] == 1


def test_replay_report_diff_and_gate(cli: Line) -> None:
    fill(cli)
    old = cli.json("replay", "core@1", "--model", "python:leaves.py:old", "--prompt", "system.md")
    assert (old["status"], old["passed"], old["model"]) == ("finished", 4, "old")
    sha = subprocess.run(["git", "hash-object", "system.md"], capture_output=True, text=True, check=True).stdout.strip()
    assert old["prompt_rev"] == sha
    new = cli.json("replay", "core@1", "--model", "python:leaves.py:new", "--prompt", "system.md", "-k", "2", "-j", "2")
    assert (new["total"], new["passed"], new["failed"]) == (8, 6, 2)
    rows = cli.json("report", "core")
    assert [(row["model"], row["pass_rate"]) for row in rows] == [("old", 1.0), ("new", 0.75)]
    assert cli("report", "core", "--markdown").startswith("| model |")
    table = list(csv.DictReader(io.StringIO(cli("report", "core@1", "--csv"))))
    assert (table[1]["model"], table[1]["errors"]) == ("new", "0")
    assert {row["tag"] for row in cli.json("report", "core", "--by", "tag")} == {"odd", "even", "t"}
    diff = cli.json("diff", "core@1", "--baseline", "old", "--candidate", "new")
    assert (diff["counts"]["regressed"], diff["verdict"]) == (1, "not enough data")
    [case] = diff["cases"]
    assert (case["prompt"], case["old_output"], case["output"]) == ("say 2", "2", "wrong")
    text = cli("diff", "core@1", "--baseline", "old", "--candidate", "new", "--markdown")
    assert "| regressed |" in text
    assert cli("diff", "core", "--category", "improved").count("\n") == 4
    assert cli.json("gate", "core", "--candidate", "old", "--min-pass-rate", "0.9")["status"] == "pass"
    failed = cli.json("gate", "core", "--candidate", "new", "--baseline", "old", "--max-regressions", "0", code=1)
    assert failed["status"] == "fail"
    cli("gate", "core", "--candidate", "nobody", "--min-pass-rate", "0.9", code=3)
    cli("gate", "core", code=2)
    cli("diff", "core", "--baseline", "nobody", code=3)
    cli("replay", "core@1", "--model", "nonsense", code=4)
    cli("replay", "core@1", code=2)
    cli("replay", code=2)
    cli("replay", "core@7", "--model", "python:leaves.py:old", code=4)
    assert len(cli.json("dataset", "show", "core")["replays"]) == 2


def test_scorers_settings_and_costs(cli: Line) -> None:
    fill(cli)
    judged = cli.json(
        "replay", "core", "-m", "python:leaves.py:old", "-s", "judge:python:leaves.py:judge", "-s", "exact"
    )
    assert (judged["passed"], judged["judge_cost_usd"]) == (4, 0.04)
    other = cli.json(
        "replay",
        "core",
        "-m",
        "python:leaves.py:old",
        "-s",
        "python:leaves.py:polite",
        "--model-name",
        "o2",
        "--set",
        "t=0",
    )
    assert (other["passed"], other["failed"], other["model"]) == (0, 4, "o2")
    estimate = cli.json("replay", "core", "-m", "python:leaves.py:old", "--dry-run", "-k", "5")
    assert (estimate["calls"], estimate["cost_usd"]) == (20, 0.02)
    few = cli.json("replay", "core", "-m", "python:leaves.py:old", "--sample", "2", "--seed", "1")
    assert few["total"] == 2
    capped = cli.json("replay", "core", "-m", "python:leaves.py:old", "--max-cost", "0.0025", "-j", "1", code=1)
    assert capped["status"] == "stopped"
    assert capped["id"] in cli.err
    assert cli.json("replay", "--resume", capped["id"], "--max-cost", "1")["done"] == 4


def test_errors_are_shown(cli: Line) -> None:
    """Field case 94, 108."""
    fill(cli)
    broken = cli.json("replay", "core", "--model", "python:leaves.py:broken")
    assert (broken["errors"], broken["passed"], broken["unpriced"]) == (4, 0, 4)
    [row] = cli.json("report", "core")
    assert (row["errors"], row["cost_usd"], row["unpriced"]) == (4, None, 4)
    assert "unknown (4 of 4 unpriced)" in cli("report", "core")
    cli("gate", "core", "--min-pass-rate", "0", code=1)


def test_ctrl_c_and_resume(cli: Line, everyturn_url: str) -> None:
    fill(cli, 6)
    process = subprocess.Popen(
        [EVERYTURN, "-d", everyturn_url, "replay", "core", "-m", "python:leaves.py:slow", "-j", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        deadline = time.monotonic() + 30
        while conn.execute("SELECT count(*) FROM eval_run").fetchone() in ((0,), None):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in err
        row = conn.execute("SELECT id::text, status FROM eval_replay").fetchone()
        assert row is not None
    found = re.search(r"Replay ([0-9a-f-]{36})", err)
    assert found is not None
    assert row == (found[1], "stopped")
    done = cli.json("replay", "--resume", found[1])
    assert (done["done"], done["passed"], done["status"]) == (6, 6, "finished")


def test_a_queue_and_its_worker(cli: Line) -> None:
    pytest.importorskip("procrastinate")
    fill(cli)
    queued = cli.json("replay", "core", "-m", "python:leaves.py:old", "--queue", "--detach")
    assert (queued["status"], queued["done"]) == ("running", 0)
    cli("replay", "--resume", queued["id"], "--queue", "--max-cost", "1", code=2)
    assert "--max-cost would not reach the workers" in cli.err
    cli("worker", "--drain", "-j", "2")
    assert cli.json("report", "core")[0]["passed"] == 4


def test_a_queue_that_came_to_its_limit_does_not_keep_the_watcher_waiting(cli: Line) -> None:
    pytest.importorskip("procrastinate")
    fill(cli)
    everyturn = Path(sys.executable).parent / "everyturn"
    command = [everyturn, "-q", "-d", cli.url, "worker", "--embedder", "none", "-j", "1"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        options = ("-m", "python:leaves.py:new", "--queue", "--max-cost", "0.0015")
        said = json.loads(cli("replay", "core", *options, "--json", code=1))
    finally:
        worker.terminate()
        worker.wait(timeout=20)
    assert (said["status"], said["done"], said["total"]) == ("stopped", 1, 4)
    assert f"Stopped: It may cost 0.0015 USD. Go on with: everyturn replay --resume {said['id']}" in cli.err


def test_the_documents_sql_reads_what_replays_wrote(cli: Line, everyturn_url: str) -> None:
    """One replay a model: the printed pass rate, regressions, coverage (with its cast) and similar cases."""
    seeds = Path(__file__).parent / "seeds"

    def rows(name: str, *parameters: Any) -> list[tuple[Any, ...]]:
        text = (seeds / f"{name}.sql").read_text("utf-8").replace("$1", "%s")
        with psycopg.connect(everyturn_url) as conn:
            return conn.execute(text if parameters else text.replace("%", "%%"), parameters or None).fetchall()  # type: ignore[arg-type]

    for n in range(4):
        cli("case", "capture", "--prompt", f"say {n}", "--reference", str(n), "--tag", "regression" if n else "t")
        cli("dataset", "publish", "core")
    for model, name in (("old", "claude-opus-4-6"), ("new", "claude-opus-4-7")):
        options = ["--model-name", name, "--prompt-rev", "a1b2c3"]
        cli("replay", "core@4", "--model", f"python:leaves.py:{model}", *options)
    assert [(row[0], row[2], float(row[3]), float(row[5])) for row in rows("pass_rate")] == [
        ("claude-opus-4-6", 4, 1.0, 0.0),
        ("claude-opus-4-7", 4, 0.75, 0.0),
    ]
    [regression] = rows("regressions")
    assert (regression[1], regression[3]) == ("say 2", "wrong")
    assert rows("coverage") == [("regression", 3), ("t", 1)]
    with psycopg.connect(everyturn_url) as conn:
        conn.execute("UPDATE eval_case SET embedding = array_fill(1, ARRAY[1024])::real[]::vector")
    assert len(rows("similar_cases", regression[0])) == 4
    [row] = cli.json("diff", "core@4", "--baseline", "claude-opus-4-6", "--candidate", "claude-opus-4-7")["cases"]
    assert row["id"] == str(regression[0])


def test_named_queries_of_the_design(cli: Line) -> None:
    from everyturn import sqlfiles

    assert {"pass_rate", "regressions", "coverage", "similar_cases"} <= set(sqlfiles.names())


def test_the_tutorial(everyturn_url: str, tmp_path: Path) -> None:
    """Every command of the page runs, in order, with the exit code the page says."""
    text = TUTORIAL.read_text("utf-8").split("## From a production failure to a regression test")[1].split("\n## ")[0]
    for name, content in re.findall(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```", text, re.S):
        (tmp_path / name).write_text(content, "utf-8")
    environment = os.environ | {"EVERYTURN_DATABASE": everyturn_url, "PATH": f"{EVERYTURN.parent}:{os.environ['PATH']}"}
    shown = ""
    commands = [
        line[2:]
        for block in re.findall(r"```console\n(.*?)```", text, re.S)
        for line in block.splitlines()
        if line[:2] == "$ "
    ]
    assert len(commands) >= 8
    for command in commands:
        words, _, expected = command.partition("# exit ")
        done = subprocess.run(
            ["bash", "-c", words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == int(expected or 0), (command, shlex.join(commands), done.stdout, done.stderr)
        shown += done.stdout
    assert "1 regressed, 1 improved" in shown
