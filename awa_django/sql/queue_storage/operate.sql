-- Lifting jobs that an operator names, from wherever they are (contract: queue-storage/admin).
--
-- What may be moved by others is found without locks, then locked in the order of the contract (source rows,
-- claim heads, attempt keys, claim evidence, leases), and asked again by the statement that lifts it, which began
-- after that. Receipts and leases are closed by the statements that settling and rescue use.

-- name: take_deferred
-- Scheduled and retryable jobs.
-- rows:  one for each
-- locks: deferred_jobs rows, in id order
WITH named AS MATERIALIZED (
    SELECT job_id
    FROM awa.deferred_jobs AS deferred
    WHERE job_id = ANY (%(job_ids)s::bigint[])
        AND state = ANY (%(states)s::awa.job_state[])
    ORDER BY job_id
    FOR UPDATE OF deferred
),
lifted AS (
    DELETE FROM awa.deferred_jobs AS deferred
    USING named
    WHERE deferred.job_id = named.job_id
    RETURNING deferred.*
)
SELECT
    job_id, run_lease, kind, queue, args, state, priority, attempt, max_attempts, run_at, attempted_at,
    created_at, unique_key, unique_states, payload, NULL::jsonb AS progress, statement_timestamp() AS taken_at,
    NULL::integer AS ready_slot, NULL::bigint AS ready_generation, 0::smallint AS enqueue_shard,
    NULL::bigint AS lane_seq, finalized_at
FROM lifted
ORDER BY job_id;

-- name: take_dead
-- Dead letters.
-- rows:  one for each
-- locks: dlq_entries rows, in id order
WITH named AS MATERIALIZED (
    SELECT job_id
    FROM awa.dlq_entries AS dead
    WHERE job_id = ANY (%(job_ids)s::bigint[])
    ORDER BY job_id
    FOR UPDATE OF dead
),
lifted AS (
    DELETE FROM awa.dlq_entries AS dead
    USING named
    WHERE dead.job_id = named.job_id
    RETURNING dead.*
)
SELECT
    job_id, run_lease, kind, queue, args, 'failed' AS state, priority, attempt, max_attempts, run_at, attempted_at,
    created_at, unique_key, unique_states, payload, NULL::jsonb AS progress, statement_timestamp() AS taken_at,
    NULL::integer AS ready_slot, NULL::bigint AS ready_generation, 0::smallint AS enqueue_shard,
    NULL::bigint AS lane_seq, finalized_at
FROM lifted
ORDER BY job_id;

-- name: hold_ended
-- Every finished row of these jobs, held. A job that lives on beside one, as a rescue by a reference client may leave
-- it (H-02), is not finished.
-- rows:  one for each row
-- locks: done_entries rows, in id order
SELECT done.ready_slot, done.job_id, done.run_lease, done.lane_seq, done.state, done.finalized_at
FROM awa.done_entries AS done
WHERE done.job_id = ANY (%(job_ids)s::bigint[])
    AND NOT EXISTS (
        SELECT FROM awa.deferred_jobs AS deferred
        WHERE deferred.job_id = done.job_id
    )
    AND NOT EXISTS (
        SELECT FROM awa.leases AS lease
        WHERE lease.job_id = done.job_id
    )
ORDER BY done.job_id, done.run_lease, done.ready_slot
FOR UPDATE OF done;

