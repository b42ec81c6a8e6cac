"""The shapes of credentials that are masked by default: what they look like in text, and the keys that name them.

A rule is chosen so that ordinary text passes: a prefix that only a credential has, or a name beside a value that looks
like one. `suspicious` tells most text that holds nothing in a few microseconds. No pattern goes back over what it has
read, so that a megabyte takes milliseconds.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A form of credential in text. What the group `secret` matches is masked, or all of the match without it."""

    name: str
    triggers: tuple[str, ...]
    """Lower-case pieces, one of which every match holds."""
    pattern: re.Pattern[str]
    valid: Callable[[str], bool] | None = None
    """What else must hold of what would be masked."""


def _basic(text: str) -> bool:
    """Whether it is user:password, as HTTP writes it."""
    try:
        return b":" in base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return False


_KEY_NAMES = (
    r"(?:api|secret|access|account|private|signing|encryption|subscription|master|webhook)[-_. ]?key|"
    r"(?:client|api|app|shared|consumer|webhook)[-_. ]?secret|secret[-_. ]?access[-_. ]?key|"
    r"(?:access|auth|refresh|session|bearer|id|api|security|private|personal)[-_. ]?token|"
    r"passwd|password|passphrase"
)
SHAPES: tuple[Shape, ...] = (
    Shape(
        "private key",
        ("-----begin ",),
        re.compile(
            r"-----BEGIN (?!(?:TRUSTED |X509 )?CERTIFICATE|(?:RSA |PGP |SSH2? )?PUBLIC KEY|PGP (?:SIGN|MESSAGE))"
            r"[A-Z0-9 ]{1,64}-----.*?(?:-----END [A-Z0-9 ]{1,64}-----|\Z)",
            re.DOTALL,
        ),
    ),
    Shape(
        "provider key",
        ("sk-", "gsk_", "xai-", "pplx-", "tvly-", "lsv2_", "nvapi-", "sk_", "rk_"),
        re.compile(
            r"(?<![A-Za-z0-9])(?:"
            r"sk-(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{16,}|sk-(?:ant|proj|svcacct|admin|or|live|test)-[A-Za-z0-9_-]{8,}|"
            r"(?:gsk_|xai-|pplx-|tvly-|lsv2_|nvapi-)[A-Za-z0-9_-]{20,}|"
            r"[sr]k_(?:live|test|prod)_[A-Za-z0-9]{8,})"
        ),
    ),
    Shape(
        "forge token",
        (
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "gldt-",
            "glrt-",
            "npm_",
            "pypi-",
            "hf_",
            "atatt",
        ),
        re.compile(
            r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|gl(?:pat|dt|rt)-[A-Za-z0-9_-]{16,}|"
            r"npm_[A-Za-z0-9]{24,}|pypi-[A-Za-z0-9_-]{32,}|hf_[A-Za-z0-9]{16,}|ATATT[A-Za-z0-9_=-]{24,})"
        ),
    ),
    Shape(
        "cloud key",
        ("akia", "asia", "aiza", "ya29.", "xoxb", "xoxa", "xoxp", "xoxr", "xoxs", "xoxe", "xapp-", "sg.", "dop_v1_"),
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|"
            r"xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|"
            r"dop_v1_[a-f0-9]{32,})"
        ),
    ),
    Shape(
        "webhook",
        ("hooks.slack.com/", "/api/webhooks/"),
        re.compile(
            r"(?:hooks\.slack\.com/(?:services|workflows)/|/api/webhooks/)(?P<secret>[A-Za-z0-9_-]{6,}(?:/[A-Za-z0-9_-]+)+)"
        ),
    ),
    Shape("JSON web token", ("eyj",), re.compile(r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*")),
    Shape(
        "password in a URL",
        ("://",),
        re.compile(r"(?<=://)[^\s/:@?#\"'<>]{0,256}:(?P<secret>[^\s/@\"'<>]{1,512})@(?=[\w\[.%-])"),
    ),
    Shape(
        "secret in a URL",
        ("token=", "signature=", "sig=", "api_key=", "apikey=", "x-amz-credential="),
        re.compile(
            r"[?&](?:[\w-]{0,32}token|[\w-]{0,32}signature|sig|api_?key|x-amz-credential)=(?P<secret>[^&#\s\"'<>\\]{8,})",
            re.IGNORECASE,
        ),
    ),
    Shape(
        "authorization header",
        ("authorization",),
        re.compile(
            r"authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
            r"(?:(?:bearer|basic|token|digest|negotiate|apikey|api-key|bot)\s{1,4}(?P<secret>[^\s\"',;}]{4,})"
            r"|(?=[^\s\"',;}]{0,64}[0-9])(?P<bare>[^\s\"',;}]{12,}))",
            re.IGNORECASE,
        ),
    ),
    Shape(
        "bearer token",
        ("bearer ",),
        re.compile(
            r"(?<![A-Za-z0-9])bearer {1,4}(?=[A-Za-z._~+/=-]{0,64}[0-9])(?P<secret>[A-Za-z0-9._~+/=-]{8,})",
            re.IGNORECASE,
        ),
    ),
    Shape(
        "basic credentials",
        ("basic ",),
        re.compile(
            r"(?<![A-Za-z0-9])basic {1,4}(?P<secret>[A-Za-z0-9+/]{6,512}={0,2})(?![A-Za-z0-9+/=])", re.IGNORECASE
        ),
        _basic,
    ),
    Shape(
        "named secret",
        ("passw", "passph", "key", "token", "secret"),
        re.compile(
            rf"(?:{_KEY_NAMES})[\"']?\s{{0,4}}(?::=|=>|[:=])\s{{0,4}}"
            r"(?:\"(?P<double>[^\"\s\\]{6,256})\"|'(?P<single>[^'\s\\]{6,256})'|"
            r"(?=[^\s\"',;&(){}\[\]<>$]{0,64}[0-9])(?P<bare>[^\s\"',;&(){}\[\]<>$`\\]{6,256})(?![\w(\[.]))",
            re.IGNORECASE,
        ),
    ),
)

_SENSITIVE_KEYS = frozenset(
    (
        "authorization",
        "proxyauthorization",
        "cookie",
        "setcookie",
        "secret",
        "secrets",
        "secretkey",
        "clientsecret",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "privatekey",
        "signingkey",
        "encryptionkey",
        "masterkey",
        "token",
        "pwd",
        "auth",
        "bearer",
    )
)
_SENSITIVE_ENDINGS = (
    "apikey",
    "apikeys",
    "secretaccesskey",
    "apitoken",
    "accesskey",
    "accesskeyid",
    "accesstoken",
    "authtoken",
    "bearertoken",
    "refreshtoken",
    "sessiontoken",
    "securitytoken",
    "idtoken",
    "csrftoken",
    "xsrftoken",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secretkey",
    "privatekey",
    "signingkey",
    "encryptionkey",
)
# These name other things as often: only a value that looks like a credential is masked under them.
_WEAK_KEYS = frozenset(("token", "secret", "secrets", "pwd", "auth", "bearer", "cookie", "credential", "credentials"))

# Each begins with a literal, which is found at the speed of memchr.
_AFTER_HYPHEN = re.compile(
    "-(?:(?<=sk-)|(?<=xai-)|(?<=pplx-)|(?<=tvly-)|(?<=nvapi-)|(?<=glpat-)|(?<=gldt-)|(?<=glrt-)|(?<=pypi-)|"
    "(?<=xox[abeprs]-)|(?<=xapp-)|(?<=-----)begin )"
)
_AFTER_UNDERSCORE = re.compile(
    "_(?:(?<=gh[pousr]_)|(?<=[sr]k_)|(?<=gsk_)|(?<=lsv2_)|(?<=github_)pat|(?<=npm_)|(?<=hf_)|(?<=dop_)v1)"
)
_TOKEN = re.compile("token(?!s)")
_KEY = re.compile(
    "key(?:(?<=(?:api|ess|ate|ing|ion|unt|ter|ret|ook)key)|(?<=(?:api|ess|ate|ing|ion|unt|ter|ret|ook)[-_. ]key))"
)
_AUTH = re.compile('auth(?:orization|\\\\?")')
_PWD = re.compile('pwd\\\\?"')


def suspicious(text: str) -> bool:
    """Whether anything of this text, JSON or not, can be masked by default: cheap, and true too often.

    It is asked of every value that is stored, and so written out: a loop, or a pattern for each, takes twice as long.
    """
    low = text.lower()
    return bool(
        "secret" in low
        or "bearer" in low
        or "cookie" in low
        or "credential" in low
        or "passw" in low
        or "passph" in low
        or "basic " in low
        or "sig=" in low
        or "signature=" in low
        or "ya29." in low
        or "hooks.slack" in low
        or "/webhooks/" in low
        or "eyJ" in text
        or "AKIA" in text
        or "ASIA" in text
        or "AIza" in text
        or "SG." in text
        or "ATATT" in text
        or ("_" in low and _AFTER_UNDERSCORE.search(low))
        or ("-" in low and _AFTER_HYPHEN.search(low))
        or ("key" in low and _KEY.search(low))
        or ("token" in low and _TOKEN.search(low))
        or ("auth" in low and _AUTH.search(low))
        or ("pwd" in low and _PWD.search(low))
        or ("@" in low and "://" in low)
    )


_PLACEHOLDER = re.compile(
    r"\s*(?:\$?\{.*\}|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%|<.*>|\*+|x{3,}|\.{3}|…|process\.env\..*|os\.(?:environ|getenv).*|"
    r"str(?:ing)?|text|bool(?:ean)?|int(?:eger)?|number|object|array|none|null|nil|true|false|undefined|optional|required|"
    r"hidden|masked|redacted|\[redacted\]|\[forgotten\]|n/a|-)\s*",
    re.IGNORECASE | re.DOTALL,
)
_SEPARATORS = str.maketrans("", "", "-_. ")
_LOOKS_RANDOM = re.compile(r"(?=.{0,512}[0-9])[^\s]{8,}")


def sensitive(key: str) -> bool:
    """Whether the value under this key is a credential, as far as a name can tell."""
    plain = key.translate(_SEPARATORS).lower()
    return plain in _SENSITIVE_KEYS or plain.endswith(_SENSITIVE_ENDINGS)


def credential(key: str, value: str) -> bool:
    """Whether this value, under a sensitive key, is one: not blank, not a placeholder, not the word for a type."""
    if not value.strip() or _PLACEHOLDER.fullmatch(value):
        return False
    if key.translate(_SEPARATORS).lower() not in _WEAK_KEYS:
        return True
    words = value.split()
    return any(_LOOKS_RANDOM.match(word) for word in words) and len(words) <= 8 and not value.startswith(("/", "~"))


def placeholder(value: str) -> bool:
    """Whether a value only stands for one: `${TOKEN}`, `<your key>`, `***`."""
    return _PLACEHOLDER.fullmatch(value) is not None
