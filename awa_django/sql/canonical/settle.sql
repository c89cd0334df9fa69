-- Successes and signs of life of running attempts (contract: runtime/completion-heartbeat).

-- name: complete
-- Successes of attempts that nothing else is to be written of.
-- rows:  one for each that was still running under its lease: the time written, job and run lease
-- locks: jobs_hot rows, ids ascending, waiting for whoever holds them; unique-claim rows
WITH ended AS MATERIALIZED (
    SELECT hot.id
    FROM awa.jobs_hot AS hot
    JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
        ON attempt.job_id = hot.id AND attempt.run_lease = hot.run_lease
    WHERE hot.state = 'running'
    ORDER BY hot.id
    FOR UPDATE OF hot
)
UPDATE awa.jobs_hot
SET
    state = 'completed',
    finalized_at = now(),
    progress = NULL,
    callback_id = NULL,
    callback_timeout_at = NULL,
    callback_filter = NULL,
    callback_on_complete = NULL,
    callback_on_fail = NULL,
    callback_transform = NULL
WHERE id = ANY (ARRAY(SELECT id FROM ended))
RETURNING finalized_at, id, run_lease;

-- name: beat
-- Heartbeats, and progress where it changed. An attempt whose handler waits in place is alive too, but silent while it
-- waits.
-- rows:  job and run lease of each attempt that is still running, or waits
-- locks: jobs_hot rows, ids ascending, waiting for whoever holds them
WITH alive AS MATERIALIZED (
    SELECT hot.id, beat.progress
    FROM awa.jobs_hot AS hot
    JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[], %(progress)s::jsonb[])
        AS beat (job_id, run_lease, progress)
        ON beat.job_id = hot.id AND beat.run_lease = hot.run_lease
    WHERE hot.state IN ('running', 'waiting_external')
    ORDER BY hot.id
    FOR NO KEY UPDATE OF hot
)
UPDATE awa.jobs_hot AS hot
SET
    heartbeat_at = CASE WHEN hot.state = 'running' THEN now() END,
    progress = coalesce(alive.progress, hot.progress)
FROM alive
WHERE hot.id = alive.id
RETURNING hot.id, hot.run_lease;
