"""`sys.exit()` in a user's function is an error of that function: it must not end the process, least of all with 0."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import everyturn as et
from everyturn.embed import resolve as resolve_embedder
from everyturn.models import resolve


async def test_a_model_that_exits_has_failed() -> None:
    async def leaves(request: et.ModelRequest) -> Any:
        raise SystemExit(0)

    def leaves_late(request: et.ModelRequest) -> Any:
        yield et.TextDelta("a")
        raise SystemExit(0)

    for model in (leaves, leaves_late, lambda request: sys.exit(0)):
        with pytest.raises(RuntimeError, match=r"called sys.exit\(0\)"):
            async for _ in resolve(model).stream(et.ModelRequest([et.UserMessage("x")])):
                pass


async def test_an_embedder_that_exits_has_failed() -> None:
    def embed(texts: list[str], kind: str) -> Any:
        sys.exit(0)

    embedder = resolve_embedder(embed)
    assert embedder is not None
    with pytest.raises(et.EmbedderError, match="SystemExit"):
        await embedder.embed(["x"], "query")
