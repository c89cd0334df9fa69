-- Undoing what two clients did to one attempt when neither saw the other (H-06): a receipt that was closed twice, and
-- the second of two ends. Without that the balance of its slots never holds again, and nothing is pruned behind them.

-- name: overclosed_slots
-- Claim slots with more closures than claims. More cannot come of anything else, and does not pass by itself.
-- rows:  one for each such slot
-- locks: none
SELECT slot.slot
FROM awa.claim_ring_slots AS slot
WHERE (
        (SELECT count(*) FROM awa.lease_claim_closures AS closure WHERE closure.claim_slot = slot.slot)
        + (
            SELECT coalesce(sum(closure.closed_count), 0)
            FROM awa.lease_claim_closure_batches AS closure
            WHERE closure.claim_slot = slot.slot
        )
    ) > (
        (SELECT count(*) FROM awa.lease_claims AS claim WHERE claim.claim_slot = slot.slot)
        + (
            SELECT coalesce(sum(batch.claimed_count), 0)
            FROM awa.lease_claim_batches AS batch
            WHERE batch.claim_slot = slot.slot
        )
    )
ORDER BY slot.slot;

-- name: double_closures
-- Receipts of one slot that more than one closure names.
-- rows:  one for each: its receipt and its attempt
-- locks: none
WITH claimed AS MATERIALIZED (
    SELECT claim.receipt_id, claim.job_id, claim.run_lease
    FROM awa.lease_claims AS claim
    WHERE claim.claim_slot = %(slot)s
    UNION ALL
    SELECT item.receipt_id, item.job_id, item.run_lease
    FROM awa.lease_claim_batches AS batch,
        unnest(batch.receipt_ids, batch.job_ids, batch.run_leases) AS item (receipt_id, job_id, run_lease)
    WHERE batch.claim_slot = %(slot)s
),
closed AS MATERIALIZED (
    SELECT claimed.receipt_id
    FROM awa.lease_claim_closures AS closure
    JOIN claimed USING (job_id, run_lease)
    WHERE closure.claim_slot = %(slot)s
    UNION ALL
    SELECT receipt_id
    FROM awa.lease_claim_closure_batches AS closure, unnest(closure.receipt_ids) AS receipt_id
    WHERE closure.claim_slot = %(slot)s
)
SELECT claimed.receipt_id, claimed.job_id, claimed.run_lease
FROM claimed
WHERE claimed.receipt_id IN (SELECT receipt_id FROM closed GROUP BY receipt_id HAVING count(*) > 1)
ORDER BY claimed.job_id, claimed.run_lease;

-- name: drop_explicit_closures
-- Take explicit closures away from receipts that a batch closes as well.
-- rows:  the receipts that had one
-- locks: lease_claim_closures rows; the attempt keys are held already
WITH doubled AS MATERIALIZED (
    SELECT receipt_id, job_id, run_lease
    FROM unnest(%(receipt_ids)s::bigint[], %(job_ids)s::bigint[], %(run_leases)s::bigint[])
        AS given (receipt_id, job_id, run_lease)
    WHERE EXISTS (
        SELECT FROM awa.lease_claim_closure_batches AS closure
        WHERE closure.claim_slot = %(slot)s AND closure.receipt_ranges @> given.receipt_id
    )
)
DELETE FROM awa.lease_claim_closures AS closure
USING doubled
WHERE closure.claim_slot = %(slot)s
    AND closure.job_id = doubled.job_id
    AND closure.run_lease = doubled.run_lease
RETURNING doubled.receipt_id;

