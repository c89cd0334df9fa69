-- Handing out jobs (contract: queue-storage/claim).

-- name: claim
-- Jobs handed out by this call, in the order to run them, with their unique keys following from available to running.
-- A job that does not get a key that running ones hold is refused. A payload with nothing in it is NULL, and
-- costs nothing.
-- rows:  one for each job, at most limit
-- locks: the claim-head row of each lane it takes from, passing over those another claimer holds; unique-claim rows
WITH claimed AS MATERIALIZED (
    SELECT *
    FROM awa.claim_ready_runtime(
        %(queue)s::text, %(limit)s::bigint, %(deadline)s::double precision, %(aging)s::double precision
    ) WITH ORDINALITY
),
released AS MATERIALIZED (
    -- By a function: like the one above it sees jobs, and their keys, that came after this statement began.
    SELECT count(*) FILTER (
        WHERE awa.release_queue_storage_unique_claim(job_id, unique_key, unique_states, 'available') IS NULL
    )
    FROM claimed
    WHERE unique_key IS NOT NULL AND substr(unique_states, 2, 2) = '10'
),
acquired AS (
    INSERT INTO awa.job_unique_claims AS claim (unique_key, job_id)
    SELECT DISTINCT ON (unique_key) unique_key, job_id
    FROM claimed
    CROSS JOIN released    -- first, for what one job gives up another of the claim may take
    WHERE unique_key IS NOT NULL AND substr(unique_states, 2, 2) = '01'
    ORDER BY unique_key, ordinality
    ON CONFLICT (unique_key) DO UPDATE
    SET job_id = excluded.job_id
    WHERE claim.job_id = excluded.job_id
    RETURNING job_id
)
SELECT
    job_id, run_lease, kind, queue, args, attempt, max_attempts, priority, lane_priority,
    ready_slot, ready_generation, lane_seq, enqueue_shard, claim_slot, receipt_id,
    claim_batch_id, claim_batch_index, run_at, deadline_at, attempted_at, created_at,
    unique_key, unique_states,
    CASE
        WHEN payload <> '{}' AND payload <> '{"tags": [], "errors": [], "metadata": {}, "progress": null}'
            THEN payload
    END AS payload,
    unique_key IS NOT NULL
        AND substr(unique_states, 2, 2) = '01'
        AND job_id NOT IN (SELECT job_id FROM acquired) AS refused
FROM claimed
CROSS JOIN released
ORDER BY ordinality;

-- name: advance
-- Move claim cursors past positions whose claim has committed. Idempotent; a cursor never moves back.
-- rows:  one for each lane found
-- locks: the lanes' claim-head rows, in key order
WITH passed AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, next_lane_seq
    FROM unnest(
        %(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[], %(next_lane_seqs)s::bigint[]
    ) AS lane (queue, priority, enqueue_shard, next_lane_seq)
),
heads AS MATERIALIZED (
    SELECT head.seq_name, passed.next_lane_seq
    FROM awa.queue_claim_heads AS head
    JOIN passed USING (queue, priority, enqueue_shard)
    ORDER BY head.queue, head.priority, head.enqueue_shard
    FOR UPDATE OF head
)
SELECT awa.set_sequence_next(seq_name, next_lane_seq)
FROM heads;

-- name: moves_cursors
-- Whether a claim passes over what earlier claims have emitted, as the function of our own schema does. The one
-- of an adopted schema needs a call that finds nothing for that.
-- rows:  one
-- locks: none
SELECT prosrc LIKE '%%awa_django_aged_priority%%'
FROM pg_catalog.pg_proc
WHERE oid = 'awa.claim_ready_runtime(text, bigint, double precision, double precision)'::regprocedure;

-- name: backlog
-- Whether a queue that is not paused has positions that nobody has claimed yet.
-- rows:  one
-- locks: none
SELECT EXISTS (
    SELECT FROM awa.queue_claim_heads AS claim_head
    JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
    WHERE claim_head.queue = %(queue)s::text
        AND awa.sequence_next_value(claim_head.seq_name) < awa.sequence_next_value(enqueue_head.seq_name)
) AND NOT EXISTS (
    SELECT FROM awa.queue_meta AS meta
    WHERE meta.queue = %(queue)s::text AND meta.paused
);
