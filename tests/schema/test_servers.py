"""The same schema on every supported PostgreSQL.

``catalog.json`` speaks PostgreSQL 15's words, so on each server the comparison is with what the real awa
client makes on that very server (:mod:`tests.schema.test_catalog`).
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from awa_django import schema
from tests import databases, servers, workers
from tests.contract import replay
from tests.schema import installing
from tests.schema.installing import execute, migrate, rows
from tests.schema.test_catalog import required

pytestmark = [pytest.mark.server, pytest.mark.interop, pytest.mark.worker, pytest.mark.timeout(600)]

JOBS = """
    INSERT INTO awa.jobs (kind, queue, args)
    SELECT 'noop', 'drained', jsonb_build_object('n', n) FROM generate_series(1, 20) AS n
"""

SCENARIOS = [
    case
    for path in sorted((Path(replay.__file__).parent / "vectors" / "sql").glob("*.json"))
    for case in replay.load(path)["cases"]
]


@pytest.mark.parametrize("major", servers.VERSIONS)
def test_the_schema_works_on_this_version_of_postgresql(major: int) -> None:
    with (
        servers.server(major) as server_url,
        databases.scratch(server_url, "ours") as ours,
        databases.scratch(server_url, "oracle") as oracle,
    ):
        with psycopg.connect(server_url) as connection:
            assert connection.info.server_version // 10_000 == major

        migrate(ours)
        databases.migrate_with_awa(oracle)
        assert required(oracle, ours) == []

        with replay.connected(ours) as connection:
            for case in SCENARIOS:
                assert replay.mismatches(connection, case) == [], case["name"]

        for number in range(3):
            execute(ours, f"INSERT INTO awa.jobs (kind, args) VALUES ('greet', '{{\"n\": {number}}}')")
        claimed = rows(ours, "SELECT job_id FROM awa.claim_ready_runtime('default', 10, 0, 0) ORDER BY 1")
        assert claimed == rows(ours, "SELECT id FROM awa.jobs WHERE state = 'running' ORDER BY 1")
        assert len(claimed) == 3

        for url in (ours, oracle):
            migrate(url)
            with psycopg.connect(url) as connection:
                assert schema.check_schema(connection).version == 40
            execute(url, JOBS)
            workers.drain(url, "--queue", "drained")
            done = "SELECT state::text, count(*) FROM awa.jobs WHERE queue = 'drained' GROUP BY 1"
            assert rows(url, done) == [("completed", 20)]
            assert rows(url, "SELECT count(*), count(DISTINCT job_id) FROM probe") == [(20, 20)]

        before = installing.everything(ours)
        databases.awa_cli(ours, "migrate")
        assert installing.everything(ours) == before


def test_the_oldest_version_tried_is_the_oldest_that_is_let_in() -> None:
    assert min(servers.VERSIONS) == schema.MINIMUM_SERVER // 10_000
