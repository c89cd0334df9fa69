from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.sql import statement
from tests import databases
from tests.planes.sessions import session
from tests.planes.world import World

#: An autovacuum that passes by holds a table for longer than the 10 ms that the emptying of a slot waits for it, gives
#: back pages whose size says that something was written, and leaves statistics of rows that are gone.
NO_AUTOVACUUM = """
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT oid::regclass::text
        FROM pg_class
        WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)', name);
    END LOOP;
END
$$
"""


@pytest.fixture(scope="session")
def world_database(server_url: str, awa_template: str) -> Iterator[str]:
    """The URL of one database for all tests of this process that leave it to ``world`` to empty it."""
    with databases.scratch(server_url, "world", template=awa_template) as url:
        with psycopg.connect(url) as connection:
            connection.execute(NO_AUTOVACUUM)
        yield url


@pytest.fixture
def world(world_database: str) -> Iterator[World]:
    """An empty queue with a session of it. Job ids go on counting from test to test."""
    with session(world_database) as connection:
        connection.execute(statement("testing", "reset"), {})
        yield World(connection, QueueStoragePlane())