-- name: take_ended
-- Finished jobs, whole: what their row lacks is in the ready row. They have no lane position any more.
-- rows:  one for each
-- locks: done_entries rows, held already
WITH removed AS (
    DELETE FROM awa.done_entries AS done
    USING unnest(
        %(ready_slots)s::integer[], %(job_ids)s::bigint[], %(run_leases)s::bigint[], %(lane_seqs)s::bigint[]
    ) AS held (ready_slot, job_id, run_lease, lane_seq)
    WHERE done.ready_slot = held.ready_slot
        AND done.job_id = held.job_id
        AND done.run_lease = held.run_lease
        AND done.lane_seq = held.lane_seq
    RETURNING done.*
),
uncounted AS (
    INSERT INTO awa.queue_terminal_count_deltas (
        ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
    )
    SELECT
        ready_slot, ready_generation, queue, priority, enqueue_shard, (job_id & 255)::smallint, -count(*)
    FROM removed
    GROUP BY ready_slot, ready_generation, queue, priority, enqueue_shard, job_id & 255
)
SELECT
    removed.job_id, removed.run_lease, removed.kind, removed.queue, coalesce(removed.args, ready.args, '{}') AS args,
    removed.state, coalesce(ready.priority, removed.priority) AS priority, removed.attempt,
    coalesce(removed.max_attempts, ready.max_attempts, 25::smallint) AS max_attempts,
    coalesce(removed.run_at, ready.run_at, removed.finalized_at) AS run_at, removed.attempted_at,
    coalesce(removed.created_at, ready.created_at, removed.finalized_at) AS created_at,
    coalesce(removed.unique_key, ready.unique_key) AS unique_key,
    -- The mask of a ready row may claim a key that the job lost to a newer one when it ended; it is to ask for it again.
    CASE
        WHEN removed.state <> 'cancelled'
            OR EXISTS (
                SELECT FROM awa.job_unique_claims AS claim
                WHERE claim.unique_key = coalesce(removed.unique_key, ready.unique_key)
                    AND claim.job_id = removed.job_id
            )
            THEN coalesce(removed.unique_states, ready.unique_states)
        ELSE overlay(coalesce(removed.unique_states, ready.unique_states) PLACING '0' FROM 7 FOR 1)
    END AS unique_states,
    coalesce(removed.payload, ready.payload) AS payload, NULL::jsonb AS progress,
    statement_timestamp() AS taken_at, NULL::integer AS ready_slot, NULL::bigint AS ready_generation,
    0::smallint AS enqueue_shard, NULL::bigint AS lane_seq, removed.finalized_at
FROM removed
LEFT JOIN LATERAL (
    SELECT emission.*
    FROM awa.ready_entries AS emission
    WHERE emission.ready_slot = removed.ready_slot
        AND emission.ready_generation = removed.ready_generation
        AND emission.job_id = removed.job_id
        AND emission.queue = removed.queue
        AND emission.enqueue_shard = removed.enqueue_shard
        AND emission.lane_seq = removed.lane_seq
    ORDER BY emission.priority = removed.priority DESC
    LIMIT 1
) AS ready ON true
ORDER BY removed.job_id;

-- name: find_available
-- Positions of these jobs that no cursor has passed and no tombstone has spent.
-- rows:  one for each position
-- locks: none
SELECT
    ready.ready_slot, ready.ready_generation, ready.queue, ready.priority, ready.enqueue_shard, ready.lane_seq,
    ready.job_id
FROM awa.ready_entries AS ready
JOIN awa.queue_claim_heads AS head USING (queue, priority, enqueue_shard)
WHERE ready.job_id = ANY (%(job_ids)s::bigint[])
    AND CASE
        WHEN head.seq_name IS NULL THEN true
        ELSE ready.lane_seq >= awa.sequence_next_value(head.seq_name)
    END
    AND NOT EXISTS (
        SELECT FROM awa.ready_tombstones AS tombstone
        WHERE tombstone.ready_slot = ready.ready_slot
            AND tombstone.ready_generation = ready.ready_generation
            AND tombstone.queue = ready.queue
            AND tombstone.priority = ready.priority
            AND tombstone.enqueue_shard = ready.enqueue_shard
            AND tombstone.lane_seq = ready.lane_seq
    );

