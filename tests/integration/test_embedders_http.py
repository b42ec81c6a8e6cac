"""The embedders of Voyage and OpenAI against a local server that speaks their APIs."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import provider_servers as wire
import pytest
from provider_servers import ProviderServer, Reply, Request

from everyturn import embed, http_embedders
from everyturn.embed import Embedder
from everyturn.errors import EmbedderError

KEY = "pa-secret-0123456789"
VOYAGE = "voyage:voyage-3"
OPENAI = "openai:text-embedding-3-small"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VOYAGE", "OPENAI"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
        monkeypatch.setenv(f"{name}_BASE_URL", "http://127.0.0.1:9")


def serve(monkeypatch: pytest.MonkeyPatch, *replies: Any) -> ProviderServer:
    server = ProviderServer(*replies)
    for name in ("VOYAGE", "OPENAI"):
        monkeypatch.setenv(f"{name}_BASE_URL", f"{server.url}/v1/")
    return server


def resolved(name: str) -> Embedder:
    embedder = embed.resolve(name)
    assert embedder is not None
    return embedder


async def test_voyage(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 57: one call for the batch, without the blank; the vectors are told apart by their index."""
    with serve(monkeypatch, wire.embeddings(1024)) as server:
        embedder = resolved(VOYAGE)
        assert (embedder.name, embedder.dimensions) == (VOYAGE, 1024)
        vectors = await embedder.embed(["a", " \n", "ccc", "bb\ud83d"], "document")
        assert [vector and vector[:2] for vector in vectors] == [[1.0, 1.0], None, [1.0, 3.0], [1.0, 3.0]]
        await embedder.embed(["a"], "query")
        assert await embedder.embed(["", "\u200b"]) == [None, None]
    assert len(server.requests) == 2
    assert server.connections == 1
    first, second = server.requests
    assert first.path == "/v1/embeddings"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.body == {
        "model": "voyage-3",
        "input": ["a", "ccc", "bb\ufffd"],
        "input_type": "document",
        "truncation": True,
    }
    assert second.body["input_type"] == "query"


async def test_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(monkeypatch, wire.embeddings(1536)) as server:
        embedder = resolved(OPENAI)
        assert (embedder.name, embedder.dimensions) == (OPENAI, 1536)
        assert len(await embedder.embed(["a", "bb"])) == 2
    assert server.requests[0].body == {
        "model": "text-embedding-3-small",
        "input": ["a", "bb"],
        "encoding_format": "float",
    }


async def test_asking_for_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    def sized(request: Request) -> Reply:
        size = request.body.get("dimensions") or request.body.get("output_dimension")
        return wire.embeddings(size or 3)(request)

    with serve(monkeypatch, sized) as server:
        for name, size, field in (
            ("openai:text-embedding-3-large:1024", 1024, "dimensions"),
            # pgvector indexes up to 2,000 of its 3,072.
            ("openai:text-embedding-3-large", 1536, "dimensions"),
            ("voyage:voyage-3-large:512", 512, "output_dimension"),
        ):
            embedder = resolved(name)
            assert embedder.dimensions == size
            await embedder.embed(["a"])
            assert server.requests[-1].body[field] == size
            assert embedder.name.endswith(str(size))
        unknown = resolved("voyage:voyage-9")
        assert unknown.dimensions is None
        await unknown.embed(["a"])
        assert unknown.dimensions == 3


async def test_batches_fit_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(monkeypatch, wire.embeddings(1024)) as server:
        texts = [f"text {n}" for n in range(2_500)]
        vectors = await resolved(VOYAGE).embed(texts)
        assert [vector and vector[1] for vector in vectors] == [len(text) for text in texts]
        assert [len(request.body["input"]) for request in server.requests] == [1_000, 1_000, 500]
        server.requests.clear()
        await resolved(VOYAGE).embed(["word " * 10_000] * 6)
        assert [len(request.body["input"]) for request in server.requests] == [4, 2]


