-- How many jobs of each queue are where (contract: queue-storage/admin section 7).

-- name: counts
-- Jobs by queue and state. What waits in lanes is counted by segments, tombstones and emissions, never by rows; what
-- runs, by what is open. Unless the exact figures are asked for, the upper bound that the cursors give stands for available
-- jobs, and finished rows are those of the counters, which do not tell completed from cancelled. Where there are more
-- deferred jobs or dead letters than on so many pages, a part of the pages is read. Where there are more completion
-- batches, what lanes have handed out and is not known to be elsewhere is taken for completed: their positions, less
-- those that hold no job or a further emission of one, by what is on short stretches all along.
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
leased AS MATERIALIZED (
    SELECT queue, state::text AS label, count(*) AS total
    FROM awa.leases
    WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
    GROUP BY queue, state
),
-- Receipts that are open. Attempts that hold a lease as well are among them: those are told apart one by one where
-- figures are exact, and else as many are taken off as there are leases.
receipted AS MATERIALIZED (
    SELECT queue, sum(receipts)::bigint AS total
    FROM (
        SELECT claim.queue, 1 AS receipts
        FROM awa.lease_claims AS claim
        LEFT JOIN closed USING (claim_slot)
        WHERE claim.closed_at IS NULL
            AND (closed.receipts IS NULL OR NOT closed.receipts @> claim.receipt_id)
            AND (%(queue)s::text IS NULL OR claim.queue = %(queue)s::text)
            AND (
                NOT %(exact)s::boolean
                OR NOT EXISTS (
                    SELECT FROM awa.leases AS lease
                    WHERE lease.job_id = claim.job_id AND lease.run_lease = claim.run_lease
                )
            )
        UNION ALL
        SELECT batch.queue, 1
        FROM awa.lease_claim_batches AS batch
        LEFT JOIN closed USING (claim_slot),
            unnest(batch.job_ids, batch.run_leases, batch.receipt_ids) AS item (job_id, run_lease, receipt_id)
        WHERE %(exact)s::boolean
            AND (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
            AND (closed.receipts IS NULL OR NOT closed.receipts @> item.receipt_id)
            AND (%(queue)s::text IS NULL OR batch.queue = %(queue)s::text)
            AND NOT EXISTS (
                SELECT FROM awa.leases AS lease
                WHERE lease.job_id = item.job_id AND lease.run_lease = item.run_lease
            )
        UNION ALL
        SELECT
            batch.queue,
            batch.claimed_count - (
                SELECT coalesce(sum(upper(span) - lower(span)), 0)
                FROM unnest(batch.receipt_ranges * closed.receipts) AS span
            )
        FROM awa.lease_claim_batches AS batch
        LEFT JOIN closed USING (claim_slot)
        WHERE NOT %(exact)s::boolean
            AND (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
            AND (%(queue)s::text IS NULL OR batch.queue = %(queue)s::text)
        UNION ALL
        SELECT queue, -total
        FROM leased
        WHERE NOT %(exact)s::boolean
    ) AS open
    GROUP BY queue
),
part AS MATERIALIZED (
    SELECT
        relation,
        CASE WHEN %(exact)s::boolean
            THEN 1
            ELSE least(
                %(pages)s::double precision * current_setting('block_size')::integer
                / greatest(pg_relation_size(relation), 1),
                1
            )
        END AS read
    FROM unnest(ARRAY['awa.deferred_jobs', 'awa.dlq_entries']::regclass[]) AS relation
),
deferred AS MATERIALIZED (
    SELECT job.queue, job.state::text AS label, ceil(count(*) / part.read)::bigint AS total
    FROM part
    -- Repeatable, so that figures do not jump from look to look.
    JOIN awa.deferred_jobs AS job TABLESAMPLE SYSTEM ((
        SELECT 100 * read
        FROM part
        WHERE relation = 'awa.deferred_jobs'::regclass
    )) REPEATABLE (1) ON part.relation = 'awa.deferred_jobs'::regclass
    WHERE %(queue)s::text IS NULL OR job.queue = %(queue)s::text
    GROUP BY job.queue, job.state, part.read
),
dead AS MATERIALIZED (
    SELECT
        letter.queue, ceil(count(*) / part.read)::bigint AS total,
        -- Those whose attempts history still has.
        ceil(count(*) FILTER (WHERE letter.job_id >= (SELECT min(job_id) FROM awa.ready_entries)) / part.read)::bigint
            AS recent
    FROM part
    JOIN awa.dlq_entries AS letter TABLESAMPLE SYSTEM ((
        SELECT 100 * read
        FROM part
        WHERE relation = 'awa.dlq_entries'::regclass
    )) REPEATABLE (1) ON part.relation = 'awa.dlq_entries'::regclass
    WHERE %(queue)s::text IS NULL OR letter.queue = %(queue)s::text
    GROUP BY letter.queue, part.read
),
failed AS MATERIALIZED (
    SELECT queue, count(*) AS total
    FROM awa.done_entries
    WHERE NOT %(exact)s::boolean
        AND state = 'failed'
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    GROUP BY queue
),
counted AS MATERIALIZED (
    SELECT queue, sum(total)::bigint AS total
    FROM (
        SELECT queue, live_terminal_count AS total
        FROM awa.queue_terminal_live_counts
        UNION ALL
        SELECT queue, terminal_delta
        FROM awa.queue_terminal_count_deltas
    ) AS counter
    WHERE NOT %(exact)s::boolean AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    GROUP BY queue
),
history AS MATERIALIZED (
    SELECT
        %(exact)s::boolean
        OR coalesce(sum(pg_relation_size(format('awa.receipt_completion_batches_%%s', slot)::regclass)), 0)
        <= %(pages)s::bigint * current_setting('block_size')::integer AS is_short
    FROM awa.queue_ring_slots
),
compact AS MATERIALIZED (
    SELECT queue, sum(completed_count)::bigint AS total
    FROM awa.receipt_completion_batches
    WHERE (SELECT is_short FROM history) AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    GROUP BY queue
    UNION ALL
    SELECT queue, -count(*)
    FROM awa.receipt_completion_tombstones
    WHERE (SELECT is_short FROM history) AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    GROUP BY queue
),
passed AS MATERIALIZED (
    SELECT
        lane.queue, lane.priority, lane.enqueue_shard, first.lane_seq AS first_seq,
        lane.cursor - first.lane_seq AS positions,
        greatest(400 / greatest(count(*) OVER (), 1), 4) AS stretches
    FROM lane
    CROSS JOIN LATERAL (
        SELECT ready.lane_seq
        FROM awa.ready_entries AS ready
        WHERE ready.queue = lane.queue
            AND ready.priority = lane.priority
            AND ready.enqueue_shard = lane.enqueue_shard
        ORDER BY ready.lane_seq
        LIMIT 1
    ) AS first
    WHERE NOT (SELECT is_short FROM history) AND first.lane_seq < lane.cursor
),
handed_out AS (
    SELECT part.queue, round(sum(part.positions * part.jobs / part.looked_at))::bigint AS total
    FROM (
        SELECT
            passed.queue, passed.positions, count(ready.job_id)::numeric AS jobs,
            -- Where stretches would overlap, each ends where the next begins.
            least(passed.positions, passed.stretches * 16) AS looked_at
        FROM passed
        CROSS JOIN LATERAL generate_series(0, passed.stretches - 1) AS number
        CROSS JOIN LATERAL (
            SELECT
                passed.first_seq + passed.positions * number / passed.stretches
                -- What is done in turns would show in every so manyth position.
                + (hashint8(number) & 2147483647) %% greatest(passed.positions / passed.stretches - 16, 1),
                passed.first_seq + passed.positions * (number + 1) / passed.stretches
        ) AS stretch (low, high)
        LEFT JOIN LATERAL (
            SELECT job_id, ready_slot, ready_generation, lane_seq
            FROM awa.ready_entries
            WHERE queue = passed.queue
                AND priority = passed.priority
                AND enqueue_shard = passed.enqueue_shard
                AND lane_seq >= stretch.low
                AND lane_seq < least(stretch.low + 16, stretch.high)
                AND run_lease = 0
            OFFSET 0 -- so that each is found by the lane's index
        ) AS ready ON (
            SELECT count(*)
            FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.ready_slot = ready.ready_slot
                AND tombstone.ready_generation = ready.ready_generation
                AND tombstone.queue = passed.queue
                AND tombstone.priority = passed.priority
                AND tombstone.enqueue_shard = passed.enqueue_shard
                AND tombstone.lane_seq = ready.lane_seq
        ) = 0
        GROUP BY passed.queue, passed.priority, passed.enqueue_shard, passed.positions, passed.stretches
    ) AS part
    GROUP BY part.queue
)
SELECT queue, 'available' AS label, greatest(sum(total), 0)::bigint AS total
FROM waiting
GROUP BY queue
UNION ALL
SELECT queue, 'running', greatest(total, 0)
FROM receipted
UNION ALL
SELECT queue, label, total
FROM leased
UNION ALL
SELECT queue, label, total
FROM deferred
UNION ALL
SELECT queue, 'dead', total
FROM dead
UNION ALL
SELECT queue, 'failed', total
FROM failed
UNION ALL
SELECT queue, 'completed', total
FROM compact
UNION ALL
SELECT counted.queue, 'completed', counted.total - coalesce(failed.total, 0)
FROM counted
LEFT JOIN failed USING (queue)
WHERE (SELECT is_short FROM history)
UNION ALL
SELECT
    handed_out.queue, 'completed',
    greatest(
        handed_out.total
        - coalesce((SELECT total FROM failed WHERE queue = handed_out.queue), 0)
        - coalesce((SELECT recent FROM dead WHERE queue = handed_out.queue), 0)
        - coalesce((SELECT sum(total) FROM leased WHERE queue = handed_out.queue), 0)
        - coalesce((SELECT greatest(total, 0) FROM receipted WHERE queue = handed_out.queue), 0)
        - coalesce((SELECT total FROM deferred WHERE queue = handed_out.queue AND label = 'retryable'), 0),
        coalesce((SELECT total FROM counted WHERE queue = handed_out.queue), 0)
        - coalesce((SELECT total FROM failed WHERE queue = handed_out.queue), 0),
        0
    )::bigint
FROM handed_out
UNION ALL
SELECT queue, state::text, count(*)
FROM awa.done_entries
WHERE %(exact)s::boolean AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
GROUP BY queue, state
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
-- Kinds of jobs that have not started: in lanes that no cursor has passed, without those that were cancelled or claimed
-- there, and among the deferred ones.
-- rows:  one for each kind that has any
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) AS cursor
    FROM awa.queue_claim_heads
    WHERE seq_name IS NOT NULL
),
emitted AS MATERIALIZED (
    SELECT
        slot.slot, lane.queue, lane.priority, lane.enqueue_shard,
        range_agg(ledger.span * int8range(lane.cursor, NULL)) AS positions
    FROM lane
    CROSS JOIN awa.queue_ring_slots AS slot
    -- Lane by lane and slot by slot, or all of the ledger would be read.
    CROSS JOIN LATERAL (
        SELECT unnest(batch.lane_ranges) AS span
        FROM awa.ready_claim_attempt_batches AS batch
        WHERE batch.ready_slot = slot.slot
            AND batch.ready_generation = slot.generation
            AND batch.queue = lane.queue
            AND batch.priority = lane.priority
            AND batch.enqueue_shard = lane.enqueue_shard
            AND batch.next_lane_seq > lane.cursor
        OFFSET 0
    ) AS ledger
    WHERE ledger.span && int8range(lane.cursor, NULL)
    GROUP BY slot.slot, lane.queue, lane.priority, lane.enqueue_shard
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
    SELECT claimed.kind, -claimed.total
    FROM emitted
    CROSS JOIN LATERAL unnest(emitted.positions) AS span (positions)
    CROSS JOIN LATERAL (
        SELECT body.kind, count(*) AS total
        FROM awa.ready_entries AS body
        WHERE body.ready_slot = emitted.slot
            AND body.queue = emitted.queue
            AND body.priority = emitted.priority
            AND body.enqueue_shard = emitted.enqueue_shard
            AND body.lane_seq >= lower(span.positions)
            AND body.lane_seq < upper(span.positions)
        GROUP BY body.kind
    ) AS claimed
    UNION ALL
    SELECT lifted.kind, -1
    FROM lane
    JOIN awa.ready_tombstones AS tombstone
        ON tombstone.queue = lane.queue
        AND tombstone.priority = lane.priority
        AND tombstone.enqueue_shard = lane.enqueue_shard
        AND tombstone.lane_seq >= lane.cursor
    CROSS JOIN LATERAL (
        SELECT body.kind
        FROM awa.ready_entries AS body
        WHERE body.ready_slot = tombstone.ready_slot
            AND body.ready_generation = tombstone.ready_generation
            AND body.queue = tombstone.queue
            AND body.priority = tombstone.priority
            AND body.enqueue_shard = tombstone.enqueue_shard
            AND body.lane_seq = tombstone.lane_seq
        OFFSET 0
    ) AS lifted
    WHERE NOT EXISTS (
        SELECT
        FROM emitted
        WHERE emitted.slot = tombstone.ready_slot
            AND emitted.queue = tombstone.queue
            AND emitted.priority = tombstone.priority
            AND emitted.enqueue_shard = tombstone.enqueue_shard
            AND emitted.positions @> tombstone.lane_seq
    )
    UNION ALL
    SELECT kind, count(*)
    FROM awa.deferred_jobs
    GROUP BY kind
) AS waiting
GROUP BY kind
HAVING sum(total) > 0;
