"""Running Postgres programs as the right user, and telling whose a process is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .embedded_place import Place, binary
from .errors import DatabaseUnavailable

_KEEPER = Path(__file__).with_name("embedded_keeper.py")
_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2


def environment() -> dict[str, str]:
    """What a server and initdb see of the environment: nothing that could change what they do."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}


def run(place: Place, argv: Sequence[str], *, pass_fds: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program to its end as the user the server runs as."""
    command = list(argv)
    if os.geteuid() != place.uid:
        command = [*_python(), _spec(place, "run", argv)]
    return subprocess.run(
        command,
        env=environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        pass_fds=pass_fds,
        check=False,
        start_new_session=True,
    )


def launch(place: Place, argv: Sequence[str], sockets: Path, server_lock: int, log: int) -> None:
    """Start a server and its keeper. The open file `server_lock`, with its lock, goes to the server."""
    spec = _spec(place, "keep", argv, users=str(place.users), sockets=str(sockets), server_lock=server_lock)
    subprocess.run(
        [*_python(), spec],
        env=environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(server_lock,),
        check=True,
        start_new_session=True,
    )


def _python() -> list[str]:
    """The interpreter that runs the keeper. An application that embeds Python may not be one itself."""
    candidates = [sys.executable or "", getattr(sys, "_base_executable", None) or ""]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix in (sys.prefix, sys.base_prefix):
        candidates += [os.path.join(prefix, "bin", name) for name in (version, "python3", "python")]
    for path in candidates:
        if os.path.basename(path).startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return [path, "-I", "-S", str(_KEEPER)]
    raise DatabaseUnavailable(
        "The embedded Postgres needs a Python interpreter to start it, and none was found near "
        f"{sys.prefix}. Name a "
        " running server with EVERYTURN_DATABASE=postgresql://…"
    )


def _spec(place: Place, mode: str, argv: Sequence[str], **more: object) -> str:
    return json.dumps(
        {
            "mode": mode,
            "argv": list(argv),
            "environment": environment(),
            "uid": place.uid,
            "gid": place.gid,
            "capability": _capability(place),
            **more,
        }
    )


def _capability(place: Place) -> int | None:
    """Which capability a server started by root needs to reach its files and programs, if any.

    A directory such as /root keeps other users out. Its mode is the user's business, so instead the server
    may pass through directories (and read files) whatever their mode.
    """
    if os.geteuid() == place.uid:
        return None
    closed = [path for path in (place.directory, binary("postgres")) if not _reachable(path, place)]
    if not closed:
        return None
    held = int(_status_field("CapPrm"), 16) & int(_status_field("CapBnd"), 16)
    for capability in (_CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE):
        if held >> capability & 1:
            return capability
    raise DatabaseUnavailable(
        f"The server runs as uid {place.uid}, since Postgres refuses root, and may not pass through "
        f"{closed[0].parent}. Put the database where every user may pass, such as /var/lib/everyturn, or "
        "run as an ordinary user."
    )


def _reachable(path: Path, place: Place) -> bool:
    for parent in path.parents:
        info = parent.stat()
        shift = 6 if info.st_uid == place.uid else 3 if info.st_gid == place.gid else 0
        if not info.st_mode >> shift & 1:
            return False
    return True


def _status_field(name: str) -> str:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return line.split()[1]
    except OSError:
        pass
    return "0"


def is_server_of(pid: int, directory: Path) -> bool:
    """Whether the process is a living Postgres on this data directory: a pid alone may be anybody's."""
    proc = Path("/proc", str(pid))
    if Path("/proc/self").exists():
        try:
            return (proc / "comm").read_text().strip() == "postgres" and os.path.samefile(proc / "cwd", directory)
        except OSError:
            return False
    command = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return "postgres" in command and str(directory) in command


_open_locks: set[int] = set()


def _close_in_child() -> None:
    """A child forked in the middle of a start must not hold on to that start."""
    for descriptor in _open_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[None]:
    """Close an open file in the end, unless that was done inside, and in every child forked meanwhile."""
    _open_locks.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _open_locks:
            _open_locks.remove(descriptor)
            os.close(descriptor)


def lock(path: Path, kind: int, *, seconds: float, place: Place) -> int | None:
    """Open a file and take its lock, or return None when others held it for so long."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        place.own(path)
        got = wait_for(lambda: _try_lock(descriptor, kind), seconds)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise DatabaseUnavailable(
                f"The file system of {path} cannot lock files ({error.strerror}). "
                "Put the database directory on a local disk."
            ) from error
        raise
    if got:
        return descriptor
    os.close(descriptor)
    return None


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether somebody holds the exclusive lock of the file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again, quickly at first."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    return True
