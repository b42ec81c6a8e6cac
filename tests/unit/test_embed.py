"""Embedders: what is sent, what is refused, and the offline model."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import math
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from everyturn import embed, local_embedder
from everyturn.embed import Embedder, is_blank
from everyturn.errors import EmbedderError

BLANKS = [
    "",
    " \n",
    "\t\r\f\v",
    "\u00a0\u2003\u3000",
    "\u200b\u200d\u2060\ufeff",
    "\u00ad",
    "\x00\x1f",
    "\ud83d",
    "\u3164",
    "\u0301\ufe0f",
]


class Recorder:
    """An embedder that remembers what it was sent."""

    name = "recorder"

    def __init__(self, *answers: Any) -> None:
        self.calls: list[tuple[list[str], str]] = []
        self.answers = list(answers)

    async def embed(self, texts: Sequence[str], kind: str) -> Any:
        self.calls.append((list(texts), kind))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return [[1.0, float(len(text))] for text in texts]


async def test_blanks_are_never_sent() -> None:
    """field case 57: one blank among ten, and nothing but blanks."""
    recorder = Recorder()
    embedder = Embedder(recorder)
    texts = [f"text {n}" for n in range(9)]
    assert await embedder.embed([*texts[:4], " \n", *texts[4:]], "document") == [
        *([[1.0, 6.0]] * 4),
        None,
        *([[1.0, 6.0]] * 5),
    ]
    assert recorder.calls == [(texts, "document")]
    assert await embedder.embed(BLANKS, "query") == [None] * len(BLANKS)
    assert await embedder.embed([]) == []
    assert len(recorder.calls) == 1


def test_what_is_blank() -> None:
    """field case 57"""
    for text in BLANKS:
        assert is_blank(text), ascii(text)
        assert is_blank(text * 3), ascii(text)
    for text in (".", "a", " 雨 ", "🙂", "\u200b1", "\u0301e"):
        assert not is_blank(text), ascii(text)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([[1.0, 2.0], [0.0, 0.0]], "text 2 a zero vector"),
        ([[1.0, 2.0], [0, -0.0]], "text 2 a zero vector"),
        ([[float("nan"), 1.0], [1.0, 2.0]], "text 0 a vector that holds NaN"),
        ([[1.0, 2.0], [1.0, float("-inf")]], "text 2 a vector that holds infinity"),
        ([[1.0, 2.0], [1.0]], "text 2 a vector of 1 dimensions, where 2 were expected"),
        ([[1.0, 2.0]], "returned 1 vectors for 2 texts"),
        ([[1.0, 2.0]] * 3, "returned 3 vectors for 2 texts"),
        ([[1.0, 2.0], ["a", "b"]], "text 2 a vector that holds something else than numbers"),
        ([[1.0, 2.0], [1.0, None]], "text 2 a vector that holds something else than numbers"),
        ([[1.0, 2.0], "12"], "text 2 a str instead of a vector"),
        ([[1.0, 2.0], None], "text 2 a NoneType instead of a vector"),
        ([0.5, 0.5], "text 0 a float instead of a vector"),
        ([[], []], "text 0 an empty vector"),
        ([[1e-30, 0.0], [1.0, 0.0]], "text 0 a vector of length 1e-30, too extreme"),
        ([[1e300, 0.0], [1.0, 0.0]], "text 0 a vector of length 1e.300, too extreme"),
        (None, "must return a list of vectors, not NoneType"),
        ({"data": []}, "must return a list of vectors, not dict"),
        (np.zeros((2, 3)), "text 0 a zero vector"),
        (ValueError("no such model"), "recorder failed: ValueError: no such model"),
    ],
)
async def test_what_cannot_be_stored_is_refused_by_name(answer: Any, words: str) -> None:
    """field case 53: zero, NaN, infinite, wrong in number or size; the index is that of the caller's list."""
    with pytest.raises(EmbedderError, match=words) as caught:
        await Embedder(Recorder(answer)).embed(["a", " ", "b"])
    assert "recorder" in str(caught.value)


