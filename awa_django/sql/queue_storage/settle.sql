-- Ending attempts (contract: queue-storage/complete, attempts).
--
-- The attempt key is what serialises two transitions of one attempt; every statement after it must
-- begin after it was obtained. Reference admin clients take no key but lock the claim evidence,
-- so the evidence is locked too before it is judged (H-06).

-- name: lock_attempts
-- The advisory keys of attempts, held to the end of the transaction, ascending.
-- rows:  one
-- locks: attempt keys
SELECT count(pg_advisory_xact_lock(key))
FROM (
    SELECT DISTINCT hashtextextended('awa.receipt.complete:' || job_id || ':' || run_lease, 0) AS key
    FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
    ORDER BY key
) AS keys;

-- name: lock_compact
-- The advisory keys of attempts, ascending, and then their claim batches: reference admin clients stay away from
-- these receipts until we commit.
-- rows:  one
-- locks: attempt keys; claim-batch rows of one claim slot, FOR KEY SHARE, in key order
WITH keys AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(key)) AS taken
    FROM (
        SELECT DISTINCT hashtextextended('awa.receipt.complete:' || job_id || ':' || run_lease, 0) AS key
        FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
        ORDER BY key
    ) AS ascending
),
batches AS MATERIALIZED (
    SELECT batch.batch_id
    FROM awa.lease_claim_batches/*_claim*/ AS batch
    WHERE (SELECT taken FROM keys) > 0
        AND batch.claim_slot = %(claim_slot)s::integer
        AND batch.batch_id = ANY(%(batch_ids)s::bigint[])
    ORDER BY batch.batch_id
    FOR KEY SHARE OF batch
)
SELECT (SELECT taken FROM keys), (SELECT count(*) FROM batches);

-- name: complete_compact
-- Record successes of compact receipts of one claim slot and one ready slot: a closure batch for each generation and
-- a completion batch for each lane. A receipt is open while its batch lists it and no closure does. No lease can
-- exist: only the worker that runs an attempt makes one, and it sends such attempts another way.
-- rows:  one: the time written, and the receipts that were not open
-- locks: none beyond those taken before
WITH given AS MATERIALIZED (
    SELECT batch_id, receipt_id, job_id, run_lease, lane_seq, attempt
    FROM unnest(
        %(item_batch_ids)s::bigint[], %(receipt_ids)s::bigint[], %(job_ids)s::bigint[],
        %(run_leases)s::bigint[], %(lane_seqs)s::bigint[], %(attempts)s::smallint[]
    ) AS item (batch_id, receipt_id, job_id, run_lease, lane_seq, attempt)
),
claimed AS MATERIALIZED (
    SELECT
        batch.batch_id, batch.ready_generation, batch.queue, batch.priority, batch.enqueue_shard,
        wanted.receipts * batch.receipt_ranges AS receipts
    FROM (
        SELECT batch_id, range_agg(int8range(receipt_id, receipt_id + 1)) AS receipts
        FROM given
        GROUP BY batch_id
    ) AS wanted
    JOIN awa.lease_claim_batches/*_claim*/ AS batch
        ON batch.claim_slot = %(claim_slot)s::integer AND batch.batch_id = wanted.batch_id
    WHERE batch.ready_slot = %(ready_slot)s::integer
),
closed AS MATERIALIZED (
    SELECT claimed.batch_id, range_agg(span) AS receipts
    FROM claimed
    JOIN awa.lease_claim_closure_batches/*_claim*/ AS closure
        ON closure.claim_slot = %(claim_slot)s::integer AND closure.receipt_ranges && claimed.receipts,
        unnest(closure.receipt_ranges) AS span
    GROUP BY claimed.batch_id
),
accepted AS MATERIALIZED (
    SELECT
        claimed.ready_generation, claimed.queue, claimed.priority, claimed.enqueue_shard,
        given.receipt_id, given.job_id, given.run_lease, given.lane_seq, given.attempt
    FROM given
    JOIN claimed ON claimed.batch_id = given.batch_id AND claimed.receipts @> given.receipt_id
    LEFT JOIN closed ON closed.batch_id = given.batch_id
    WHERE (closed.receipts IS NULL OR NOT closed.receipts @> given.receipt_id)
        -- Explicit closures belong to row receipts; most slots hold none at all.
        AND (
            NOT (
                SELECT EXISTS (
                    SELECT FROM awa.lease_claim_closures/*_claim*/ AS closure
                    WHERE closure.claim_slot = %(claim_slot)s::integer
                )
            )
            OR (
                SELECT count(*)
                FROM awa.lease_claim_closures/*_claim*/ AS closure
                WHERE closure.claim_slot = %(claim_slot)s::integer
                    AND closure.job_id = given.job_id
                    AND closure.run_lease = given.run_lease
            ) = 0
        )
),
moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
closures AS (
    INSERT INTO awa.lease_claim_closure_batches/*_claim*/ (
        claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges, closed_at
    )
    SELECT
        %(claim_slot)s::integer, %(ready_slot)s::integer, ready_generation, 'completed', count(*),
        array_agg(receipt_id), range_agg(int8range(receipt_id, receipt_id + 1)), (SELECT now FROM moment)
    FROM (
        SELECT ready_generation, receipt_id
        FROM accepted
        ORDER BY ready_generation, lane_seq
    ) AS in_lane_order
    GROUP BY ready_generation
),
completions AS (
    INSERT INTO awa.receipt_completion_batches/*_ready*/ (
        ready_slot, ready_generation, claim_slot, queue, priority, enqueue_shard, completed_count,
        job_ids, run_leases, lane_seqs, attempts, attempted_ats, finalized_at
    )
    SELECT
        %(ready_slot)s::integer, ready_generation, %(claim_slot)s::integer, queue, priority, enqueue_shard,
        count(*), array_agg(job_id), array_agg(run_lease), array_agg(lane_seq), array_agg(attempt),
        array_fill(NULL::timestamptz, ARRAY[count(*)::integer]), (SELECT now FROM moment)
    FROM (
        SELECT ready_generation, queue, priority, enqueue_shard, job_id, run_lease, lane_seq, attempt
        FROM accepted
        ORDER BY ready_generation, queue, priority, enqueue_shard, lane_seq
    ) AS in_lane_order
    GROUP BY ready_generation, queue, priority, enqueue_shard
)
SELECT
    (SELECT now FROM moment),
    ARRAY(SELECT receipt_id FROM given EXCEPT SELECT receipt_id FROM accepted) AS missed;

