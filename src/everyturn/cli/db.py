"""`everyturn db`: the database itself."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyturn.cli.command import (
    DatabaseOption,
    Session,
    Settings,
    command,
    noun,
    pending_migrations,
)
from everyturn.cli.exits import CHECK_FAILED, OK
from everyturn.cli.filters import (
    AgentOption,
    ConversationOption,
    EmbedderOption,
    JsonOption,
    argument,
    embedder_named,
    readable,
)
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.times import parse_time
from everyturn.errors import InvalidValue

if TYPE_CHECKING:
    pass

app = noun("The database itself: set up, look after, move.")


@command(app, "init")
async def init(session: Session, json: JsonOption = False) -> None:
    """Set up the database: its directory and server when it is an embedded one, and the tables.

    Does nothing to a database that is set up already.
    """
    with session.place() as place:
        done = await _migrate(place.url)
        if json:
            session.out.json({"database": place.shown, "applied": done})
        else:
            session.out.line("Set up." if done else "Already set up.")


@command(app, "migrate")
async def migrate(
    session: Session,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 when migrations are due.")] = False,
    json: JsonOption = False,
) -> int:
    """Bring the tables to this version of everyturn."""
    with session.place() as place:
        names = await pending_migrations(place.url) if check else await _migrate(place.url)
    if json:
        session.out.json({"pending" if check else "applied": names})
    elif names:
        for name in names:
            session.out.line(f"{'pending' if check else 'applied'}\t{name}")
    else:
        session.out.note("Nothing to apply.")
    return CHECK_FAILED if check and names else OK


async def _migrate(url: str) -> list[str]:
    from everyturn.database import Database

    db = Database(url)
    try:
        return await db.migrate()
    finally:
        await db.close()


@command(app, "url")
async def url(session: Session) -> None:
    """Print the database's URL, as psql takes it. A password in it is printed too.

    The server of an embedded database runs only while some process uses it: `everyturn db shell` does.
    """
    with session.place() as place:
        session.out.line(place.url)


@command(app, "status")
async def status(session: Session, json: JsonOption = False) -> int:
    """Show what the database is, whether its tables are up to date, and how much is in them.

    Exits 1 when migrations are due.
    """
    out = session.out
    with session.place() as place:
        from everyturn.database import Database

        db = Database(place.url)
        try:
            due = await pending_migrations(place.url)
            server = (await db.query("server_facts"))[0]
            tables = [] if due else await db.query("database_status")
            facts = {"database": place.shown, "embedded": place.embedded, **server, "pending": due}
        finally:
            await db.close()
    if json:
        out.json({**facts, "tables": tables})
    else:
        out.fields({**facts, "pending": ", ".join(due) or "none"})
        out.fields({f"rows of {table['name']}": f"{table['rows']} ({_size(table['bytes'])})" for table in tables})
    if due:
        out.warn("The tables are not those of this version; run `everyturn db migrate`.")
    return CHECK_FAILED if due else OK


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


@command(app, "dump")
async def dump(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Write the whole database to a file, as one snapshot, for `everyturn db restore` on any server.

    The file is a pg_dump archive; only its owner may read it.
    """
    from everyturn.transfer import dump

    with session.place() as place, session.out.working("Dumping"):
        await dump(place.url, file, overwrite=overwrite)
    session.out.note(f"Wrote {file} ({_size(file.stat().st_size)}).")


@command(app, "restore")
async def restore(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `db dump`.", show_default=False)],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what the database holds; without it, it must be empty.")
    ] = False,
) -> None:
    """Fill the database from a file of `everyturn db dump`, all or nothing."""
    from everyturn.transfer import restore

    with session.place() as place, session.out.working("Restoring"):
        await restore(place.url, file, replace=replace)
    session.out.note(f"Restored {file}.")


