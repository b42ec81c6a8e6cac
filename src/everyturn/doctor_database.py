"""What this role has and may do in this database: pgvector, the schema, the settings of the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from .doctor_findings import Finding, miss, ok, row, said, warn
from .doctor_server import pgvector_way_out
from .errors import MigrationError
from .migrate import DATABASE_SETTINGS, applied, migrations, pending

_NEEDED = (0, 8)


async def privileges(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    schema, may, temporary, role = await row(
        conn,
        "SELECT current_schema(), has_schema_privilege(current_schema(), 'CREATE'), "
        "has_database_privilege(current_database(), 'TEMP'), quote_ident(current_user)",
    )
    if schema is None:
        way_out = f"CREATE SCHEMA everyturn AUTHORIZATION {role}; ALTER ROLE {role} SET search_path = everyturn;"
        return [miss("privileges", "the role's search_path names no schema that exists", way_out)]
    if not may:
        detail = f"the role {role} may not create tables in the schema {schema}"
        if (await row(conn, "SELECT to_regclass('agent_turns')"))[0] is not None:
            return [ok("privileges", detail + ", and uses those that are there")]
        return [miss("privileges", detail, f"As its owner: GRANT CREATE ON SCHEMA {schema} TO {role};")]
    if not temporary:
        detail = "the role may not create temporary tables, so the findings below are not reliable"
        return [warn("privileges", detail, f"GRANT TEMPORARY ON DATABASE … TO {role};")]
    return [ok("privileges", f"the role {role} may create tables in the schema {schema}")]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


async def extension(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    """pgvector: there, new enough, and if it is not created yet, whether this role may."""
    way_out = await pgvector_way_out(conn)
    (installed,) = await row(conn, "SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    (available,) = await row(conn, "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")
    found = installed or available
    if found is None:
        return [miss("pgvector", "the server does not have it", way_out)]
    if _number(found) < _NEEDED:
        detail = f"version {found} is older than 0.8, which brought iterative scans"
        if available is not None and _number(available) >= _NEEDED:
            return [warn("pgvector", detail, "ALTER EXTENSION vector UPDATE;")]
        return [warn("pgvector", detail, way_out)]
    if installed is None:
        try:
            async with conn.transaction(force_rollback=True):
                await conn.execute("CREATE EXTENSION vector")
        except psycopg.Error as error:
            detail = f"version {found} is there but not in this database, and the role may not add it: {said(error)}"
            return [miss("pgvector", detail, "As a superuser, in this database: CREATE EXTENSION vector;")]
        return [ok("pgvector", f"version {found}, created with the first connection")]
    return [ok("pgvector", f"version {found}")]


async def search_settings(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    """The settings that fill a filtered search: set for the database, or settable by this role."""
    name = "search settings"
    (database,) = await row(conn, "SELECT quote_ident(current_database())")
    if (await row(conn, "SELECT to_regtype('vector')"))[0] is None:
        return [warn(name, "set with pgvector, which this database does not have yet", "See pgvector.")]
    await conn.execute("SELECT '[1]'::vector")
    wrong = {}
    for setting, wanted in DATABASE_SETTINGS.items():
        (value,) = await row(conn, "SELECT current_setting(%s, true)", setting)
        if value != wanted:
            wrong[setting] = wanted
    if not wrong:
        return [ok(name, ", ".join(f"{setting} = {value}" for setting, value in DATABASE_SETTINGS.items()))]
    alter = f"ALTER DATABASE {database} SET"
    commands = " ".join(f"{alter} {setting} = '{value}';" for setting, value in wrong.items())
    try:
        async with conn.transaction(force_rollback=True):
            for setting, value in wrong.items():
                statement = "ALTER DATABASE {} SET {} = {}"
                await conn.execute(
                    sql.SQL(statement).format(
                        sql.SQL(database), sql.Identifier(*setting.split(".")), sql.Literal(value)
                    )
                )
    except psycopg.Error as error:
        detail = f"not set for the database, and the role may not: {said(error)}"
        return [warn(name, detail, f"As the owner of the database: {commands}")]
    detail = f"not set for the database: {', '.join(wrong)}"
    return [warn(name, detail, f"everyturn db migrate (or: {commands})")]


async def migrations_state(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    """Whether the tables of the contract are there, and of this version."""
    name = "schema"
    try:
        done = await applied(conn)
        left = pending(done)
    except MigrationError as error:
        return [miss(name, str(error), "everyturn db dump, then everyturn db restore into a new database")]
    if not done and (await row(conn, "SELECT to_regclass('agent_turns')"))[0] is not None:
        detail = "there is a table agent_turns that everyturn did not make"
        return [warn(name, detail, "Use a schema or a database of its own, or rename that table.")]
    if left:
        state = f"{len(left)} of {len(left) + len(done)} migrations are to be applied" if done else "not made yet"
        return [warn(name, state, "everyturn db migrate (the first connection does it too)")]
    newer = set(done) - {name for name, _ in migrations()}
    if newer:
        detail = f"migrated by a newer everyturn ({', '.join(sorted(newer))})"
        return [warn(name, detail, "pip install --upgrade everyturn")]
    return [ok(name, f"all {len(done)} migrations applied")]