async def test_texts_too_long_for_openai_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(request: Request) -> Reply:
        if any(len(text.encode()) > 10_000 for text in request.body["input"]):
            error = {"message": "This model's maximum context length is 8192 tokens", "type": "invalid_request"}
            return Reply({"error": error}, 400)
        return wire.embeddings(1536)(request)

    with serve(monkeypatch, limited) as server:
        vectors = await resolved(OPENAI).embed(["雨" * 1_000_000, "short"])
    assert None not in vectors
    assert [len(request.body["input"][0].encode()) // 1_000 for request in server.requests] == [24, 8]
    assert server.requests[1].body["input"][1] == "short"


@pytest.mark.parametrize("name", [VOYAGE, OPENAI])
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"detail": f"Bad key {KEY}"}, r"answered 401: Bad key \[key\]. Check the key in .*_API_KEY"),
        (404, {"error": {"message": "no such model"}}, "answered 404: no such model. Check the model's name"),
        (429, {"error": {"message": "slow down"}}, "answered 429: slow down. .*try again later"),
        (500, "oops", "answered 500: oops. Try again later"),
        (503, "", "answered 503: .*Try again later"),
        (200, "<html>", "holds no embeddings: <html>"),
        (200, {"data": [{"index": 0}]}, "holds no embeddings"),
        (200, {"data": None}, "holds no embeddings"),
        (200, [], "holds no embeddings"),
        (200, {"data": []}, "returned 0 vectors for 1 texts"),
        (200, {"data": [{"index": 0, "embedding": "AAAA"}]}, "a str instead of a vector"),
        (200, {"data": [{"index": 0, "embedding": [0.0] * 8}]}, "a zero vector"),
        (200, {"data": [{"index": 0, "embedding": [1.0] * 8}]}, "8 dimensions, where (1024|1536) were expected"),
        (200, '{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}', "holds NaN"),
    ],
)
async def test_wrong_answers_are_sentences(
    monkeypatch: pytest.MonkeyPatch, name: str, status: int, body: Any, words: str
) -> None:
    """field case 51: both sizes named; field case 53: zero and NaN; field case 58: what failed, and why."""
    with serve(monkeypatch, Reply(body, status)), pytest.raises(EmbedderError, match=words) as caught:
        await resolved(name).embed(["a"])
    assert name in str(caught.value)
    assert KEY not in str(caught.value)


async def test_the_next_call_works_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 58"""
    with serve(monkeypatch, Reply("", 500), wire.embeddings(1024)):
        embedder = resolved(VOYAGE)
        with pytest.raises(EmbedderError, match="answered 500"):
            await embedder.embed(["a"])
        assert await embedder.embed(["a"]) != [None]


async def test_a_provider_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmbedderError, match=r"voyage:voyage-3 cannot be reached at http://127.0.0.1:9/embeddings"):
        await resolved(VOYAGE).embed(["a"])
    monkeypatch.setenv("VOYAGE_BASE_URL", "not a url")
    with pytest.raises(EmbedderError, match="cannot be reached at not a url"):
        await resolved(VOYAGE).embed(["a"])
    monkeypatch.setattr(http_embedders, "TIMEOUT_SECONDS", 0.1)
    with serve(monkeypatch, Reply({}, delay=0.5)), pytest.raises(EmbedderError, match=r"did not answer within 0.1 s"):
        await resolved(VOYAGE).embed(["a"])


async def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = resolved(VOYAGE)
    for wrong, words in (
        ("", "needs a key: set the environment variable VOYAGE_API_KEY"),
        ("pa-“quoted”", "holds characters no key has"),
    ):
        monkeypatch.setenv("VOYAGE_API_KEY", wrong)
        with pytest.raises(EmbedderError, match=words) as caught:
            await embedder.embed(["a"])
        assert "quoted" not in str(caught.value)


def test_one_embedder_in_two_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 33"""
    with serve(monkeypatch, wire.embeddings(1024)) as server:
        embedder = resolved(VOYAGE)
        for _ in range(2):
            assert asyncio.run(embedder.embed(["a"])) != [None]
        assert server.connections == 1
        del embedder
        gc.collect()


async def test_calls_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(request: Request) -> Reply:
        time.sleep(0.2)
        return wire.embeddings(1024)(request)

    with serve(monkeypatch, slow):
        embedder = resolved(VOYAGE)
        start = time.monotonic()
        await asyncio.gather(*(embedder.embed(["a"]) for _ in range(10)))
        assert time.monotonic() - start < 1.5
