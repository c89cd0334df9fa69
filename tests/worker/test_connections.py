"""How many connections a worker's handlers keep."""

from __future__ import annotations

import psycopg
import pytest

from tests.workers import insert_many, runs, states, wait_until, worker

pytestmark = pytest.mark.worker

HANDLERS = """
    SELECT count(*), count(*) FILTER (WHERE state <> 'idle')
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND application_name = ''
        AND pid <> ALL(%s)
"""


def test_handlers_that_use_the_orm_keep_one_connection_for_each_slot(emptied_database: str) -> None:
    with psycopg.connect(emptied_database, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        ).fetchall()
        others = [pid for (pid,) in rows]
        with worker(emptied_database, "--queue", "default:4", STALE_AFTER=60) as process:
            insert_many(connection, "noop", 1000)
            wait_until(lambda: states(connection).get("completed") == 1000, what="1000 jobs that ran")
            found = connection.execute(HANDLERS, [others]).fetchone()
            assert found is not None
            assert 1 <= found[0] <= 4
            assert found[1] == 0, "none is left in a transaction"
            assert process.stop() == 0
        wait_until(lambda: connection.execute(HANDLERS, [others]).fetchone() == (0, 0), what="none is left")
        assert set(runs(connection).values()) == {1}
