"""An embedder for tests: words that mean the same share a direction, so that similarity can be foreseen."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

SIZE = 64
_SAME = {"crimson": "red", "car": "auto", "vehicle": "auto", "broken": "fail", "fails": "fail", "crashed": "fail"}


def vector(text: str) -> list[float]:
    found = [0.0] * SIZE
    for word in text.lower().split():
        name = _SAME.get(word.strip(".,?!"), word.strip(".,?!"))
        digest = hashlib.sha256(name.encode()).digest()
        for place in range(SIZE):
            found[place] += (digest[place % 32] ^ place * 37 % 256) / 127.5 - 1
    length = math.hypot(*found) or 1.0
    return [x / length for x in found]


class WordEmbedder:
    """Counts its calls, and can be told to fail."""

    name = "words"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.failing = False

    async def embed(self, texts: Sequence[str], kind: str) -> list[list[float]]:
        self.calls.append(list(texts))
        if self.failing:
            raise ConnectionError("the embedder is away")
        return [vector(text) for text in texts]
