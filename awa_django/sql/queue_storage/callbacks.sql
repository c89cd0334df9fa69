-- Attempts that have a callback (contract: queue-storage/attempts sections 5 and 6).
--
-- Such an attempt has a lease beside its open receipt. Whoever changes it holds the attempt key first and begins the
-- statement that judges it afterwards. The evidence is locked for key share only: that keeps reference admin clients
-- away, and does not hold up the siblings of a claim batch while a caller's transaction lasts.

-- name: share_evidence
-- The claim evidence of an attempt.
-- rows:  one
-- locks: its lease_claims row or lease_claim_batches row, FOR KEY SHARE
WITH claim_row AS MATERIALIZED (
    SELECT claim.receipt_id
    FROM awa.lease_claims AS claim
    WHERE %(batch_id)s::bigint IS NULL
        AND claim.claim_slot = %(claim_slot)s::integer
        AND claim.job_id = %(job_id)s::bigint
        AND claim.run_lease = %(run_lease)s::bigint
    FOR KEY SHARE OF claim
),
claim_batch AS MATERIALIZED (
    SELECT batch.batch_id
    FROM awa.lease_claim_batches AS batch
    WHERE batch.claim_slot = %(claim_slot)s::integer AND batch.batch_id = %(batch_id)s::bigint
    FOR KEY SHARE OF batch
)
SELECT (SELECT count(*) FROM claim_row), (SELECT count(*) FROM claim_batch);

-- name: make_lease
-- Give an attempt whose receipt is open a lease, unless it has one. It is of its lane's priority, so that every reader
-- finds the ready row (DEC-24).
-- rows:  none
-- locks: the lease_claims row, if there is one; the evidence is shared already
WITH open AS MATERIALIZED (
    SELECT claim.claimed_at, claim.deadline_at
    FROM awa.lease_claims AS claim
    WHERE %(batch_id)s::bigint IS NULL
        AND claim.claim_slot = %(claim_slot)s::integer
        AND claim.job_id = %(job_id)s::bigint
        AND claim.run_lease = %(run_lease)s::bigint
        AND claim.receipt_id = %(receipt_id)s::bigint
        AND claim.closed_at IS NULL
    UNION ALL
    SELECT batch.claimed_at, batch.deadline_at
    FROM awa.lease_claim_batches AS batch
    WHERE batch.claim_slot = %(claim_slot)s::integer
        AND batch.batch_id = %(batch_id)s::bigint
        AND batch.receipt_ranges @> %(receipt_id)s::bigint
),
made AS (
    INSERT INTO awa.leases (
        lease_slot, lease_generation, ready_slot, ready_generation, job_id, queue, state, priority, attempt,
        run_lease, max_attempts, lane_seq, enqueue_shard, heartbeat_at, deadline_at, attempted_at
    )
    SELECT
        ring.current_slot, ring.generation, %(ready_slot)s::integer, %(ready_generation)s::bigint,
        %(job_id)s::bigint, %(queue)s::text, 'running', %(priority)s::smallint, %(attempt)s::smallint,
        %(run_lease)s::bigint, %(max_attempts)s::smallint, %(lane_seq)s::bigint, %(shard)s::smallint,
        clock_timestamp(), open.deadline_at, open.claimed_at
    FROM open
    CROSS JOIN awa.lease_ring_state AS ring
    WHERE NOT EXISTS (
            SELECT FROM awa.lease_claim_closures AS closure
            WHERE closure.claim_slot = %(claim_slot)s::integer
                AND closure.job_id = %(job_id)s::bigint
                AND closure.run_lease = %(run_lease)s::bigint
        )
        AND NOT EXISTS (
            SELECT FROM awa.lease_claim_closure_batches AS closure
            WHERE closure.claim_slot = %(claim_slot)s::integer
                AND closure.receipt_ranges @> %(receipt_id)s::bigint
        )
        AND NOT EXISTS (
            SELECT FROM awa.leases AS lease
            WHERE lease.job_id = %(job_id)s::bigint AND lease.run_lease = %(run_lease)s::bigint
        )
        AND NOT EXISTS (
            SELECT FROM awa.done_entries AS done
            WHERE done.ready_slot = %(ready_slot)s::integer
                AND done.job_id = %(job_id)s::bigint
                AND done.run_lease = %(run_lease)s::bigint
        )
        AND NOT EXISTS (
            SELECT FROM awa.deferred_jobs AS deferred
            WHERE deferred.job_id = %(job_id)s::bigint AND deferred.run_lease = %(run_lease)s::bigint
        )
        AND NOT EXISTS (
            SELECT FROM awa.dlq_entries AS dead
            WHERE dead.job_id = %(job_id)s::bigint AND dead.run_lease = %(run_lease)s::bigint
        )
    RETURNING job_id, run_lease
)
UPDATE awa.lease_claims AS claim
SET materialized_at = clock_timestamp()
FROM made
WHERE %(batch_id)s::bigint IS NULL
    AND claim.claim_slot = %(claim_slot)s::integer
    AND claim.job_id = made.job_id
    AND claim.run_lease = made.run_lease
    AND claim.materialized_at IS NULL;

