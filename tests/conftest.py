"""Servers and databases for the whole suite.

``awa_database`` is a database that ``manage.py migrate`` made, ``oracle_database`` one that the real awa
client made; both are fresh in every test, which takes up to a second. ``emptied_database`` is one for all tests
of a process that leave its schema as it is, emptied before each. Tests through Django's own connection use
pytest-django's ``db`` and ``transactional_db``; after the latter the queue is emptied, because Django flushes no
unmanaged table, and Django's tables are emptied by :func:`flush`, because Django's own way takes longer than most
tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import psycopg
import pytest
from django.db import connections
from django.test import TransactionTestCase
from psycopg.conninfo import conninfo_to_dict

from example_project import embedded
from tests import databases
from tests.settings import SERVER_URL

# How long an example takes says more about what else the machine does than about what is tested.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "changes_schema: needs a database that no other test gets")
    # The address is that of the embedded server unless DATABASE_URL named one. Every process holds it.
    if embedded.server_for(durable=False).dsn("postgres") == SERVER_URL:
        embedded.ensure_started(durable=False, database="postgres")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together what shares something dear: see ``tests/together.py``."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.together import Scheduling

    return Scheduling(config, log)


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


#: What a test that borrows a database must not change: relations, rights, options, functions, triggers.
FINGERPRINT = """
    SELECT
        (
            SELECT sum(hashtextextended(concat_ws('/', oid, relname, reloptions, relacl), 0))
            FROM pg_class
            WHERE relnamespace = 'awa'::regnamespace AND relkind <> 'S'
        ),
        (
            SELECT sum(hashtextextended(concat_ws('/', oid, proname, prosrc, proconfig, proacl), 0))
            FROM pg_proc
            WHERE pronamespace = 'awa'::regnamespace
        ),
        (
            SELECT sum(hashtextextended(concat_ws('/', trigger.oid, tgname, tgenabled), 0))
            FROM pg_trigger AS trigger
            JOIN pg_class AS relation ON relation.oid = tgrelid
            WHERE relnamespace = 'awa'::regnamespace
        ),
        (
            SELECT sum(hashtextextended(concat_ws('/', attrelid, attnum, attname, atttypid, attnotnull), 0))
            FROM pg_attribute
            JOIN pg_class AS relation ON relation.oid = attrelid
            WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'p', 'v') AND attnum > 0
        ),
        (SELECT sum(version) FROM awa.schema_version)
"""


#: Sessions of processes that were killed, and the tables that handlers write to.
LEFT_BEHIND = """
    SELECT pg_terminate_backend(pid, 10000)
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid();
    DROP TABLE IF EXISTS public.probe;
"""


class Shared:
    """A database that one test after the other has to itself, and a session of it."""

    def __init__(self, server_url: str, template: str) -> None:
        self._server_url = server_url
        self._template = template
        self._open()

    def _open(self) -> None:
        self.name = databases.new_name("shared")
        self.url = databases.create(self._server_url, self.name, template=self._template)
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.made_of = self.connection.execute(FINGERPRINT).fetchone()

    def empty(self) -> None:
        """Make the queue what ``migrate`` made it."""
        from awa_django.sql import statement

        self.connection.execute(statement("testing", "reset"), {})

    def is_whole(self) -> bool:
        """Whether the schema is what ``migrate`` made it; if not, the next test gets another database."""
        self.connection.execute(LEFT_BEHIND)
        try:
            found = self.connection.execute(FINGERPRINT).fetchone()
        except psycopg.errors.UndefinedTable:
            found = None
        if found != self.made_of:
            self.close()
            self._open()
            return False
        return True

    def close(self) -> None:
        self.connection.close()
        databases.drop(self._server_url, self.name)


@pytest.fixture(scope="session")
def _shared_database(server_url: str, awa_template: str) -> Iterator[Shared]:
    shared = Shared(server_url, awa_template)
    yield shared
    shared.close()


@pytest.fixture
def emptied_database(_shared_database: Shared) -> Iterator[str]:
    """The URL of a database with our schema and an empty queue. Fails a test that changes the schema."""
    _shared_database.empty()
    yield _shared_database.url
    assert _shared_database.is_whole(), "the test changed the schema: it needs awa_database"


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


#: Empties what has grown, save what ``migrate`` made and no test changes.
FLUSH = """
DO $$
DECLARE
    tables text;
BEGIN
    SELECT string_agg(oid::regclass::text, ', ')
    INTO tables
    FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
        AND relkind = 'r'
        AND relname NOT IN ('django_migrations', 'django_content_type', 'auth_permission')
        AND pg_relation_size(oid) > 0;
    IF tables IS NOT NULL THEN
        EXECUTE 'TRUNCATE TABLE ' || tables || ' CASCADE';
    END IF;
END
$$
"""


def flush(case: TransactionTestCase) -> None:
    """Empty Django's tables after a test that commits.

    Django would make every content type and permission anew, which takes a third of a second.
    """
    for alias in case._databases_names(include_mirrors=False):
        with connections[alias].cursor() as cursor:
            cursor.execute(FLUSH)


@pytest.fixture(autouse=True, scope="session")
def _flushed_quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", flush)
        yield


#: What the server gathered of rows that are gone: a TRUNCATE leaves it, and names and estimates come from it.
FORGET_STATISTICS = """
    DELETE FROM pg_statistic
    USING pg_class
    WHERE pg_class.oid = starelid AND relnamespace = 'awa'::regnamespace
"""


@pytest.fixture(autouse=True, scope="module")
def _empty_queue_of_module(request: pytest.FixtureRequest) -> None:
    """Have the tests of a module that use Django's database find its queue as ``migrate`` made it.

    What others committed would be counted, what they took back has left its pages, by which figures are estimated, and
    an autovacuum that passed by has left statistics.
    """
    # Asked of the tests that run: for others pytest-django makes no database, and this would be the project's own.
    tests = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    if not any(item.get_closest_marker("django_db") for item in tests):
        return
    from awa_django.testing import reset_queue

    request.getfixturevalue("django_db_setup")
    with request.getfixturevalue("django_db_blocker").unblock():
        reset_queue()
        with connections["default"].cursor() as cursor:
            cursor.execute(FORGET_STATISTICS)


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
    # An autovacuum may have passed while the test's rows were there.
    with connections["default"].cursor() as cursor:
        cursor.execute(FORGET_STATISTICS)


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
