-- Turning the rings and emptying their slots (contract: queue-storage/maintenance sections 3 to 9).
--
-- Locks go ring state, ring slot, children. A statement after a lock sees what was committed before it was
-- obtained; that is why the gates are asked again once the children are locked.

-- name: limit_lock_waits
-- Give up on a lock after 10 ms, to the end of the transaction: whoever waits for an emptied child waits for us.
-- rows:  none
-- locks: none
SET LOCAL lock_timeout = '10ms';

-- name: hold_queue_ring
-- The queue ring, held still.
-- rows:  one: its generation and number of slots
-- locks: the ring's state row
SELECT generation, slot_count
FROM awa.queue_ring_state
FOR UPDATE;

-- name: hold_queue_slot
-- One slot of the queue ring, held still.
-- rows:  one
-- locks: the slot's row
SELECT generation
FROM awa.queue_ring_slots
WHERE slot = %(slot)s
FOR UPDATE;

-- name: queue_slot_is_used
-- Whether any child of a slot has a row.
-- rows:  one
-- locks: none
SELECT
    EXISTS (SELECT FROM awa.ready_entries/*_slot*/)
    OR EXISTS (SELECT FROM awa.ready_claim_attempt_batches/*_slot*/)
    OR EXISTS (SELECT FROM awa.done_entries/*_slot*/)
    OR EXISTS (SELECT FROM awa.ready_tombstones/*_slot*/)
    OR EXISTS (SELECT FROM awa.ready_segments/*_slot*/)
    OR EXISTS (SELECT FROM awa.receipt_completion_batches/*_slot*/)
    OR EXISTS (SELECT FROM awa.receipt_completion_tombstones/*_slot*/)
    OR EXISTS (SELECT FROM awa.queue_terminal_count_deltas/*_slot*/);

-- name: queue_slot_has_writers
-- Whether another session is writing to a slot: a transaction that read the ring a whole lap ago (H-03).
-- rows:  one
-- locks: none
SELECT EXISTS (
    SELECT
    FROM pg_locks AS held
    WHERE held.locktype = 'relation'
        AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND held.relation IN (
            format('awa.ready_entries_%%s', %(slot)s::integer)::regclass,
            format('awa.ready_segments_%%s', %(slot)s::integer)::regclass,
            format('awa.done_entries_%%s', %(slot)s::integer)::regclass
        )
        AND held.mode = 'RowExclusiveLock'
        AND held.granted
        AND held.pid IS DISTINCT FROM pg_backend_pid()
);

-- name: turn_queue_ring
-- Make the next slot current, unless the ring moved meanwhile or a trigger of the schema kept it.
-- rows:  one if it turned
-- locks: the ring's state row
UPDATE awa.queue_ring_state
SET current_slot = %(slot)s, generation = %(generation)s
WHERE generation = %(expected)s
RETURNING generation;

-- name: label_queue_slot
-- Write down which generation a slot belongs to.
-- rows:  none
-- locks: the slot's row
UPDATE awa.queue_ring_slots
SET generation = %(generation)s
WHERE slot = %(slot)s;

-- name: queue_slot_opened_at
-- About when the first row came into a slot: rows are appended, so it lies on the first page. Segments and count
-- deltas say when they were written; the jobs themselves may be older.
-- rows:  one; NULL for a slot without either
-- locks: none
SELECT least(
    (SELECT min(created_at) FROM awa.ready_segments/*_slot*/ WHERE ctid < '(1,0)'),
    (SELECT min(recorded_at) FROM awa.queue_terminal_count_deltas/*_slot*/ WHERE ctid < '(1,0)')
);