-- name: drop_smaller_closures
-- Where several batches close a receipt, take it out of all but the largest. A batch left empty goes.
-- rows:  one for each batch that was changed or removed
-- locks: lease_claim_closure_batches rows; the attempt keys are held already
WITH named AS MATERIALIZED (
    SELECT
        closure.batch_id, receipt_id,
        row_number() OVER (PARTITION BY receipt_id ORDER BY closure.closed_count DESC, closure.batch_id) AS place
    FROM awa.lease_claim_closure_batches AS closure, unnest(closure.receipt_ids) AS receipt_id
    WHERE closure.claim_slot = %(slot)s AND receipt_id = ANY (%(receipt_ids)s::bigint[])
),
superfluous AS MATERIALIZED (
    SELECT batch_id, array_agg(receipt_id) AS receipt_ids
    FROM named
    WHERE place > 1
    GROUP BY batch_id
),
rest AS MATERIALIZED (
    SELECT
        closure.batch_id,
        ARRAY(
            SELECT receipt_id
            FROM unnest(closure.receipt_ids) WITH ORDINALITY AS item (receipt_id, place)
            WHERE receipt_id <> ALL (superfluous.receipt_ids)
            ORDER BY place
        ) AS receipt_ids
    FROM awa.lease_claim_closure_batches AS closure
    JOIN superfluous USING (batch_id)
    WHERE closure.claim_slot = %(slot)s
),
removed AS (
    DELETE FROM awa.lease_claim_closure_batches AS closure
    USING rest
    WHERE closure.claim_slot = %(slot)s
        AND closure.batch_id = rest.batch_id
        AND cardinality(rest.receipt_ids) = 0
    RETURNING closure.batch_id
),
changed AS (
    UPDATE awa.lease_claim_closure_batches AS closure
    SET closed_count = cardinality(rest.receipt_ids),
        receipt_ids = rest.receipt_ids,
        receipt_ranges = (
            SELECT range_agg(int8range(receipt_id, receipt_id + 1)) FROM unnest(rest.receipt_ids) AS receipt_id
        )
    FROM rest
    WHERE closure.claim_slot = %(slot)s
        AND closure.batch_id = rest.batch_id
        AND cardinality(rest.receipt_ids) > 0
    RETURNING closure.batch_id
)
SELECT batch_id FROM removed
UNION ALL
SELECT batch_id FROM changed;

-- name: drop_second_ends
-- Of attempts that ended twice, remove the finished row that contradicts the other end: a recorded success, a job that
-- was put off, or a dead letter. What the handler did outranks what an operator ended at the same moment.
-- rows:  one for each row removed: the job and the state it said
-- locks: done_entries rows
WITH given AS MATERIALIZED (
    SELECT job_id, run_lease
    FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
),
contradicted AS MATERIALIZED (
    SELECT given.job_id, given.run_lease
    FROM given
    WHERE EXISTS (
            SELECT
            FROM awa.receipt_completion_batches AS batch,
                unnest(batch.job_ids, batch.run_leases) AS item (job_id, run_lease)
            WHERE batch.claim_slot = %(slot)s
                AND item.job_id = given.job_id
                AND item.run_lease = given.run_lease
                AND NOT EXISTS (
                    SELECT FROM awa.receipt_completion_tombstones AS tombstone
                    WHERE tombstone.ready_slot = batch.ready_slot
                        AND tombstone.ready_generation = batch.ready_generation
                        AND tombstone.job_id = item.job_id
                        AND tombstone.run_lease = item.run_lease
                )
        )
        OR EXISTS (
            SELECT FROM awa.deferred_jobs AS deferred
            WHERE deferred.job_id = given.job_id AND deferred.run_lease = given.run_lease
        )
        OR EXISTS (
            SELECT FROM awa.dlq_entries AS dead
            WHERE dead.job_id = given.job_id AND dead.run_lease = given.run_lease
        )
),
removed AS (
    DELETE FROM awa.done_entries AS done
    USING contradicted
    WHERE done.job_id = contradicted.job_id AND done.run_lease = contradicted.run_lease
    RETURNING
        done.job_id, done.state, done.ready_slot, done.ready_generation, done.queue, done.priority,
        done.enqueue_shard
),
counted AS (
    INSERT INTO awa.queue_terminal_count_deltas (
        ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
    )
    SELECT
        ready_slot, ready_generation, queue, priority, enqueue_shard, (job_id & 255)::smallint, -count(*)
    FROM removed
    GROUP BY ready_slot, ready_generation, queue, priority, enqueue_shard, job_id & 255
)
SELECT job_id, state
FROM removed;