-- name: hold_available
-- Nobody claims from these lanes, and nobody else tombstones these rows, until the transaction ends (H-10).
-- rows:  one
-- locks: claim-head rows, lanes ascending, as claims of any client take them; then the ready rows
WITH named AS MATERIALIZED (
    SELECT ready_slot, queue, priority, enqueue_shard, lane_seq
    FROM unnest(
        %(ready_slots)s::integer[], %(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[],
        %(lane_seqs)s::bigint[]
    ) AS position (ready_slot, queue, priority, enqueue_shard, lane_seq)
),
heads AS MATERIALIZED (
    SELECT head.queue
    FROM awa.queue_claim_heads AS head
    WHERE (head.queue, head.priority, head.enqueue_shard) IN (SELECT queue, priority, enqueue_shard FROM named)
    ORDER BY head.queue, head.priority, head.enqueue_shard
    FOR UPDATE OF head
),
held AS MATERIALIZED (
    SELECT ready.job_id
    FROM awa.ready_entries AS ready
    JOIN named USING (ready_slot, queue, priority, enqueue_shard, lane_seq)
    WHERE (SELECT count(*) FROM heads) > 0
    ORDER BY ready.queue, ready.priority, ready.enqueue_shard, ready.lane_seq
    FOR UPDATE OF ready
)
SELECT count(*)
FROM held;

-- name: take_available
-- Jobs at positions that are held and still unspent: behind the cursor, without tombstone, and in no claim's emission
-- ledger, which is what tells a job that runs before the cursor has moved (H-10). The positions are tombstoned.
-- A claim of this transaction passes them, but must not move the cursor over what may yet be undone.
-- rows:  one for each job
-- locks: none beyond those held
WITH named AS MATERIALIZED (
    SELECT ready_slot, queue, priority, enqueue_shard, lane_seq
    FROM unnest(
        %(ready_slots)s::integer[], %(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[],
        %(lane_seqs)s::bigint[]
    ) AS position (ready_slot, queue, priority, enqueue_shard, lane_seq)
),
lanes AS MATERIALIZED (    -- a cursor is asked once for each lane, and not for each row that is looked at
    SELECT
        head.queue, head.priority, head.enqueue_shard,
        CASE WHEN head.seq_name IS NULL THEN 0 ELSE awa.sequence_next_value(head.seq_name) END AS cursor
    FROM awa.queue_claim_heads AS head
    WHERE (head.queue, head.priority, head.enqueue_shard)
        IN (SELECT queue, priority, enqueue_shard FROM named)
),
unspent AS MATERIALIZED (
    SELECT DISTINCT ON (ready.job_id) ready.*
    FROM awa.ready_entries AS ready
    JOIN named USING (ready_slot, queue, priority, enqueue_shard, lane_seq)
    JOIN lanes USING (queue, priority, enqueue_shard)
    WHERE ready.lane_seq >= lanes.cursor
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
    ORDER BY ready.job_id, ready.run_lease DESC, ready.ready_generation DESC, ready.lane_seq DESC
),
tombstones AS (
    INSERT INTO awa.ready_tombstones (
        ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id
    )
    SELECT ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id
    FROM unspent
    ON CONFLICT DO NOTHING
    RETURNING job_id
)
SELECT
    job_id, run_lease, kind, queue, args, 'available' AS state, priority, attempt, max_attempts, run_at, attempted_at,
    created_at, unique_key, unique_states, payload, NULL::jsonb AS progress, statement_timestamp() AS taken_at,
    ready_slot, ready_generation, enqueue_shard, lane_seq, NULL::timestamptz AS finalized_at,
    set_config('awa_django.uncommitted_evidence', 'tombstone', true) AS evidence
FROM unspent
JOIN tombstones USING (job_id)
ORDER BY job_id;

-- name: pass_tombstones
-- Move claim cursors over tombstones that have been committed, where a cursor stands on one: nobody need poll the
-- lane for that. A lane that somebody else holds is left to its next claim.
-- rows:  one for each lane whose cursor moved
-- locks: the lanes' claim-head rows, none of them waited for
WITH spent AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, range_agg(int8range(lane_seq, lane_seq + 1)) AS positions
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[], %(lane_seqs)s::bigint[])
        AS tombstone (queue, priority, enqueue_shard, lane_seq)
    GROUP BY queue, priority, enqueue_shard
),
heads AS MATERIALIZED (
    SELECT head.seq_name, spent.positions
    FROM awa.queue_claim_heads AS head
    JOIN spent USING (queue, priority, enqueue_shard)
    WHERE head.seq_name IS NOT NULL
    FOR UPDATE OF head SKIP LOCKED
)
SELECT awa.set_sequence_next(heads.seq_name, upper(span))
FROM heads, unnest(heads.positions) AS span
WHERE span @> awa.sequence_next_value(heads.seq_name);

