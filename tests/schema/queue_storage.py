"""Hands for the tests of the queue-storage functions: sessions, jobs, claims, evidence, and a real awa worker."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

VECTORS = Path(__file__).resolve().parent.parent / "contract" / "vectors" / "queue-storage"
#: Seconds that anything here may take before it counts as hung.
LIMIT = 60.0

Row = dict[str, Any]
Connection = psycopg.Connection[Row]

#: The claim cursor of a lane: nothing below it is left.
CURSOR = """
    SELECT awa.sequence_next_value(seq_name) AS cursor FROM awa.queue_claim_heads
    WHERE queue = %(queue)s AND priority = %(priority)s AND enqueue_shard = %(shard)s
"""


def vectors(name: str) -> Any:
    """The parsed vector file ``name``."""
    return json.loads((VECTORS / f"{name}.json").read_text())


class Store:
    """One database with queue storage active, as several sessions see it."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor(max_workers=4))
        self.main = self.open()

    def open(self, *, autocommit: bool = True, role: str | None = None) -> Connection:
        """A new session, closed with the store."""
        connection = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)
        self._stack.callback(connection.close)
        connection.execute("SET statement_timeout = '60s'")
        if role is not None:
            connection.execute(f"SET SESSION AUTHORIZATION {role}")
        connection.autocommit = autocommit
        return connection

    def rows(self, statement: str, **values: Any) -> list[Row]:
        """What the main session gets for a statement."""
        cursor = self.main.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, **values: Any) -> Any:
        """The single value of a statement's single row."""
        [row] = self.rows(statement, **values)
        [value] = row.values()
        return value

    def until(self, true: str, **values: Any) -> None:
        """Wait for a condition that other sessions bring about."""
        give_up = time.monotonic() + LIMIT
        while not self.rows(f"SELECT ({true}) AS now, pg_sleep(0.01)", **values)[0]["now"]:
            assert time.monotonic() < give_up, f"never became true: {true}"

    def blocked(self, connection: Connection, statement: str, **values: Any) -> Future[list[Row]]:
        """Start a statement in a thread and return once it waits for another session."""

        def run() -> list[Row]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

        future = self._threads.submit(run)
        give_up = time.monotonic() + LIMIT
        while not self.value(
            "SELECT cardinality(pg_blocking_pids(%(pid)s)) > 0", pid=connection.info.backend_pid
        ):
            assert not future.done(), f"did not wait: {future.exception() or future.result()}"
            assert time.monotonic() < give_up, f"neither waits nor ends: {statement}"
        return future

    def insert(
        self,
        queue: str = "q",
        *,
        on: Connection | None = None,
        priority: int = 2,
        age: float = 0,
        count: int = 1,
        state: str = "available",
        unique_key: bytes | None = None,
        unique_states: str | None = None,
        kind: str = "k",
    ) -> list[int]:
        """Enqueue jobs one by one; ``age`` is how many seconds their run_at lies in the past."""
        cursor = (on or self.main).execute(
            """
            SELECT (awa.insert_job_compat(
                %(kind)s, %(queue)s, '{"n": 1}', %(state)s::awa.job_state, %(priority)s::smallint,
                p_run_at => clock_timestamp() - make_interval(secs => %(age)s),
                p_unique_key => %(unique_key)s, p_unique_states => %(unique_states)s::bit(8)
            )).id
            FROM generate_series(1, %(count)s)
            """,
            {
                "kind": kind, "queue": queue, "state": state, "priority": priority, "age": age, "count": count,
                "unique_key": unique_key, "unique_states": unique_states,
            },
        )  # fmt: skip
        return [row["id"] for row in cursor.fetchall()]

    def claim(
        self,
        limit: int = 1,
        queue: str = "q",
        *,
        on: Connection | None = None,
        deadline: float = 0,
        aging: float = 60,
    ) -> list[Row]:
        """One call of the claim function; the cursors stay where the function left them."""
        return (
            (on or self.main)
            .execute("SELECT * FROM awa.claim_ready_runtime(%s, %s, %s, %s)", (queue, limit, deadline, aging))
            .fetchall()
        )

    def advance(self, claimed: Sequence[Row], on: Connection | None = None) -> None:
        """Move the cursors past what a committed claim returned, as a worker does."""
        last: dict[tuple[str, int, int], int] = {}
        for row in claimed:
            lane = row["queue"], row["lane_priority"], row["enqueue_shard"]
            last[lane] = max(last.get(lane, 0), row["lane_seq"])
        connection = on or self.main
        for (queue, priority, shard), lane_seq in sorted(last.items()):
            with connection.transaction():
                head = connection.execute(
                    """
                    SELECT seq_name FROM awa.queue_claim_heads
                    WHERE queue = %s AND priority = %s AND enqueue_shard = %s FOR UPDATE
                    """,
                    (queue, priority, shard),
                ).fetchone()
                assert head is not None
                connection.execute("SELECT awa.set_sequence_next(%s, %s)", (head["seq_name"], lane_seq + 1))

    def cursor(self, queue: str = "q", priority: int = 2, shard: int = 0) -> int:
        """The claim cursor of a lane."""
        return int(self.value(CURSOR, queue=queue, priority=priority, shard=shard))

    def tombstone(self, job_ids: Sequence[int]) -> None:
        """Take available jobs out of their lanes, as a cancel does, all at once."""
        self.rows(
            """
            INSERT INTO awa.ready_tombstones (
                ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id
            )
            SELECT ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id
            FROM awa.ready_entries WHERE job_id = ANY(%(ids)s)
            """,
            ids=list(job_ids),
        )

    def complete(self, claimed: Sequence[Row]) -> None:
        """Finish compact claims, one batch per lane and slot."""
        for key in sorted({(r["claim_batch_id"], r["claim_slot"]) for r in claimed}):
            self.rows(
                """
                WITH batch AS (
                    SELECT * FROM awa.lease_claim_batches WHERE batch_id = %(batch)s AND claim_slot = %(slot)s
                ),
                closed AS (
                    INSERT INTO awa.lease_claim_closure_batches (
                        claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges
                    )
                    SELECT claim_slot, ready_slot, ready_generation, 'completed', claimed_count, receipt_ids,
                           receipt_ranges
                    FROM batch
                )
                INSERT INTO awa.receipt_completion_batches (
                    ready_slot, ready_generation, claim_slot, queue, priority, enqueue_shard, completed_count,
                    job_ids, run_leases, lane_seqs, attempts, attempted_ats
                )
                SELECT ready_slot, ready_generation, claim_slot, queue, priority, enqueue_shard, claimed_count,
                       job_ids, run_leases, lane_seqs, attempts, array_fill(NULL::timestamptz, ARRAY[claimed_count])
                FROM batch
                """,
                batch=key[0],
                slot=key[1],
            )

    def rotate(self, onto: int, generation: int) -> int:
        """Turn the queue ring with the two statements of the reference leader; return where it then is."""
        with self.main.transaction():
            self.rows("SELECT 1 FROM awa.queue_ring_state FOR UPDATE")
            self.rows(
                "UPDATE awa.queue_ring_state SET current_slot = %(slot)s, generation = %(generation)s",
                slot=onto,
                generation=generation,
            )
            self.rows(
                "UPDATE awa.queue_ring_slots SET generation = %(generation)s WHERE slot = %(slot)s",
                slot=onto,
                generation=generation,
            )
        return int(self.value("SELECT current_slot FROM awa.queue_ring_state"))

    def violated(self, *, quiesced: bool = False, ids: Sequence[int] = ()) -> list[str]:
        """The invariants that do not hold, with a row each."""
        found = []
        for query in vectors("invariants")["queries"]:
            if query["applies"] == "always" or quiesced:
                values = {"ids": list(ids)} if "parameters" in query else None
                if offending := self.main.execute(query["sql"], values).fetchmany(3):
                    found.append(f"{query['id']} {query['name']}: {offending}")
        return found