-- name: forget_state
-- Drop the heartbeat and progress of attempts that have ended.
-- rows:  none
-- locks: attempt_state rows
DELETE FROM awa.attempt_state AS state
USING unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS ended (job_id, run_lease)
WHERE state.job_id = ended.job_id AND state.run_lease = ended.run_lease;

-- name: lock_receipts
-- The claim evidence of attempts: claim rows and claim batches.
-- rows:  one
-- locks: lease_claims rows, then lease_claim_batches rows, FOR UPDATE, each in key order
WITH wanted AS MATERIALIZED (
    SELECT claim_slot, job_id, run_lease, batch_id
    FROM unnest(
        %(claim_slots)s::integer[], %(job_ids)s::bigint[], %(run_leases)s::bigint[], %(batch_ids)s::bigint[]
    ) AS attempt (claim_slot, job_id, run_lease, batch_id)
),
claim_rows AS MATERIALIZED (
    SELECT claim.receipt_id
    FROM awa.lease_claims AS claim
    JOIN wanted USING (claim_slot, job_id, run_lease)
    ORDER BY claim.claim_slot, claim.receipt_id
    FOR UPDATE OF claim
),
claim_batches AS MATERIALIZED (
    SELECT batch.batch_id
    FROM awa.lease_claim_batches AS batch
    WHERE (batch.claim_slot, batch.batch_id) IN (SELECT claim_slot, batch_id FROM wanted)
    ORDER BY batch.claim_slot, batch.batch_id
    FOR UPDATE OF batch
)
SELECT (SELECT count(*) FROM claim_rows), (SELECT count(*) FROM claim_batches);

