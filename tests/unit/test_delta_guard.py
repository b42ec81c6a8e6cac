"""Secrets that are cut between the pieces of a stream."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from everyturn import stream
from everyturn.delta_guard import DeltaGuard
from everyturn.redaction import MASK, Redaction
from everyturn.stream import StreamEvent

TEXTS = {
    "Use sk-ant-api03-abcdefghijklmnop1234 now": ["abcdefghijklmnop1234"],
    "Use github_pat_11ABCDEFG0123456789abcdef now": ["11ABCDEFG0", "56789abcdef"],
    "at https://me:p4ssw0rd@h.io/x then password=hunter22 ok": ["p4ssw0rd", "hunter22"],
    "Authorization: Bearer abcd1234efgh end": ["abcd1234efgh"],
    "a key\n-----BEGIN RSA PRIVATE KEY-----\nMIIabc\nxyz\n-----END RSA PRIVATE KEY-----\ndone": ["MIIabc", "xyz"],
}
ARGUMENTS = '{"api_key": "hunter2", "headers": {"Authorization": "Bearer zzz"}, "n": 1, "text": "hello there"}'


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    pieces, start = [], 0
    while start < len(text):
        size = chance.choice([1, 1, 2, 3, 5, 9, 20])
        pieces.append(text[start : start + size])
        start += size
    return pieces


def through(rules: Redaction, pieces: list[str], make: Callable[[str], StreamEvent]) -> list[StreamEvent]:
    guard = DeltaGuard(rules)
    told = [event for piece in pieces for event in guard.feed(make(piece))]
    return [*told, *guard.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_no_cut_lets_a_secret_through(text: str) -> None:
    """field case 149: a secret that comes in pieces."""
    for seed in range(150):
        told = through(Redaction(), cut(text, seed), lambda piece: stream.text_delta(1, piece))
        whole = "".join(event["delta"] for event in told)
        assert not any(secret in whole for secret in TEXTS[text]), (seed, whole)
        assert MASK in whole
        assert whole.startswith(text[:2])
        assert whole.endswith(text[-3:])


def test_arguments_are_masked_by_their_keys() -> None:
    for seed in range(150):
        pieces = iter(enumerate(cut(ARGUMENTS, seed)))
        told = through(
            Redaction(),
            [piece for _, piece in pieces],
            lambda piece: stream.tool_call_delta(1, "c1", None, piece),
        )
        whole = "".join(event["argumentsDelta"] for event in told)
        assert json.loads(whole) == {
            "api_key": MASK,
            "headers": {"Authorization": MASK},
            "n": 1,
            "text": "hello there",
        }


def test_a_path_rule_sees_all_arguments_at_once_and_the_name_is_told_early() -> None:
    guard = DeltaGuard(Redaction(paths=["args.pin", "pin"]))
    first = list(guard.feed(stream.tool_call_delta(1, "c1", "pay", '{"pi')))
    assert [(event["name"], event["argumentsDelta"]) for event in first] == [("pay", "")]
    assert list(guard.feed(stream.tool_call_delta(1, "c1", None, 'n": 1234}'))) == []
    [rest] = guard.flush()
    assert (json.loads(rest["argumentsDelta"]), "name" in rest) == ({"pin": MASK}, False)


def test_plain_text_passes_as_it_comes() -> None:
    text = "Plain text that is fine, with a link https to nothing and risk-free tasks -- and a table | a | b |."
    for seed in range(20):
        pieces = cut(text, seed)
        told = through(Redaction(), pieces, lambda piece: stream.text_delta(1, piece))
        assert [event["delta"] for event in told] == pieces


def test_what_was_held_back_comes_before_what_follows() -> None:
    guard = DeltaGuard(Redaction())
    told = list(guard.feed(stream.text_delta(1, "the password = ")))
    told += guard.feed(stream.tool_call_delta(1, "c1", "look", "{}"))
    told += guard.flush()
    assert [event["type"] for event in told] == ["text_delta", "text_delta", "tool_call_delta"]
    assert "".join(event["delta"] for event in told[:2]) == "the password = "
