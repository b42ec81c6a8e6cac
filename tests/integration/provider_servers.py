"""A local HTTP server that speaks the wire formats of Anthropic, OpenAI and Voyage, with scripted answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Json = dict[str, Any]


@dataclass
class Reply:
    """One answer: a JSON body, raw text, or server-sent events that may break off."""

    body: Any = None
    status: int = 200
    events: Sequence[Json] | None = None
    named: bool = True
    """Whether each event is named by its `type`, as Anthropic and OpenAI Responses do."""
    breaks: bool = False
    """Whether the connection is cut after the events, in the middle of the body."""
    ends: str = ""
    """What follows the last event, such as `data: [DONE]`."""
    delay: float = 0.0
    pause: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Json


class ProviderServer:
    """`with ProviderServer(reply, …) as server:` answers in order and keeps the requests.

    The last reply is a function where answers depend on what is asked.
    """

    def __init__(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.connections = 0
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with lock:
                    server.connections += 1

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, json.loads(content))
                with lock:
                    server.requests.append(request)
                    reply = server.replies[0]
                    if len(server.replies) > 1:
                        server.replies.pop(0)
                if callable(reply):
                    reply = reply(request)
                time.sleep(reply.delay)
                try:
                    if reply.events is None:
                        self._whole(reply)
                    else:
                        self._stream(reply)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def _whole(self, reply: Reply) -> None:
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                content = text.encode()
                self._head(reply, "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _stream(self, reply: Reply) -> None:
                self._head(reply, "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for event in reply.events or ():
                    name = f"event: {event['type']}\n" if reply.named else ""
                    self._chunk(f"{name}data: {json.dumps(event)}\n\n")
                    time.sleep(reply.pause)
                if reply.breaks:
                    self.close_connection = True
                    return
                if reply.ends:
                    self._chunk(reply.ends)
                self.wfile.write(b"0\r\n\r\n")

            def _chunk(self, text: str) -> None:
                content = text.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

            def _head(self, reply: Reply, kind: str) -> None:
                self.send_response(reply.status)
                self.send_header("content-type", kind)
                for name, value in reply.headers.items():
                    self.send_header(name, value)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ProviderServer:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# --- Anthropic Messages ----


def anthropic_message(
    *content: Json, stop: str | None = "end_turn", model: str = "claude-opus-4-7", **usage: int
) -> Json:
    """A whole message; a string is a text block."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5, **usage},
    }


def anthropic(*content: Json, stop: str | None = "end_turn") -> Callable[[Request], Reply]:
    """The message as it was asked for: whole, or as a stream (which pydantic-ai prefers for long answers)."""

    def answer(request: Request) -> Reply:
        if request.body.get("stream"):
            return Reply(events=anthropic_events(*content, stop=stop))
        return Reply(anthropic_message(*content, stop=stop))

    return answer


def anthropic_events(*content: Json, stop: str | None = "end_turn", **usage: int) -> list[Json]:
    """The same message as the events of a stream, each block in two deltas."""
    message = anthropic_message(stop=None, **usage)
    events: list[Json] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(content):
        start, deltas = _anthropic_block(block)
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    if stop is not None:
        events.append(
            {
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": None},
                "usage": {"output_tokens": 5},
            }
        )
        events.append({"type": "message_stop"})
    return events


def _anthropic_block(block: Json) -> tuple[Json, list[Json]]:
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in halves(block["text"])]
    if block["type"] == "tool_use":
        return block | {"input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in halves(json.dumps(block["input"]))
        ]
    if block["type"] == "thinking":
        return block | {"thinking": "", "signature": ""}, [
            *({"type": "thinking_delta", "thinking": piece} for piece in halves(block["thinking"])),
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return block, []


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def tool_use(call_id: str, name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def thinking(words: str, signature: str) -> Json:
    return {"type": "thinking", "thinking": words, "signature": signature}


def anthropic_error(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}}


# --- OpenAI Chat Completions ----


def chat_completion(
    content: str | None, calls: Sequence[Json] = (), finish: str = "stop", model: str = "gpt-5"
) -> Json:
    message: Json = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": CHAT_USAGE,
    }