-- name: take_receipts
-- Close open receipts of attempts that have no lease, and lift their jobs.
-- An attempt's ready row is the one of its lane position; of a job that was moved to the same position of another
-- priority, the one of its own. A priority that does not match tells nothing: other clients store an aged one (H-01).
-- rows:  one for each receipt that was open
-- locks: attempt_state rows; the evidence is locked already
WITH wanted AS MATERIALIZED (
    SELECT claim_slot, job_id, run_lease, receipt_id, batch_id, label
    FROM unnest(
        %(claim_slots)s::integer[], %(job_ids)s::bigint[], %(run_leases)s::bigint[],
        %(receipt_ids)s::bigint[], %(batch_ids)s::bigint[], %(labels)s::text[]
    ) AS attempt (claim_slot, job_id, run_lease, receipt_id, batch_id, label)
),
-- A batch is unnested once; the planner would do it once for each of its receipts.
item AS MATERIALIZED (
    SELECT
        batch.claim_slot, batch.batch_id, batch.ready_slot, batch.ready_generation, batch.queue, batch.priority,
        batch.enqueue_shard, batch.claimed_at, entry.*
    FROM (SELECT DISTINCT claim_slot, batch_id FROM wanted WHERE batch_id IS NOT NULL) AS source
    JOIN awa.lease_claim_batches AS batch USING (claim_slot, batch_id),
        unnest(
            batch.job_ids, batch.run_leases, batch.receipt_ids, batch.lane_seqs, batch.attempts,
            batch.max_attempts
        ) AS entry (job_id, run_lease, receipt_id, lane_seq, attempt, max_attempts)
),
claimed AS MATERIALIZED (
    SELECT
        wanted.claim_slot, wanted.job_id, wanted.run_lease, wanted.receipt_id, wanted.label, false AS compact,
        claim.ready_slot, claim.ready_generation, claim.queue, claim.priority, claim.enqueue_shard, claim.lane_seq,
        claim.attempt, claim.max_attempts, claim.claimed_at
    FROM wanted
    JOIN awa.lease_claims AS claim USING (claim_slot, job_id, run_lease, receipt_id)
    WHERE claim.closed_at IS NULL
    UNION ALL
    SELECT
        item.claim_slot, item.job_id, item.run_lease, item.receipt_id, wanted.label, true,
        item.ready_slot, item.ready_generation, item.queue, item.priority, item.enqueue_shard, item.lane_seq,
        item.attempt, item.max_attempts, item.claimed_at
    FROM wanted
    JOIN item USING (claim_slot, batch_id, job_id, run_lease, receipt_id)
),
open AS MATERIALIZED (
    SELECT claimed.*
    FROM claimed
    WHERE NOT EXISTS (
            SELECT FROM awa.lease_claim_closures AS closure
            WHERE closure.claim_slot = claimed.claim_slot
                AND closure.job_id = claimed.job_id
                AND closure.run_lease = claimed.run_lease
        )
        AND NOT EXISTS (
            SELECT FROM awa.lease_claim_closure_batches AS closure
            WHERE closure.claim_slot = claimed.claim_slot
                AND closure.receipt_ranges @> claimed.receipt_id
        )
        AND NOT EXISTS (
            SELECT FROM awa.leases AS lease
            WHERE lease.job_id = claimed.job_id AND lease.run_lease = claimed.run_lease
        )
        AND NOT EXISTS (
            SELECT FROM awa.done_entries AS done
            WHERE done.ready_slot = claimed.ready_slot
                AND done.job_id = claimed.job_id
                AND done.run_lease = claimed.run_lease
        )
        AND NOT EXISTS (
            SELECT FROM awa.deferred_jobs AS deferred
            WHERE deferred.job_id = claimed.job_id AND deferred.run_lease = claimed.run_lease
        )
        AND NOT EXISTS (
            SELECT FROM awa.dlq_entries AS dead
            WHERE dead.job_id = claimed.job_id AND dead.run_lease = claimed.run_lease
        )
),
moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
row_closures AS (
    INSERT INTO awa.lease_claim_closures (claim_slot, job_id, run_lease, outcome, closed_at)
    SELECT claim_slot, job_id, run_lease, label, (SELECT now FROM moment)
    FROM open
    WHERE NOT compact
    ON CONFLICT (claim_slot, job_id, run_lease) DO NOTHING
),
closed_rows AS (
    UPDATE awa.lease_claims AS claim
    SET closed_at = (SELECT now FROM moment)
    FROM open
    WHERE NOT open.compact
        AND claim.claim_slot = open.claim_slot
        AND claim.job_id = open.job_id
        AND claim.run_lease = open.run_lease
),
batch_closures AS (
    INSERT INTO awa.lease_claim_closure_batches (
        claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges, closed_at
    )
    SELECT
        claim_slot, ready_slot, ready_generation, label, count(*),
        array_agg(receipt_id ORDER BY lane_seq), range_agg(int8range(receipt_id, receipt_id + 1)),
        (SELECT now FROM moment)
    FROM open
    WHERE compact
    GROUP BY claim_slot, ready_slot, ready_generation, label
),
states AS (
    DELETE FROM awa.attempt_state AS state
    USING open
    WHERE state.job_id = open.job_id AND state.run_lease = open.run_lease
    RETURNING state.job_id, state.run_lease, state.progress
)
SELECT
    open.job_id, open.run_lease, ready.kind, ready.queue, ready.args, 'running' AS state, ready.priority,
    open.attempt, open.max_attempts, ready.run_at, open.claimed_at AS attempted_at, ready.created_at,
    ready.unique_key, ready.unique_states, ready.payload, states.progress, (SELECT now FROM moment) AS taken_at,
    ready.ready_slot, ready.ready_generation, ready.enqueue_shard, ready.lane_seq