-- name: queue_slot_rows
-- About how many jobs a slot holds: exactly while it is small, else from its first eight pages and eight in the middle.
-- The last pages may be empty: servers extend a table by many at once.
-- rows:  one
-- locks: none
WITH sizes AS MATERIALIZED (
    SELECT
        pg_relation_size(format('awa.ready_entries_%%s', %(slot)s::integer)::regclass)
            / current_setting('block_size')::bigint AS ready,
        pg_relation_size(format('awa.done_entries_%%s', %(slot)s::integer)::regclass)
            / current_setting('block_size')::bigint AS done
)
SELECT greatest(
    CASE
        WHEN sizes.ready <= 128 THEN (SELECT count(*) FROM awa.ready_entries/*_slot*/)
        ELSE sizes.ready * (
            (SELECT count(*) FROM awa.ready_entries/*_slot*/ WHERE ctid < '(8,0)')
            + (
                SELECT count(*)
                FROM awa.ready_entries/*_slot*/
                WHERE ctid >= format('(%%s,0)', sizes.ready / 2)::tid
                    AND ctid < format('(%%s,0)', sizes.ready / 2 + 8)::tid
            )
        ) / 16
    END,
    CASE
        WHEN sizes.done <= 128 THEN (SELECT count(*) FROM awa.done_entries/*_slot*/)
        ELSE sizes.done * (
            (SELECT count(*) FROM awa.done_entries/*_slot*/ WHERE ctid < '(8,0)')
            + (
                SELECT count(*)
                FROM awa.done_entries/*_slot*/
                WHERE ctid >= format('(%%s,0)', sizes.done / 2)::tid
                    AND ctid < format('(%%s,0)', sizes.done / 2 + 8)::tid
            )
        ) / 16
    END
)
FROM sizes;

-- name: queue_slot_newest_end
-- When the last job of a slot finished.
-- rows:  one; NULL if none did
-- locks: none
SELECT greatest(
    (SELECT max(finalized_at) FROM awa.done_entries/*_slot*/),
    (SELECT max(finalized_at) FROM awa.receipt_completion_batches/*_slot*/)
);

-- name: queue_slot_gates
-- What keeps a slot from being emptied, whatever generation it is of (H-03): the id of a job with a lease, the
-- id of a job that may not have been handed out, and whether receipts are open.
-- rows:  one
-- locks: none
WITH RECURSIVE lanes AS (
    (
        SELECT queue, priority, enqueue_shard
        FROM awa.ready_entries/*_slot*/
        ORDER BY queue, priority, enqueue_shard
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.priority, following.enqueue_shard
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority, ready.enqueue_shard
        FROM awa.ready_entries/*_slot*/ AS ready
        WHERE (ready.queue, ready.priority, ready.enqueue_shard)
            > (lanes.queue, lanes.priority, lanes.enqueue_shard)
        ORDER BY ready.queue, ready.priority, ready.enqueue_shard
        LIMIT 1
    ) AS following
),
cursors AS MATERIALIZED (
    SELECT
        lanes.queue, lanes.priority, lanes.enqueue_shard,
        CASE WHEN head.seq_name IS NULL THEN 0 ELSE awa.sequence_next_value(head.seq_name) END AS next_lane_seq
    FROM lanes
    LEFT JOIN awa.queue_claim_heads AS head USING (queue, priority, enqueue_shard)
)
SELECT
    (SELECT job_id FROM awa.leases WHERE ready_slot = %(slot)s LIMIT 1) AS leased,
    (
        SELECT pending.job_id
        FROM cursors
        CROSS JOIN LATERAL (
            SELECT ready.job_id
            FROM awa.ready_entries/*_slot*/ AS ready
            WHERE ready.queue = cursors.queue
                AND ready.priority = cursors.priority
                AND ready.enqueue_shard = cursors.enqueue_shard
                AND ready.lane_seq >= cursors.next_lane_seq
            ORDER BY ready.lane_seq
            LIMIT 1
        ) AS pending
        LIMIT 1
    ) AS pending,
    EXISTS (
        SELECT
        FROM (
            SELECT ready_generation, count(*) AS receipts
            FROM awa.lease_claims
            WHERE ready_slot = %(slot)s
            GROUP BY ready_generation
            UNION ALL
            SELECT ready_generation, sum(claimed_count)
            FROM awa.lease_claim_batches
            WHERE ready_slot = %(slot)s
            GROUP BY ready_generation
            UNION ALL
            SELECT claim.ready_generation, -count(*)
            FROM awa.lease_claims AS claim
            JOIN awa.lease_claim_closures AS closure USING (claim_slot, job_id, run_lease)
            WHERE claim.ready_slot = %(slot)s
            GROUP BY claim.ready_generation
            UNION ALL
            SELECT ready_generation, -sum(closed_count)
            FROM awa.lease_claim_closure_batches
            WHERE ready_slot = %(slot)s
            GROUP BY ready_generation
        ) AS movements
        GROUP BY ready_generation
        HAVING sum(receipts) <> 0
    ) AS unbalanced;

