-- How many jobs of each queue are where (contract: queue-storage/admin section 7).

-- name: counts
-- Jobs by queue and state. What waits in lanes is counted by segments, tombstones and emissions, never by rows; what
-- runs, by what is open. Unless the exact figures are asked for, the upper bound that the cursors give stands for available
-- jobs, statistics for many deferred ones, and the counters for finished rows, which do not tell completed from cancelled.
-- rows:  one for each queue and label: the states, and dead, pruned_completed, pruned_failed
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT
        claim_head.queue, claim_head.priority, claim_head.enqueue_shard,
        awa.sequence_next_value(claim_head.seq_name) AS cursor,
        awa.sequence_next_value(enqueue_head.seq_name) AS ends
    FROM awa.queue_claim_heads AS claim_head
    JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
    WHERE claim_head.seq_name IS NOT NULL
        AND enqueue_head.seq_name IS NOT NULL
        AND (%(queue)s::text IS NULL OR claim_head.queue = %(queue)s::text)
),
waiting AS (
    SELECT queue, sum(greatest(ends - cursor, 0)) AS total
    FROM lane
    WHERE NOT %(exact)s::boolean
    GROUP BY queue
    UNION ALL
    SELECT lane.queue, sum(segment.next_lane_seq - greatest(segment.first_lane_seq, lane.cursor))
    FROM lane
    JOIN awa.ready_segments AS segment
        ON segment.queue = lane.queue
        AND segment.priority = lane.priority
        AND segment.enqueue_shard = lane.enqueue_shard
        AND segment.next_lane_seq > lane.cursor
    WHERE %(exact)s::boolean AND lane.cursor < lane.ends
    GROUP BY lane.queue
    UNION ALL
    SELECT lane.queue, -count(*)
    FROM lane
    JOIN awa.ready_tombstones AS tombstone
        ON tombstone.queue = lane.queue
        AND tombstone.priority = lane.priority
        AND tombstone.enqueue_shard = lane.enqueue_shard
        AND tombstone.lane_seq >= lane.cursor
    WHERE %(exact)s::boolean AND lane.cursor < lane.ends
    GROUP BY lane.queue
    UNION ALL
    SELECT lane.queue, -sum(upper(span) - greatest(lower(span), lane.cursor))
    FROM lane
    JOIN awa.ready_claim_attempt_batches AS ledger
        ON ledger.queue = lane.queue
        AND ledger.priority = lane.priority
        AND ledger.enqueue_shard = lane.enqueue_shard
        AND ledger.next_lane_seq > lane.cursor
    CROSS JOIN LATERAL unnest(ledger.lane_ranges) AS span
    WHERE %(exact)s::boolean AND lane.cursor < lane.ends AND upper(span) > lane.cursor
    GROUP BY lane.queue
),
closed AS MATERIALIZED (
    SELECT closure.claim_slot, range_agg(span) AS receipts
    FROM awa.lease_claim_closure_batches AS closure, unnest(closure.receipt_ranges) AS span
    GROUP BY closure.claim_slot
),
open AS MATERIALIZED (
    SELECT claim.queue, claim.job_id, claim.run_lease
    FROM awa.lease_claims AS claim
    LEFT JOIN closed USING (claim_slot)
    WHERE claim.closed_at IS NULL
        AND (closed.receipts IS NULL OR NOT closed.receipts @> claim.receipt_id)
        AND (%(queue)s::text IS NULL OR claim.queue = %(queue)s::text)
    UNION ALL
    SELECT batch.queue, item.job_id, item.run_lease
    FROM awa.lease_claim_batches AS batch
    LEFT JOIN closed USING (claim_slot),
        unnest(batch.job_ids, batch.run_leases, batch.receipt_ids) AS item (job_id, run_lease, receipt_id)
    WHERE (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
        AND (closed.receipts IS NULL OR NOT closed.receipts @> item.receipt_id)
        AND (%(queue)s::text IS NULL OR batch.queue = %(queue)s::text)
),
deferred_size AS MATERIALIZED (
    SELECT reltuples, %(exact)s::boolean OR reltuples < 50000 AS countable
    FROM pg_catalog.pg_class
    WHERE oid = 'awa.deferred_jobs'::regclass
),
spread AS MATERIALIZED (
    SELECT stats.attname AS name, common.value, common.part
    FROM pg_catalog.pg_stats AS stats,
        unnest(stats.most_common_vals::text::text[], stats.most_common_freqs) AS common (value, part)
    WHERE stats.schemaname = 'awa'
        AND stats.tablename = 'deferred_jobs'
        AND stats.attname IN ('queue', 'state')
        AND NOT (SELECT countable FROM deferred_size)
)
SELECT queue, 'available' AS label, greatest(sum(total), 0)::bigint AS total
FROM waiting
GROUP BY queue
UNION ALL
SELECT open.queue, 'running', count(*)
FROM open
WHERE NOT EXISTS (
    SELECT FROM awa.leases AS lease
    WHERE lease.job_id = open.job_id AND lease.run_lease = open.run_lease
)
GROUP BY open.queue
UNION ALL
SELECT queue, state::text, count(*)
FROM awa.leases
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue, state
UNION ALL
SELECT queue, state::text, count(*)
FROM awa.deferred_jobs
WHERE (SELECT countable FROM deferred_size)
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
GROUP BY queue, state
UNION ALL
SELECT queues.value, states.value, (deferred_size.reltuples * queues.part * states.part)::bigint
FROM deferred_size, spread AS queues, spread AS states
WHERE queues.name = 'queue'
    AND states.name = 'state'
    AND (%(queue)s::text IS NULL OR queues.value = %(queue)s::text)
UNION ALL
SELECT queue, 'completed', sum(completed_count)::bigint
FROM awa.receipt_completion_batches
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue
UNION ALL
SELECT queue, 'completed', -count(*)
FROM awa.receipt_completion_tombstones
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue
UNION ALL
SELECT queue, state::text, count(*)
FROM awa.done_entries
WHERE %(exact)s::boolean AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
GROUP BY queue, state
UNION ALL
SELECT queue, 'completed', sum(total)::bigint
FROM (
    SELECT queue, sum(live_terminal_count) AS total
    FROM awa.queue_terminal_live_counts
    GROUP BY queue
    UNION ALL
    SELECT queue, sum(terminal_delta)
    FROM awa.queue_terminal_count_deltas
    GROUP BY queue
    UNION ALL
    SELECT queue, -count(*)
    FROM awa.done_entries
    WHERE state = 'failed'
    GROUP BY queue
) AS counters
WHERE NOT %(exact)s::boolean AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
GROUP BY queue
UNION ALL
SELECT queue, 'failed', count(*)
FROM awa.done_entries
WHERE NOT %(exact)s::boolean
    AND state = 'failed'
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
GROUP BY queue
UNION ALL
SELECT queue, 'dead', count(*)
FROM awa.dlq_entries
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue
UNION ALL
SELECT queue, 'pruned_completed', sum(greatest(rollup.pruned_completed_count, registry.pruned_completed_count))::bigint
FROM awa.queue_terminal_rollups AS rollup
FULL JOIN awa.queue_lanes AS registry USING (queue, priority)
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue
UNION ALL
SELECT queue, 'pruned_failed', sum(pruned_failed_count)::bigint
FROM awa.queue_terminal_rollups
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue;

-- name: last_hour
-- Jobs that completed within the last hour, as far as history holds them; rows of single jobs only where they are
-- counted exactly, for that reads them all.
-- rows:  one for each queue
-- locks: none
SELECT queue, sum(total)::bigint
FROM (
    SELECT queue, sum(completed_count) AS total
    FROM awa.receipt_completion_batches
    WHERE finalized_at >= statement_timestamp() - interval '1 hour'
    GROUP BY queue
    UNION ALL
    SELECT queue, count(*)
    FROM awa.done_entries
    WHERE %(exact)s::boolean
        AND state = 'completed'
        AND finalized_at >= statement_timestamp() - interval '1 hour'
    GROUP BY queue
) AS completed
GROUP BY queue;

-- name: lag
-- Since when the longest waiting job of each queue has been due, found at the head of each lane.
-- rows:  one for each queue in which a job waits
-- locks: none
SELECT lane.queue, extract(epoch FROM statement_timestamp() - min(head.run_at))::double precision
FROM (
    SELECT queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) AS cursor
    FROM awa.queue_claim_heads
    WHERE seq_name IS NOT NULL
) AS lane
CROSS JOIN LATERAL (
    SELECT ready.run_at
    FROM awa.ready_entries AS ready
    WHERE ready.queue = lane.queue
        AND ready.priority = lane.priority
        AND ready.enqueue_shard = lane.enqueue_shard
        AND ready.lane_seq >= lane.cursor
        AND NOT EXISTS (
            SELECT FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.ready_slot = ready.ready_slot
                AND tombstone.ready_generation = ready.ready_generation
                AND tombstone.queue = ready.queue
                AND tombstone.priority = ready.priority
                AND tombstone.enqueue_shard = ready.enqueue_shard
                AND tombstone.lane_seq = ready.lane_seq
        )
        AND NOT EXISTS (
            SELECT FROM awa.ready_claim_attempt_batches AS ledger
            WHERE ledger.ready_slot = ready.ready_slot
                AND ledger.ready_generation = ready.ready_generation
                AND ledger.queue = ready.queue
                AND ledger.priority = ready.priority
                AND ledger.enqueue_shard = ready.enqueue_shard
                AND ledger.next_lane_seq > ready.lane_seq
                AND ledger.first_lane_seq <= ready.lane_seq
                AND ledger.lane_ranges @> ready.lane_seq
        )
    ORDER BY ready.lane_seq
    LIMIT 1
) AS head
GROUP BY lane.queue;

-- name: kinds
-- Kinds of jobs that have not started: in lanes that no cursor has passed, some of which may just have been claimed
-- or cancelled, and among the deferred ones.
-- rows:  one for each kind
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) AS cursor
    FROM awa.queue_claim_heads
    WHERE seq_name IS NOT NULL
)
SELECT kind, sum(total)::bigint
FROM (
    SELECT waiting.kind, waiting.total
    FROM lane
    -- Lane by lane: joined as one, all of the ring would be read to find what waits.
    CROSS JOIN LATERAL (
        SELECT ready.kind, count(*) AS total
        FROM awa.ready_entries AS ready
        WHERE ready.queue = lane.queue
            AND ready.priority = lane.priority
            AND ready.enqueue_shard = lane.enqueue_shard
            AND ready.lane_seq >= lane.cursor
        GROUP BY ready.kind
    ) AS waiting
    UNION ALL
    SELECT kind, count(*)
    FROM awa.deferred_jobs
    GROUP BY kind
) AS waiting
GROUP BY kind;
