"""The process that keeps one embedded Postgres server; run as a script, standard library only.

In mode `run` it becomes the service user and executes a command. In mode `keep` it detaches from its
starter, is the parent of the server, and waits for the exclusive lock of the users file. Every user of the
server holds that file's shared lock, so the kernel grants the exclusive one when the last of them is gone,
however it went. The server is then told to stop. Only this process signals the server, and only as its
parent: the pid of a child cannot have passed to somebody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
LINUX_CAPABILITY_VERSION_3 = 0x20080522

FAST_SHUTDOWN_SECONDS = 60.0


class ServerGone(Exception):
    """The server ended by itself."""


class ToldToStop(Exception):
    """Somebody asks the keeper to end, for instance the machine going down."""


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _prctl(option: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def become(uid: int, gid: int, capability: int | None) -> None:
    """Drop from root to `uid` for good. At most one capability is kept; the program run next inherits it."""
    if os.geteuid() == uid:
        return
    if capability is not None:
        _prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capability is not None:
        header = _CapabilityHeader(LINUX_CAPABILITY_VERSION_3, 0)
        bit = 1 << capability
        sets = (_CapabilitySets * 2)(_CapabilitySets(bit, bit, bit), _CapabilitySets(0, 0, 0))
        if ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), sets) != 0:
            raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def _execute(spec: dict[str, Any]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    argv = [os.fsencode(argument) for argument in spec["argv"]]
    os.execve(argv[0], argv, {os.fsencode(k): os.fsencode(v) for k, v in spec["environment"].items()})


def _server(spec: dict[str, Any], keeper: int) -> None:
    """In the server's process: become the service user, tie its life to the keeper's, execute Postgres."""
    try:
        become(spec["uid"], spec["gid"], spec["capability"])
        if sys.platform == "linux":
            # A keeper killed with -9 takes the server along, by a fast and clean shutdown.
            _prctl(PR_SET_PDEATHSIG, signal.SIGINT)
            if os.getppid() != keeper:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _execute(spec)
    except BaseException as error:
        print(f"FATAL:  cannot run {spec['argv'][0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _remove(directory: str) -> None:
    """The socket directory, which a server that ended well leaves empty."""
    with contextlib.suppress(OSError):
        os.rmdir(os.fsencode(directory))


def _stop(child: int) -> None:
    """Fast shutdown; an immediate one (crash recovery at the next start) when that does not end."""
    os.kill(child, signal.SIGINT)
    deadline = time.monotonic() + FAST_SHUTDOWN_SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGQUIT)
            deadline += FAST_SHUTDOWN_SECONDS
        time.sleep(0.002)


def keep(spec: dict[str, Any]) -> None:
    """Start the server, wait until nobody uses it, stop it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    users = os.open(os.fsencode(spec["users"]), os.O_RDWR | os.O_CLOEXEC)
    handled = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _server(spec, keeper)
    os.close(spec["server_lock"])

    def on_child(_signal: int, _frame: FrameType | None) -> None:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            signal.pthread_sigmask(signal.SIG_BLOCK, handled)
            raise ServerGone

    def on_told(_signal: int, _frame: FrameType | None) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        raise ToldToStop

    signal.signal(signal.SIGCHLD, on_child)
    signal.signal(signal.SIGTERM, on_told)
    signal.signal(signal.SIGINT, on_told)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        fcntl.flock(users, fcntl.LOCK_EX)
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    except ServerGone:
        return
    except ToldToStop:
        pass
    _stop(child)
    _remove(spec["sockets"])


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec["mode"] == "keep":
        keep(spec)
        return
    try:
        become(spec["uid"], spec["gid"], spec["capability"])
        _execute(spec)
    except OSError as error:
        sys.exit(f"cannot run {spec['argv'][0]}: {error}")


if __name__ == "__main__":
    main()
