"""What is masked, what is not, and what masking may cost."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from everyturn import jsonable
from everyturn.errors import InvalidValue
from everyturn.redaction import MASK, Redaction

SECRETS = {
    "anthropic": "sk-ant-api03-" + "aB3dE6gH9kL2" * 3,
    "openai": "sk-proj-" + "T3BlbkFJ0a1b" * 2,
    "stripe": "sk_live_" + "4eC39HqLyjWD",
    "github": "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "github fine-grained": "github_pat_" + "11ABCDEFG0" * 3,
    "gitlab": "glpat-" + "xYz12345678901234567",
    "slack": "xoxb-" + "123456789012-abcdefABCDEF",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + "SyD4iE2xVSpkLLOXoyqT-SqWaRT12345678",
    "hugging face": "hf_" + "abcdefghijKLMNOPQRSTuvwx",
    "npm": "npm_" + "abcdefghij1234567890KLMNOPQRST",
    "sendgrid": "SG." + "abcdefghijklmnop123456.abcdefghijklmnopqrstuvwxyz1234567890",
    "web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc/def+ghi=\n-----END RSA PRIVATE KEY-----",
    "broken private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA",
}


def masked(value: Any, **rules: Any) -> Any:
    return json.loads(Redaction(**rules).text(jsonable.dumps(value)))


@pytest.mark.parametrize("name", SECRETS)
def test_known_credentials_are_masked_wherever_they_stand(name: str) -> None:
    """field case 149"""
    secret = SECRETS[name]
    for value in (
        {"text": f"use {secret}"},
        {"deep": [{"er": ["x", secret]}]},
        {"args": json.dumps({"command": f"curl -H 'X: {secret}'"})},
        {secret: 1},
        secret,
    ):
        text = json.dumps(masked(value))
        assert secret not in text
        assert json.dumps(secret)[1:-1] not in text
        assert MASK in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"Authorization": "Bearer abc"}, {"Authorization": MASK}),
        ({"headers": [["authorization", "Bearer abcd1234efgh"]]}, {"headers": [["authorization", f"Bearer {MASK}"]]}),
        ({"headers": [["X-Api-Key", "abcd-1234-efgh"]]}, {"headers": [["X-Api-Key", MASK]]}),
        ({"name": "X-Api-Key", "value": "abcdef"}, {"name": "X-Api-Key", "value": MASK}),
        ({"OPENAI_API_KEY": "abc", "db_password": "x"}, {"OPENAI_API_KEY": MASK, "db_password": MASK}),
        ({"accessToken": "abc", "clientSecret": ["s1", "s2"]}, {"accessToken": MASK, "clientSecret": [MASK, MASK]}),
        ({"text": "postgresql://me:pa55@h:5432/db"}, {"text": f"postgresql://me:{MASK}@h:5432/db"}),
        ({"text": "GET /x?page=2&access_token=abcdef12345"}, {"text": f"GET /x?page=2&access_token={MASK}"}),
        ({"text": "Authorization: Basic dXNlcjpwYXNz"}, {"text": f"Authorization: Basic {MASK}"}),
        ({"text": "password=hunter22 and api_key: 'abcdefgh'"}, {"text": f"password={MASK} and api_key: '{MASK}'"}),
        ({"password": "hunter22", "echo": "you said hunter22"}, {"password": MASK, "echo": f"you said {MASK}"}),
        ({"args": '{"password":"x","n":1}'}, {"args": f'{{"password":"{MASK}","n":1}}'}),
        ({"token": "a8f5f167f44f4964e6c998dee827110c"}, {"token": MASK}),
    ],
)
def test_the_rest_is_kept(value: Any, expected: Any) -> None:
    assert masked(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"usage": {"inputTokens": 5, "outputTokens": 9, "totalTokens": 14}, "max_tokens": 4096, "tokens": ["a", "b"]},
        {"token": "word", "secret": "the treasure", "auth": "none", "pwd": "/home/me/src-2024"},
        {"type": "object", "properties": {"password": {"type": "string"}, "api_key": {"type": "string"}}},
        {"password": "", "api_key": None, "secret": False, "required": ["password", "token"]},
        {"password": "${DB_PASSWORD}", "api_key": "<your key>", "client_secret": "$SECRET", "passwd": "***"},
        {"text": "def login(password: str, token: str = None): return check(password=password, api_key=self.api_key)"},
        {"text": "The password: it must be long. Basic authentication, bearer certificates, token-based login."},
        {"text": "task-force risk-averse-strategies-for-all desk-lamp disk-space sk-learn npm_config"},
        {"text": "https://example.org/a:b/c@d and me@example.org, see http://localhost:8080/@me"},
        {"text": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"},
        {"text": "sha256 8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6, id 01a22ee6-48df-7955-a257"},
        {"cacheKey": "hunk:abc", "key": "value", "keys": ["a"], "primary_key": "id", "sort_key": "n"},
        [1, 2.5, None, True, "", {}],
    ],
)
def test_ordinary_values_are_left_alone(value: Any) -> None:
    text = jsonable.dumps(value)
    assert Redaction().text(text) is text


def test_a_path_masks_what_it_leads_to_however_deep() -> None:
    value = {
        "a": {"customer": {"email": "x@y.z", "id": 7}},
        "list": [{"customer": {"email": ["p", "q"]}}],
        "email": "kept",
    }
    assert masked(value, paths=["customer.email"]) == {
        "a": {"customer": {"email": MASK, "id": 7}},
        "list": [{"customer": {"email": MASK}}],
        "email": "kept",
    }
    assert masked({"args": {"pin": 1234}}, paths=["args.pin"]) == {"args": {"pin": MASK}}
    # The events' name for the same thing, and JSON inside a string.
    assert masked({"toolCall": {"function": {"arguments": {"pin": 1}}}}, paths=["args.pin"]) == {
        "toolCall": {"function": {"arguments": {"pin": MASK}}}
    }
    assert masked({"args": '{"pin":12}'}, paths=["args.pin"]) == {"args": f'{{"pin":"{MASK}"}}'}
    # A tool result has its call's arguments hoisted.
    assert masked({"toolName": "t", "pin": 1234, "result": "ok"}, paths=["args.pin"])["pin"] == MASK
    assert masked({"calls": {"x": {"args": {"q": "s"}}}}, paths=["calls.*.args"]) == {"calls": {"x": {"args": MASK}}}
    assert masked({"items": [{"v": 1}, {"v": 2}]}, paths=["items.1.v"]) == {"items": [{"v": 1}, {"v": MASK}]}


def test_patterns_and_functions() -> None:
    ssn = re.compile(r"\b\d{3}-\d{2}-\d{4}\b")
    assert masked({"t": "ssn 078-05-1120."}, patterns=[ssn]) == {"t": f"ssn {MASK}."}
    assert masked({"t": "id=ab12 x"}, patterns=[r"id=(?P<secret>\w+)"]) == {"t": f"id={MASK} x"}

    def drop(value: Any) -> Any:
        return {**value, "note": "gone"}

    rules = Redaction.of(drop)
    assert rules is not None
    assert json.loads(rules.text('{"note":"x","password":"y"}')) == {"note": "gone", "password": MASK}
    assert rules.counts == {"function": 1, "key password": 1}


def test_what_connect_takes() -> None:
    assert Redaction.of(False) is None
    several = Redaction.of(["customer.email", re.compile("x"), lambda value: value])
    assert several is not None
    assert (len(several.paths), len(several.patterns), len(several.functions)) == (1, 1, 1)
    own = Redaction(known=False)
    assert Redaction.of(own) is own
    assert own.text('{"password":"x"}') == '{"password":"x"}'
    for wrong in (7, [7], {"a": 1}):
        with pytest.raises(InvalidValue, match="no rule"):
            Redaction.of(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="not a field path"):
        Redaction(paths=["."])
    with pytest.raises(InvalidValue, match="not a regular expression"):
        Redaction(patterns=["("])


def test_a_password_is_masked_when_it_comes_again() -> None:
    rules = Redaction()
    rules.text('{"args":{"password":"tr0ub4dor&3"}}')
    assert rules.text('{"message":"login failed with tr0ub4dor&3"}') == f'{{"message":"login failed with {MASK}"}}'
    assert rules.masked == 2
    # A word that anybody may write is not hunted for.
    rules.text('{"args":{"password":"password"}}')
    assert rules.text('{"t":"your password please"}') == '{"t":"your password please"}'


def test_what_was_masked_is_counted_and_kept_nowhere() -> None:
    rules = Redaction()
    text = rules.text(json.dumps({"password": "x", "t": f"{SECRETS['aws']} {SECRETS['github']}"}))
    assert rules.counts == {"key password": 1, "cloud key": 1, "forge token": 1}
    assert text.count(MASK) == 3
    # Masked again, it stays as it is.
    assert rules.text(text) == text


def test_tags_of_odd_values_survive() -> None:
    value = {"img": b"\x00\xff", "n": 10**5000, "x": float("nan"), "password": "p"}
    stored = Redaction().text(jsonable.dumps(value))
    assert jsonable.loads(stored) == {**value, "x": pytest.approx(float("nan"), nan_ok=True), "password": MASK}


def test_deep_and_hostile_text_ends_soon() -> None:
    deep: Any = "password=hunter22"
    for _ in range(150):
        deep = [{"a": deep}] if isinstance(deep, str) else [deep]
    assert "hunter22" not in json.dumps(masked(deep))
    parts = (
        "://",
        "sk-",
        "password",
        "https://a:",
        "-----BEGIN X-----",
        "authorization:",
        "bearer ",
        "?token=",
        "eyJa.",
        '{"',
    )
    for part in parts:
        text = json.dumps(part * (300_000 // len(part)) + "@")
        began = time.perf_counter()
        Redaction().text(text)
        assert time.perf_counter() - began < 2, part


def test_an_ordinary_payload_costs_a_few_microseconds() -> None:
    text = jsonable.dumps({"text": "The parser reads one hunk at a time. " * 10, "runId": "01a22ee6-48df-7955-a257"})
    rules = Redaction()
    best = min(_timed(lambda: rules.text(text)) for _ in range(20))
    assert best < 60e-6


def _timed(work: Any) -> float:
    began = time.perf_counter()
    for _ in range(200):
        work()
    return (time.perf_counter() - began) / 200