FROM open
JOIN awa.ready_entries AS ready
    ON ready.ready_slot = open.ready_slot
    AND ready.ready_generation = open.ready_generation
    AND ready.job_id = open.job_id
    AND ready.queue = open.queue
    AND ready.enqueue_shard = open.enqueue_shard
    AND ready.lane_seq = open.lane_seq
    AND (
        ready.priority = open.priority
        OR NOT EXISTS (
            SELECT FROM awa.ready_entries AS own
            WHERE own.ready_slot = open.ready_slot
                AND own.queue = open.queue
                AND own.priority = open.priority
                AND own.enqueue_shard = open.enqueue_shard
                AND own.lane_seq = open.lane_seq
                AND own.ready_generation = open.ready_generation
                AND own.job_id = open.job_id
        )
    )
LEFT JOIN states ON states.job_id = open.job_id AND states.run_lease = open.run_lease;

-- name: take_leases
-- Remove lease rows of attempts, close the receipts they held, and lift their jobs. A lease is removed if it is running,
-- or in any_state; one without a receipt has a NULL claim_slot, and nothing is closed for it. The labels close receipts.
-- rows:  one for each lease removed
-- locks: lease rows, attempt_state rows; the evidence is locked already
WITH wanted AS MATERIALIZED (
    SELECT claim_slot, job_id, run_lease, receipt_id, batch_id, label, any_state
    FROM unnest(
        %(claim_slots)s::integer[], %(job_ids)s::bigint[], %(run_leases)s::bigint[],
        %(receipt_ids)s::bigint[], %(batch_ids)s::bigint[], %(labels)s::text[], %(any_state)s::boolean[]
    ) AS attempt (claim_slot, job_id, run_lease, receipt_id, batch_id, label, any_state)
),
removed AS (
    DELETE FROM awa.leases AS lease
    USING wanted
    WHERE lease.job_id = wanted.job_id
        AND lease.run_lease = wanted.run_lease
        AND (lease.state = 'running' OR wanted.any_state)
    RETURNING
        wanted.claim_slot, wanted.receipt_id, wanted.batch_id, wanted.label,
        lease.job_id, lease.run_lease, lease.state, lease.ready_slot, lease.ready_generation, lease.queue,
        lease.priority, lease.enqueue_shard, lease.lane_seq, lease.attempt, lease.max_attempts, lease.attempted_at
),
unclosed AS MATERIALIZED (
    SELECT removed.*
    FROM removed
    WHERE removed.claim_slot IS NOT NULL
        AND NOT EXISTS (
            SELECT FROM awa.lease_claim_closures AS closure
            WHERE closure.claim_slot = removed.claim_slot
                AND closure.job_id = removed.job_id
                AND closure.run_lease = removed.run_lease
        )
        AND NOT EXISTS (
            SELECT FROM awa.lease_claim_closure_batches AS closure
            WHERE closure.claim_slot = removed.claim_slot
                AND closure.receipt_ranges @> removed.receipt_id
        )
),
moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
row_closures AS (
    INSERT INTO awa.lease_claim_closures (claim_slot, job_id, run_lease, outcome, closed_at)
    SELECT claim_slot, job_id, run_lease, label, (SELECT now FROM moment)
    FROM unclosed
    WHERE batch_id IS NULL
    ON CONFLICT (claim_slot, job_id, run_lease) DO NOTHING
),
closed_rows AS (
    UPDATE awa.lease_claims AS claim
    SET closed_at = coalesce(claim.closed_at, (SELECT now FROM moment))
    FROM unclosed
    WHERE unclosed.batch_id IS NULL
        AND claim.claim_slot = unclosed.claim_slot
        AND claim.job_id = unclosed.job_id
        AND claim.run_lease = unclosed.run_lease
),
batch_closures AS (
    INSERT INTO awa.lease_claim_closure_batches (
        claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges, closed_at
    )
    SELECT
        claim_slot, ready_slot, ready_generation, label, count(*),
        array_agg(receipt_id ORDER BY lane_seq), range_agg(int8range(receipt_id, receipt_id + 1)),
        (SELECT now FROM moment)
    FROM unclosed
    WHERE batch_id IS NOT NULL
    GROUP BY claim_slot, ready_slot, ready_generation, label
),
states AS (
    DELETE FROM awa.attempt_state AS state
    USING removed
    WHERE state.job_id = removed.job_id AND state.run_lease = removed.run_lease
    RETURNING state.job_id, state.run_lease, state.progress
)
SELECT
    removed.job_id, removed.run_lease, ready.kind, ready.queue, ready.args, removed.state, ready.priority,
    removed.attempt, removed.max_attempts, ready.run_at, removed.attempted_at, ready.created_at,
    ready.unique_key, ready.unique_states, ready.payload, states.progress, (SELECT now FROM moment) AS taken_at,
    ready.ready_slot, ready.ready_generation, ready.enqueue_shard, ready.lane_seq
