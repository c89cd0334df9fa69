"""The rest of a very large installation, made by SQL: parked jobs, workers that come and go, schedules, operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

__all__ = ["Crowd", "crowd_the_control_plane", "park"]


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many there are of what other sizes have a handful of."""

    #: Queues and kinds besides those of the scenario.
    queues: int = 0
    kinds: int = 0
    #: Jobs that wait for a callback, besides those that a worker parked.
    parked: int = 0
    #: Worker processes of the last day; one in fifty lives.
    runtimes: int = 0
    schedules: int = 0
    operations: int = 0
    #: Jobs of each wire operation.
    items: int = 100


#: Attempts of the queue's only lane, claimed by hundreds, each turned into a lease that waits.
PARKED = """
    WITH block AS MATERIALIZED (
        SELECT n, %(first_id)s::bigint + n AS job_id, 1 + n AS lane_seq, n / 500 AS claim
        FROM generate_series(0, %(count)s::bigint - 1) AS n
    ),
    emitted AS (
        INSERT INTO awa.ready_entries (
            ready_slot, ready_generation, job_id, kind, queue, args, priority, lane_seq, enqueue_shard, run_at,
            created_at, payload
        )
        SELECT
            %(slot)s, %(slot)s, job_id, 'capture_payment', %(queue)s, jsonb_build_object('order_id', job_id), 2,
            lane_seq, 0, now() - interval '50 minutes', now() - interval '50 minutes',
            CASE WHEN n %% 10 = 3 THEN jsonb_build_object('tags', jsonb_build_array('tenant-' || n %% 40)) END
        FROM block
    ),
    segments AS (
        INSERT INTO awa.ready_segments (
            ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq, next_lane_seq,
            first_run_at, created_at
        )
        VALUES (
            %(slot)s, %(slot)s, %(queue)s, 2, 0, 1, 1 + %(count)s::bigint, now() - interval '50 minutes',
            now() - interval '50 minutes'
        )
    ),
    ledger AS (
        INSERT INTO awa.ready_claim_attempt_batches (
            ready_slot, ready_generation, queue, priority, enqueue_shard, claim_slot, first_lane_seq, next_lane_seq,
            claimed_count, lane_ranges, claimed_at
        )
        SELECT
            %(slot)s, %(slot)s, %(queue)s, 2, 0, 0, min(lane_seq), 1 + max(lane_seq), count(*),
            int8multirange(int8range(min(lane_seq), 1 + max(lane_seq))), now() - interval '45 minutes'
        FROM block
        GROUP BY claim
    ),
    receipts AS (
        INSERT INTO awa.lease_claim_batches (
            claim_slot, ready_slot, ready_generation, queue, priority, enqueue_shard, claimed_count, job_ids,
            run_leases, receipt_ids, receipt_ranges, lane_seqs, attempts, max_attempts, claimed_at
        )
        SELECT
            0, %(slot)s, %(slot)s, %(queue)s, 2, 0, count(*), array_agg(job_id ORDER BY n), array_agg(1::bigint),
            array_agg(%(receipt)s::bigint + n ORDER BY n),
            int8multirange(int8range(%(receipt)s::bigint + min(n), %(receipt)s::bigint + max(n) + 1)),
            array_agg(lane_seq ORDER BY n), array_agg(1::smallint), array_agg(25::smallint),
            now() - interval '45 minutes'
        FROM block
        GROUP BY claim
    ),
    states AS (
        INSERT INTO awa.attempt_state (job_id, run_lease, callback_filter, callback_on_complete, updated_at)
        SELECT job_id, 1, 'payload.order == ' || job_id, 'payload.paid', now() - interval '45 minutes'
        FROM block
    )
    INSERT INTO awa.leases (
        lease_slot, lease_generation, ready_slot, ready_generation, job_id, queue, state, priority, attempt, run_lease,
        max_attempts, lane_seq, enqueue_shard, attempted_at, callback_id, callback_timeout_at
    )
    SELECT
        0, 0, %(slot)s, %(slot)s, job_id, %(queue)s, 'waiting_external', 2, 1, 1, 25, lane_seq, 0,
        now() - interval '45 minutes', gen_random_uuid(),
        -- Without a time every tenth; the others within a day, by no order of their ids.
        CASE WHEN n %% 10 <> 7 THEN now() + interval '10 minutes' + (n * 7919) %% 86400 * interval '1 second' END
    FROM block
"""


