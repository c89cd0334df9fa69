"""The schema is the one of the contract, fact by fact.

``catalog.json`` was taken on PostgreSQL 15, and servers of other versions print expressions in other words.
So the file is compared on 15, and everywhere the schema is compared with one that the real awa client has
made on the same server.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.contract import catalog
from tests.schema.installing import execute

CATALOG = Path(catalog.__file__).with_name("catalog.json")


def required(expected: str, actual: str) -> list[str]:
    """The differences that can hurt a client or a later migration."""
    found = catalog.diff(catalog.load(expected, "awa"), catalog.load(actual, "awa"))
    return [line for line in found if line.startswith("required")]


def test_nothing_that_the_contract_requires_is_missing_or_different(awa_database: str) -> None:
    with psycopg.connect(awa_database) as connection:
        major = connection.info.server_version // 10_000
    if major != 15:
        pytest.skip(f"catalog.json is of PostgreSQL 15, and this server is {major}; see the next test")
    assert required(str(CATALOG), awa_database) == []


@pytest.mark.interop
def test_nothing_differs_from_a_schema_of_the_awa_client_on_the_same_server(
    awa_database: str, oracle_database: str
) -> None:
    assert required(oracle_database, awa_database) == []


def test_what_exceeds_the_contract_is_named_as_ours(awa_database: str) -> None:
    found = catalog.diff(catalog.load(str(CATALOG), "awa"), catalog.dump(awa_database))
    extras = [line for line in found if line.split()[1] == "extra"]
    assert extras
    assert [line for line in extras if "awa_django_" not in line] == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("ALTER TABLE awa.queue_meta DROP COLUMN paused", "table queue_meta column paused"),
        ("ALTER TABLE awa.jobs_hot ALTER priority SET DEFAULT 3", "column priority: default expected 2"),
        ("DROP INDEX awa.idx_awa_jobs_unique", "unique btree index (unique_key)"),
        ("GRANT SELECT ON awa.jobs_hot TO PUBLIC", "PUBLIC on relations"),
        ("ALTER FUNCTION awa.storage_status() VOLATILE", "function storage_status() volatility"),
    ],
)
def test_the_comparison_notices_damage(awa_database: str, damage: str, words: str) -> None:
    before = catalog.dump(awa_database)
    execute(awa_database, damage)
    found = [line for line in catalog.diff(before, catalog.dump(awa_database)) if line.startswith("required")]
    assert [line for line in found if words in line], found