-- name: set_callback
-- Give a running lease a token, instead of any that it had.
-- rows:  one if it is running
-- locks: the lease row
UPDATE awa.leases
SET callback_id = %(callback_id)s, callback_timeout_at = clock_timestamp() + %(timeout)s::interval
WHERE job_id = %(job_id)s::bigint
    AND run_lease = %(run_lease)s::bigint
    AND state = 'running'
RETURNING job_id;

-- name: clear_callback
-- Take the token of a running lease away.
-- rows:  one if it had one
-- locks: the lease row
UPDATE awa.leases
SET callback_id = NULL, callback_timeout_at = NULL
WHERE job_id = %(job_id)s::bigint
    AND run_lease = %(run_lease)s::bigint
    AND state = 'running'
    AND callback_id IS NOT NULL
RETURNING job_id;

-- name: set_expressions
-- Keep the expressions that judge the answer to a callback.
-- rows:  none
-- locks: the attempt_state row
INSERT INTO awa.attempt_state AS state (
    job_id, run_lease, callback_filter, callback_on_complete, callback_on_fail, callback_transform, updated_at
)
VALUES (
    %(job_id)s::bigint, %(run_lease)s::bigint, %(filter)s::text, %(on_complete)s::text, %(on_fail)s::text,
    %(transform)s::text, clock_timestamp()
)
ON CONFLICT (job_id, run_lease) DO UPDATE
SET callback_filter = excluded.callback_filter,
    callback_on_complete = excluded.callback_on_complete,
    callback_on_fail = excluded.callback_on_fail,
    callback_transform = excluded.callback_transform,
    updated_at = excluded.updated_at;

-- name: forget_expressions
-- Drop the expressions of an attempt, and its row if nothing else is in it. A heartbeat is something: without it the
-- attempt would look as quiet as its lease is old.
-- rows:  none
-- locks: the attempt_state row
WITH emptied AS (
    DELETE FROM awa.attempt_state
    WHERE job_id = %(job_id)s::bigint
        AND run_lease = %(run_lease)s::bigint
        AND heartbeat_at IS NULL
        AND progress IS NULL
        AND callback_result IS NULL
)
UPDATE awa.attempt_state
SET callback_filter = NULL,
    callback_on_complete = NULL,
    callback_on_fail = NULL,
    callback_transform = NULL,
    updated_at = clock_timestamp()
WHERE job_id = %(job_id)s::bigint
    AND run_lease = %(run_lease)s::bigint
    AND (heartbeat_at IS NOT NULL OR progress IS NOT NULL OR callback_result IS NOT NULL)
    AND num_nonnulls(callback_filter, callback_on_complete, callback_on_fail, callback_transform) > 0;

-- name: attempt_of_callback
-- Which attempt has a token.
-- rows:  one at most
-- locks: none
SELECT job_id, run_lease
FROM awa.leases
WHERE callback_id = %(callback_id)s;

-- name: receipt_of_lease
-- Where the receipt of an attempt lies. A receipt of a batch is found without unpacking the batches of its slot.
-- rows:  one at most
-- locks: none
SELECT claim.claim_slot, claim.receipt_id, NULL::bigint AS batch_id
FROM awa.lease_claims AS claim
WHERE claim.job_id = %(job_id)s::bigint AND claim.run_lease = %(run_lease)s::bigint
UNION ALL
SELECT batch.claim_slot, batch.receipt_ids[item.place], batch.batch_id
FROM awa.leases AS lease
JOIN awa.lease_claim_batches AS batch
    ON batch.ready_slot = lease.ready_slot
    AND batch.ready_generation = lease.ready_generation
    AND batch.queue = lease.queue
    AND batch.enqueue_shard = lease.enqueue_shard,
    array_position(batch.job_ids, lease.job_id) AS item (place)
WHERE lease.job_id = %(job_id)s::bigint
    AND lease.run_lease = %(run_lease)s::bigint
    AND item.place IS NOT NULL
    AND batch.run_leases[item.place] = lease.run_lease
LIMIT 1;

