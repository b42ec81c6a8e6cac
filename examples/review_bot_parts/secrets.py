"""Secrets in source text: tokens with a known shape, and values that a secret's name is given."""

from __future__ import annotations

import math
import re
from collections import Counter

_TOKENS = {
    "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b",
    "an Anthropic API key": r"\bsk-ant-[A-Za-z0-9_-]{24,}",
    "an OpenAI API key": r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9]{32,}",
    "a Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
    "a Google API key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _TOKENS.items()}
_NAME = re.compile(
    r"(?:^|[_-])(?:pass(?:word|wd|phrase)|pwd|secret|(?:secret|api|access|private|signing)[_-]?key"
    r"|(?:auth|access|bearer|refresh|api)[_-]?token|token)$",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(
    r"example|changeme|change_me|placeholder|dummy|fake|sample|your|insert|redacted|secret|password|token|xxx|\.\.\.|test|[<>{}$%\s]",
    re.IGNORECASE,
)


def token_kind(line: str) -> str | None:
    """What kind of token a line holds, or None. Sample values that say so themselves are let through."""
    for kind, pattern in _PATTERNS.items():
        if (match := pattern.search(line)) and "EXAMPLE" not in match[0].upper():
            return kind
    return None


def mask(text: str) -> str:
    """The text with every token of a known shape replaced, for showing it elsewhere."""
    for pattern in _PATTERNS.values():
        text = pattern.sub("***", text)
    return text


def is_secret(name: str, value: str) -> bool:
    """Whether `name = "value"` hard-codes a secret: a telling name, and a value that looks random."""
    if not _NAME.search(name) or len(value) < 8 or _PLACEHOLDER.search(value):
        return False
    has_letter = any(character.isalpha() for character in value)
    has_other = any(character.isdigit() or character in "!@#^&*+=/?~" for character in value)
    return has_letter and has_other and "://" not in value and _entropy(value) >= 2.7


def _entropy(value: str) -> float:
    counts = Counter(value)
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
