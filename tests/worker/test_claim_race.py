"""Jobs that are stored in the very moment in which a claim finds that everything before them is spent."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg

from awa_django.planes.queue_storage import QueueStoragePlane
from tests import invariants

ROUNDS = 1500


def test_a_claim_never_passes_over_a_job_that_is_just_being_stored(awa_database: str) -> None:
    plane = QueueStoragePlane()
    stored: list[int] = []
    claimed: list[int] = []
    done = threading.Event()

    def store() -> None:
        with psycopg.connect(awa_database, autocommit=True, prepare_threshold=0) as connection:
            for _ in range(ROUNDS):
                rows = connection.execute(
                    "SELECT (awa.insert_job_compat('noop', 'default')).id FROM generate_series(1, 2)"
                )
                stored.extend(job_id for (job_id,) in rows)
        done.set()

    def claim(connection: psycopg.Connection) -> int:
        # No cursor is moved in between: each claim first passes over what the ones before it took.
        attempts, _ = plane.claim(
            connection.cursor(), "default", 100, deadline=timedelta(0), aging=timedelta(0)
        )
        claimed.extend(attempt.job_id for attempt in attempts)
        return len(attempts)

    producer = threading.Thread(target=store)
    with psycopg.connect(awa_database, autocommit=True, prepare_threshold=0) as connection:
        producer.start()
        while not done.is_set():
            claim(connection)
        producer.join(30)
        while claim(connection):
            pass
        assert len(stored) == 2 * ROUNDS
        assert sorted(claimed) == sorted(stored)
        assert invariants.violated(connection) == []