CHAT_USAGE: Json = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 12},
}


def chat_call(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_events(content: str, calls: Sequence[Json] = (), finish: str | None = "stop") -> list[Json]:
    def chunk(delta: Json, reason: str | None = None, **more: Any) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
        return head | {"model": "gpt-5", "choices": [choice], **more}

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in halves(content)]
    for index, call in enumerate(calls):
        function = call["function"]
        start = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        events.append(chunk({"tool_calls": [start]}))
        events += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in halves(function["arguments"])
        ]
    if finish is not None:
        events.append(chunk({}, finish))
        events.append(chunk({}) | {"choices": [], "usage": CHAT_USAGE})
    return events


# --- OpenAI Responses ----


def response(*output: Json, status: str = "completed", **more: Any) -> Json:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "gpt-5-2025-08-07",
        "status": status,
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": {
            "input_tokens": 30,
            "input_tokens_details": {"cached_tokens": 20},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 4},
            "total_tokens": 39,
        },
        **more,
    }


def output_text(words: str) -> Json:
    return {
        "id": "msg_9",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": words, "annotations": []}],
    }


def function_call(call_id: str, name: str, arguments: str) -> Json:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def reasoning_item(summary: str, encrypted: str) -> Json:
    return {
        "id": "rs_7",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": summary}],
        "encrypted_content": encrypted,
    }


def response_events(*output: Json, completed: bool = True) -> list[Json]:
    events: list[Json] = [
        {"type": "response.created", "response": response(status="in_progress", usage=None)},
    ]
    for index, item in enumerate(output):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            words = item["content"][0]["text"]
            at = {**place, "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append(_item("added", index, item | {"content": [], "status": "in_progress"}))
            events.append({"type": "response.content_part.added", **at, "part": part})
            events += [
                {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in halves(words)
            ]
            events.append({"type": "response.output_text.done", **at, "text": words, "logprobs": []})
            events.append({"type": "response.content_part.done", **at, "part": item["content"][0]})
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            events.append(_item("added", index, item | {"arguments": "", "status": "in_progress"}))
            events += [
                {"type": "response.function_call_arguments.delta", **place, "delta": piece}
                for piece in halves(arguments)
            ]
            done = {"type": "response.function_call_arguments.done", "name": item["name"]}
            events.append(done | place | {"arguments": arguments})
        else:
            summary = item["summary"][0]
            at = {**place, "summary_index": 0}
            events.append(_item("added", index, item | {"summary": [], "encrypted_content": None}))
            empty = {"type": "summary_text", "text": ""}
            events.append({"type": "response.reasoning_summary_part.added", **at, "part": empty})
            events += [
                {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
                for piece in halves(summary["text"])
            ]
            events.append({"type": "response.reasoning_summary_text.done", **at, "text": summary["text"]})
            events.append({"type": "response.reasoning_summary_part.done", **at, "part": summary})
        events.append(_item("done", index, item))
    if completed:
        events.append({"type": "response.completed", "response": response(*output)})
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def _item(what: str, index: int, item: Json) -> Json:
    return {"type": f"response.output_item.{what}", "output_index": index, "item": item}


# --- Embeddings, of OpenAI and of Voyage ----


def embeddings(size: int = 4) -> Callable[[Request], Reply]:
    """Vectors that tell the texts apart, in reverse order: clients must go by `index`."""

    def answer(request: Request) -> Reply:
        rows = [
            {"object": "embedding", "index": n, "embedding": [1.0, float(len(words))] + [0.5] * (size - 2)}
            for n, words in enumerate(request.body["input"])
        ]
        usage = {"total_tokens": 8}
        return Reply({"object": "list", "data": rows[::-1], "model": request.body["model"], "usage": usage})

    return answer


def halves(words: str) -> list[str]:
    middle = len(words) // 2
    return [piece for piece in (words[:middle], words[middle:]) if piece]
