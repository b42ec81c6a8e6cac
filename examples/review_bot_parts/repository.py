"""A git repository on disk: its name, its last commits, and the diff of one of them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_REMOTE = re.compile(r"^(?:\w+://(?:[^/@]*@)?[^/:]+(?::\d+)?/|(?:[^/@]+@)?[^/:]+:(?!//))(?P<name>[^:]+?)(?:\.git)?/?$")


class RepositoryError(Exception):
    """The repository cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str
    subject: str


class Repository:
    """Reads through the `git` command, with the user's diff settings switched off."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise RepositoryError(f"{path} is not a directory; --local wants the path of a git repository.")
        self.path = path
        try:
            self.root = Path(self._git("rev-parse", "--show-toplevel").removesuffix("\n"))
        except RepositoryError as error:
            raise RepositoryError(f"{path} is not a git working copy: {error}") from error

    def name(self) -> str:
        """`owner/name` of its origin; a repository without one is told apart by where it lies."""
        origin = self._git("config", "--get", "remote.origin.url", missing="").strip()
        if match := _REMOTE.match(origin):
            return match["name"]
        place = origin or str(self.root.resolve())
        stem = re.sub(r"[^\w.-]+", "-", Path(place).name.removesuffix(".git")) or "repository"
        return f"local/{stem}-{hashlib.sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"

    def last_commits(self, count: int) -> list[Commit]:
        """The last `count` commits that are not merges, oldest first."""
        if not self._git("rev-parse", "--verify", "--quiet", "HEAD", missing=""):
            return []
        log = self._git("log", f"--max-count={count}", "--no-merges", "--format=%H%x00%s%x1e")
        commits = [Commit(*entry.strip("\n").split("\0", 1)) for entry in log.split("\x1e") if entry.strip()]
        # Where a shallow clone ends, git shows the whole tree as added: a commit nobody wrote. It is
        # reviewed only when there is nothing else.
        cut = self._shallow()
        return [commit for commit in reversed(commits) if commit.sha not in cut] or commits

    def diff(self, sha: str) -> str:
        """The unified diff of a commit against its parent."""
        return self._git(
            *("-c", "core.quotePath=false"),
            *(
                "show",
                "--format=",
                "--patch",
                "--no-color",
                "--no-ext-diff",
                "--no-textconv",
                "--find-renames",
            ),
            *(
                "-O/dev/null",
                "--unified=3",
                "--inter-hunk-context=0",
                "--diff-algorithm=histogram",
                "--submodule=short",
            ),
            *("--src-prefix=a/", "--dst-prefix=b/", sha, "--"),
        )

    def _shallow(self) -> set[str]:
        file = self._git("rev-parse", "--git-path", "shallow").removesuffix("\n")
        try:
            return set((self.path / file).read_text("ascii").split())
        except OSError:
            return set()

    def _git(self, *arguments: str, missing: str | None = None) -> str:
        """What git prints; `missing` is the answer for exit code 1, which git uses for "there is none"."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat"}
        try:
            done = subprocess.run(
                ["git", "-C", str(self.path), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                env=environment,
            )
        except FileNotFoundError as error:
            raise RepositoryError("The git command is not installed.") from error
        if done.returncode == 1 and missing is not None:
            return missing
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().removeprefix("fatal: ")
            raise RepositoryError(said or f"git {arguments[0]} failed with exit code {done.returncode}.")
        return done.stdout.decode("utf-8", "replace")
