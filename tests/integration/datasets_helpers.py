"""What the tests of datasets share."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest

import everyturn as et
from everyturn import testing


@pytest.fixture(autouse=True, scope="module")
def quick() -> None:
    """A server that does not wait for the disk: nothing here pulls its plug."""
    testing.server(durable=False)


def words_vector(text: str) -> list[float]:
    """A vector whose direction depends on the words of a text: texts that share words are near."""
    vector = [0.0] * 64
    for word in text.lower().split():
        seeded = random.Random(hashlib.sha256(word.encode()).digest())
        for _ in range(8):
            vector[seeded.randrange(64)] += 1.0
    return vector


async def embed(texts: list[str], kind: str) -> list[list[float]]:
    return [words_vector(text) for text in texts]


def embedder() -> et.Embedder:
    return et.Embedder(embed, name="words", dimensions=64)


def model(
    answer: Callable[[str], Any], *, name: str = "model", cost: str | None = "0.001"
) -> Callable[[et.ModelRequest], Any]:
    """A leaf that answers the last word of a prompt by a function; what the function raises, it raises."""

    async def leaf(request: et.ModelRequest) -> et.ModelTurn:
        message = request.messages[-1]
        assert isinstance(message, et.UserMessage)
        text = answer(message.text.split()[-1])
        if hasattr(text, "__await__"):
            text = await text
        return et.ModelTurn(text=text, usage=et.Usage(10, 2), cost_usd=cost)  # type: ignore[arg-type]

    leaf.__name__ = name
    return leaf


def echo(word: str) -> str:
    return word


async def numbers(db: et.Database, count: int, name: str = "core") -> et.Dataset:
    """A dataset of `say N` with the reference N; even and odd ones are tagged so."""
    await db.cases.import_rows(
        {"prompt": f"say {n}", "reference": str(n), "tags": ["odd" if n % 2 else "even"]} for n in range(count)
    )
    return await db.datasets.publish(name)
