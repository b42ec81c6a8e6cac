"""Odd directories, users and disks."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import psycopg_binary
import pytest
import typing_extensions

from everyturn import embedded, embedded_place
from everyturn.errors import DatabaseUnavailable

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it runs the server as other users")

LIBRARIES = [Path(module.__file__).parents[1] for module in (psycopg, typing_extensions, psycopg_binary)]
LIBRARIES += [Path(embedded.__file__).parents[1]]


def open_to_others(path: Path) -> bool:
    return path.exists() and all(parent.stat().st_mode & 0o1 for parent in path.resolve().parents)


def interpreter() -> Path:
    """One of this version that any user may run: a virtual environment of root may lead to /root."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = (Path(sys.executable), Path("/usr/bin", name), Path("/usr/local/bin", name))
    return next(filter(open_to_others, candidates), Path(sys.executable))


PROGRAM = """
import sys, psycopg
from everyturn import embedded
from everyturn.errors import DatabaseUnavailable
try:
    directory = sys.argv[1] if len(sys.argv) > 1 else embedded.default_directory()
    with embedded.start(directory) as server, psycopg.connect(server.url) as connection:
        print(connection.execute("SELECT current_database()").fetchone()[0])
except DatabaseUnavailable as error:
    print(error)
"""


def run_as(uid: int | None, *arguments: str | Path, **environment: str) -> str:
    """What a process of that uid prints, with nothing in its environment but what is given."""
    done = subprocess.run(
        [interpreter(), "-W", "error", "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(map(str, LIBRARIES)),
            **environment,
        },
        cwd="/",
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "a'quote",
        'a"double',
        "a?b&c=d%20e#f",
        "日本語 é 🐘",
        "$(touch x) `id` $HOME",
        "back\\slash",
        "comma, colon: semi; @",
        "-D",
        "new\nline" if sys.platform != "linux" else "tab\tin it",
        "d" * 150,
        f"{'e' * 120}/{'é' * 60}",
        os.fsdecode(b"not utf-8 \xff\xfe"),
    ],
)
def test_any_path(tmp_path: Path, made: Path, name: str) -> None:
    """field case 124, field case 125: long paths, and every character a path may hold."""
    directory = tmp_path / name
    directory.parent.mkdir(exist_ok=True)
    made.rename(directory)
    try:
        with embedded.start(directory) as server:
            command = [embedded.binary("psql"), server.url, "-Atc", "SELECT current_database()"]
            assert subprocess.check_output(command, text=True) == "everyturn\n"
            with psycopg.connect(server.url):
                pass
    finally:
        directory.rename(made)
    # Nothing that a shell would have made of the name was made beside it.
    assert {path.name for path in tmp_path.iterdir()} <= {name.split("/")[0]}


@pytest.mark.parametrize("name", ["a b'c\"d?&%é$(x)", "l" * 200])
def test_first_start_in_any_path(tmp_path: Path, name: str) -> None:
    """field case 124, field case 125: initdb too."""
    with embedded.start(tmp_path / name) as server, psycopg.connect(server.url):
        pass


