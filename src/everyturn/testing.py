"""For tests: a scripted model, and throw-away databases on a server of the test process's own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from . import embedded, migrate
from .conformance import event_store_conformance as event_store_conformance
from .database import Database, connect
from .errors import ModelError
from .messages import ModelRequest, ModelTurn
from .provider_rules import check_messages

_server: embedded.Server | None = None
_template: str | None = None
_durable = True
_starting = threading.Lock()

Step = ModelTurn | str | Exception | Callable[[ModelRequest], Any]


class ScriptedModel:
    """A model leaf that answers from a list, one entry per call.

    An entry is a `ModelTurn`, a string (its text), an exception to raise, or a function of the request (sync or async)
    that returns one of them. `requests` holds what the model was asked. It raises ModelError when it is asked once too
    often, and for a history that a provider would refuse.
    """

    def __init__(self, steps: Sequence[Step], *, name: str = "scripted") -> None:
        self.steps = list(steps)
        self.name = name
        self.requests: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest) -> ModelTurn:
        position = len(self.requests)
        self.requests.append(
            ModelRequest(list(request.messages), request.tools, request.instructions, request.settings)
        )
        if request.messages:
            check_messages(request.messages)
        if position >= len(self.steps):
            raise ModelError(f"The script of {self.name} has {len(self.steps)} answers and was asked for one more.")
        step: Any = self.steps[position]
        if callable(step) and not isinstance(step, ModelTurn):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        if isinstance(step, Exception):
            raise step
        return ModelTurn(text=step) if isinstance(step, str) else step


def server(*, durable: bool = True) -> embedded.Server:
    """The embedded server of this test process, started when first needed, removed with the process.

    Once asked for with `durable=False` it no longer waits for the disk: making a database takes a third of the time,
    and only a crash of the machine would tell the difference.
    """
    global _server, _durable
    with _starting:
        if _server is None:
            directory = Path(tempfile.mkdtemp(prefix="everyturn-test-"))
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            _server = embedded.start(directory / "data")
            atexit.register(_server.close)
        if not durable and _durable:
            with psycopg.connect(_server.admin_url, autocommit=True) as conn:
                conn.execute("ALTER SYSTEM SET fsync = off")
                conn.execute("SELECT pg_reload_conf()")
            _durable = False
        return _server


def create_database() -> str:
    """Make an empty, migrated database on the test server; return its URL."""
    global _template
    running = server()
    with _starting, psycopg.connect(running.admin_url, autocommit=True) as conn:
        if _template is None:
            template = f"template_{uuid4().hex[:12]}"
            conn.execute(f"CREATE DATABASE {template}")
            _migrate(_url(running.admin_url, template))
            _template = template
        name = f"test_{uuid4().hex[:12]}"
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {_template}")
        # A database's settings are not part of its template.
        with psycopg.connect(_url(running.admin_url, name), autocommit=True) as fresh:
            fresh.execute("SELECT '[1]'::vector")
            for setting, value in migrate.DATABASE_SETTINGS.items():
                fresh.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    return _url(running.admin_url, name)


def drop_database(url: str) -> None:
    """Remove a database made by `create_database`, whoever is still connected."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(server().admin_url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextlib.asynccontextmanager
async def database(*, embedder: Any = False, **options: Any) -> AsyncIterator[Database]:
    """A throw-away database, open; without an embedder unless one is given."""
    url = await asyncio.to_thread(create_database)
    try:
        async with connect(url, embedder=embedder, **options) as db:
            yield db
    finally:
        await asyncio.to_thread(drop_database, url)


@contextlib.contextmanager
def database_url() -> Iterator[str]:
    """The URL of a throw-away database."""
    url = create_database()
    try:
        yield url
    finally:
        drop_database(url)


def _migrate(url: str) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            await migrate.migrate(conn)

    # The calling thread may run an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


def _url(admin_url: str, name: str) -> str:
    return psycopg.conninfo.make_conninfo(admin_url, dbname=name)