-- name: freeze_queue_slot
-- Keep writers off a slot while its history is folded; readers, among them claims, go on.
-- rows:  none
-- locks: the slot's children, SHARE
LOCK TABLE
    awa.ready_entries/*_slot*/,
    awa.ready_claim_attempt_batches/*_slot*/,
    awa.done_entries/*_slot*/,
    awa.ready_tombstones/*_slot*/,
    awa.ready_segments/*_slot*/,
    awa.receipt_completion_batches/*_slot*/,
    awa.receipt_completion_tombstones/*_slot*/,
    awa.queue_terminal_count_deltas/*_slot*/
IN SHARE MODE;

-- name: lock_queue_slot
-- Have a slot to ourselves.
-- rows:  none
-- locks: the slot's children, ACCESS EXCLUSIVE
LOCK TABLE
    awa.ready_entries/*_slot*/,
    awa.ready_claim_attempt_batches/*_slot*/,
    awa.done_entries/*_slot*/,
    awa.ready_tombstones/*_slot*/,
    awa.ready_segments/*_slot*/,
    awa.receipt_completion_batches/*_slot*/,
    awa.receipt_completion_tombstones/*_slot*/,
    awa.queue_terminal_count_deltas/*_slot*/
IN ACCESS EXCLUSIVE MODE;

-- name: kept_since
-- The finishing time from which failed jobs are carried forward; infinity when none are.
-- rows:  one, as text, since the driver has no infinite time
-- locks: none
SELECT CASE %(retention)s::interval
    WHEN '0' THEN 'infinity'
    ELSE (statement_timestamp() - %(retention)s::interval)::text
END;

-- name: carry_failed
-- Write the failed jobs of a slot that are to be kept into the current slot, with their whole body.
-- rows:  the ids of the jobs carried
-- locks: none
WITH ring AS MATERIALIZED (
    SELECT current_slot, generation
    FROM awa.queue_ring_state
),
kept AS MATERIALIZED (
    SELECT
        ring.current_slot, ring.generation, done.job_id, done.kind, done.queue,
        coalesce(done.args, ready.args, '{}') AS args, done.state, done.priority, done.attempt, done.run_lease,
        coalesce(done.max_attempts, ready.max_attempts, 25) AS max_attempts, done.lane_seq, done.enqueue_shard,
        coalesce(done.run_at, ready.run_at, done.finalized_at) AS run_at, done.attempted_at, done.finalized_at,
        coalesce(done.created_at, ready.created_at, done.finalized_at) AS created_at,
        coalesce(done.unique_key, ready.unique_key) AS unique_key,
        coalesce(done.unique_states, ready.unique_states) AS unique_states,
        coalesce(done.payload, ready.payload, '{}') AS payload
    FROM ring, awa.done_entries/*_slot*/ AS done
    -- One ready row for each: a job that was moved to the same position of another priority has two.
    LEFT JOIN LATERAL (
        SELECT emission.*
        FROM awa.ready_entries/*_slot*/ AS emission
        WHERE emission.job_id = done.job_id
            AND emission.ready_generation = done.ready_generation
            AND emission.queue = done.queue
            AND emission.enqueue_shard = done.enqueue_shard
            AND emission.lane_seq = done.lane_seq
        ORDER BY emission.priority = done.priority DESC
        LIMIT 1
    ) AS ready ON true
    WHERE done.state = 'failed' AND done.finalized_at >= %(kept_since)s::text::timestamptz
),
counted AS (
    INSERT INTO awa.queue_terminal_count_deltas (
        ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
    )
    SELECT current_slot, generation, queue, priority, enqueue_shard, (job_id & 255)::smallint, count(*)
    FROM kept
    GROUP BY current_slot, generation, queue, priority, enqueue_shard, job_id & 255
)
INSERT INTO awa.done_entries (
    ready_slot, ready_generation, job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts,
    lane_seq, enqueue_shard, run_at, attempted_at, finalized_at, created_at, unique_key, unique_states, payload
)
SELECT
    current_slot, generation, job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts,
    lane_seq, enqueue_shard, run_at, attempted_at, finalized_at, created_at, unique_key, unique_states, payload
