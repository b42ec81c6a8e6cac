"""Moving a whole database between the embedded server and any other: `dump` to a file, `restore` from it.

The file is a pg_dump archive of the schema that holds the tables of the contract. A restore is one transaction: the
tables that are there are replaced by those of the file, or nothing has changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .embedded_place import binary
from .errors import DatabaseUnavailable, TransferError
from .migrate import apply_database_settings, migrate, migrations

_CREATED = re.compile(r"^CREATE (?:OR REPLACE )?(TABLE|FUNCTION) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_TOC_TURNS = re.compile(r"^\d+; \d+ \d+ TABLE (.+) agent_turns .*$", re.MULTILINE)
_CHUNK = 1 << 20


async def dump(url: str, path: Path | str, *, overwrite: bool = False) -> None:
    """Write the database behind a libpq URL to a file, as one consistent snapshot."""
    target = Path(path)
    if target.is_dir():
        raise TransferError(f"{target} is a directory. Name the file to write.")
    if target.exists() and not overwrite:
        raise TransferError(
            f"The file {target} exists already. Name another, or say that it is to be replaced: --overwrite."
        )
    async with await _connect(url) as conn:
        schema = await _schema(conn)
        if schema is None:
            raise TransferError(f"There is no table agent_turns in {_shown(url)}, so there is nothing to dump.")
    partial = target.with_name(target.name + ".partial")
    try:
        # The log of agents is private: the file is made for its owner only.
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        options = ["--format=custom", "--no-owner", "--no-privileges", f"--schema={_pattern(schema)}"]
        await _run([*_program("pg_dump", url), *options, f"--file={partial}"], url)
        partial.replace(target)
    except OSError as error:
        raise TransferError(f"The file {target} cannot be written: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


async def restore(url: str, path: Path | str, *, replace: bool = False) -> None:
    """Put a dump into the database behind a libpq URL, bring it to this version, and set the search settings.

    Refuses a database that holds turns, verdicts, memories or cases already, unless `replace` is true: then they are
    gone afterwards.
    """
    source = Path(path)
    schema = await _schema_of_dump(source)
    async with await _connect(url) as conn:
        await _refuse_filled(conn, url, replace)
        await _need_vector(conn)
        before = await _clearing(conn)
        before.append(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)};")
        old_server = conn.info.server_version < 170000
    await _pipe(source, url, before, old_server)
    async with await _connect(url) as conn:
        await conn.execute(sql.SQL("SET search_path TO {}, public").format(sql.Identifier(schema)))
        await migrate(conn)
        # Settings of a database are not part of a dump of it.
        await apply_database_settings(conn)
        await conn.execute("ANALYZE")


async def _connect(url: str) -> AsyncConnection[Any]:
    try:
        return await AsyncConnection.connect(url, autocommit=True, prepare_threshold=None, connect_timeout=10)
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"No connection to {_shown(url)}: {' '.join(str(error).split())}") from error


async def _schema(conn: AsyncConnection[Any]) -> str | None:
    """The schema that holds the contract, found as a query finds it."""
    cursor = await conn.execute(
        "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('agent_turns')"
    )
    found = await cursor.fetchone()
    return None if found is None else str(found[0])


def _contract(kind: str) -> list[str]:
    """The names of the tables or functions that the migrations make."""
    found = [match[2] for _, text in migrations() for match in _CREATED.finditer(text) if match[1] == kind]
    return list(dict.fromkeys([*found, "everyturn_migrations"] if kind == "TABLE" else found))


async def _refuse_filled(conn: AsyncConnection[Any], url: str, replace: bool) -> None:
    filled = []
    for table in _contract("TABLE"):
        if table == "everyturn_migrations" or not await _exists(conn, table):
            continue
        cursor = await conn.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(table)))
        if await cursor.fetchone() is not None:
            filled.append(table)
    if filled and not replace:
        raise TransferError(
            f"The database {_shown(url)} is not empty: there are rows in {', '.join(filled)}. Nothing was changed. "
            "Restore into an empty database, or say that what is there is to be replaced: --replace."
        )


async def _exists(conn: AsyncConnection[Any], table: str) -> bool:
    cursor = await conn.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
    found = await cursor.fetchone()
    return found is not None and bool(found[0])


async def _need_vector(conn: AsyncConnection[Any]) -> None:
    try:
        await conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error as error:
        raise TransferError(
            f"The server cannot hold the vectors of the dump: {error.diag.message_primary}. "
            "`everyturn db doctor` says what to install or whom to ask."
        ) from error


async def _clearing(conn: AsyncConnection[Any]) -> list[str]:
    """Statements that remove the contract from the database, and nothing that is the user's own.

    Without CASCADE: a view of the user on our tables is a reason to stop.
    """
    tables = [table for table in _contract("TABLE") if await _exists(conn, table)]
    statements = [f"DROP TABLE {', '.join(tables)};"] if tables else []
    cursor = await conn.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = ANY(%s) AND pg_function_is_visible(oid)",
        [_contract("FUNCTION")],
    )
    functions = [str(row[0]) for row in await cursor.fetchall()]
    if functions:
        statements.append(f"DROP FUNCTION {', '.join(functions)};")
    return statements


def _refuse_other_files(source: Path) -> None:
    try:
        with open(source, "rb") as file:
            magic = file.read(5)
    except OSError as error:
        raise TransferError(f"The file {source} cannot be read: {error.strerror}.") from error
    if magic != b"PGDMP":
        raise TransferError(f"The file {source} is not a dump made by `everyturn db dump` (a pg_dump archive).")


async def _schema_of_dump(source: Path) -> str:
    _refuse_other_files(source)
    try:
        contents = await _run([str(binary("pg_restore")), "--list", str(source)], "")
    except TransferError as error:
        raise TransferError(f"The dump {source} is cut short or damaged; nothing was changed. {error}") from error
    found = _TOC_TURNS.search(contents)
    if found is None:
        raise TransferError(f"The dump {source} holds no table agent_turns, so it is not of an everyturn database.")
    return found[1]


async def _pipe(source: Path, url: str, before: Sequence[str], old_server: bool) -> None:
    """pg_restore writes SQL, psql runs it together with the clearing as one transaction."""
    with tempfile.TemporaryDirectory() as scratch:
        contents = Path(scratch, "contents")
        listed = await _run([str(binary("pg_restore")), "--list", str(source)], "")
        contents.write_text("".join(line for line in listed.splitlines(True) if " SCHEMA - " not in line))
        reading = [str(binary("pg_restore")), "--no-owner", "--no-privileges", f"--use-list={contents}"]
        writer = await _start([*reading, "--file=-", str(source)], "", stdin=None)
        options = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--file=-"]
        reader = await _start([*_program("psql", url), *options], url, stdin=asyncio.subprocess.PIPE)
        assert writer.stdout is not None
        assert reader.stdin is not None
        complaints = asyncio.gather(_drain(reader), _drain(writer, out=False))
        try:
            reader.stdin.write("\n".join([*before, ""]).encode())
            preamble = True
            while preamble and (line := await writer.stdout.readline()):
                # Postgres 16 and older do not know this setting of newer ones.
                if not (old_server and line.startswith(b"SET transaction_timeout")):
                    reader.stdin.write(line)
                preamble = not line.startswith(b"CREATE ")
            while chunk := await writer.stdout.read(_CHUNK):
                reader.stdin.write(chunk)
                await reader.stdin.drain()
            if await writer.wait() != 0:
                # What psql has got so far is not complete: it must not commit.
                reader.kill()
            reader.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            with suppress(ProcessLookupError):
                writer.kill()
        finally:
            said = await complaints
            failed = [await process.wait() for process in (reader, writer)]
        if any(failed):
            raise TransferError(_restore_failed(said, url))


def _restore_failed(said: Sequence[str], url: str) -> str:
    text = _without_password(" ".join(said), url)
    reason = re.search(r"ERROR:\s+(.*)", text) or re.search(r"error: (.*)", text)
    advice = "Run `everyturn db doctor` on that database."
    if "cannot drop" in text or "depends on" in text:
        advice = "Something of yours depends on the tables: drop it, restore, and make it again."
    elif "space" in text:
        advice = "Free some space there and restore again."
    return (
        f"The restore into {_shown(url)} failed and nothing was changed: "
        f"{(reason[1] if reason else text).strip()[:500] or 'the program was stopped'}. {advice}"
    )


async def _drain(process: asyncio.subprocess.Process, *, out: bool = True) -> str:
    streams = [stream for stream in (process.stderr, process.stdout if out else None) if stream is not None]
    return " ".join([(await stream.read()).decode(errors="replace") for stream in streams]).strip()


async def _start(command: Sequence[str], url: str, *, stdin: int | None) -> asyncio.subprocess.Process:
    password = _password(url)
    environment = {**os.environ, "LC_ALL": "C", "PGCLIENTENCODING": "UTF8"}
    if password is not None:
        environment["PGPASSWORD"] = password
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        limit=1 << 24,
    )


async def _run(command: Sequence[str], url: str) -> str:
    process = await _start(command, url, stdin=None)
    try:
        out, complaints = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        said = _without_password(" ".join(complaints.decode(errors="replace").split()), url)
        advice = ""
        if "server version mismatch" in said:
            advice = " The server is newer than this everyturn: upgrade it, or use the server's own pg_dump."
        elif "No space left" in said:
            advice = " The disk is full: free some space, or write elsewhere."
        raise TransferError(f"{Path(command[0]).name} failed: {said[:500]}.{advice}")
    return out.decode(errors="replace")


def _program(name: str, url: str) -> list[str]:
    """A program and where it connects to. What is secret in the URL goes through the environment instead."""
    parts = conninfo_to_dict(url)
    if "sslpassword" in parts:
        raise TransferError("A URL with sslpassword cannot be given to pg_dump safely. Use a key without a password.")
    parts.pop("password", None)
    return [str(binary(name)), "--no-password", f"--dbname={make_conninfo('', **parts)}"]


def _password(url: str) -> str | None:
    password = conninfo_to_dict(url).get("password") if url else None
    return None if password is None else str(password)


def _without_password(text: str, url: str) -> str:
    password = _password(url)
    return text.replace(password, "***") if password else text


def _shown(url: str) -> str:
    parts = conninfo_to_dict(url)
    return f"{parts.get('dbname', 'the default database')} on {parts.get('host', 'this machine')}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _pattern(schema: str) -> str:
    """A schema name as pg_dump's option takes it, where letters like * and ? would match others."""
    return _quoted(schema.strip('"').replace('""', '"'))