def test_an_odd_temporary_directory(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 124, field case 125: the socket goes where its path is short and plain."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for number, name in enumerate(("t" * 100, "a, b", "plain")):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        shutil.copytree(made, tmp_path / str(number), symlinks=True)
        with embedded.start(tmp_path / str(number)) as server, psycopg.connect(server.url):
            pass


def test_a_squatted_socket_directory(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's directory, or a link, under our name is not used."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    shutil.copytree(made, tmp_path / "data", symlinks=True)
    place = embedded_place.locate(tmp_path / "data")
    first = embedded_place.socket_directory(place)
    first.rmdir()
    first.symlink_to(tmp_path)
    second = embedded_place.socket_directory(place)
    assert second != first
    second.chmod(0o777)
    with embedded.start(tmp_path / "data") as server, psycopg.connect(server.url) as connection:
        row = connection.execute("SHOW unix_socket_directories").fetchone()
    assert row is not None
    assert row[0] not in (str(first), str(second))
    first.unlink()
    second.rmdir()


@pytest.mark.parametrize(("version", "advice"), [("16", "everyturn db dump"), ("19", "pip install"), ("", "dump")])
def test_a_directory_of_another_major_version(tmp_path: Path, made: Path, version: str, advice: str) -> None:
    """field case 131: a message with the way out, and the data untouched."""
    data = tmp_path / "data"
    shutil.copytree(made, data, symlinks=True)
    (data / "PG_VERSION").write_text(f"{version}\n")
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*") if "everyturn" not in path.parts}
    with pytest.raises(DatabaseUnavailable, match=advice):
        embedded.start(data)
    assert {p: p.stat().st_mtime_ns for p in data.rglob("*") if "everyturn" not in p.parts} == before


def test_a_half_made_directory_of_an_interrupted_initdb(tmp_path: Path) -> None:
    """field case 131: it says what to do and changes nothing."""
    data = tmp_path / "data"
    (data / "base").mkdir(parents=True)
    with pytest.raises(DatabaseUnavailable, match="not empty"):
        embedded.start(data)
    (data / "PG_VERSION").write_text("18\n")
    with pytest.raises(DatabaseUnavailable, match="incomplete"):
        embedded.start(data)


def test_a_directory_with_other_contents_is_left_alone(tmp_path: Path) -> None:
    """field case 131: a project directory given by mistake."""
    (tmp_path / "thesis.tex").write_text("years of work")
    before = (tmp_path.stat().st_uid, tmp_path.stat().st_mode)
    with pytest.raises(DatabaseUnavailable, match="Nothing was changed"):
        embedded.start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert (tmp_path.stat().st_uid, tmp_path.stat().st_mode) == before


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(DatabaseUnavailable, match="cannot be"):
            embedded.start(path)


def test_an_existing_empty_directory_and_a_link(tmp_path: Path) -> None:
    """field case 125: a mount point or a directory with open permissions; a link to one."""
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with embedded.start(tmp_path / "link") as server, embedded.start(tmp_path / "data") as same:
        assert server.url == same.url


@root_only
def test_root_changes_nothing_but_the_directory(tmp_path: Path) -> None:
    """field case 126: no OS user is made, no parent is opened; the files belong to an unprivileged user."""
    users = pwd.getpwall()
    (tmp_path / "closed").mkdir(mode=0o700)
    with embedded.start(tmp_path / "closed" / "data") as server, psycopg.connect(server.url):
        pid = (tmp_path / "closed" / "data" / "postmaster.pid").read_text().split("\n")[0]
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{server.directory.stat().st_uid}\t" in status
        # It may pass through closed directories and read; nothing else of root is left to it.
        effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
        assert int(effective.split()[1], 16) in (0, 1 << 2)
    assert pwd.getpwall() == users
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "closed").stat().st_uid == 0
    assert (tmp_path / "closed" / "data").stat().st_uid != 0


@root_only
def test_root_on_a_directory_that_root_copied(tmp_path: Path, made: Path) -> None:
    """field case 126: a backup put back by root."""
    subprocess.run(["cp", "-r", "--no-preserve=ownership", made, tmp_path / "data"], check=True)
    assert (tmp_path / "data" / "PG_VERSION").stat().st_uid == 0
    with embedded.start(tmp_path / "data") as server, psycopg.connect(server.url):
        pass


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may write; those of pytest are closed to others."""
    path = Path("/tmp", f"everyturn-test-{os.getpid()}")
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


needs_others = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(open_to_others, (interpreter(), *LIBRARIES))),
    reason="needs root, and Python and everyturn where other users may read them",
)


@needs_others
def test_an_unprivileged_user_and_root_after_it(open_directory: Path) -> None:
    """field case 126: the directory stays its owner's, whoever starts the server."""
    nobody = pwd.getpwnam("nobody").pw_uid
    directory = open_directory / "data"
    assert run_as(nobody, directory, HOME="/nonexistent") == "everyturn"
    assert run_as(None, directory) == "everyturn"
    assert directory.stat().st_uid == nobody
    assert run_as(nobody, directory) == "everyturn"


@needs_others
def test_a_uid_without_an_entry_and_without_a_home(open_directory: Path, made: Path) -> None:
    """field case 134: an existing directory works; a new one works or names the way out."""
    uid = 54321
    with suppress(KeyError):
        pwd.getpwuid(uid)
        pytest.skip("this system has a user with the uid of the test")
    said = run_as(uid, open_directory / "new")
    assert said == "everyturn" or "/etc/passwd" in said
    data = open_directory / "data"
    shutil.copytree(made, data, symlinks=True)
    for parent, directories, files in os.walk(data):
        for name in (*directories, *files):
            os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)
    os.chown(data, uid, uid)
    assert run_as(uid, data) == "everyturn"
    assert "EVERYTURN_DATABASE" in run_as(uid)
    assert "EVERYTURN_DATABASE" in run_as(uid, HOME="/root")
    (open_directory / "closed").mkdir(mode=0o755)
    assert "cannot be" in run_as(uid, open_directory / "closed" / "data")


@needs_others
def test_somebody_elses_directory_is_refused(open_directory: Path, made: Path) -> None:
    """field case 134: a message, not a permission error from deep below."""
    shutil.copytree(made, open_directory / "data", symlinks=True)
    assert "uid" in (said := run_as(pwd.getpwnam("nobody").pw_uid, open_directory / "data")) or "cannot be" in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100m", "everyturn-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and the right to mount a small file system")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Take every byte of the disk."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 1024 * 1024)
    with suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(b"\0")


def insert_until_it_fails(url: str) -> int:
    """How many inserts were acknowledged."""
    acknowledged = 0
    insert = "INSERT INTO kept SELECT %s, string_agg(random()::text, '') FROM generate_series(1, 4000)"
    with suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
        while acknowledged < 10_000:
            connection.execute(insert, [acknowledged])
            acknowledged += 1
    return acknowledged


def test_a_full_disk(small_disk: Path, made: Path) -> None:
    """field case 132: an error, nothing acknowledged is lost, and it works again once there is space."""
    directory = small_disk / "data"
    shutil.copytree(made, directory, symlinks=True)
    filler = small_disk / "filler"
    with embedded.start(directory) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int, filling text)")
        fill(filler)
        acknowledged = insert_until_it_fails(server.url)
        assert acknowledged < 10_000
        filler.unlink()
        server.ensure_running()
        with psycopg.connect(server.url, autocommit=True) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (acknowledged,)
            connection.execute("INSERT INTO kept VALUES (-1, '')")


def test_no_space_for_a_start(small_disk: Path) -> None:
    """field case 132: neither for a new database nor for a server."""
    filler = small_disk / "filler"
    with open(filler, "wb") as file:
        file.write(b"\0" * 80 * 1024 * 1024)
    with pytest.raises(DatabaseUnavailable, match="full"):
        embedded.start(small_disk / "new")
    filler.unlink()
    with embedded.start(small_disk / "new"):
        pass
    fill(filler)
    said = ""
    try:
        embedded.start(small_disk / "new").close()
    except DatabaseUnavailable as error:
        said = str(error)
    assert said == "" or "full" in said or "space" in said
    filler.unlink()
    with embedded.start(small_disk / "new") as server, psycopg.connect(server.url):
        pass
