"""Databases for tests: made from templates, named after the run, dropped when it ends.

A *run* is one pytest command with all its xdist processes. A template is made once per run by whichever
process comes first, under an advisory lock of the server; the others wait for it. A run that was killed
leaves its databases behind; the next run drops those that are hours old.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "awatest_"
#: Inherited by the xdist processes, so that all of them mean the same run.
RUN = os.environ.setdefault("AWA_TEST_RUN", f"{int(time.time()):08x}{secrets.token_hex(2)}")
LEFTOVER_AFTER = 6 * 3600
#: Seconds for one command, such as a migrate on a machine that has other things to do.
PATIENCE = 180

_numbers = itertools.count(1)


def address(url: str, dbname: str | None = None, **changes: str) -> str:
    """The URL of another database of the same server, or of the same one with other parameters, in the form
    that libpq and the awa client read.

    A socket's folder goes into the query: as a host it has no form that both read.
    """
    parts = {key: str(value) for key, value in conninfo_to_dict(url).items()} | changes
    dbname = parts.pop("dbname", "postgres") if dbname is None else dbname
    parts.pop("dbname", None)
    host, port = parts.pop("host", ""), parts.pop("port", "5432")
    user, password = parts.pop("user", ""), parts.pop("password", "")
    if not host or host.startswith("/"):
        parts |= {"host": host} if host else {}
        host = "localhost"
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    query = f"?{urlencode(parts, quote_via=quote)}" if parts else ""
    return f"postgresql://{login}{'@' if login else ''}{host}:{port}/{quote(dbname, safe='')}{query}"


def new_name(word: str) -> str:
    """A database name that no other process of any run uses."""
    return f"{PREFIX}{RUN}_{os.getpid()}_{next(_numbers)}_{word}"


def create(server_url: str, name: str, *, template: str | None = None, owner: str | None = None) -> str:
    """Make a database and return its URL."""
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    if owner is not None:
        statement += sql.SQL(" OWNER {}").format(sql.Identifier(owner))
    _execute(server_url, statement)
    return address(server_url, name)


def drop(server_url: str, name: str) -> None:
    """Drop a database with every session that is in it."""
    _execute(server_url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(server_url: str, statement: sql.Composed) -> None:
    """Make, rename or drop a database, also when a session takes longer to end than the server waits for it."""
    until = time.monotonic() + PATIENCE
    with psycopg.connect(server_url, autocommit=True) as connection:
        while True:
            try:
                connection.execute(statement)
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > until:
                    raise


@contextlib.contextmanager
def scratch(
    server_url: str, word: str, *, template: str | None = None, owner: str | None = None
) -> Iterator[str]:
    """The URL of a database that lives as long as the block."""
    name = new_name(word)
    url = create(server_url, name, template=template, owner=owner)
    try:
        yield url
    finally:
        drop(server_url, name)


def template(server_url: str, word: str, fill: Callable[[str], None]) -> str:
    """The name of this run's template database ``word``, made and filled on first use."""
    name = f"{PREFIX}{RUN}_{word}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (zlib.crc32(name.encode()),))
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
            return name
        unfinished = new_name(f"{word}_unfinished")
        fill(create(server_url, unfinished))
        _execute(
            server_url,
            sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                sql.Identifier(unfinished), sql.Identifier(name)
            ),
        )
    return name


def drop_run(server_url: str) -> None:
    """Drop every database and role of this run, and those that killed runs left behind hours ago."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        for name in _of_ended_runs(connection, "SELECT datname FROM pg_database"):
            drop(server_url, name)
        for name in _of_ended_runs(connection, "SELECT rolname FROM pg_roles"):
            connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def _of_ended_runs(connection: psycopg.Connection, names: LiteralString) -> list[str]:
    found = [row[0] for row in connection.execute(names) if row[0].startswith(PREFIX)]
    runs = {name: name.removeprefix(PREFIX).partition("_")[0] for name in found}
    return [name for name, run in runs.items() if run == RUN or _age(run) > LEFTOVER_AFTER]


def _age(run: str) -> float:
    try:
        return time.time() - int(run[:8], 16)
    except ValueError:
        return 0.0


def manage(
    url: str, *arguments: str, settings: str = "tests.settings", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a management command as its own process, with the database at ``url`` as the project's own."""
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=check,
    )


def awa_cli(url: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the real ``awa`` command line against a database."""
    return subprocess.run(
        [Path(sys.executable).with_name("awa"), *arguments],
        cwd=ROOT,
        # Its warnings, such as one of a statement that took a second, would stand in front of what it answers.
        env={**os.environ, "DATABASE_URL": url, "RUST_LOG": "error"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=check,
    )


def migrate(url: str, *, settings: str = "tests.settings") -> None:
    """Make a database what ``manage.py migrate`` makes of it."""
    done = manage(url, "migrate", "--run-syncdb", "--verbosity", "0", settings=settings, check=False)
    if done.returncode:
        raise AssertionError(f"migrate failed on {url}:\n{done.stdout}{done.stderr}")


def migrate_with_awa(url: str) -> None:
    """Install the schema with the real awa client."""
    awa_cli(url, "migrate")