-- name: pass_all_tombstones
-- The same for every lane whose cursor stands on a tombstone, whoever left it: jobs that were lifted off in pieces, from
-- the lane's end to its cursor, are passed once the last of them is gone.
-- rows:  one for each lane whose cursor moved
-- locks: the lanes' claim-head rows, in key order
WITH heads AS MATERIALIZED (
    SELECT head.queue, head.priority, head.enqueue_shard, head.seq_name
    FROM awa.queue_claim_heads AS head
    WHERE head.seq_name IS NOT NULL
        AND EXISTS (
            SELECT FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.queue = head.queue
                AND tombstone.priority = head.priority
                AND tombstone.enqueue_shard = head.enqueue_shard
                AND tombstone.lane_seq = awa.sequence_next_value(head.seq_name)
        )
    ORDER BY head.queue, head.priority, head.enqueue_shard
    FOR UPDATE OF head
),
standing AS MATERIALIZED (    -- read under the lock
    SELECT heads.*, awa.sequence_next_value(heads.seq_name) AS cursor
    FROM heads
),
spent AS MATERIALIZED (
    SELECT
        standing.seq_name, standing.cursor,
        range_agg(int8range(tombstone.lane_seq, tombstone.lane_seq + 1)) AS positions
    FROM standing
    JOIN awa.ready_tombstones AS tombstone USING (queue, priority, enqueue_shard)
    WHERE tombstone.lane_seq >= standing.cursor
    GROUP BY standing.seq_name, standing.cursor
)
SELECT awa.set_sequence_next(spent.seq_name, upper(span))
FROM spent, unnest(spent.positions) AS span
WHERE span @> spent.cursor;

-- name: find_attempts
-- Attempts of these jobs that seem to go on, with where their receipt lies: open receipts, and leases. A job's ready row
-- leads to the claims of its slot; of those only batches with something open are unnested.
-- rows:  one for each; claim_slot NULL for a lease without an open receipt, lease_state NULL for a receipt alone
-- locks: none
WITH emitted AS MATERIALIZED (
    SELECT job_id, run_lease + 1 AS run_lease, ready_slot, ready_generation
    FROM awa.ready_entries
    WHERE job_id = ANY (%(job_ids)s::bigint[])
),
closed AS MATERIALIZED (
    SELECT closure.claim_slot, range_agg(span) AS receipts
    FROM (SELECT DISTINCT ready_slot, ready_generation FROM emitted) AS place
    JOIN awa.lease_claim_closure_batches AS closure USING (ready_slot, ready_generation),
        unnest(closure.receipt_ranges) AS span
    GROUP BY closure.claim_slot
),
receipts AS MATERIALIZED (
    SELECT claim.job_id, claim.run_lease, claim.claim_slot, claim.receipt_id, NULL::bigint AS batch_id
    FROM awa.lease_claims AS claim
    LEFT JOIN closed USING (claim_slot)
    WHERE claim.job_id = ANY (%(job_ids)s::bigint[])
        AND claim.closed_at IS NULL
        AND (closed.receipts IS NULL OR NOT closed.receipts @> claim.receipt_id)
    UNION ALL
    SELECT item.job_id, item.run_lease, batch.claim_slot, item.receipt_id, batch.batch_id
    FROM (SELECT DISTINCT ready_slot, ready_generation FROM emitted) AS place
    JOIN awa.lease_claim_batches AS batch USING (ready_slot, ready_generation)
    LEFT JOIN closed USING (claim_slot),
        unnest(batch.job_ids, batch.run_leases, batch.receipt_ids) AS item (job_id, run_lease, receipt_id)
    WHERE (item.job_id, item.run_lease) IN (SELECT job_id, run_lease FROM emitted)
        AND (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
        AND (closed.receipts IS NULL OR NOT closed.receipts @> item.receipt_id)
),
leases AS MATERIALIZED (
    SELECT lease.job_id, lease.run_lease, lease.state
    FROM awa.leases AS lease
    WHERE lease.job_id = ANY (%(job_ids)s::bigint[])
)
SELECT job_id, run_lease, receipts.claim_slot, receipts.receipt_id, receipts.batch_id, leases.state
FROM receipts
FULL JOIN leases USING (job_id, run_lease)
ORDER BY job_id, run_lease;

-- name: hold_leases
-- Which of these leases are there, in one of the states, now that the attempt's key is held.
-- rows:  one for each
-- locks: lease rows, FOR UPDATE, in id order
SELECT lease.job_id, lease.run_lease
FROM awa.leases AS lease
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS wanted (job_id, run_lease)
    USING (job_id, run_lease)
WHERE lease.state = ANY (%(states)s::awa.job_state[])
ORDER BY lease.job_id, lease.run_lease
FOR UPDATE OF lease;
