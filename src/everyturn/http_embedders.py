"""Embedders behind an HTTP API: Voyage AI and OpenAI (and servers that speak OpenAI's protocol)."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everyturn.errors import EmbedderError
from everyturn.threads import in_thread

if TYPE_CHECKING:
    import httpx2

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Provider:
    """What differs between two embedding APIs."""

    name: str
    key_variable: str
    base_variable: str
    base_url: str
    max_texts: int
    max_tokens: int
    max_text_bytes: int | None
    """Where texts are cut, for a provider that refuses long ones instead of cutting them."""
    dimensions_field: str
    dimensions: dict[str, int] = field(default_factory=dict)

    def body(self, model: str, texts: Sequence[str], kind: str, dimensions: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "input": list(texts)}
        if self.name == "voyage":
            body |= {"input_type": kind, "truncation": True}
        else:
            body |= {"encoding_format": "float"}
        if dimensions is not None:
            body[self.dimensions_field] = dimensions
        return body


VOYAGE = Provider(
    name="voyage",
    key_variable="VOYAGE_API_KEY",
    base_variable="VOYAGE_BASE_URL",
    base_url="https://api.voyageai.com/v1",
    max_texts=1_000,
    max_tokens=120_000,
    max_text_bytes=None,
    dimensions_field="output_dimension",
    dimensions={
        "voyage-2": 1024,
        "voyage-3": 1024,
        "voyage-3-large": 1024,
        "voyage-3-lite": 512,
        "voyage-3.5": 1024,
        "voyage-3.5-lite": 1024,
        "voyage-4": 1024,
        "voyage-4-large": 1024,
        "voyage-4-lite": 1024,
        "voyage-code-2": 1536,
        "voyage-code-3": 1024,
        "voyage-finance-2": 1024,
        "voyage-large-2": 1536,
        "voyage-large-2-instruct": 1024,
        "voyage-law-2": 1024,
        "voyage-multilingual-2": 1024,
    },
)

OPENAI = Provider(
    name="openai",
    key_variable="OPENAI_API_KEY",
    base_variable="OPENAI_BASE_URL",
    base_url="https://api.openai.com/v1",
    max_texts=2_048,
    max_tokens=300_000,
    # 8,191 tokens of about three bytes; denser text is refused and then cut to what always fits.
    max_text_bytes=24_000,
    dimensions_field="dimensions",
    dimensions={
        "text-embedding-3-small": 1536,
        "text-embedding-3-large": 3072,
        "text-embedding-ada-002": 1536,
    },
)

PROVIDERS = {provider.name: provider for provider in (VOYAGE, OPENAI)}

# pgvector indexes vectors of up to 2,000 dimensions; this model may be asked for fewer than its 3,072.
_SHORTENED = {"text-embedding-3-large": 1536}
# A token is at least one byte.
_SAFE_TEXT_BYTES = 8_191


class HttpEmbedder:
    """One model of one provider. It blocks, in threads: so it is at home in any event loop, and in none."""

    def __init__(self, provider: Provider, model: str, dimensions: int | None = None) -> None:
        self._provider = provider
        self._model = model
        self._asked_dimensions = dimensions or _SHORTENED.get(model)
        self.dimensions = self._asked_dimensions or provider.dimensions.get(model)
        self.name = f"{provider.name}:{model}"
        if self._asked_dimensions:
            self.name += f":{self._asked_dimensions}"
        self._client: httpx2.Client | None = None
        self._lock = threading.Lock()

    async def embed(self, texts: Sequence[str], kind: str) -> list[Any]:
        """The provider's vectors, in the order of `texts`, in as few calls as the provider takes."""
        rows: list[Any] = []
        for batch in self._batches(texts):
            rows += await in_thread(self._call, batch, kind)
        return rows

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        limit = self._provider.max_text_bytes
        batch: list[str] = []
        tokens = 0
        for whole in texts:
            text = whole if limit is None else _cut(whole, limit)
            # Half a token a byte is more than any ordinary text has.
            size = len(text.encode("utf-8", "replace")) // 2 + 1
            if batch and (len(batch) == self._provider.max_texts or tokens + size > self._provider.max_tokens):
                yield batch
                batch, tokens = [], 0
            batch.append(text)
            tokens += size
        if batch:
            yield batch

    def _call(self, texts: list[str], kind: str) -> list[Any]:
        response = self._post(texts, kind)
        if response.status_code == 400 and "maximum context length" in response.text:
            response = self._post([_cut(text, _SAFE_TEXT_BYTES) for text in texts], kind)
        if response.status_code >= 400:
            raise EmbedderError(self._refusal(response))
        return self._vectors(response, len(texts))

    def _post(self, texts: list[str], kind: str) -> httpx2.Response:
        import httpx2

        base = os.environ.get(self._provider.base_variable, "").strip() or self._provider.base_url
        url = base.rstrip("/") + "/embeddings"
        body = self._provider.body(self._model, texts, kind, self._asked_dimensions)
        try:
            return self._http().post(url, json=body, headers={"Authorization": f"Bearer {self._key()}"})
        except httpx2.TimeoutException as error:
            raise EmbedderError(
                f"The embedder {self.name} did not answer within {TIMEOUT_SECONDS:g} s ({url})."
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise EmbedderError(f"The embedder {self.name} cannot be reached at {url}: {reason}.") from error

    def _http(self) -> httpx2.Client:
        import httpx2

        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(timeout=TIMEOUT_SECONDS)
                weakref.finalize(self, self._client.close)
            return self._client

    def _key(self) -> str:
        key = os.environ.get(self._provider.key_variable, "").strip()
        if not key:
            raise EmbedderError(
                f"The embedder {self.name} needs a key: set the environment variable {self._provider.key_variable}."
            )
        if not (key.isascii() and key.isprintable()):
            raise EmbedderError(
                f"The key in {self._provider.key_variable} holds characters no key has. Was it copied whole?"
            )
        return key

    def _refusal(self, response: httpx2.Response) -> str:
        status = response.status_code
        hint = {
            401: f"Check the key in {self._provider.key_variable}.",
            403: f"Check the key in {self._provider.key_variable}.",
            404: "Check the model's name.",
            429: "Its rate limit or quota is used up; try again later.",
        }.get(status, "Try again later." if status >= 500 else "")
        said = _detail(response).replace(self._key(), "[key]")
        return " ".join(filter(None, (f"The embedder {self.name} answered {status}: {said}.", hint)))

    def _vectors(self, response: httpx2.Response, count: int) -> list[Any]:
        try:
            data = response.json()["data"]
            if all("index" in entry for entry in data):
                data = sorted(data, key=lambda entry: entry["index"])
            vectors = [entry["embedding"] for entry in data]
        except (ValueError, KeyError, TypeError) as error:
            raise EmbedderError(
                f"The embedder {self.name} answered with something that holds no embeddings: {_short(response.text)}"
            ) from error
        if len(vectors) != count:
            raise EmbedderError(f"The embedder {self.name} returned {len(vectors)} vectors for {count} texts.")
        return vectors


def parse(spec: str) -> HttpEmbedder:
    """The embedder `provider:model` or `provider:model:dimensions`."""
    provider_name, _, rest = spec.partition(":")
    model, colon, size = rest.rpartition(":")
    if not colon:
        model, size = rest, ""
    provider = PROVIDERS.get(provider_name)
    if provider is None or not model or (colon and not (size.isdecimal() and int(size) > 0)):
        raise EmbedderError(
            f'No embedder is called {spec!r}. Name "local", "voyage:voyage-3", '
            '"openai:text-embedding-3-small", or a model and its dimensions such as '
            '"openai:text-embedding-3-large:1024"; or pass a function.'
        )
    return HttpEmbedder(provider, model, int(size) if size else None)


def _cut(text: str, limit: int) -> str:
    if len(text) * 4 <= limit:
        return text
    return text[:limit].encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def _detail(response: httpx2.Response) -> str:
    """What the provider says went wrong, without the JSON around it."""
    try:
        found = response.json()
    except ValueError:
        found = None
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if key in found), None)
    said = found if isinstance(found, str) and found else response.text
    return _short(said).rstrip(". ") or response.reason_phrase


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:299] + "…"