async def test_sizes_that_do_not_agree_are_both_named() -> None:
    """field case 51: with what was declared, and with what came before."""
    with pytest.raises(EmbedderError, match="vector of 768 dimensions, where 1024 were expected"):
        await Embedder(Recorder([[1.0] * 768]), dimensions=1024).embed(["a"])
    embedder = Embedder(Recorder([[1.0] * 8], [[1.0] * 9]))
    assert embedder.dimensions is None
    await embedder.embed(["a"])
    assert embedder.dimensions == 8
    with pytest.raises(EmbedderError, match="vector of 9 dimensions, where 8 were expected"):
        await embedder.embed(["a"])


async def test_a_failure_is_named_and_the_next_call_works() -> None:
    """field case 58"""
    embedder = Embedder(Recorder(ConnectionError("down")))
    with pytest.raises(EmbedderError, match="recorder failed: ConnectionError: down"):
        await embedder.embed(["a"])
    assert await embedder.embed(["a"]) == [[1.0, 1.0]]


async def test_lists_tuples_arrays_and_generators_are_vectors() -> None:
    for answer in (
        np.array([[1, 2]], np.float32),
        [np.array([1.0, 2.0])],
        [(1, np.float64(2))],
        ([1.0, 2.0] for _ in range(1)),
        ([1.0, 2.0],),
    ):
        (vector,) = await Embedder(Recorder(answer)).embed(["a"])
        assert vector == [1.0, 2.0]
        assert [type(x) for x in vector] == [float, float]


async def test_functions_of_every_kind() -> None:
    threads: list[threading.Thread] = []

    def blocking(texts: Sequence[str], kind: str) -> list[list[float]]:
        threads.append(threading.current_thread())
        return [[1.0]] * len(texts)

    async def waiting(scale: float, texts: Sequence[str], kind: str) -> list[list[float]]:
        return [[scale]] * len(texts)

    class Callable:
        async def __call__(self, texts: Sequence[str], kind: str) -> list[list[float]]:
            return [[3.0]] * len(texts)

    assert await Embedder(blocking).embed(["a"]) == [[1.0]]
    assert threads[0] is not threading.main_thread()
    assert await Embedder(functools.partial(waiting, 2.0)).embed(["a"]) == [[2.0]]
    assert await Embedder(Callable()).embed(["a"]) == [[3.0]]
    assert await Embedder(lambda texts, kind: waiting(4.0, texts, kind), name="λ").embed(["a"]) == [[4.0]]


def module_level(texts: Sequence[str], kind: str) -> list[list[float]]:
    return [[1.0]]


