"""Streamed text comes in pieces, and a secret may be cut anywhere: what may be the beginning of one is held back.

A piece is let go once the pieces after it tell that it belongs to no secret, or with the secret masked. Text that looks
like no secret passes as it comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .redaction import Redaction, replaced
from .redaction_rules import credential, sensitive, suspicious
from .stream import StreamEvent

_CONTEXT = 200
"""Characters already let go that a secret's name, or the first letters of its prefix, may stand in."""
_LONGEST = 20_000
_DELTAS = {"text_delta": "delta", "reasoning_delta": "delta", "tool_call_delta": "argumentsDelta"}

_UNFINISHED = re.compile(
    r"(?:(?:key|token|secret|passwd|password|passphrase|authorization|cookie)[\"']?\s{0,4}(?:[:=]>?\s{0,4}[\"']?"
    r"(?:(?:bearer|basic|token|bot|digest)\s{0,4})?[^\s\"']*)?|(?<![a-z])(?:bearer|basic)\s{1,4}\S*|\S*://\S*|"
    r"(?<![a-z0-9])(?:sk|rk|gsk|gh|github_|gl|xox|xai|xapp|pplx|tvly|lsv|nvapi|pypi|npm|hf|akia|asia|aiza|eyj|ya29|sg\.|dop|atatt|"
    r"hooks\.)[^\s\"'<>()]*)\Z",
    re.IGNORECASE,
)
_MEMBER = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*"((?:[^"\\]|\\.)*)("|\\?\Z)')


class DeltaGuard:
    """The deltas of one answer on their way into the log."""

    def __init__(self, rules: Redaction) -> None:
        self._rules = rules
        self._channels: dict[tuple[str, str], _Channel] = {}

    def feed(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """What may be stored now that this delta has come."""
        kind = str(event.get("type"))
        field = _DELTAS.get(kind)
        if field is None or not isinstance(event.get(field), str) or event.get("argumentsMode") == "replace":
            yield from self.flush()
            yield event
            return
        key = (kind, str(event.get("id", "")))
        for other, channel in self._channels.items():
            if other != key and other[0] != "tool_call_delta":
                yield from channel.flush()
        if key not in self._channels:
            self._channels[key] = _Channel(self._rules, field)
        yield from self._channels[key].feed(event)

    def flush(self) -> Iterator[StreamEvent]:
        """What was held back, once nothing more comes."""
        for channel in self._channels.values():
            yield from channel.flush()


class _Channel:
    """Text that belongs together: an answer, its reasoning, or the arguments of one call."""

    def __init__(self, rules: Redaction, field: str) -> None:
        self._rules = rules
        self._field = field
        self._json = field == "argumentsDelta"
        self._whole = self._json and bool(rules.paths)
        self._gone = ""
        self._held = ""
        self._last: StreamEvent | None = None

    def feed(self, event: StreamEvent) -> Iterator[StreamEvent]:
        self._last = event
        text = self._held + event[self._field]
        whole = self._gone + text
        if not self._whole and not self._held and not self._doubtful(whole):
            self._let_go(text)
            yield event
            return
        # A name alone brings nothing on the disk: it is what follows that is held.
        keep = 0 if self._whole else max(self._unfinished(whole) - len(self._gone), 0)
        if len(text) - keep > _LONGEST and not self._whole:
            keep = len(text)
        if keep == 0:
            self._held = text
            # The call's first delta carries its name.
            if "name" in event and self._json:
                yield StreamEvent(event | {self._field: ""})
                self._last = StreamEvent({key: value for key, value in event.items() if key != "name"})
            return
        yield self._release(event, text[:keep])
        self._held = text[keep:]

    def flush(self) -> Iterator[StreamEvent]:
        held, self._held = self._held, ""
        if held and self._last is not None:
            if self._whole:
                masked = self._rules.text(held) if _is_json(held) else replaced(held, self._rules.spans(held))
                yield StreamEvent(self._last | {self._field: masked})
            else:
                yield self._release(self._last, held)

    def _doubtful(self, text: str) -> bool:
        near = text[-_CONTEXT - 100 :]
        return (
            suspicious(near)
            or "://" in near[-200:]
            or text.endswith("---")
            or any(map(near.__contains__, self._rules.met))
            or self._begins_met(near) > 0
        )

    def _begins_met(self, text: str) -> int:
        """Characters at the end with which a secret that was met before begins."""
        longest = 0
        for secret in self._rules.met:
            for size in range(min(len(secret) - 1, len(text)), 3, -1):
                if text.endswith(secret[:size]):
                    longest = max(longest, size)
                    break
        return longest

    def _unfinished(self, text: str) -> int:
        """Where the end begins that may be part of a secret."""
        starts = [len(text) - self._begins_met(text)]
        if match := _UNFINISHED.search(text, max(len(text) - 600, 0)):
            starts.append(match.start())
        block = text.rfind("-----BEGIN ")
        if block >= 0 and "-----" not in text[block:].partition("-----END ")[2]:
            starts.append(block)
        if text.endswith("---"):
            starts.append(len(text.rstrip("-")))
        if self._json:
            for match in _MEMBER.finditer(text):
                if match[3] != '"' and sensitive(match[1]):
                    starts.append(match.start(2))
        return min(starts)

    def _release(self, event: StreamEvent, text: str) -> StreamEvent:
        before = len(self._gone)
        whole = self._gone + text
        spans = [span for span in self._spans(whole) if span[1] > before]
        cut = [(max(start, before), end, rule) for start, end, rule in spans]
        for _, _, rule in cut:
            self._rules.counts[rule] += 1
        self._rules.masked += len(cut)
        shown = replaced(whole, cut)[before:]
        self._let_go(text)
        return StreamEvent(event | {self._field: shown})

    def _spans(self, text: str) -> list[tuple[int, int, str]]:
        spans = self._rules.spans(text)
        if self._json:
            members = [
                (match.start(2), match.end(2), f"key {match[1]}")
                for match in _MEMBER.finditer(text)
                if sensitive(match[1]) and credential(match[1], match[2])
            ]
            taken = [span for span in spans if not any(span[0] < end and start < span[1] for start, end, _ in members)]
            spans = sorted([*taken, *members])
        return spans

    def _let_go(self, text: str) -> None:
        self._gone = (self._gone + text)[-_CONTEXT:]


def _is_json(text: str) -> bool:
    from pydantic_core import from_json

    try:
        from_json(text)
    except ValueError:
        return False
    return True
