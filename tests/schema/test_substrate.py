"""The installation calls of a starting worker: nothing to do here, and clear refusals (contract: queue-storage, 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.schema import queue_storage
from tests.schema.queue_storage import Store, awa_worker, wait_for


@pytest.fixture
def store(emptied_database: str) -> Iterator[Store]:
    with queue_storage.store(emptied_database) as opened:
        yield opened


def objects(store: Store) -> list[queue_storage.Row]:
    return store.rows(
        """
        SELECT oid::bigint, relname, relfilenode::bigint, reloptions FROM pg_class
        WHERE relnamespace = 'awa'::regnamespace AND relkind <> 'S' ORDER BY oid
        """,
    )


@pytest.mark.parametrize(
    "call",
    [
        "awa.install_queue_storage_substrate('awa')",
        "awa.install_queue_storage_substrate('awa', 16, 8, 8, true)",
        "awa.install_queue_storage_substrate(p_schema => 'awa', p_claim_slot_count => 8)",
        "awa.apply_receipt_plane_fillfactor('awa')",
    ],
)
def test_installing_what_is_here_changes_nothing(store: Store, call: str) -> None:
    [job] = store.insert()
    before = objects(store)
    store.rows(f"SELECT {call}")
    assert objects(store) == before
    assert [row["job_id"] for row in store.claim()] == [job]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        ("awa.install_queue_storage_substrate('other')", errors.FeatureNotSupported, "other"),
        ("awa.install_queue_storage_substrate(NULL)", errors.FeatureNotSupported, "NULL"),
        ("awa.install_queue_storage_substrate('awa', 32, 8, 8)", errors.InvalidParameterValue, "32 queue"),
        ("awa.install_queue_storage_substrate('awa', 16, 4, 8)", errors.InvalidParameterValue, "4 lease"),
        ("awa.install_queue_storage_substrate('awa', 16, 8, NULL)", errors.InvalidParameterValue, "claim"),
        (
            "awa.install_queue_storage_substrate('awa', 16, 8, 8, false)",
            errors.InvalidParameterValue,
            "receipts",
        ),
        ("awa.apply_receipt_plane_fillfactor('other')", errors.FeatureNotSupported, "other"),
    ],
)
def test_what_this_schema_cannot_be_is_refused(
    store: Store, call: str, error: type[psycopg.Error], named: str
) -> None:
    with pytest.raises(error, match=named):
        store.rows(f"SELECT {call}")


def test_installing_is_not_for_everyone(store: Store) -> None:
    signature = "awa.install_queue_storage_substrate(text, integer, integer, integer, boolean)"
    granted = store.rows(
        "SELECT grantee FROM pg_proc, aclexplode(proacl) WHERE oid = %(f)s::regprocedure AND grantee = 0",
        f=signature,
    )
    assert granted == []


@pytest.mark.interop
@pytest.mark.worker
def test_a_real_worker_starts_on_an_unpromoted_schema_and_promotes_it(store: Store) -> None:
    """The one start at which it does call both functions: canonical, with nothing prepared."""
    store.rows(
        "UPDATE awa.storage_transition_state SET current_engine = 'canonical', state = 'canonical', details = '{}'"
    )
    store.rows("DELETE FROM awa.runtime_storage_backends")
    handled: list[int] = []

    async def handle(job: Any) -> None:
        handled.append(job.id)

    async def scenario() -> None:
        async with awa_worker(store.url, "q", {"k": handle}):
            assert store.value("SELECT awa.active_queue_storage_schema()") == "awa"
            store.insert(kind="k")
            await asyncio.to_thread(wait_for, lambda: bool(handled))

    asyncio.run(scenario())
    assert store.value("SELECT count(*) FROM awa.ready_entries") == 1
