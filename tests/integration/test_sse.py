"""Server-sent events, read by a real HTTP client from the application of docs/events.md."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import everyturn as et
from everyturn.testing import ScriptedModel

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


@pytest.fixture
def port(everyturn_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port on which the application of the page listens."""
    monkeypatch.setenv("EVERYTURN_DATABASE", everyturn_url)
    found = re.search(r"<!-- example: starlette -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(compile(found[1], str(PAGE), "exec"), names)
    server = uvicorn.Server(
        uvicorn.Config(names["app"], port=0, log_level="error", timeout_graceful_shutdown=1, ws="none")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def read(port: int, run: str, last: int | None = None, *, frames: int = 10_000) -> Iterator[tuple[int, Any]]:
    """The frames of a run, as a browser takes them; the connection is cut after so many."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/runs/{run}/events", headers={} if last is None else {"Last-Event-ID": str(last)})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    fields: dict[str, str] = {}
    try:
        for line in iter(response.readline, b""):
            text = line.decode().rstrip("\n")
            if text:
                name, _, value = text.partition(":")
                fields[name] = value.strip()
            elif "data" in fields:
                yield int(fields["id"]), json.loads(fields["data"])
                fields, frames = {}, frames - 1
                if frames == 0:
                    return
    finally:
        connection.close()


async def test_a_client_that_comes_back_misses_nothing_and_disturbs_nothing(
    everyturn_db: et.Database, port: int
) -> None:
    """field case 43: closing the view in the middle of a run."""

    async def words(request: et.ModelRequest) -> Any:
        for n in range(60):
            yield et.TextDelta(f"word{n} ")
            await asyncio.sleep(0.005)
        yield et.ModelTurn(text="".join(f"word{n} " for n in range(60)))

    agent = et.Agent(everyturn_db, "bot", model=words)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async for _ in agent.run_stream("go"):
            if not started.done():
                [row] = await everyturn_db.fetch("SELECT DISTINCT run_id FROM agent_events")
                started.set_result(row["run_id"])

    running = asyncio.create_task(run())
    run_id = await started
    whole = asyncio.create_task(asyncio.to_thread(lambda: list(read(port, run_id))))

    def in_pieces() -> list[tuple[int, Any]]:
        seen: list[tuple[int, Any]] = []
        while not seen or seen[-1][1]["type"] != "final":
            seen += read(port, run_id, seen[-1][0] if seen else None, frames=7)
        return seen

    pieces = await asyncio.to_thread(in_pieces)
    await running
    stored = [(record.id, record.event) for record in await everyturn_db.events.load(run_id)]
    assert len(stored) == 64
    assert pieces == stored == await whole
    assert stored[-1][1]["type"] == "final"
    # Who had everything is told so at once.
    assert await asyncio.to_thread(lambda: list(read(port, run_id, stored[-1][0]))) == []


async def test_frames(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await db.events.append(et.EventRecord("r", "a", {"type": "note", "text": "two\nlines \u2028 🐙", "b": b"\xff"}))
    frames = et.sse(db, "r", heartbeat=0.05, retry=0.5)
    assert await anext(frames) == "retry: 500\n\n"
    first = await anext(frames)
    assert first.startswith("id: 1\ndata: {")
    assert first.count("\n") == 3
    assert json.loads(first.split("data: ")[1]) == {
        "type": "note",
        "text": "two\nlines \u2028 🐙",
        "b": {"$bytes": "/w=="},
    }
    assert [await anext(frames) for _ in range(2)] == [": still here\n\n"] * 2
    await db.events.append(et.EventRecord("r", "a", {"type": "final"}))
    rest = [frame async for frame in frames if not frame.startswith(":")]
    assert rest == ['id: 2\ndata: {"type":"final"}\n\n']


@pytest.mark.parametrize("last", ["", "nonsense", "-5", None, 0, "0", "9" * 30])
async def test_an_odd_last_id_begins_at_the_beginning(everyturn_db: et.Database, last: Any) -> None:
    await everyturn_db.events.append(et.EventRecord("r", "a", {"type": "final"}))
    assert [frame async for frame in et.sse(everyturn_db, "r", last)][1:] == ['id: 1\ndata: {"type":"final"}\n\n']


async def test_closing_leaves_nothing_behind(everyturn_db: et.Database) -> None:
    agent = et.Agent(everyturn_db, "bot", model=ScriptedModel(["done"]))
    done = await agent.run("x")
    for frames in (et.sse(everyturn_db, done.run_id), et.sse(everyturn_db, "a run that never begins", heartbeat=0.01)):
        await anext(frames)
        await anext(frames)
        await frames.aclose()  # type: ignore[attr-defined]
    assert not everyturn_db.events._feed()._members
    waiting = asyncio.create_task(anext(et.sse(everyturn_db, "another")))
    await waiting
    with contextlib.suppress(asyncio.CancelledError):
        waiting.cancel()
        await waiting
