"""The embedded server among processes that come, go and are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from embedded_helpers import User, parent_of, postmaster, servers_of, soon, words

from everyturn import embedded
from everyturn.embedded_place import locate
from everyturn.embedded_process import run
from everyturn.errors import DatabaseUnavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at other processes through /proc")


def test_six_processes_race_the_first_start(tmp_path: Path) -> None:
    """field case 129: all connect, and to one server."""
    users = [User(tmp_path / "new", f"word {n}") for n in range(6)]
    for user in users:
        user.wait_ready()
    with embedded.start(tmp_path / "new") as server:
        assert words(server.url) == [f"word {n}" for n in range(6)]
    for user in users:
        assert servers_of(tmp_path / "new")
        assert user.end() == 0
    assert servers_of(tmp_path / "new") == []


def test_the_server_stops_when_its_last_user_is_killed(tmp_path: Path) -> None:
    user = User(tmp_path / "data", "kept")
    user.wait_ready()
    user.kill()
    assert soon(lambda: not servers_of(tmp_path / "data"))
    with embedded.start(tmp_path / "data") as server:
        assert words(server.url) == ["kept"]


@pytest.mark.parametrize("pause", [0, 1])
def test_owner_and_postmaster_killed_then_started_at_once(tmp_path: Path, pause: float) -> None:
    """field case 127: the dead pid may still answer, and the next start comes all the same."""
    user = User(tmp_path / "data", "acknowledged")
    user.wait_ready()
    pid = postmaster(tmp_path / "data")
    user.process.kill()
    os.kill(pid, signal.SIGKILL)
    time.sleep(pause)
    with embedded.start(tmp_path / "data") as server:
        assert words(server.url) == ["acknowledged"]
    user.kill()


def test_every_process_of_the_server_killed_while_used(tmp_path: Path) -> None:
    """field case 127: the process that lives on starts it again, at the same URL."""
    with embedded.start(tmp_path / "data") as server:
        url = server.url
        for _ in range(2):
            for pid in [parent_of(postmaster(tmp_path / "data")), *servers_of(tmp_path / "data")]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.ensure_running()
            assert server.url == url
            with psycopg.connect(url):
                pass
        server.ensure_running()


def test_the_keeper_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as server:
        os.kill(parent_of(postmaster(tmp_path / "data")), signal.SIGKILL)
        assert soon(lambda: not servers_of(tmp_path / "data"))
        server.ensure_running()
    assert servers_of(tmp_path / "data") == []


def test_a_stale_pid_file_that_names_somebody_else(tmp_path: Path) -> None:
    """field case 127: the process it names is never signalled, and does not keep the server from starting."""
    with embedded.start(tmp_path / "data"):
        lines = (tmp_path / "data" / "postmaster.pid").read_text().splitlines()
    stranger = subprocess.Popen(["sleep", "60"])
    with embedded.start(tmp_path / "other") as other:
        for pid in (stranger.pid, os.getpid(), postmaster(tmp_path / "other"), 1, 4194303):
            (tmp_path / "data" / "postmaster.pid").write_text("\n".join([str(pid), *lines[1:]]) + "\n")
            with embedded.start(tmp_path / "data"):
                assert postmaster(tmp_path / "data") != pid
        with psycopg.connect(other.url):
            pass
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("rubbish", ["", "\n", "not a pid\n", "-5\n/x\n", "99999999999999999999\n", "\0" * 40])
def test_a_damaged_pid_file(tmp_path: Path, rubbish: str, made: Path) -> None:
    """field case 127: whatever a crash left in it."""
    shutil.copytree(made, tmp_path / "data", symlinks=True)
    (tmp_path / "data" / "postmaster.pid").write_text(rubbish)
    with embedded.start(tmp_path / "data"):
        pass


def test_the_pid_file_deleted_while_the_server_lives(tmp_path: Path) -> None:
    """field case 135: the second start attaches; there is never a second server on the files."""
    with embedded.start(tmp_path / "data") as server:
        pid = postmaster(tmp_path / "data")
        (tmp_path / "data" / "postmaster.pid").unlink()
        user = User(tmp_path / "data", "from the second")
        user.wait_ready()
        assert words(server.url) == ["from the second"]
        # It is back: without it the server would shut itself down within a minute.
        assert postmaster(tmp_path / "data") == pid
        assert user.end() == 0
        (tmp_path / "data" / "postmaster.pid").unlink()
        server.ensure_running()
        assert postmaster(tmp_path / "data") == pid
    assert servers_of(tmp_path / "data") == []


def test_a_copy_of_a_running_directory_is_another_database(tmp_path: Path) -> None:
    """field case 135: the copied pid file names a server that lives, on other files."""
    with embedded.start(tmp_path / "data") as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore_dangling_symlinks=True)
        with embedded.start(tmp_path / "copy") as copy:
            assert copy.url != server.url
        with psycopg.connect(server.url):
            pass


def test_a_server_started_by_hand_is_used_and_left_running(tmp_path: Path) -> None:
    """field case 135: a server that somebody runs on the directory is theirs to stop."""
    with embedded.start(tmp_path / "data"):
        pass
    place = locate(tmp_path / "data")
    pg_ctl = [str(embedded.binary("pg_ctl")), "-D", str(place.directory), "-w"]
    started = run(place, [*pg_ctl, "-o", f"-k {place.directory}", "-l", str(place.log), "start"])
    assert started.returncode == 0, started.stdout
    try:
        with embedded.start(tmp_path / "data") as server, psycopg.connect(server.url):
            pass
        assert servers_of(tmp_path / "data")
    finally:
        assert run(place, [*pg_ctl, "-m", "fast", "stop"]).returncode == 0


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    user = User(tmp_path / "data", "before", start_new_session=True)
    user.wait_ready()
    with embedded.start(tmp_path / "data") as server:
        os.killpg(user.process.pid, signal.SIGINT)
        user.process.communicate()
        with psycopg.connect(server.url):
            pass


def test_a_forked_child_does_not_stop_the_server(tmp_path: Path) -> None:
    code = """
