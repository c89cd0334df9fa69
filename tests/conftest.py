"""Servers and databases for the whole suite.

``awa_database`` is a database that ``manage.py migrate`` made, ``oracle_database`` one that the real awa
client made; both are fresh in every test. Tests through Django's own connection use pytest-django's ``db``
and ``transactional_db``; after the latter the queue is emptied, because Django flushes no unmanaged table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from example_project import embedded
from tests import databases
from tests.settings import SERVER_URL


def pytest_configure(config: pytest.Config) -> None:
    # The address is that of the embedded server unless DATABASE_URL named one. Every process holds it.
    if embedded.server_for(durable=False).dsn("postgres") == SERVER_URL:
        embedded.ensure_started(durable=False, database="postgres")


def pytest_unconfigure(config: pytest.Config) -> None:
    if embedded.server_for(durable=False).dsn("postgres") == SERVER_URL:
        embedded.release(durable=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # the last to leave, with xdist as without
        databases.drop_run(SERVER_URL)


@pytest.fixture(scope="session")
def server_url() -> str:
    """The URL of a database to connect to for making others; its role is a superuser."""
    return databases.address(SERVER_URL, str(conninfo_to_dict(SERVER_URL).get("dbname") or "postgres"))


@pytest.fixture(scope="session")
def awa_template(server_url: str) -> str:
    """The name of a database with everything that ``manage.py migrate`` installs; for CREATE DATABASE."""
    return databases.template(server_url, "ours", databases.migrate)


@pytest.fixture(scope="session")
def oracle_template(server_url: str) -> str:
    """The name of a database in which the real awa client installed its schema."""
    return databases.template(server_url, "oracle", databases.migrate_with_awa)


@pytest.fixture
def awa_database(server_url: str, awa_template: str) -> Iterator[str]:
    """The URL of a fresh database with our schema: for psycopg, the awa client, and ``DATABASE_URL``."""
    with databases.scratch(server_url, "ours", template=awa_template) as url:
        yield url


@pytest.fixture
def oracle_database(server_url: str, oracle_template: str) -> Iterator[str]:
    """The URL of a fresh database with the schema as the real awa client installs it."""
    with databases.scratch(server_url, "oracle", template=oracle_template) as url:
        yield url


@pytest.fixture
def empty_database(server_url: str) -> Iterator[str]:
    """The URL of a fresh database with nothing in it."""
    with databases.scratch(server_url, "empty") as url:
        yield url


@pytest.fixture(scope="session")
def django_db_modify_db_settings(awa_template: str) -> None:
    """Let Django clone its test database, on which ``migrate`` then finds everything done."""
    test = connections["default"].settings_dict["TEST"]
    test["NAME"] = databases.new_name("django")
    test["TEMPLATE"] = awa_template


@pytest.fixture(autouse=True)
def _emptied_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("django_db")
    committing = {
        "transactional_db",
        "live_server",
        "django_db_reset_sequences",
        "django_db_serialized_rollback",
    }
    if not (marker and marker.kwargs.get("transaction")) and not committing & set(request.fixturenames):
        yield
        return
    from awa_django.testing import reset_queue

    request.getfixturevalue("transactional_db")
    yield
    reset_queue()


@pytest.fixture
def make_database(server_url: str, awa_template: str) -> Iterator[Callable[[], str]]:
    """A function that makes one more database with our schema, for tests that need several."""
    made: list[str] = []

    def make() -> str:
        made.append(databases.new_name("more"))
        return databases.create(server_url, made[-1], template=awa_template)

    yield make
    for name in made:
        databases.drop(server_url, name)
