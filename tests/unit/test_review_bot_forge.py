"""The review bot's forge on disk: pull requests, comments, and writers that meet."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
from pathlib import Path

import pytest

from review_bot_parts import diff as diff_module
from review_bot_parts.diff import hunks, notes_of
from review_bot_parts.forge import ForgeError, Opinion
from review_bot_parts.local_forge import LocalForge
from review_bot_parts.repository import Repository


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet")
    for number in range(3):
        (path / f"file{number}.py").write_text("x = 1\n" * 10)
        git(path, "add", "--all")
        git(path, "commit", "--quiet", "-m", f"change {number}")
    return path


@pytest.fixture
def forge(repository: Path, tmp_path: Path) -> LocalForge:
    forge = LocalForge(Repository(repository), tmp_path / "forge" / "comments.json", repo="o/r")
    forge.open_pull_requests(forge.repository.last_commits(3))
    return forge


def post(forge: LocalForge, pr: int = 1, line: int = 1, body: str = "[rule] words", **changed: str) -> str:
    (hunk,) = hunks(asyncio.run(forge.diff("o/r", pr)))
    place = {"path": hunk.path, "hunk_hash": hunk.hash} | changed
    return asyncio.run(forge.post_review_comment("o/r", pr, line=line, body=body, **place)).url


def test_a_commit_keeps_the_number_it_was_given(forge: LocalForge, repository: Path) -> None:
    (repository / "new.py").write_text("y = 1\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "one more")
    again = LocalForge(Repository(repository), forge.store, repo="o/r")
    pulls = again.open_pull_requests(again.repository.last_commits(2))
    assert [(pull.number, pull.title) for pull in pulls] == [(3, "change 2"), (4, "one more")]


def test_the_same_words_on_the_same_hunk_are_one_comment(forge: LocalForge) -> None:
    first = post(forge)
    assert post(forge, line=2) == first
    assert post(forge, body="[rule] other words") != first
    assert post(forge, pr=2) != first
    assert [comment.id for comment in forge.comments()] == [1, 2, 3]
    assert forge.comments()[0].url == first


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"line": 11}, r"Line 11 is not in hunk \w+, which shows lines 1 to 10 of file0.py"),
        ({"hunk_hash": "0" * 12}, "no hunk '000000000000' in 'file0.py'"),
        ({"path": "file9.py"}, "no hunk .* in 'file9.py'"),
    ],
)
def test_a_comment_beside_the_diff_is_refused_in_a_sentence(
    forge: LocalForge, changed: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ForgeError, match=sentence):
        post(forge, **changed)  # type: ignore[arg-type]
    assert forge.comments() == []


def test_what_reviewers_say_of_a_comment_is_kept(forge: LocalForge) -> None:
    post(forge)
    post(forge, body="[rule] other words")
    said = Opinion("bad", "we do this on purpose", "reply", "ann")
    forge.judge(2, said)
    assert forge.judged() == {2: said}
    assert asyncio.run(forge.opinions(1, [1, 2])) == {2: said}
    assert asyncio.run(forge.opinions(1, [1])) == {}
    with pytest.raises(ForgeError, match="no comment 3; it has 2"):
        forge.judge(3, said)


def test_a_file_of_before_opinions_were_kept_still_reads(forge: LocalForge) -> None:
    post(forge)
    state = json.loads(forge.store.read_text())
    del state["opinions"]
    forge.store.write_text(json.dumps(state))
    assert forge.judged() == {}
    forge.judge(1, Opinion("good", "resolved", "resolved"))
    assert forge.judged()[1].verdict == "good"


def test_an_unknown_pull_request_is_said(forge: LocalForge) -> None:
    for repo, number in (("o/r", 99), ("o/other", 1)):
        with pytest.raises(ForgeError, match=f"no pull request {repo}#{number}"):
            asyncio.run(forge.diff(repo, number))


def test_files_that_make_a_diff_too_long_are_left_out_and_named(
    forge: LocalForge, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "big list.txt").write_text("word\n" * 500)
    (repository / "small.py").write_text("x = 1\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "big")
    (pull,) = forge.open_pull_requests(forge.repository.last_commits(1))
    monkeypatch.setattr(diff_module, "MAX_DIFF_LINES", 100)
    diff = asyncio.run(forge.diff("o/r", pull.number))
    assert notes_of(diff) == ["big list.txt, too long (506 lines)"]
    assert [hunk.path for hunk in hunks(diff)] == ["small.py"]


def test_a_file_that_is_not_the_forges_is_left_alone(forge: LocalForge) -> None:
    for text in ("not json", "[]", "{}", ""):
        forge.store.write_text(text)
        with pytest.raises(ForgeError, match="is not a forge's file"):
            forge.open_pull_requests(forge.repository.last_commits(1))
        assert forge.store.read_text() == text


def test_a_write_that_fails_leaves_the_file_as_it_was(forge: LocalForge, monkeypatch: pytest.MonkeyPatch) -> None:
    post(forge)
    before = forge.store.read_text()

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        post(forge, body="[rule] more")
    assert forge.store.read_text() == before
    assert sorted(path.name for path in forge.store.parent.iterdir()) == [
        "comments.json",
        "comments.json.lock",
    ]


def _post_many(repository: Path, store: Path, writer: int) -> None:
    forge = LocalForge(Repository(repository), store, repo="o/r")
    for number in range(5):
        post(forge, body=f"[rule] from {writer}: {number}")
        post(forge, body=f"[rule] from all: {number}")


def test_writers_in_several_processes_lose_nothing_and_repeat_nothing(forge: LocalForge, repository: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_post_many, args=(repository, forge.store, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    bodies = [comment.body for comment in forge.comments()]
    assert len(bodies) == len(set(bodies)) == 3 * 5 + 5
    assert [comment.id for comment in forge.comments()] == list(range(1, 21))
    assert json.loads(forge.store.read_text())["pulls"].keys() == {"1", "2", "3"}
