"""GitHub's API through githubkit: whose token, which server, how long to wait, and its errors as sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from githubkit import GitHub
from githubkit.exception import (
    GitHubException,
    GraphQLFailed,
    RateLimitExceeded,
    RequestError,
    RequestFailed,
    RequestTimeout,
)
from githubkit.retry import RetryOption

from .forge import ForgeError

VERSION = {"X-GitHub-Api-Version": "2022-11-28"}
"""Sent with every request: a GitHub Enterprise Server refuses versions it does not know."""
MAX_WAIT = timedelta(seconds=120)
"""The longest wait GitHub may ask for; a longer one ends the command, saying how long it is."""
MAX_RETRIES = 3


def connect() -> GitHub[Any]:
    """A client with GITHUB_TOKEN for GITHUB_API_URL, or for github.com."""
    token = os.environ.get("GITHUB_TOKEN", "").strip()
    if not token:
        raise ForgeError("GITHUB_TOKEN is not set; give a token that may read and write pull requests.")
    server = os.environ.get("GITHUB_API_URL", "").strip() or None
    if server is not None and not server.startswith(("https://", "http://")):
        raise ForgeError(
            f"GITHUB_API_URL is {server!r}; it takes an address such as https://github.example.com/api/v3."
        )
    # Without the cache: each command asks once, and what it wants to know is what is new.
    return GitHub(token, base_url=server, timeout=30, http_cache=False, auto_retry=_retry)


def _retry(error: GitHubException, retried: int) -> RetryOption:
    if retried >= MAX_RETRIES:
        return RetryOption(False)
    if isinstance(error, RateLimitExceeded):
        # githubkit takes no time at all for none given, and waits a minute.
        return RetryOption(error.retry_after <= MAX_WAIT, max(error.retry_after, timedelta(milliseconds=50)))
    if _is_unnamed_limit(error):
        # Without a time given GitHub wants a minute.
        return RetryOption(retried == 0, timedelta(seconds=60))
    if may_have_failed_halfway(error) and _is_read(error):
        return RetryOption(True, timedelta(seconds=0.25 * 4**retried))
    return RetryOption(False)


def may_have_failed_halfway(error: GitHubException) -> bool:
    """Whether asking again may help, and whether what was asked for may have happened all the same."""
    if isinstance(error, RequestFailed):
        return error.response.status_code >= 500
    return isinstance(error, RequestError)


def _is_unnamed_limit(error: GitHubException) -> bool:
    if isinstance(error, RequestFailed) and error.response.status_code in {403, 429}:
        return "rate limit" in said(error).lower()
    return False


def _is_read(error: Any) -> bool:
    try:
        request = error.request if isinstance(error, RequestFailed) else error.exc.request
    except (AttributeError, RuntimeError):
        return False
    # Of GraphQL only queries are sent.
    return bool(request.method == "GET" or request.url.path.endswith("/graphql"))


@contextmanager
def sentences(what: str) -> Iterator[None]:
    """GitHub's errors about `what` as ForgeError."""
    try:
        yield
    except GitHubException as error:
        raise ForgeError(_sentence(error, what)) from error


def _sentence(error: GitHubException, what: str) -> str:
    if isinstance(error, RateLimitExceeded):
        seconds = int(error.retry_after.total_seconds())
        return f"GitHub takes no more requests from this token for {seconds} s; try {what} again after that."
    if isinstance(error, RequestFailed):
        status, words = error.response.status_code, said(error)
        if status == 401:
            return f"GitHub does not accept the token in GITHUB_TOKEN ({words})."
        if status == 404:
            return f"GitHub does not show {what}: there is none, or the token in GITHUB_TOKEN may not see it."
        if status >= 500:
            return f"GitHub failed over {what}, also when asked again ({status}, {words})."
        return f"GitHub refused {what} ({status}): {words}"
    if isinstance(error, RequestTimeout):
        return f"GitHub did not answer in time about {what}."
    if isinstance(error, RequestError):
        return f"GitHub cannot be reached for {what}: {error.exc}"
    if isinstance(error, GraphQLFailed):
        return f"GitHub refused {what}: " + "; ".join(each.message for each in error.response.errors or [])
    return f"GitHub failed over {what}: {error!r}"


def said(error: RequestFailed) -> str:
    """GitHub's own words about a request that it refused."""
    try:
        answer = error.response.json()
        errors = [each if isinstance(each, str) else each.get("message", "") for each in answer.get("errors") or []]
        return "; ".join(filter(None, [answer.get("message", ""), *errors])) or error.response.reason_phrase
    except (ValueError, AttributeError, TypeError):
        return error.response.reason_phrase or "no words"
