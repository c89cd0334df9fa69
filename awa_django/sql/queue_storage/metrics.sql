-- What the leader measures now and then, while somebody collects metrics.

-- name: queue_metrics
-- The unfinished and the failed jobs of every queue that has a lane, and the seconds since the oldest job that could be
-- claimed became available; 0 if none could.
-- A lane with a long backlog is not counted row by row: its positions above the cursor, without those cancelled or
-- handed out, are close enough and cost nothing. Positions that rolled-back producers left empty count as jobs there.
-- rows:  one for each queue
-- locks: none
WITH lanes AS MATERIALIZED (
    SELECT
        claim_head.queue, claim_head.priority, claim_head.enqueue_shard,
        awa.sequence_next_value(claim_head.seq_name) AS cursor,
        awa.sequence_next_value(enqueue_head.seq_name) AS next_lane_seq
    FROM awa.queue_claim_heads AS claim_head
    JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
    WHERE claim_head.seq_name IS NOT NULL AND enqueue_head.seq_name IS NOT NULL
),
waiting AS MATERIALIZED (
    SELECT
        lanes.queue, lanes.priority, lanes.enqueue_shard, lanes.cursor,
        lanes.next_lane_seq - lanes.cursor AS positions,
        coalesce(
            (
                SELECT range_agg(span.emitted)
                FROM awa.ready_claim_attempt_batches AS ledger
                CROSS JOIN LATERAL unnest(ledger.lane_ranges) AS span (emitted)
                WHERE ledger.queue = lanes.queue
                    AND ledger.priority = lanes.priority
                    AND ledger.enqueue_shard = lanes.enqueue_shard
                    AND ledger.next_lane_seq > lanes.cursor
            ),
            '{}'
        ) * int8multirange(int8range(lanes.cursor, NULL)) AS emitted
    FROM lanes
    WHERE lanes.next_lane_seq > lanes.cursor
),
available AS (
    SELECT
        waiting.queue,
        CASE WHEN waiting.positions <= %(count_up_to)s::bigint
            THEN (
                SELECT count(*)
                FROM awa.ready_entries AS ready
                WHERE ready.queue = waiting.queue
                    AND ready.priority = waiting.priority
                    AND ready.enqueue_shard = waiting.enqueue_shard
                    AND ready.lane_seq >= waiting.cursor
            )
            ELSE waiting.positions
        END
        - (
            SELECT count(*)
            FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.queue = waiting.queue
                AND tombstone.priority = waiting.priority
                AND tombstone.enqueue_shard = waiting.enqueue_shard
                AND tombstone.lane_seq >= waiting.cursor
                AND NOT waiting.emitted @> tombstone.lane_seq
        )
        - (
            SELECT coalesce(sum(upper(span.emitted) - lower(span.emitted)), 0)
            FROM unnest(waiting.emitted) AS span (emitted)
        ) AS jobs,
        (
            SELECT ready.run_at
            FROM awa.ready_entries AS ready
            WHERE ready.queue = waiting.queue
                AND ready.priority = waiting.priority
                AND ready.enqueue_shard = waiting.enqueue_shard
                AND ready.lane_seq >= waiting.cursor
                AND NOT waiting.emitted @> ready.lane_seq
                AND NOT EXISTS (
                    SELECT
                    FROM awa.ready_tombstones AS tombstone
                    WHERE tombstone.ready_slot = ready.ready_slot
                        AND tombstone.ready_generation = ready.ready_generation
                        AND tombstone.queue = ready.queue
                        AND tombstone.priority = ready.priority
                        AND tombstone.enqueue_shard = ready.enqueue_shard
                        AND tombstone.lane_seq = ready.lane_seq
                )
            ORDER BY ready.lane_seq
            LIMIT 1
        ) AS since
    FROM waiting
),
counted AS (
    SELECT queue, 'available' AS state, sum(jobs) AS jobs, min(since) AS since
    FROM available
    GROUP BY queue
    UNION ALL
    SELECT queue, state::text, count(*), NULL
    FROM awa.deferred_jobs
    GROUP BY queue, state
    UNION ALL
    SELECT queue, state::text, count(*), NULL
    FROM awa.leases
    GROUP BY queue, state
    UNION ALL
    SELECT receipt.queue, 'running', count(*), NULL
    FROM awa.awa_django_open_receipts AS receipt
    WHERE NOT EXISTS (
        SELECT
        FROM awa.leases AS lease
        WHERE lease.job_id = receipt.job_id AND lease.run_lease = receipt.run_lease
    )
    GROUP BY receipt.queue
    UNION ALL
    SELECT queue, 'failed', count(*), NULL
    FROM awa.done_entries
    WHERE state = 'failed'
    GROUP BY queue
    UNION ALL
    SELECT queue, 'dead', count(*), NULL
    FROM awa.dlq_entries
    GROUP BY queue
    UNION ALL
    SELECT DISTINCT queue, 'available', 0, NULL::timestamptz
    FROM lanes
)
SELECT
    queue,
    greatest(coalesce(sum(jobs) FILTER (WHERE state = 'available'), 0), 0)::bigint AS available,
    coalesce(sum(jobs) FILTER (WHERE state = 'running'), 0)::bigint AS running,
    coalesce(sum(jobs) FILTER (WHERE state IN ('failed', 'dead')), 0)::bigint AS failed,
    coalesce(sum(jobs) FILTER (WHERE state = 'scheduled'), 0)::bigint AS scheduled,
    coalesce(sum(jobs) FILTER (WHERE state = 'retryable'), 0)::bigint AS retryable,
    coalesce(sum(jobs) FILTER (WHERE state = 'waiting_external'), 0)::bigint AS waiting_external,
    coalesce(sum(jobs) FILTER (WHERE state = 'dead'), 0)::bigint AS dead_letters,
    coalesce(greatest(extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE isfinite(since))), 0), 0)
        ::double precision AS lag