def wait_for(true: Callable[[], bool]) -> None:
    """Wait for something that other threads of this process bring about."""
    give_up = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < give_up, "never happened"
        threading.Event().wait(0.01)


@contextlib.contextmanager
def store(url: str) -> Iterator[Store]:
    """A store for the length of a test."""
    with ExitStack() as stack:
        yield Store(url, stack)


@contextlib.asynccontextmanager
async def awa_worker(
    url: str,
    queue: str,
    handlers: dict[str, Callable[[Any], Any]],
    *,
    queue_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Any]:
    """A real awa worker with its maintenance leader, running until the block ends; yields its client."""
    import awa

    client = awa.AsyncClient(url)
    for kind, handler in handlers.items():
        client.task(dict, kind=kind, queue=queue)(handler)
    defaults = {
        "poll_interval_ms": 20,
        "leader_election_interval_ms": 50,
        "promote_interval_ms": 50,
        "queue_storage_queue_rotate_interval_ms": 3_600_000,
        "queue_storage_claim_rotate_interval_ms": 3_600_000,
        "queue_storage_lease_rotate_interval_ms": 3_600_000,
    }
    await client.start([{"name": queue, "max_workers": 16} | (queue_options or {})], **(defaults | options))
    try:
        yield client
    finally:
        await client.shutdown(2000)
        await client.close()