FROM kept
RETURNING job_id;

-- name: fold_queue_slot
-- Add the jobs whose history ends here to the permanent counts.
-- rows:  none
-- locks: roll-up rows, in key order
WITH ended AS (
    SELECT
        queue, priority,
        count(*) FILTER (WHERE state <> 'failed') AS completed,
        count(*) FILTER (
            WHERE state = 'failed' AND finalized_at < %(kept_since)s::text::timestamptz
        ) AS failed
    FROM awa.done_entries/*_slot*/
    GROUP BY queue, priority
    UNION ALL
    SELECT queue, priority, sum(completed_count), 0
    FROM awa.receipt_completion_batches/*_slot*/
    GROUP BY queue, priority
    UNION ALL
    SELECT queue, priority, -count(*), 0
    FROM awa.receipt_completion_tombstones/*_slot*/
    GROUP BY queue, priority
)
INSERT INTO awa.queue_terminal_rollups AS rollup (
    queue, priority, pruned_completed_count, pruned_failed_count
)
SELECT queue, priority, greatest(sum(completed), 0), sum(failed)
FROM ended
GROUP BY queue, priority
HAVING sum(completed) > 0 OR sum(failed) > 0
ORDER BY queue, priority
ON CONFLICT (queue, priority) DO UPDATE
SET pruned_completed_count = rollup.pruned_completed_count + excluded.pruned_completed_count,
    pruned_failed_count = rollup.pruned_failed_count + excluded.pruned_failed_count;

-- name: release_ended_claims
-- Let go of unique keys of jobs whose last row goes with this slot (H-07). A key somebody else is just using is
-- left to the orphan sweep.
-- rows:  none
-- locks: unique-claim rows, in key order, passing over those another transaction holds
WITH ended AS MATERIALIZED (
    SELECT coalesce(done.unique_key, ready.unique_key) AS unique_key, done.job_id
    FROM awa.done_entries/*_slot*/ AS done
    LEFT JOIN awa.ready_entries/*_slot*/ AS ready
        ON ready.job_id = done.job_id
        AND ready.ready_generation = done.ready_generation
        AND ready.queue = done.queue
        AND ready.enqueue_shard = done.enqueue_shard
        AND ready.lane_seq = done.lane_seq
    WHERE coalesce(done.unique_key, ready.unique_key) IS NOT NULL
        AND NOT (done.state = 'failed' AND done.finalized_at >= %(kept_since)s::text::timestamptz)
        AND NOT EXISTS (SELECT FROM awa.deferred_jobs AS deferred WHERE deferred.job_id = done.job_id)
        AND NOT EXISTS (SELECT FROM awa.dlq_entries AS dead WHERE dead.job_id = done.job_id)
),
held AS MATERIALIZED (
    SELECT claim.unique_key, claim.job_id
    FROM awa.job_unique_claims AS claim
    JOIN ended ON ended.unique_key = claim.unique_key AND ended.job_id = claim.job_id
    ORDER BY claim.unique_key
    FOR UPDATE OF claim SKIP LOCKED
)
DELETE FROM awa.job_unique_claims AS claim
USING held
WHERE claim.unique_key = held.unique_key AND claim.job_id = held.job_id;