@command(app, "reembed")
async def reembed(
    session: Session,
    embedder: EmbedderOption = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Texts for each call of the embedder.")
    ] = 256,
    json: JsonOption = False,
) -> int:
    """Give every row that has a text a vector of this embedder: rows that are owed one, or all after a change.

    It may be interrupted, and goes on from there. Exits 1 when the embedder made no vector of some texts.
    """
    from everyturn.embed import resolve
    from everyturn.reembed import reembed

    made = resolve(embedder_named(embedder))
    if made is None:
        raise InvalidValue("There is no embedder to make vectors with. Name one with --embedder.")
    async with session.database(embedder=False) as db:
        with session.out.counting("Embedding") as count:
            done = await reembed(
                db, made, batch=batch, progress=lambda step: count(f"{step.table} {step.done} of {step.total}")
            )
    if json:
        session.out.json(asdict(done))
    else:
        session.out.fields(
            {"embedder": done.embedder, "dimensions": done.dimensions}
            | {f"vectors made for {table}": number for table, number in done.vectors.items()}
            | {f"still owed in {table}": number for table, number in done.owed.items() if number}
        )
    return CHECK_FAILED if any(done.owed.values()) else OK


@command(app, "prune")
async def prune(
    session: Session,
    older_than: Annotated[
        datetime | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only what is from before then: an age (30m, 90d, 8w), a date or an ISO 8601 time.",
            parser=argument(parse_time),
        ),
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=1, metavar="N", help="Keep the last N turns of each conversation.")
    ] = None,
    agent: AgentOption = None,
    conversation: ConversationOption = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only turns of this run.", parser=readable)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove old turns and their verdicts, in batches. It may be interrupted, and goes on from there.

    All conditions given must hold, and exchanges are kept or removed whole. What a memory that still exists is made
    from stays; cases and datasets are not touched.
    """
    async with session.database(embedder=False) as db:
        with session.out.counting("Pruning") as count:
            done = await db.turns.prune(
                older_than=older_than,
                keep_last=keep_last,
                agent=agent,
                conversation=conversation,
                run_id=run,
                dry_run=dry_run,
                progress=lambda so_far: count(f"{so_far.turns:,} turns of {so_far.conversations:,} conversations"),
            )
    if json:
        session.out.json({**asdict(done), "dry_run": dry_run})
    else:
        session.out.fields({**asdict(done), "bytes": f"{done.bytes} ({_size(done.bytes)})"})


FINDINGS = [
    Column("status"),
    Column("name"),
    Column("detail", flexible=True),
    Column("way_out", only_piped=True),
]


@command(app, "doctor")
async def doctor(
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="The database; like --database.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Report, feature by feature, what of the contract a server can hold, with a way out for each miss.

    Every feature is tried, and nothing stays behind. Exits 1 when something is missed.
    """
    from everyturn.doctor import diagnose

    out = session.out
    session.settings = session.settings.over(target, False)
    with session.place() as place:
        findings = await diagnose(place.url)

    async def found() -> AsyncGenerator[list[Row]]:
        yield [asdict(finding) for finding in findings]

    await out.listing(FINDINGS, found(), limit=None, json=json)
    if out.terminal and not json:
        for finding in findings:
            if finding.way_out is not None:
                out.line(f"\n{finding.name}: {finding.detail}.\n  {finding.way_out}")
    return CHECK_FAILED if any(finding.status == "miss" for finding in findings) else OK


@app.command(
    "shell",
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": ["--help"],
    },
)
def shell(ctx: typer.Context, database: DatabaseOption = None) -> None:
    """Open psql on the database. What follows is passed to psql: `everyturn db shell -c "select …"`.

    Exits as psql does.
    """
    from everyturn.embedded import binary

    settings = (ctx.find_root().obj or Settings()).over(database, False)
    session = Session(settings, Output(quiet=settings.quiet))
    with session.place() as place:
        session.out.flush()
        code = _run_interruptibly([str(binary("psql")), *ctx.args], place.url)
    raise typer.Exit(code)


def _run_interruptibly(command_line: list[str], url: str) -> int:
    """Run a program that shares the terminal: Ctrl-C is its to deal with, and the server must outlive it."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    parts = conninfo_to_dict(url)
    # Everybody on the machine can read a program's arguments, only its owner can read its environment.
    environment = {**os.environ, "PGPASSWORD": str(parts.pop("password"))} if "password" in parts else None
    program, *arguments = command_line
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run(
            [program, f"--dbname={make_conninfo('', **parts)}", *arguments], env=environment, check=False
        ).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code
