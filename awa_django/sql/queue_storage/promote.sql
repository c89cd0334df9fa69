-- Jobs whose time has come (contract: queue-storage/maintenance section 2).

-- name: take_due
-- Deferred jobs of one state that are due, in the order to run them, lifted off their place.
-- Paused queues are an array, not a join, so that the index keeps giving the order.
-- rows:  one for each, at most limit
-- locks: deferred_jobs rows, passing over those another transaction holds
WITH due AS MATERIALIZED (
    SELECT job_id
    FROM awa.deferred_jobs AS deferred
    WHERE state = %(state)s::awa.job_state
        AND run_at <= statement_timestamp()
        AND queue <> ALL (ARRAY(SELECT queue FROM awa.queue_meta WHERE paused))
        AND job_id <> ALL (%(passed_over)s::bigint[])
    ORDER BY run_at, priority, job_id
    LIMIT %(limit)s
    FOR UPDATE OF deferred SKIP LOCKED
),
lifted AS (
    DELETE FROM awa.deferred_jobs AS deferred
    USING due
    WHERE deferred.job_id = due.job_id
    RETURNING deferred.*
)
SELECT
    job_id, run_lease, kind, queue, args, state, priority, attempt, max_attempts, run_at, attempted_at,
    created_at, unique_key, unique_states, payload, NULL::jsonb AS progress, statement_timestamp() AS taken_at,
    NULL::integer AS ready_slot, NULL::bigint AS ready_generation, 0::smallint AS enqueue_shard,
    NULL::bigint AS lane_seq
FROM lifted
ORDER BY lifted.run_at, priority, job_id;
