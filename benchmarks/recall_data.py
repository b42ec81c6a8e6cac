"""The memories that recall is measured on: vectors of real sentences and noisy copies of each, so with near ties."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from typing import Any

import numpy as np

import everyturn as et
from everyturn.ids import uuid7

from .harness import raw

_THINGS = (
    *("database", "cache", "login page", "payment gateway", "build pipeline", "mobile app", "search index"),
    *("mail server", "scheduler", "load balancer", "API gateway", "log shipper", "image resizer", "billing job"),
    *("chat widget", "report export", "user import", "feature flags", "session store", "webhook receiver"),
)
_FAULTS = (
    *("fails with a timeout", "returns stale data", "leaks memory under load", "rejects valid tokens"),
    *("is slow after midnight", "loses messages on restart", "shows the wrong currency", "crashes on empty input"),
    *("needs a manual restart", "ignores the retry limit", "writes duplicate rows", "blocks on a lock"),
    *("drops the last page", "confuses time zones", "sends mail twice", "fills the disk"),
    *("uses the old certificate", "cannot parse the header", "exceeds its quota", "skips the first record"),
)
_TIMES = (
    *("since the last release", "for customers in Europe", "when two users act at once", "on the staging cluster"),
    *("behind the proxy", "with large attachments", "in private browsing", "after the migration", "on Mondays"),
    "without any error in the log",
)
QUESTIONS = (
    *("Why do payments time out in Europe?", "stale answers after the release", "memory leak in the mail server"),
    *("login tokens rejected behind a proxy", "billing writes rows twice", "parse_diff_14 crashes"),
    *("HttpClient.get_3 fails in src/mod_77.py", "report export skips the first record on Mondays"),
    *("webhook retries ignore the limit", "the disk fills up on staging", "time zone confusion in the scheduler"),
    *("search index slow at night", "certificate is old after migration", "quota exceeded with large attachments"),
    *("two users at once block on a lock", "chat widget drops a page", "feature flags return old values"),
    *("session store restarts", "image resizer crashes without input", "log shipper loses messages"),
)
FILTERS: tuple[tuple[str, list[str] | None, int], ...] = (
    ("unfiltered", None, 12),
    ("10 % at random", ["ten"], 25),
    ("1 % at random", ["one"], 25),
    ("0.1 % at random", ["tenth"], 25),
    ("8 % tied to meaning", ["tied"], 120),
)


def sentences() -> list[str]:
    """4,000 sentences, a fifth of them with identifiers."""
    chance = random.Random(5)
    found = []
    for number, (thing, fault, when) in enumerate((a, b, c) for a in _THINGS for b in _FAULTS for c in _TIMES):
        text = f"The {thing} {fault} {when}."
        if number % 5 == 0:
            name = chance.choice(("parse_diff", "HttpClient.get", "load_config", "retry_queue"))
            text += f" See {name}_{number % 97} in src/mod_{number % 211}.py"
        found.append(text)
    return found


async def fill(db: et.Database, count: int) -> Any:
    """Put `count` memories into the database, and build the vector index; return the vectors of the sentences."""
    texts = sentences()
    assert db.embedder is not None
    made = [await db.embedder.embed(texts[start : start + 256]) for start in range(0, len(texts), 256)]
    vectors = np.array([vector for part in made for vector in part], dtype=np.float32)
    chance, noise = random.Random(7), np.random.default_rng(7)
    async with raw(db) as conn:
        await conn.execute("DROP INDEX agent_semantic_embedding")
        columns = "id, subjects, text, attributes, embedding, embedded_by, agent"
        async with conn.cursor().copy(f"COPY agent_semantic ({columns}) FROM STDIN".encode()) as copy:
            for number in range(count):
                place = number % len(texts)
                vector = vectors[place] + noise.normal(0, 0.02, vectors.shape[1])
                subjects = [f"u:{number}"]
                subjects += [
                    name for name, share in (("ten", 0.1), ("one", 0.01), ("tenth", 0.001)) if chance.random() < share
                ]
                if place // 200 % 12 == 0:
                    subjects.append("tied")
                attributes = json.dumps({"line": number % 1000, "path": f"src/f{number % 997}.py"})
                text = "[" + ",".join(f"{x:.6f}" for x in vector) + "]"
                agent = f"agent {number % 5}"
                await copy.write_row((uuid7(), subjects, texts[place], attributes, text, db.vectors.embedded_by, agent))
        await conn.execute("SET maintenance_work_mem = '1GB'")
        await conn.execute(
            "CREATE INDEX agent_semantic_embedding ON agent_semantic USING hnsw (embedding vector_cosine_ops)"
        )
        await conn.execute("VACUUM ANALYZE agent_semantic")
    return vectors


def noisy(vectors: Any, chance: random.Random) -> Iterator[list[float]]:
    """Ever new vectors near those of the sentences."""
    noise = np.random.default_rng(13)
    while True:
        yield (vectors[chance.randrange(len(vectors))] + noise.normal(0, 0.02, vectors.shape[1])).tolist()


async def remember_lines(db: et.Database, count: int) -> None:
    """Remember `count` facts without vectors."""
    texts = sentences()
    for start in range(0, count, 5000):
        await db.memory.remember_many(
            "semantic",
            [
                {"text": texts[number % len(texts)], "subjects": [f"u:{number}"], "attributes": {"n": number}}
                for number in range(start, min(count, start + 5000))
            ],
        )


def big_texts() -> Iterator[tuple[str, str]]:
    """2 MB of several kinds."""
    chance = random.Random(3)
    yield "2 MB of prose", " ".join(sentences() * 12)[:2_000_000]
    yield "2 MB of distinct words", " ".join(f"w{number:x}q" for number in range(250_000))
    yield "2 MB of _a_a_a", "_a" * 1_000_000
    yield "2 MB of symbols", "".join(chance.choices(string.punctuation, k=2_000_000))
    yield "2 MB of base64", "".join(chance.choices(string.ascii_letters + string.digits + "+/", k=2_000_000))
    yield "2 MB of Chinese", "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(660_000))
    yield "2 MB of rare ideographs", "".join(chr(chance.randrange(0x20000, 0x2A6D0)) for _ in range(500_000))
