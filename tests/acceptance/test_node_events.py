"""A Node service and everyturn on one table: each reads, lists, shows and follows what the other wrote."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import everyturn as et
from everyturn.cli import main
from everyturn.testing import ScriptedModel

ADAPTER = Path(__file__).parent / "event_store_adapter.mjs"
FIXTURE = Path(__file__).parent.parent / "fixtures" / "anvia-events.jsonl"


@pytest.fixture(scope="module")
def pg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds `pg`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "pg@8"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install pg: {done.stderr.strip()[-200:]}")
    return folder


class Node:
    """The service, at the other end of two pipes."""

    def __init__(self, pg: Path, url: str) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        address = [str(parts["host"]), str(parts.get("port", 5432)), str(parts["dbname"]), str(parts["user"])]
        self.process = subprocess.Popen(
            ["node", str(ADAPTER), str(pg / "index.js"), *address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def call(self, name: str, argument: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, argument]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer["ok"]

    def close(self) -> None:
        self.process.communicate(timeout=20)
        assert self.process.returncode == 0


@pytest.fixture
def node(pg: Path, everyturn_url: str) -> Iterator[Node]:
    service = Node(pg, everyturn_url)
    yield service
    service.close()


def written() -> dict[str, list[dict[str, Any]]]:
    """What the other framework wrote, as its store is given it, by run."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    names = {"run_id": "runId", "agent_id": "agentId", "agent_name": "agentName", "turn": "turn", "event": "event"}
    names |= {"tool_name": "toolName", "tool_call_id": "toolCallId", "internal_call_id": "internalCallId"}
    for line in FIXTURE.read_text("utf-8").rstrip("\n").split("\n"):
        row = json.loads(line)
        record = {name: row[column] for column, name in names.items() if row[column] is not None or column == "event"}
        runs[row["run_id"]].append(record)
    return runs


def test_what_node_writes_is_loaded_listed_and_shown(node: Node, everyturn_url: str, capsys: Any) -> None:
    runs = written()
    for records in runs.values():
        for record in records:
            node.call("append", record)
    with et.connect(everyturn_url, embedder=False) as db:
        for run, records in runs.items():
            loaded = db.events.load(run)
            assert [record.event for record in loaded] == [record["event"] for record in records]
            assert [record.tool_name for record in loaded] == [record.get("toolName") for record in records]
            results = [event for event in loaded if event.type == "tool_result"]
            assert len([call for call in db.events.calls(run) if call.result is not None]) == len(results)
            followed = []
            for record in db.events.follow(run):
                followed.append(record)
                if len(followed) == len(loaded):
                    break
            assert followed == loaded
        assert {run.run_id for run in db.events.runs()} == set(runs)
    for run in runs:
        assert main(["-q", "-d", everyturn_url, "event", "show", run]) == 0
    assert "Traceback" not in capsys.readouterr().err


async def test_what_node_writes_is_followed_live(node: Node, everyturn_db: et.Database) -> None:
    [records] = [records for records in written().values() if len(records) > 8][:1]
    run = records[0]["runId"]
    node.call("append", records[0])

    async def follow() -> list[Any]:
        got = []
        async for record in everyturn_db.events.follow(run):
            got.append(record.event)
            if len(got) == len(records):
                break
        return got

    following = asyncio.create_task(follow())
    for record in records[1:]:
        await asyncio.to_thread(node.call, "append", record)
    assert await asyncio.wait_for(following, 10) == [record["event"] for record in records]


async def test_what_we_write_is_read_by_node(node: Node, everyturn_db: et.Database) -> None:
    @et.tool
    def lookup_order(order: str) -> dict[str, str]:
        """Look up an order."""
        return {"status": "shipped"}

    call = et.ToolCall("fc_1", "lookup_order", {"order": "A-100"})
    model = ScriptedModel([et.ModelTurn(text="Looking.", tool_calls=[call]), "It has been shipped. 🐙 \u2028"])
    done = await et.Agent(everyturn_db, "support", tools=[lookup_order], model=model).run("Where is order A-100?")
    ours = await everyturn_db.events.load(done.run_id)
    read = node.call("load", done.run_id)
    assert [record["event"] for record in read] == [record.event for record in ours]
    for record in read:
        assert (record["runId"], record["agentId"], record["agentName"]) == (done.run_id, "support", "support")
        assert record["createdAt"].endswith("Z")
    [result] = [record for record in read if record["event"]["type"] == "tool_result"]
    assert (result["toolName"], result["toolCallId"], result["turn"]) == ("lookup_order", "fc_1", 1)
    assert json.loads(result["event"]["args"]) == {"order": "A-100"}
    assert json.loads(result["event"]["result"]) == {"status": "shipped"}
    assert read[-1]["event"]["output"] == done.output
    assert set(read[-1]["event"]["usage"]) == {
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "cachedInputTokens",
        "cacheCreationInputTokens",
    }
    node.call("clear", done.run_id)
    assert await everyturn_db.events.load(done.run_id) == []
