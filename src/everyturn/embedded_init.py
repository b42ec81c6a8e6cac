"""Making a data directory, and refusing one that this Postgres cannot open."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .embedded_place import MAJOR, SUPERUSER, Place, binary
from .embedded_process import run
from .errors import DatabaseUnavailable

_COMPLETE = "everyturn-complete"

_SETTINGS = {
    "timezone": "UTC",
    "log_timezone": "UTC",
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    # The WAL is kept small and reused, so that a full disk is met by data files, which is an error, and
    # seldom by the WAL, which stops the server.
    "min_wal_size": "80MB",
    "max_wal_size": "512MB",
    "jit": "off",
    # The log of the server never holds users' data: statements, values and row details stay out of it.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}


def ensure_data(place: Place, starting: int) -> None:
    """Make the data directory unless it is there; `starting` is the lock that the caller holds.

    initdb works in a directory of its own, which is then moved into place with PG_VERSION last: killed at any
    instant, the next start either finishes the move or begins again.
    """
    made = place.initialising
    if place.version_file.exists():
        _check_version(place)
        if made.exists():
            shutil.rmtree(made, ignore_errors=True)
        return
    if not (made / _COMPLETE).exists():
        shutil.rmtree(made, ignore_errors=True)
        _initdb(place, made, starting)
        (made / _COMPLETE).touch()
    for entry in sorted(made.iterdir(), key=lambda path: path.name == "PG_VERSION"):
        if entry.name != _COMPLETE:
            entry.rename(place.directory / entry.name)
    _sync(place.directory)
    shutil.rmtree(made, ignore_errors=True)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_version(place: Place) -> None:
    found = place.version_file.read_text(errors="replace").strip()
    if found != str(MAJOR):
        raise DatabaseUnavailable(
            f"The database in {place.directory} was made by Postgres {found or '(unknown)'}, and everyturn "
            "runs "
            f"Postgres {MAJOR}. Its files were not touched. {_way_out(found)}"
        )
    if not (place.directory / "global" / "pg_control").exists():
        raise DatabaseUnavailable(
            f"The database in {place.directory} is incomplete (global/pg_control is missing), as after an "
            "interrupted initdb or copy. Nothing was changed. Delete the directory to start "
            "afresh, or restore it from a copy."
        )


def _way_out(found: str) -> str:
    """What to do about a data directory of another major version."""
    if found.isdigit() and int(found) > MAJOR:
        return "Install the everyturn that made it, or a newer one: `pip install --upgrade everyturn`."
    programs = binary("postgres").parents[2] / "pginstall" / "bin"
    pg_ctl = "pg_ctl" if found != "16" or not programs.exists() else str(programs / "pg_ctl")
    return (
        f"To move it: start it with the programs of Postgres {found or 'of that version'} "
        f"(`{pg_ctl} -D DIRECTORY -o '-k /tmp' -l /tmp/log start`), run `everyturn db dump` with "
        "EVERYTURN_DATABASE='postgresql://postgres@/everyturn?host=/tmp', stop it, and run `everyturn db restore` "
        "with EVERYTURN_DATABASE set to a new directory."
    )


def _initdb(place: Place, target: Path, starting: int) -> None:
    argv = [str(binary("initdb")), "-D", str(target), "-U", SUPERUSER, "--auth=trust", "--auth-host=reject"]
    argv += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    argv += ["--text-search-config=english", "--no-instructions"]
    for name, value in _SETTINGS.items():
        argv += ["--set", f"{name}={value}"]
    os.chmod(place.directory, 0o700)
    # initdb keeps the start lock should this process die: the next start waits for it rather than meet it.
    done: subprocess.CompletedProcess[str] = run(place, argv, pass_fds=(starting,))
    if done.returncode == 0:
        return
    shutil.rmtree(target, ignore_errors=True)
    output = done.stdout.strip()
    if "No space left" in output:
        raise DatabaseUnavailable(
            f"The disk of {place.directory} is full: a new database needs about 40 MB. Free some space and try again."
        )
    if "user does not exist" in output or "could not look up effective user" in output:
        raise DatabaseUnavailable(
            f"Postgres cannot make a database for uid {place.uid}, which has no entry in /etc/passwd. Add "
            "one, "
            f"for instance `echo 'everyturn:x:{place.uid}:{place.gid}::/:/bin/false' >> /etc/passwd` in the "
            "image. "
            "A database directory that exists already works without it."
        )
    raise DatabaseUnavailable(f"The database in {place.directory} could not be made: {_last_lines(output)}")


def _last_lines(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    return " / ".join(errors[-3:] or lines[-3:]) or "initdb said nothing"