FROM counted
GROUP BY queue
ORDER BY queue;

-- name: queue_ring
-- Where the queue ring stands.
-- rows:  one
-- locks: none
SELECT current_slot, generation
FROM awa.queue_ring_state;

-- name: lease_ring
-- Where the lease ring stands.
-- rows:  one
-- locks: none
SELECT current_slot, generation
FROM awa.lease_ring_state;

-- name: claim_ring
-- Where the claim ring stands.
-- rows:  one
-- locks: none
SELECT current_slot, generation
FROM awa.claim_ring_state;

-- name: queue_slot_rows
-- What is in a slot of the queue ring; of each at most so many are counted.
-- rows:  one for each family of tables
-- locks: none
SELECT 'queue.ready_rows', count(*)
FROM (SELECT FROM awa.ready_entries/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.claim_attempt_batches', count(*)
FROM (SELECT FROM awa.ready_claim_attempt_batches/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.done_rows', count(*)
FROM (SELECT FROM awa.done_entries/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.tombstone_rows', count(*)
FROM (SELECT FROM awa.ready_tombstones/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.ready_segments', count(*)
FROM (SELECT FROM awa.ready_segments/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.receipt_completion_batch_rows', count(*)
FROM (SELECT FROM awa.receipt_completion_batches/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.receipt_completion_tombstone_rows', count(*)
FROM (SELECT FROM awa.receipt_completion_tombstones/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.terminal_delta_rows', count(*)
FROM (SELECT FROM awa.queue_terminal_count_deltas/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held;

-- name: lease_slot_rows
-- What is in a slot of the lease ring.
-- rows:  one
-- locks: none
SELECT 'lease.rows', count(*)
FROM (SELECT FROM awa.leases/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held;

-- name: claim_slot_rows
-- What is in a slot of the claim ring.
-- rows:  one for each sort
-- locks: none
SELECT 'claim.rows', count(*)
FROM (
    SELECT FROM awa.lease_claims/*_slot*/
    UNION ALL
    SELECT FROM awa.lease_claim_batches/*_slot*/
    LIMIT %(rows_up_to)s::bigint
) AS held
UNION ALL
SELECT 'claim.closure_rows', count(*)
FROM (SELECT FROM awa.lease_claim_closures/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'claim.closure_batch_rows', count(*)
FROM (SELECT FROM awa.lease_claim_closure_batches/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held;

-- name: queue_slot_holders
-- The rows for which a slot of the queue ring is kept.
-- rows:  one for each reason
-- locks: none
WITH lanes AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) AS cursor
    FROM awa.queue_claim_heads
    WHERE seq_name IS NOT NULL
)
SELECT 'queue.active_leases', count(*)
FROM (SELECT FROM awa.leases WHERE ready_slot = %(slot)s LIMIT %(rows_up_to)s::bigint) AS held
UNION ALL
SELECT 'queue.pending_ready', count(*)
FROM (
    SELECT
    FROM lanes
    JOIN awa.ready_entries/*_slot*/ AS ready USING (queue, priority, enqueue_shard)
    WHERE ready.lane_seq >= lanes.cursor
    LIMIT %(rows_up_to)s::bigint
) AS held
UNION ALL
SELECT 'queue.unclosed_claim_refs', count(*)
FROM (
    SELECT
    FROM awa.awa_django_open_receipts
    WHERE ready_slot = %(slot)s
    LIMIT %(rows_up_to)s::bigint
) AS held;

-- name: lease_slot_holders
-- The rows for which a slot of the lease ring is kept.
-- rows:  one
-- locks: none
SELECT 'lease.active', count(*)
FROM (SELECT FROM awa.leases/*_slot*/ LIMIT %(rows_up_to)s::bigint) AS held;

-- name: claim_slot_holders
-- The open receipts for which a slot of the claim ring is kept.
-- rows:  one
-- locks: none
SELECT 'claim.open', count(*)
FROM (
    SELECT
    FROM awa.awa_django_open_receipts
    WHERE claim_slot = %(slot)s
    LIMIT %(rows_up_to)s::bigint
) AS held;