-- name: empty_queue_slot
-- Reclaim a slot.
-- rows:  none
-- locks: the slot's children, ACCESS EXCLUSIVE, held already
TRUNCATE
    awa.ready_entries/*_slot*/,
    awa.ready_claim_attempt_batches/*_slot*/,
    awa.done_entries/*_slot*/,
    awa.ready_tombstones/*_slot*/,
    awa.ready_segments/*_slot*/,
    awa.receipt_completion_batches/*_slot*/,
    awa.receipt_completion_tombstones/*_slot*/,
    awa.queue_terminal_count_deltas/*_slot*/;

-- name: forget_live_counts
-- Drop the folded counts of a slot that holds nothing any more.
-- rows:  none
-- locks: live-count rows
DELETE FROM awa.queue_terminal_live_counts
WHERE ready_slot = %(slot)s;

-- name: slots_with_deltas
-- Sealed slots whose count increments can be folded, oldest first.
-- rows:  at most four
-- locks: none
SELECT slots.slot
FROM awa.queue_ring_slots AS slots, awa.queue_ring_state AS ring
WHERE slots.generation >= 0
    AND slots.slot <> ring.current_slot
    AND pg_relation_size(format('awa.queue_terminal_count_deltas_%%s', slots.slot)::regclass) > 0
ORDER BY slots.generation, slots.slot
LIMIT 4;

-- name: horizon_is_pinned
-- Whether another session still reads with an old snapshot, and would see neither increments nor their sum.
-- rows:  one
-- locks: none
SELECT EXISTS (
    SELECT
    FROM pg_stat_activity
    WHERE datname = current_database()
        AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'
        AND (backend_xmin IS NOT NULL OR (state LIKE 'idle in transaction%%' AND backend_xid IS NOT NULL))
);

-- name: lock_deltas
-- Have the count increments of a slot to ourselves.
-- rows:  none
-- locks: the child, ACCESS EXCLUSIVE
LOCK TABLE awa.queue_terminal_count_deltas/*_slot*/ IN ACCESS EXCLUSIVE MODE;

-- name: fold_deltas
-- Add the count increments of a slot to its live counts, which never go below zero.
-- rows:  none
-- locks: live-count rows, in key order
WITH changes AS (
    SELECT queue, priority, enqueue_shard, counter_bucket, sum(terminal_delta) AS change
    FROM awa.queue_terminal_count_deltas/*_slot*/
    GROUP BY queue, priority, enqueue_shard, counter_bucket
)
INSERT INTO awa.queue_terminal_live_counts (
    ready_slot, queue, priority, enqueue_shard, counter_bucket, live_terminal_count
)
SELECT
    %(slot)s, queue, priority, enqueue_shard, counter_bucket,
    greatest(coalesce(live.live_terminal_count, 0) + changes.change, 0)
FROM changes
LEFT JOIN (
    SELECT queue, priority, enqueue_shard, counter_bucket, live_terminal_count
    FROM awa.queue_terminal_live_counts
    WHERE ready_slot = %(slot)s
) AS live USING (queue, priority, enqueue_shard, counter_bucket)
WHERE live.live_terminal_count IS NOT NULL OR changes.change > 0
ORDER BY queue, priority, enqueue_shard, counter_bucket
ON CONFLICT (ready_slot, queue, priority, enqueue_shard, counter_bucket) DO UPDATE
SET live_terminal_count = excluded.live_terminal_count;

-- name: empty_deltas
-- Drop the count increments of a slot that have been folded.
-- rows:  none
-- locks: the child, ACCESS EXCLUSIVE, held already
TRUNCATE awa.queue_terminal_count_deltas/*_slot*/;

-- name: hold_claim_ring
-- The claim ring, held still.
-- rows:  one: its generation and number of slots
-- locks: the ring's state row
SELECT generation, slot_count
FROM awa.claim_ring_state
FOR UPDATE;

-- name: hold_claim_slot
-- One slot of the claim ring, held still.
-- rows:  one
-- locks: the slot's row
SELECT generation
FROM awa.claim_ring_slots
WHERE slot = %(slot)s
FOR UPDATE;

