"""The pytest fixtures of everyturn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from everyturn.database import Database


@pytest.fixture
def everyturn_url() -> Iterator[str]:
    """The URL of a throw-away database."""
    from everyturn.testing import database_url, server

    server(durable=False)
    with database_url() as url:
        yield url


@pytest.fixture
def everyturn_db(everyturn_url: str) -> Iterator[Database]:
    """A throw-away `Database`, for use in any event loop; it has no embedder."""
    from everyturn.database import Database

    db = Database(everyturn_url)
    yield db
    asyncio.run(db.close())
