"""A database of its own for the example project, on the server that the tests use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.conf import settings
from psycopg import sql

from example_project.embedded import ROOT

Manage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def shop_url() -> Iterator[str]:
    """The DATABASE_URL of an empty database, dropped in the end."""
    server = settings.DATABASES["default"]
    account = f"{server['USER']}:{server['PASSWORD']}".removesuffix(":")
    port = f":{server['PORT']}" if server["PORT"] else ""
    name = f"awa_example_{os.getpid()}"
    where = {
        "host": server["HOST"],
        "port": server["PORT"],
        "user": server["USER"],
        "password": server["PASSWORD"],
    }
    connect = {key: value for key, value in where.items() if value}
    with psycopg.connect(**connect, dbname="postgres", autocommit=True) as connection:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        socket_or_host = (
            f"{port}/{server['HOST']}" if server["HOST"].startswith("/") else f"{server['HOST']}{port}"
        )
        yield f"postgres://{account}@{socket_or_host}/{name}"
        connection.execute(drop)


@pytest.fixture(scope="module")
def shop_environment(shop_url: str) -> dict[str, str]:
    """The environment of the example project's processes."""
    inherited = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return inherited | {"DATABASE_URL": shop_url, "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}


@pytest.fixture(scope="module")
def manage(shop_environment: dict[str, str]) -> Manage:
    """Runs ``manage.py`` as a user does, from the repository's root, on a migrated database."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "example_project/manage.py", *arguments],
            cwd=ROOT,
            env=shop_environment,
            capture_output=True,
            text=True,
            timeout=200,
        )

    migrated = run("migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return run
