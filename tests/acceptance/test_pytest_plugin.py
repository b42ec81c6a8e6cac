"""`@pytest.mark.everyturn(dataset=…)` in sessions of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from everyturn.database import connect
from everyturn.payloads import prompt_rev
from everyturn.testing import database_url

CASES = 6
SUITE = """
import pytest

def answer(text):
    return text.upper()

@pytest.mark.everyturn(dataset="core@1", model="shouter", prompt="Shout.")
def test_shouts(case, everyturn_run):
    everyturn_run.output = answer(case.prompt)
    everyturn_run.input_tokens = 3
    everyturn_run.cost_usd = 0.25
    everyturn_run.score = 0.5
    if case.context.get("n") == 4:
        raise RuntimeError("the model is away")
    assert everyturn_run.output == case.reference
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database_url() as url:
        with connect(url, embedder=False) as db:
            for n in range(CASES):
                db.cases.capture(f"prompt {n}", context={"n": n}, reference="WRONG" if n == 5 else f"PROMPT {n}")
            db.datasets.publish("core")
        yield url


def run(folder: Path, suite: str, url: str, *options: str, alone: bool = True) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(suite)
    (folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
        if not alone
        else "[pytest]\nfilterwarnings = error\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    if alone:  # loading the plugins of this environment takes longer than the session
        command += ["-p", "everyturn.pytest_plugin"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "EVERYTURN"))}
    return subprocess.run(
        command,
        cwd=folder,
        env=environ | {"EVERYTURN_DATABASE": url} | ({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if alone else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows(url: str, sql: str, *params: Any) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute(sql, params).fetchall()


def replay_of(url: str, said: str) -> dict[str, Any]:
    found = re.findall(r"\(replay ([0-9a-f-]{36})\)", said)
    assert len(found) == 1, said
    [replay] = rows(url, "SELECT * FROM eval_replay WHERE id = %s", found[0])
    return replay


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_each_case_is_a_test_and_each_result_a_run(url: str, tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = run(tmp_path, SUITE, url, "-vv", *workers, alone=not workers)
    assert done.returncode == 1, done.stdout + done.stderr
    cases = rows(url, "SELECT id FROM eval_case ORDER BY captured_at, id")
    assert all(f"test_shouts[{case['id']}]" in done.stdout for case in cases)
    assert "core@1: 4 passed, 1 failed, 1 error" in done.stdout
    assert re.search(r"2 failed, 4 passed", done.stdout)
    replay = replay_of(url, done.stdout)
    assert (replay["model"], replay["prompt"], replay["prompt_rev"]) == ("shouter", "Shout.", prompt_rev("Shout."))
    assert (replay["status"], replay["trials"], replay["scorers"]) == ("finished", 1, ["pytest"])
    assert replay["case_ids"] == [case["id"] for case in cases]
    runs = rows(
        url, "SELECT r.* FROM eval_run r JOIN eval_case c ON c.id = r.case_id WHERE replay_id = %s ORDER BY c.prompt",
        replay["id"],
    )  # fmt: skip
    assert [row["outcome"] for row in runs] == ["pass"] * 4 + ["error", "fail"]
    assert [row["output"] for row in runs] == [f"PROMPT {n}" for n in range(CASES)]
    assert {float(row["cost_usd"]) for row in runs} == {0.25}
    assert {(row["input_tokens"], float(row["judge_score"] or 0.5)) for row in runs} == {(3, 0.5)}
    assert runs[4]["error"] == "RuntimeError: the model is away"
    assert "WRONG" in runs[5]["judge_reason"]
    with connect(url, embedder=False) as db:  # the report speaks of it as of any replay
        [line] = [line for line in db.datasets.report("core@1") if line.model == "shouter"]
    assert (line.passed, line.failed, line.errors, line.status) == (4, 1, 1, "finished")


def test_part_of_a_dataset_is_a_replay_of_that_part(url: str, tmp_path: Path) -> None:
    suite = """
import pytest

pytestmark = pytest.mark.everyturn("core@1")

def test_short():
    pass

class TestMore:
    @pytest.mark.parametrize("times", [1, 2])
    def test_twice(self, everyturn_case, times):
        if everyturn_case.context["n"] == 0:
            pytest.skip("not today")
        if everyturn_case.context["n"] == 1:
            pytest.xfail("known")
"""
    first = rows(url, "SELECT id FROM eval_case ORDER BY captured_at, id")
    done = run(tmp_path, suite, url, "-k", f"test_short and {first[2]['id']}", "--everyturn-model", "part")
    assert done.returncode == 0, done.stdout
    replay = replay_of(url, done.stdout)
    assert (replay["case_ids"], replay["model"], replay["status"]) == ([first[2]["id"]], "part", "finished")
    done = run(tmp_path, suite, url, "-k", "test_twice")
    assert done.returncode == 0, done.stdout
    replay = replay_of(url, done.stdout)
    assert (replay["trials"], len(replay["case_ids"])) == (2, CASES - 1)
    counts = rows(
        url, "SELECT outcome, count(*) FROM eval_run WHERE replay_id = %s GROUP BY 1 ORDER BY 1", replay["id"]
    )
    assert {row["outcome"]: row["count"] for row in counts} == {"fail": 2, "pass": 8}


def test_a_session_that_is_stopped_leaves_a_stopped_replay(url: str, tmp_path: Path) -> None:
    done = run(tmp_path, SUITE.replace("== 4", "== 2").replace("shouter", "stopped"), url, "-x")
    replay = replay_of(url, done.stdout)
    assert len(replay["case_ids"]) == CASES
    assert replay["status"] == "stopped"


def test_a_result_that_cannot_be_recorded_fails_no_test(url: str, tmp_path: Path) -> None:
    suite = """
import pytest

@pytest.mark.everyturn(dataset="core@1", model="unrecorded")
def test_all(case):
    pass
"""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("ALTER TABLE eval_run ADD CONSTRAINT no_more CHECK (model <> 'unrecorded')")
    try:
        done = run(tmp_path, suite, url)
    finally:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("ALTER TABLE eval_run DROP CONSTRAINT IF EXISTS no_more")
    assert done.returncode == 0, done.stdout
    assert f"{CASES} results were not recorded: " in done.stdout
    assert "no_more" in done.stdout


def test_what_a_mark_gets_wrong_is_a_sentence_and_nothing_is_recorded_when_that_is_asked(
    url: str, tmp_path: Path
) -> None:
    wrong = {
        'dataset="nothing@1"': "nothing",
        'dataset="core@99"': "core@99",
        "": "needs a dataset",
        'dataset="core@1", modle="x"': "no argument 'modle'",
        'dataset="core@1", database="postgresql://nobody@127.0.0.1:9/x"': "127.0.0.1",
    }
    for number, mark in enumerate(wrong):
        suite = f"import pytest\n\n@pytest.mark.everyturn({mark})\ndef test_x(case):\n    pass\n"
        (tmp_path / f"test_wrong_{number}.py").write_text(suite)
    before = rows(url, "SELECT count(*) FROM eval_run")
    done = run(tmp_path, SUITE, url, "--everyturn-no-record", "--continue-on-collection-errors")
    assert done.returncode == 1, done.stdout
    assert "2 failed, 4 passed, 5 errors" in done.stdout
    for said in wrong.values():
        assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert "replay" not in done.stdout
    assert rows(url, "SELECT count(*) FROM eval_run") == before


def test_the_plugin_costs_next_to_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    code = (
        "import sys, everyturn.pytest_plugin; "
        "print(sorted({'psycopg', 'pydantic', 'everyturn.database'} & set(sys.modules)), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == "[]"