-- name: hold_leases
-- The leases of attempts with the jobs they are of.
-- rows:  one for each that exists: the job as the other statements lift it, then the callback
-- locks: lease rows, in the order of their attempts
SELECT
    lease.job_id, lease.run_lease, ready.kind, ready.queue, ready.args, lease.state, ready.priority, lease.attempt,
    lease.max_attempts, ready.run_at, lease.attempted_at, ready.created_at, ready.unique_key, ready.unique_states,
    ready.payload, state.progress, clock_timestamp() AS taken_at, ready.ready_slot, ready.ready_generation,
    ready.enqueue_shard, ready.lane_seq,
    lease.callback_id, lease.callback_timeout_at, state.callback_filter, state.callback_on_complete,
    state.callback_on_fail, state.callback_transform
FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS wanted (job_id, run_lease)
JOIN awa.leases AS lease USING (job_id, run_lease)
JOIN awa.ready_entries AS ready
    ON ready.ready_slot = lease.ready_slot
    AND ready.ready_generation = lease.ready_generation
    AND ready.job_id = lease.job_id
    AND ready.queue = lease.queue
    AND ready.enqueue_shard = lease.enqueue_shard
    AND ready.lane_seq = lease.lane_seq
    AND (
        ready.priority = lease.priority
        OR NOT EXISTS (
            SELECT FROM awa.ready_entries AS own
            WHERE own.ready_slot = lease.ready_slot
                AND own.queue = lease.queue
                AND own.priority = lease.priority
                AND own.enqueue_shard = lease.enqueue_shard
                AND own.lane_seq = lease.lane_seq
                AND own.ready_generation = lease.ready_generation
                AND own.job_id = lease.job_id
        )
    )
LEFT JOIN awa.attempt_state AS state
    ON state.job_id = lease.job_id AND state.run_lease = lease.run_lease
ORDER BY lease.job_id, lease.run_lease
FOR UPDATE OF lease;

-- name: park
-- Have leases that are held wait. From here no deadline applies, not even after the answer.
-- rows:  none
-- locks: lease rows, held already; attempt_state rows
WITH wanted AS MATERIALIZED (
    SELECT job_id, run_lease, progress
    FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[], %(progress)s::jsonb[])
        AS attempt (job_id, run_lease, progress)
),
progressed AS (
    INSERT INTO awa.attempt_state AS state (job_id, run_lease, progress, updated_at)
    SELECT job_id, run_lease, progress, clock_timestamp()
    FROM wanted
    WHERE progress IS NOT NULL
    ORDER BY job_id, run_lease
    ON CONFLICT (job_id, run_lease) DO UPDATE
    SET progress = excluded.progress, updated_at = excluded.updated_at
)
UPDATE awa.leases AS lease
SET state = 'waiting_external', heartbeat_at = NULL, deadline_at = NULL
FROM wanted
WHERE lease.job_id = wanted.job_id AND lease.run_lease = wanted.run_lease;

-- name: unpark
-- Have a lease that is held run again, its token kept.
-- rows:  none
-- locks: the lease row, held already; the attempt_state row
WITH beaten AS (
    UPDATE awa.attempt_state
    SET heartbeat_at = clock_timestamp()
    WHERE job_id = %(job_id)s::bigint
        AND run_lease = %(run_lease)s::bigint
        AND heartbeat_at IS NOT NULL
)
UPDATE awa.leases
SET state = 'running', heartbeat_at = clock_timestamp()
WHERE job_id = %(job_id)s::bigint AND run_lease = %(run_lease)s::bigint;

-- name: resume
-- Have a lease that is held run on with an answer, its token gone. A heartbeat from before the wait would outrank that
-- of the lease (H-20), so it is renewed too.
-- rows:  none
-- locks: the lease row, held already; the attempt_state row
WITH answered AS (
    INSERT INTO awa.attempt_state AS state (job_id, run_lease, callback_result, updated_at)
    VALUES (%(job_id)s::bigint, %(run_lease)s::bigint, %(payload)s::jsonb, clock_timestamp())
    ON CONFLICT (job_id, run_lease) DO UPDATE
    SET callback_result = excluded.callback_result,
        callback_filter = NULL,
        callback_on_complete = NULL,
        callback_on_fail = NULL,
        callback_transform = NULL,
        heartbeat_at = CASE WHEN state.heartbeat_at IS NOT NULL THEN excluded.updated_at END,
        updated_at = excluded.updated_at
)
UPDATE awa.leases
SET state = 'running', callback_id = NULL, callback_timeout_at = NULL, heartbeat_at = clock_timestamp()
WHERE job_id = %(job_id)s::bigint AND run_lease = %(run_lease)s::bigint;