def test_names_are_stable(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    assert Embedder(module_level).name == f"{__name__}:module_level"
    assert Embedder(functools.partial(module_level)).name == f"{__name__}:module_level"
    assert Embedder(Recorder()).name == "recorder"
    assert Embedder(Recorder().embed).name == "recorder"
    assert Embedder(module_level, name="mine:v2").name == "mine:v2"
    assert not caplog.records
    assert Embedder(lambda texts, kind: []).name.endswith("<lambda>")
    assert "is a lambda" in caplog.text
    for wrong in ("", " ", 3):
        with pytest.raises(EmbedderError, match="name must be a string"):
            Embedder(module_level, name=wrong)  # type: ignore[arg-type]

    script = tmp_path / "my_script.py"
    script.write_text(
        "from everyturn.embed import Embedder\ndef vectors(texts, kind): ...\nprint(Embedder(vectors).name)"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "my_script:vectors\n"


async def test_wrong_uses_are_sentences() -> None:
    embedder = Embedder(module_level)
    with pytest.raises(EmbedderError, match="a list of texts, not one string"):
        await embedder.embed("text")
    with pytest.raises(EmbedderError, match="takes strings; got NoneType"):
        await embedder.embed([None])  # type: ignore[list-item]
    with pytest.raises(EmbedderError, match="'document' or 'query'; got 'passage'"):
        await embedder.embed(["a"], "passage")  # type: ignore[arg-type]
    for wrong in ("", "minilm", "voyage:", "cohere:embed-v4", "voyage:voyage-3:wide", "openai:m:0"):
        with pytest.raises(EmbedderError, match="No embedder is called"):
            embed.resolve(wrong)
    with pytest.raises(EmbedderError, match=r"a function embed\(texts, kind\)"):
        embed.resolve(3)
    with pytest.raises(EmbedderError, match="whole number from 1 up"):
        Embedder(module_level, dimensions=0)


def test_resolve_without_the_local_extra(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(local_embedder, "missing", lambda: ["onnxruntime"])
    embed._say_there_is_none.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert embed.resolve(None) is None
        assert embed.resolve(None) is None
    assert caplog.text.count("pip install 'everyturn[local]'") == 1
    with pytest.raises(EmbedderError, match=r"needs onnxruntime. Install them with: pip install 'everyturn"):
        embed.resolve("local")


def test_resolve_none_and_instances() -> None:
    assert embed.resolve("none") is None
    assert embed.resolve(False) is None
    embedder = Embedder(module_level)
    assert embed.resolve(embedder) is embedder
    assert embed.resolve(module_level).name == embedder.name  # type: ignore[union-attr]
    default = embed.resolve(None)
    assert default is not None
    assert (default.name, default.dimensions) == ("local:all-MiniLM-L6-v2-int8", 384)


def cosine(a: list[float] | None, b: list[float] | None) -> float:
    assert a is not None
    assert b is not None
    return sum(x * y for x, y in zip(a, b, strict=True))


async def test_the_local_embedder_knows_meaning() -> None:
    embedder = embed.resolve("local")
    assert embedder is not None
    query, near, far = await embedder.embed(
        [
            "How do I close a database connection?",
            "Call pool.close() when the server stops.",
            "Bananas are rich in potassium.",
        ],
        "query",
    )
    assert query is not None
    assert len(query) == 384
    assert math.isclose(math.hypot(*query), 1.0, rel_tol=1e-5)
    assert cosine(query, near) > cosine(query, far) + 0.2


async def test_local_vectors_do_not_depend_on_the_batch() -> None:
    embedder = embed.resolve("local")
    assert embedder is not None
    texts = [f"{'word ' * (n * 7 % 90)} and the number {n}" for n in range(40)]
    together = await embedder.embed(texts)
    for n in (0, 13, 39):
        (alone,) = await embedder.embed([texts[n]])
        assert cosine(alone, together[n]) > 0.99999


async def test_local_odd_texts() -> None:
    """field case 57: blank, unknown to the vocabulary, half a surrogate pair, NUL, 2 MB."""
    embedder = embed.resolve("local")
    assert embedder is not None
    start = time.monotonic()
    vectors = await embedder.embed(
        [" \u200b", "🙂🎉", "caf\u00e9 \ud83d", "a\x00b", "distinct words " * 140_000, "x" * 2_000_000]
    )
    assert time.monotonic() - start < 5
    assert [vector is None for vector in vectors] == [True, True, False, False, False, True]


async def test_local_embedding_does_not_block_the_loop() -> None:
    embedder = embed.resolve("local")
    assert embedder is not None
    await embedder.embed(["warm"])
    beats = 0

    async def heartbeat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    task = asyncio.create_task(heartbeat())
    await asyncio.gather(*(embedder.embed(["some text " * 40] * 8) for _ in range(4)))
    task.cancel()
    assert beats >= 3


async def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not the model")
    monkeypatch.setattr(local_embedder, "files", lambda package: tmp_path)
    with pytest.raises(EmbedderError, match=hashlib.sha256(b"not the model").hexdigest()):
        local_embedder._weights()
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(EmbedderError, match="cannot be read"):
        local_embedder._weights()


def test_local_works_in_two_loops_without_sockets_and_after_a_fork() -> None:
    """field case 33: one embedder in two event loops; here also in a forked child."""
    script = textwrap.dedent(
        """
        import asyncio, os, socket, sys
        from everyturn import embed
        loops = [asyncio.new_event_loop() for _ in range(2)]
        def refuse(*args, **kwargs):
            raise AssertionError("a socket was opened")
        socket.socket.connect = socket.getaddrinfo = refuse
        embedder = embed.resolve("local")
        first, second = (loop.run_until_complete(embedder.embed(["some text"]))[0] for loop in loops)
        assert first == second
        child = os.fork()
        if child == 0:
            again = loops[0].run_until_complete(embedder.embed(["some text"]))[0]
            os._exit(0 if again == first else 1)
        assert os.waitpid(child, 0)[1] == 0
        for loop in loops:
            loop.close()
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_costs_nothing_heavy() -> None:
    script = (
        "import sys, everyturn.embed, everyturn.models\n"
        "print([m for m in ('numpy', 'onnxruntime', 'tokenizers', 'httpx2', 'pydantic_ai', 'genai_prices')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