-- name: claim_slot_is_used
-- Whether any child of a slot has a row.
-- rows:  one
-- locks: none
SELECT
    EXISTS (SELECT FROM awa.lease_claims/*_slot*/)
    OR EXISTS (SELECT FROM awa.lease_claim_batches/*_slot*/)
    OR EXISTS (SELECT FROM awa.lease_claim_closures/*_slot*/)
    OR EXISTS (SELECT FROM awa.lease_claim_closure_batches/*_slot*/);

-- name: turn_claim_ring
-- Make another slot current, unless the ring moved meanwhile.
-- rows:  one if it turned
-- locks: the ring's state row
UPDATE awa.claim_ring_state
SET current_slot = %(slot)s, generation = %(generation)s
WHERE generation = %(expected)s
RETURNING generation;

-- name: claim_slot_balance
-- Receipts of a slot that are open; below zero if one was closed twice.
-- rows:  one
-- locks: none
SELECT
    (SELECT count(*) FROM awa.lease_claims/*_slot*/)
    + (SELECT coalesce(sum(claimed_count), 0) FROM awa.lease_claim_batches/*_slot*/)
    - (SELECT count(*) FROM awa.lease_claim_closures/*_slot*/)
    - (SELECT coalesce(sum(closed_count), 0) FROM awa.lease_claim_closure_batches/*_slot*/);

-- name: lock_claim_slot
-- Have a slot to ourselves.
-- rows:  none
-- locks: the slot's children, ACCESS EXCLUSIVE
LOCK TABLE
    awa.lease_claims/*_slot*/,
    awa.lease_claim_batches/*_slot*/,
    awa.lease_claim_closures/*_slot*/,
    awa.lease_claim_closure_batches/*_slot*/
IN ACCESS EXCLUSIVE MODE;

-- name: empty_claim_slot
-- Reclaim a slot.
-- rows:  none
-- locks: the slot's children, ACCESS EXCLUSIVE, held already
TRUNCATE
    awa.lease_claims/*_slot*/,
    awa.lease_claim_batches/*_slot*/,
    awa.lease_claim_closures/*_slot*/,
    awa.lease_claim_closure_batches/*_slot*/;

-- name: reset_claim_cursors
-- Let the rescue scans of an emptied slot begin anew.
-- rows:  none
-- locks: the slot's row
UPDATE awa.claim_ring_slots
SET rescue_cursor_claimed_at = '-infinity',
    rescue_cursor_job_id = 0,
    rescue_cursor_run_lease = 0,
    deadline_cursor_deadline_at = '-infinity',
    deadline_cursor_job_id = 0,
    deadline_cursor_run_lease = 0
WHERE slot = %(slot)s;

-- name: hold_lease_ring
-- The lease ring, held still.
-- rows:  one: its generation and number of slots
-- locks: the ring's state row
SELECT generation, slot_count
FROM awa.lease_ring_state
FOR UPDATE;

-- name: lease_slot_is_used
-- Whether a slot has a lease.
-- rows:  one
-- locks: none
SELECT EXISTS (SELECT FROM awa.leases/*_slot*/);

-- name: turn_lease_ring
-- Make another slot current, unless the ring moved meanwhile.
-- rows:  one if it turned
-- locks: the ring's state row
UPDATE awa.lease_ring_state
SET current_slot = %(slot)s, generation = %(generation)s
WHERE generation = %(expected)s
RETURNING generation;

-- name: lock_lease_slot
-- Have a slot to ourselves.
-- rows:  none
-- locks: the slot's child, ACCESS EXCLUSIVE
LOCK TABLE awa.leases/*_slot*/ IN ACCESS EXCLUSIVE MODE;

-- name: empty_lease_slot
-- Give back the space of leases that have ended.
-- rows:  none
-- locks: the slot's child, ACCESS EXCLUSIVE, held already
TRUNCATE awa.leases/*_slot*/;