import os, sys, psycopg
from everyturn import embedded
server = embedded.start(sys.argv[1])
for leave in (lambda: sys.exit(0), server.close, lambda: os._exit(0)):
    child = os.fork()
    if child == 0:
        leave()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    psycopg.connect(server.url).close()
child = os.fork()
if child == 0:
    with embedded.start(sys.argv[1]) as again:
        psycopg.connect(again.url).close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
psycopg.connect(server.url).close()
"""
    directory = str(tmp_path / "data")
    done = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert servers_of(tmp_path / "data") == []


def test_first_start_killed_at_any_moment(tmp_path: Path) -> None:
    """field case 129: a half-made directory is made again."""
    for number, pause in enumerate((0.1, 0.25, 0.4)):
        directory = tmp_path / str(number)
        user = User(directory, start_new_session=True)
        time.sleep(pause)
        os.killpg(user.process.pid, signal.SIGKILL)
        user.process.communicate()
    for number in range(3):
        with embedded.start(tmp_path / str(number)) as server, psycopg.connect(server.url):
            pass


@pytest.mark.parametrize("moved", [0, 5, 100])
def test_killed_while_the_new_database_is_moved_into_place(tmp_path: Path, made: Path, moved: int) -> None:
    """field case 129: the next start finishes the move, or makes the database again."""
    data = tmp_path / "data"
    shutil.copytree(made, data, symlinks=True)
    initialising = data / "everyturn" / "init"
    initialising.mkdir()
    names = sorted(path for path in data.iterdir() if path.name != "everyturn")
    for path in sorted(names, key=lambda path: path.name != "PG_VERSION")[: len(names) - moved]:
        path.rename(initialising / path.name)
    if moved < 100:
        (initialising / "everyturn-complete").touch()
    with embedded.start(data) as server, psycopg.connect(server.url):
        pass
    assert not initialising.exists()


def test_the_socket_directory_removed_while_the_server_lives(tmp_path: Path) -> None:
    """A cleaner of temporary files may do that."""
    with embedded.start(tmp_path / "data") as server:
        with psycopg.connect(server.url) as connection:
            row = connection.execute("SHOW unix_socket_directories").fetchone()
        assert row is not None
        shutil.rmtree(row[0])
        server.ensure_running()
        with psycopg.connect(server.url):
            pass


def test_a_start_lock_that_never_comes_free_is_reported(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everyturn.embedded.LONGEST_START", 0.05)
    shutil.copytree(made, tmp_path / "data", symlinks=True)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / "data" / "everyturn" / "start.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DatabaseUnavailable, match="Another process"):
            embedded.start(tmp_path / "data")
        holder.communicate(b"\n")