FROM removed
JOIN awa.ready_entries AS ready
    ON ready.ready_slot = removed.ready_slot
    AND ready.ready_generation = removed.ready_generation
    AND ready.job_id = removed.job_id
    AND ready.queue = removed.queue
    AND ready.enqueue_shard = removed.enqueue_shard
    AND ready.lane_seq = removed.lane_seq
    AND (
        ready.priority = removed.priority
        OR NOT EXISTS (
            SELECT FROM awa.ready_entries AS own
            WHERE own.ready_slot = removed.ready_slot
                AND own.queue = removed.queue
                AND own.priority = removed.priority
                AND own.enqueue_shard = removed.enqueue_shard
                AND own.lane_seq = removed.lane_seq
                AND own.ready_generation = removed.ready_generation
                AND own.job_id = removed.job_id
        )
    )
LEFT JOIN states ON states.job_id = removed.job_id AND states.run_lease = removed.run_lease;

-- name: beat
-- Signs of life of attempts whose receipt is open, whether or not they became a lease.
-- rows:  the attempts that were still open
-- locks: attempt_state rows
WITH wanted AS MATERIALIZED (
    SELECT claim_slot, job_id, run_lease, receipt_id, batch_id, progress
    FROM unnest(
        %(claim_slots)s::integer[], %(job_ids)s::bigint[], %(run_leases)s::bigint[],
        %(receipt_ids)s::bigint[], %(batch_ids)s::bigint[], %(progress)s::jsonb[]
    ) AS attempt (claim_slot, job_id, run_lease, receipt_id, batch_id, progress)
),
open AS MATERIALIZED (
    SELECT wanted.job_id, wanted.run_lease, wanted.progress
    FROM wanted
    WHERE (
            EXISTS (
                SELECT FROM awa.lease_claims AS claim
                WHERE wanted.batch_id IS NULL
                    AND claim.claim_slot = wanted.claim_slot
                    AND claim.job_id = wanted.job_id
                    AND claim.run_lease = wanted.run_lease
                    AND claim.receipt_id = wanted.receipt_id
                    AND claim.closed_at IS NULL
            )
            OR EXISTS (
                SELECT FROM awa.lease_claim_batches AS batch
                WHERE batch.claim_slot = wanted.claim_slot
                    AND batch.batch_id = wanted.batch_id
                    AND batch.receipt_ranges @> wanted.receipt_id
            )
        )
        AND NOT EXISTS (
            SELECT FROM awa.lease_claim_closures AS closure
            WHERE closure.claim_slot = wanted.claim_slot
                AND closure.job_id = wanted.job_id
                AND closure.run_lease = wanted.run_lease
        )
        AND NOT EXISTS (
            SELECT FROM awa.lease_claim_closure_batches AS closure
            WHERE closure.claim_slot = wanted.claim_slot
                AND closure.receipt_ranges @> wanted.receipt_id
        )
)
INSERT INTO awa.attempt_state AS state (job_id, run_lease, heartbeat_at, progress, updated_at)
SELECT job_id, run_lease, clock_timestamp(), progress, clock_timestamp()
FROM open
ORDER BY job_id, run_lease
ON CONFLICT (job_id, run_lease) DO UPDATE
SET heartbeat_at = excluded.heartbeat_at,
    progress = coalesce(excluded.progress, state.progress),
    updated_at = excluded.updated_at
RETURNING job_id, run_lease;
