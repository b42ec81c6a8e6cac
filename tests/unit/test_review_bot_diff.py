"""The review bot's diffs: hunks, their hashes, and reading them from a git repository."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from review_bot_parts import diff as diff_module
from review_bot_parts.diff import UnreadableDiff, hunks, mark, notes_of, shortened
from review_bot_parts.patches import diff_of
from review_bot_parts.repository import Repository, RepositoryError

DIFF = """\
diff --git a/app.py b/app.py
index 1111111..2222222 100644
--- a/app.py
+++ b/app.py
@@ -1,4 +1,5 @@
 import os
 import re
-x = 1
+x = 2
+y = 3
 z = 4
@@ -20,3 +21,2 @@ def main():
 a
-b
 c
"""


def commit(repository: Path, files: Mapping[str, str | bytes], message: str = "change") -> None:
    for name, content in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", message)


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "a repo"
    path.mkdir()
    git(path, "init", "--quiet")
    return path


def test_a_hunk_knows_its_added_lines_by_their_number_in_the_new_file() -> None:
    (hunk,) = hunks(DIFF)
    assert (hunk.path, hunk.start) == ("app.py", 1)
    assert hunk.added == {3: "x = 2", 4: "y = 3"}
    assert [number for number, _, _ in hunk.lines] == [1, 2, 3, 4, 5]


def test_marking_names_each_hunk_in_its_header_and_changes_nothing_else() -> None:
    marked = mark(DIFF)
    (hunk,) = hunks(DIFF)
    assert f"@@ -1,4 +1,5 @@ hunk:{hunk.hash}\n" in marked
    assert " def main():" in marked
    assert mark(marked) == marked
    assert [each.hash for each in hunks(marked)] == [hunk.hash]
    assert [line for line in marked.splitlines() if not line.startswith("@@")] == [
        line for line in DIFF.splitlines() if not line.startswith("@@")
    ]


def test_the_hash_stays_when_lines_shift_and_when_far_context_changes() -> None:
    (hunk,) = hunks(DIFF)
    shifted = DIFF.replace("@@ -1,4 +1,5 @@", "@@ -101,4 +121,5 @@ class Other:")
    assert hunks(shifted)[0].hash == hunk.hash
    assert hunks(shifted)[0].added == {123: "x = 2", 124: "y = 3"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("+x = 2", "+x = 3"), ("-x = 1", "-x = 0"), ("app.py", "web.py"), (" z = 4", " z = 5")],
)
def test_the_hash_changes_with_the_change_the_path_and_the_next_line(old: str, new: str) -> None:
    assert hunks(DIFF.replace(old, new))[0].hash != hunks(DIFF)[0].hash


def test_the_same_change_twice_in_one_file_is_two_hunks() -> None:
    block = "@@ -{0},2 +{0},3 @@\n a\n+b\n c\n"
    diff = "--- a/f.txt\n+++ b/f.txt\n" + block.format(1) + block.format(50)
    first, second = hunks(diff)
    assert first.hash != second.hash


def test_what_is_no_diff_is_refused_in_a_sentence() -> None:
    with pytest.raises(UnreadableDiff, match="not a unified diff"):
        hunks("--- a/x\n+++ b/x\n@@ -1,5 +1,9 @@\n what\n")
    assert hunks("") == []


def test_a_repository_gives_its_last_commits_oldest_first(repository: Path) -> None:
    for number in range(4):
        commit(repository, {"a.py": f"x = {number}\n"}, f"change {number}")
    commits = Repository(repository).last_commits(3)
    assert [each.subject for each in commits] == ["change 1", "change 2", "change 3"]
    (hunk,) = hunks(Repository(repository).diff(commits[-1].sha))
    assert hunk.added == {1: "x = 3"}


def test_the_first_commit_is_a_diff_against_nothing(repository: Path) -> None:
    commit(repository, {"a.py": "x = 1\ny = 2\n"})
    (only,) = Repository(repository).last_commits(10)
    (hunk,) = hunks(Repository(repository).diff(only.sha))
    assert hunk.added == {1: "x = 1", 2: "y = 2"}


def test_a_repository_without_commits_has_none(repository: Path) -> None:
    assert Repository(repository).last_commits(10) == []


def test_a_shallow_clone_does_not_blame_its_oldest_commit_for_the_whole_tree(repository: Path, tmp_path: Path) -> None:
    for number in range(4):
        commit(repository, {"a.py": f"x = {number}\n"}, f"change {number}")
    for depth, subjects in (("3", ["change 2", "change 3"]), ("1", ["change 3"])):
        clone = tmp_path / f"clone{depth}"
        git(tmp_path, "clone", "--quiet", "--depth", depth, repository.as_uri(), str(clone))
        assert [each.subject for each in Repository(clone).last_commits(10)] == subjects


def test_odd_content_and_odd_names_are_read(repository: Path) -> None:
    odd: dict[str, str | bytes] = {
        "with space.py": "x = 1\n",
        "naïve-日本.py": "x = 'é'\n",
        'quo"te\ttab.py': "x = 1\n",
        "lines.py": "a = 1\x0c\nb = '\u2028\u0085'\rc\n",
        "latin.py": b"x = '\xe9'\n",
        "binary.bin": b"\0\1\2",
        "no-newline.py": "x = 1",
        "empty.py": "",
        "-- a dash.py": "++ b\n-- c\n",
    }
    commit(repository, odd)
    (only,) = Repository(repository).last_commits(1)
    found = {hunk.path: hunk.added for hunk in hunks(mark(Repository(repository).diff(only.sha)))}
    assert found["with space.py"] == {1: "x = 1"}
    assert found["naïve-日本.py"] == {1: "x = 'é'"}
    assert found["lines.py"] == {1: "a = 1\x0c", 2: "b = '\u2028\u0085'\rc"}
    assert found["latin.py"] == {1: "x = '\ufffd'"}
    assert found["no-newline.py"] == {1: "x = 1"}
    assert found["-- a dash.py"] == {1: "++ b", 2: "-- c"}
    assert len(found) == 7


def test_the_users_own_diff_settings_do_not_reach_the_diff(repository: Path) -> None:
    for key, value in {"diff.noprefix": "true", "color.diff": "always", "diff.context": "0"}.items():
        git(repository, "config", key, value)
    commit(repository, {"a.py": "a\nb\nc\n"})
    commit(repository, {"a.py": "a\nB\nc\n"})
    (hunk,) = hunks(Repository(repository).diff(Repository(repository).last_commits(1)[0].sha))
    assert (hunk.path, len(hunk.lines)) == ("a.py", 3)


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("https://github.com/octo/cat.git", "octo/cat"),
        ("git@github.com:octo/cat.git", "octo/cat"),
        ("ssh://git@git.example.org:2222/octo/cat", "octo/cat"),
        ("https://user:secret@gitlab.example.org/group/sub/cat.git", "group/sub/cat"),
    ],
)
def test_a_repository_is_named_after_its_origin(repository: Path, origin: str, name: str) -> None:
    git(repository, "remote", "add", "origin", origin)
    assert Repository(repository).name() == name


@pytest.mark.parametrize("origin", ["file:///srv/git/cat.git", "/srv/git/cat.git", "../cat"])
def test_an_origin_on_disk_is_a_name_of_its_own(repository: Path, origin: str) -> None:
    git(repository, "remote", "add", "origin", origin)
    assert Repository(repository).name().startswith("local/cat-")


def test_repositories_without_an_origin_are_told_apart(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / repository.name
    other.mkdir(parents=True)
    git(other, "init", "--quiet")
    names = {Repository(repository).name(), Repository(other).name()}
    assert len(names) == 2
    assert all(name.startswith("local/a-repo-") for name in names)


def test_what_is_no_repository_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="not a directory"):
        Repository(tmp_path / "nowhere")
    with pytest.raises(RepositoryError, match="not a git working copy"):
        Repository(tmp_path)


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (r"b/f\303\274r.py", "für.py"),
        (r"b/a\tb\nc.py", "a\tb\nc.py"),
        (r"b/say \"hi\" \\ there.py", 'say "hi" \\ there.py'),
        (r"b/\360\237\220\230.py", "🐘.py"),
        (r"b/\377.py", "\ufffd.py"),
    ],
)
def test_a_path_that_git_quotes_is_read(written: str, path: str) -> None:
    diff = f'diff --git "{written.replace("b/", "a/", 1)}" "{written}"\n'
    diff += f'new file mode 100644\n--- /dev/null\n+++ "{written}"\n@@ -0,0 +1 @@\n+x = 1\n'
    assert [hunk.path for hunk in hunks(mark(diff))] == [path]


def test_a_diff_is_shortened_by_whole_files_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_module, "MAX_DIFF_LINES", 20)
    big = "--- /dev/null\n+++ b/x\n@@ -0,0 +1,40 @@\n" + "+1\n" * 40
    diff = f'diff --git "a/\\303\\274" "b/\\303\\274"\n{big}{DIFF}diff --git a/b/c b/b/c\n{big}'
    short = shortened(diff, ["logo.png, binary"])
    assert notes_of(short) == ["logo.png, binary", "ü, too long (44 lines)", "b/c, too long (44 lines)"]
    assert [hunk.path for hunk in hunks(short)] == ["app.py"]
    assert short.endswith(DIFF)
    assert notes_of(DIFF.replace(" import os", " Left out: me")) == []


def test_a_diff_is_made_of_patches_as_git_would_write_it() -> None:
    """Any mix of kinds of files, names that git quotes among them, reads back as what it was."""
    patch = "@@ -1 +1 @@\n-a\n+b"
    files = [
        {"filename": "in.py", "status": "modified", "changes": 2, "patch": patch},
        {"filename": "with space.py", "status": "added", "changes": 1, "patch": "@@ -0,0 +1 @@\n+b"},
        {"filename": 'q".py', "previous_filename": "b\\s.py", "status": "renamed", "changes": 2, "patch": patch},
        {"filename": "copy.py", "previous_filename": "in.py", "status": "copied", "changes": 2, "patch": patch},
        {"filename": "gone.py", "status": "removed", "changes": 1, "patch": "@@ -1 +0,0 @@\n-a"},
        {"filename": "empty.py", "status": "removed", "changes": 0},
        {"filename": "image.png", "status": "added", "changes": 0},
        {"filename": "new.bin", "status": "changed", "changes": 0, "patch": None},
    ]
    text, left_out = diff_of(files)
    assert [hunk.path for hunk in hunks(text)] == ["in.py", "with space.py", 'q".py', "copy.py"]
    assert left_out == ["image.png, binary or empty", "new.bin, binary or empty"]
