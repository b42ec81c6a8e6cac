"""What every command shares: the database option, the streams, and running an `async def` as a command."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from everyturn.cli.output import Output
from everyturn.errors import MigrationError

if TYPE_CHECKING:
    from everyturn.database import Database

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        "-d",
        metavar="TARGET",
        help="A Postgres URL, or a directory for an embedded database. "
        "Default: EVERYTURN_DATABASE, else the embedded database of this user.",
        show_default=False,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not say which database is in use.")]

Command = TypeVar("Command", bound=Callable[..., Awaitable[int | None]])


@dataclass(frozen=True)
class Settings:
    """The options that stand before the noun, or after the verb."""

    database: str | None = None
    quiet: bool = False

    def over(self, database: str | None, quiet: bool) -> Settings:
        """These settings, where given again after the verb."""
        return replace(self, database=self.database if database is None else database, quiet=quiet or self.quiet)


@dataclass(frozen=True)
class Place:
    """A database that can be connected to."""

    url: str
    shown: str
    """Where it is, without a password."""
    embedded: bool


@dataclass
class Session:
    """One command at work."""

    settings: Settings
    out: Output = field(default_factory=Output)

    @contextmanager
    def place(self) -> Iterator[Place]:
        """The database this command works on; an embedded server runs until the block ends.

        Which database it is, is said once on stderr.
        """
        from everyturn.connection import without_password
        from everyturn.target import resolve

        where = resolve(self.settings.database)
        if isinstance(where, str):
            place = Place(where, without_password(where), embedded=False)
            self.out.note(f"Database: {place.shown}")
            yield place
            return
        from everyturn import embedded

        with embedded.start(where or embedded.default_directory()) as server:
            place = Place(server.url, f"embedded in {server.directory}", embedded=True)
            self.out.note(f"Database: {place.shown}")
            yield place

    @asynccontextmanager
    async def database(self, *, embedder: Any = None, redact: Any = None) -> AsyncIterator[Database]:
        """The database, brought to this version's schema: for commands that write."""
        from everyturn.database import connect

        with self.place() as place:
            async with connect(place.url, embedder=embedder, redact=redact) as db:
                yield db

    @asynccontextmanager
    async def as_it_is(self, *, embedder: Any = False) -> AsyncIterator[Database]:
        """The database, for commands that only read: the schema of a server is left as it is.

        An embedded database belongs to whoever runs the command, and is brought to this version's schema.
        `embedder` is False where no vector is needed.
        """
        from everyturn.database import Database
        from everyturn.embed import resolve

        with self.place() as place:
            due = [] if place.embedded else await pending_migrations(place.url)
            if due:
                raise MigrationError(
                    f"The tables of this database are not those of this version of everyturn ({len(due)} migrations "
                    "are due). Run `everyturn db migrate`, or name another database with --database."
                )
            db = Database(place.url, embedder=resolve(embedder) if embedder is not False else None)
            try:
                if place.embedded:
                    await db.migrate()
                await db.vectors.adopt(explicit=embedder is not None)
                yield db
            finally:
                await db.close()


async def pending_migrations(url: str) -> list[str]:
    """The migrations a database still needs. Raises DatabaseUnavailable and MigrationError."""
    import psycopg

    from everyturn.connection import unreachable
    from everyturn.migrate import applied, pending

    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            return pending(await applied(conn))
    except psycopg.OperationalError as error:
        raise unreachable(url, error) from error


def noun(help: str) -> typer.Typer:
    """The command group of one noun."""
    app = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    app.callback()(_group)  # a group even when it has one verb
    return app


def _group() -> None:
    pass


def command(app: typer.Typer, name: str, **options: Any) -> Callable[[Command], Command]:
    """Register `async def verb(session, …) -> exit code | None` under a noun; adds the common options."""

    def register(function: Command) -> Command:
        app.command(name, **options)(_as_command(function))
        return function

    return register


def _as_command(function: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    def run(ctx: typer.Context, database: str | None, quiet: bool, **arguments: Any) -> None:
        import asyncio  # a tenth of the time that --help takes

        settings = (ctx.find_root().obj or Settings()).over(database, quiet)
        session = Session(settings, Output(quiet=settings.quiet))
        try:
            code = asyncio.run(_awaited(function(session, **arguments)))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        finally:
            session.out.flush()
        raise typer.Exit(code or 0)

    hints = get_type_hints(function, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=keyword)
        for parameter in list(inspect.signature(function).parameters.values())[1:]
    ]
    parameters = [
        inspect.Parameter("ctx", keyword, annotation=typer.Context),
        *own,
        inspect.Parameter("database", keyword, default=None, annotation=DatabaseOption),
        inspect.Parameter("quiet", keyword, default=False, annotation=QuietOption),
    ]
    # What Typer reads: the command's own parameters between the context and the common options.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = function.__doc__
    run.__name__ = function.__name__
    return run


async def _awaited(coroutine: Awaitable[int | None]) -> int | None:
    return await coroutine
