r"""Every query file runs in psql as it is, after `\set name value`, and is taken by the driver."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from everyturn import sqlfiles
from everyturn.embedded import binary
from everyturn.testing import database_url, server

EXAMPLES = {
    "uuid": str(UUID(int=7)),
    "jsonb": "[]",
    "text": "user",
    "boolean": "true",
    "timestamp with time zone": "2026-01-01T00:00Z",
    "interval": "1 day",
    "vector": "[" + ",".join(["1"] * 1024) + "]",
    "regclass": "agent_turns",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server(durable=False)
    with database_url() as made:
        yield made


def parameter_types(url: str, name: str) -> dict[str, str]:
    """What Postgres takes each parameter for; it refuses here what it cannot parse."""
    parameters = sorted(sqlfiles.parameters(name))
    text = sqlfiles.query(name)
    for place, parameter in enumerate(parameters, 1):
        text = text.replace(f"%({parameter})s", f"${place}")
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"PREPARE q AS {text.replace('%%', '%').rstrip().rstrip(';')}")  # type: ignore[arg-type]
        [types] = conn.execute("SELECT parameter_types::text[] FROM pg_prepared_statements").fetchone() or [[]]
    return dict(zip(parameters, types, strict=True))


@pytest.mark.parametrize("name", sqlfiles.names())
def test_it_runs_in_psql(url: str, name: str) -> None:
    types = parameter_types(url, name)
    values = {key: "{}" if kind.endswith("[]") else EXAMPLES.get(kind, "1") for key, kind in types.items()}
    script = "\\set VERBOSITY verbose\n" + "".join(f"\\set {key} '{value}'\n" for key, value in values.items())
    done = subprocess.run(
        [binary("psql"), url, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-"],
        input=f"{script}BEGIN;\n{sqlfiles.source(name)}\nROLLBACK;\n",
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode:  # the example may be refused, the statement may not
        state = re.search(r"ERROR: {2}([0-9A-Z]{5}):", done.stderr)
        assert state is not None, done.stderr
        assert state[1][:2] in ("22", "23", "P0"), done.stderr