def park(connection: psycopg.Connection[Any], *, slot: int, queue: str, first_id: int, count: int) -> None:
    """Jobs of a queue of their own that wait for a callback; its lane is made, and nothing is left in it."""
    values = {"slot": slot, "queue": queue, "first_id": first_id, "count": count, "receipt": 1_000}
    for table in ("queue_lanes", "queue_enqueue_heads", "queue_claim_heads"):
        connection.execute(
            f"INSERT INTO awa.{table} (queue, priority) VALUES (%(queue)s, 2)".encode(), values
        )
    connection.execute(PARKED.encode(), values)
    for table in ("queue_enqueue_heads", "queue_claim_heads"):
        connection.execute(
            f"SELECT awa.set_sequence_next(seq_name, %(count)s + 1) FROM awa.{table} WHERE queue = %(queue)s".encode(),
            values,
        )
    connection.execute(
        "SELECT setval('awa.lease_claim_receipt_id_seq', %(receipt)s + %(count)s::bigint)", values
    )


#: Copies of what real workers reported: a few live, most gone silent at some time of the day.
RUNTIMES = """
    INSERT INTO awa.runtime_instances (
        instance_id, hostname, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy,
        postgres_connected, poll_loop_alive, heartbeat_alive, shutting_down, leader, global_max_workers, queues,
        maintenance_alive, queue_descriptor_hashes, job_kind_descriptor_hashes, storage_capability, transition_role
    )
    SELECT
        gen_random_uuid(), 'worker-' || n, 1000 + n, version, started_at - interval '1 day',
        CASE WHEN n %% 50 = 0 THEN now() ELSE now() - interval '1 minute' - n * interval '16 seconds' END,
        snapshot_interval_ms, healthy, postgres_connected, poll_loop_alive, heartbeat_alive, shutting_down, false,
        global_max_workers, queues, maintenance_alive, queue_descriptor_hashes, job_kind_descriptor_hashes,
        storage_capability, transition_role
    FROM generate_series(1, %(runtimes)s::integer) AS n
    CROSS JOIN (
        SELECT *
        FROM awa.runtime_instances
        ORDER BY leader DESC
        LIMIT 1
    ) AS reported
"""
SCHEDULES = """
    INSERT INTO awa.cron_jobs (
        name, cron_expr, timezone, kind, queue, args, priority, tags, last_enqueued_at
    )
    SELECT
        'schedule_' || lpad(n::text, 4, '0'), (n %% 60) || ' */' || 1 + n %% 12 || ' * * *',
        CASE WHEN n %% 3 = 0 THEN 'Pacific/Auckland' ELSE 'UTC' END, 'sync_' || lpad((n %% 100)::text, 3, '0'),
        'tenant_' || lpad((n %% 40)::text, 2, '0'), jsonb_build_object('n', n), 2, '{}', now() - interval '2 hours'
    FROM generate_series(1, %(schedules)s::integer) AS n
"""
OPERATIONS = """
    WITH operation AS (
        INSERT INTO awa.batch_operations (
            id, op_kind, filter, spec, state, submitted_by, submitted_at, started_at, finalized_at, total_matched,
            processed, skipped, errored, retention_until
        )
        SELECT
            gen_random_uuid(), 'set_priority',
            jsonb_build_object(
                'kind', NULL, 'queue', 'mail', 'ids', NULL, 'tag', 'tenant-' || n %% 40, 'state', NULL,
                'created_at_gte', NULL, 'created_at_lt', NULL
            ),
            '{"op_kind": "set_priority", "priority": 1}', 'completed', 'maria', at, at, at + interval '1 minute',
            %(items)s::integer, %(items)s::integer * 8 / 10, %(items)s::integer - %(items)s::integer * 8 / 10, 0,
            now() + interval '7 days'
        FROM generate_series(1, %(operations)s::integer) AS n
        CROSS JOIN LATERAL (SELECT now() - n * interval '5 minutes') AS submitted (at)
        RETURNING id, finalized_at
    )
    INSERT INTO awa.batch_operation_items (operation_id, job_id, state, error, processed_at)
    SELECT
        id, n, CASE WHEN n <= %(items)s::integer * 8 / 10 THEN 'processed' ELSE 'skipped' END,
        CASE WHEN n > %(items)s::integer * 8 / 10 THEN 'running' END, finalized_at
    FROM operation
    CROSS JOIN generate_series(1, %(items)s::integer) AS n
"""


def crowd_the_control_plane(connection: psycopg.Connection[Any], crowd: Crowd) -> None:
    """Runtimes, schedules and batch operations by the hundred and thousand."""
    for query, number in (
        (RUNTIMES, crowd.runtimes),
        (SCHEDULES, crowd.schedules),
        (OPERATIONS, crowd.operations),
    ):
        if number:
            connection.execute(
                query.encode(),
                {
                    "runtimes": crowd.runtimes,
                    "schedules": crowd.schedules,
                    "operations": crowd.operations,
                    "items": crowd.items,
                },
            )