-- name: extend
-- Give a lease that is held this much time for its answer.
-- rows:  none
-- locks: the lease row, held already
UPDATE awa.leases
SET callback_timeout_at = clock_timestamp() + %(timeout)s::interval
WHERE job_id = %(job_id)s::bigint AND run_lease = %(run_lease)s::bigint;

-- name: newest_lease
-- The last attempt of a job that has a lease, and what it was answered with.
-- rows:  one at most: a standing
-- locks: none
SELECT
    lease.job_id, lease.run_lease, lease.state, lease.callback_id, state.callback_result IS NOT NULL AS resumed,
    state.callback_result
FROM awa.leases AS lease
LEFT JOIN awa.attempt_state AS state USING (job_id, run_lease)
WHERE lease.job_id = %(job_id)s::bigint
ORDER BY lease.run_lease DESC
LIMIT 1;

-- name: consume_result
-- Take the answer away from an attempt, and its row if nothing else is in it.
-- rows:  one if there was an answer
-- locks: the attempt_state row
WITH answered AS MATERIALIZED (
    SELECT
        job_id, run_lease,
        num_nonnulls(
            heartbeat_at, progress, callback_filter, callback_on_complete, callback_on_fail, callback_transform
        ) = 0 AS bare
    FROM awa.attempt_state
    WHERE job_id = %(job_id)s::bigint
        AND run_lease = %(run_lease)s::bigint
        AND callback_result IS NOT NULL
    FOR UPDATE
),
emptied AS (
    DELETE FROM awa.attempt_state AS state
    USING answered
    WHERE answered.bare AND state.job_id = answered.job_id AND state.run_lease = answered.run_lease
),
consumed AS (
    UPDATE awa.attempt_state AS state
    SET callback_result = NULL, updated_at = clock_timestamp()
    FROM answered
    WHERE NOT answered.bare AND state.job_id = answered.job_id AND state.run_lease = answered.run_lease
)
SELECT job_id
FROM answered;

-- name: standings
-- Where jobs are now. The fact with the highest run lease counts: a lease or an end of that attempt, else the ready row
-- that it was put back as, else its receipt, which says nothing but that it began.
-- rows:  one for each job that is anywhere
-- locks: none
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT job_id
    FROM unnest(%(job_ids)s::bigint[]) AS job (job_id)
),
emissions AS MATERIALIZED (
    SELECT
        ready.job_id, ready.run_lease, ready.ready_slot, ready.ready_generation, ready.queue, ready.enqueue_shard
    FROM wanted
    JOIN awa.ready_entries AS ready USING (job_id)
),
facts AS (
    SELECT lease.job_id, lease.run_lease, lease.state, 1 AS weight, lease.callback_id
    FROM wanted
    JOIN awa.leases AS lease USING (job_id)
    UNION ALL
    SELECT done.job_id, done.run_lease, done.state, 1, NULL::uuid
    FROM wanted
    JOIN awa.done_entries AS done USING (job_id)
    UNION ALL
    SELECT deferred.job_id, deferred.run_lease, deferred.state, 1, NULL
    FROM wanted
    JOIN awa.deferred_jobs AS deferred USING (job_id)
    UNION ALL
    SELECT dead.job_id, dead.run_lease, dead.state, 1, NULL
    FROM wanted
    JOIN awa.dlq_entries AS dead USING (job_id)
    UNION ALL
    SELECT emission.job_id, batch.run_leases[item.place], 'completed', 1, NULL
    FROM emissions AS emission
    JOIN awa.receipt_completion_batches AS batch USING (ready_slot, ready_generation, queue, enqueue_shard),
        array_position(batch.job_ids, emission.job_id) AS item (place)
    WHERE item.place IS NOT NULL
    UNION ALL
    SELECT claim.job_id, claim.run_lease, 'running', 3, NULL
    FROM wanted
    JOIN awa.lease_claims AS claim USING (job_id)
    UNION ALL
    SELECT emission.job_id, batch.run_leases[item.place], 'running', 3, NULL
    FROM emissions AS emission
    JOIN awa.lease_claim_batches AS batch USING (ready_slot, ready_generation, queue, enqueue_shard),
        array_position(batch.job_ids, emission.job_id) AS item (place)
    WHERE item.place IS NOT NULL
    UNION ALL
    SELECT job_id, run_lease, 'available', 2, NULL
    FROM emissions
)
SELECT DISTINCT ON (fact.job_id)
    fact.job_id, fact.run_lease, fact.state, fact.callback_id, state.callback_result IS NOT NULL AS resumed,
    state.callback_result
FROM facts AS fact
LEFT JOIN awa.attempt_state AS state USING (job_id, run_lease)
ORDER BY fact.job_id, fact.run_lease DESC, fact.weight;
