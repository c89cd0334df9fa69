-- Attempts that have a callback (contract: runtime/attempt section 5, runtime/followups-events section 2). It lies in the
-- job's own row, so whoever changes it locks that.

-- name: hold_attempts
-- Attempts, in whatever state they are.
-- rows:  one for each that is its job's last: the transaction's time and the whole row, by id
-- locks: jobs_hot rows, ids ascending, waiting for whoever holds them
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
    ON attempt.job_id = hot.id AND attempt.run_lease = hot.run_lease
ORDER BY hot.id
FOR UPDATE OF hot;

-- name: hold_callback
-- The attempt that has a token.
-- rows:  one at most: the transaction's time and the whole row
-- locks: the jobs_hot row, waiting for whoever holds it
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
WHERE hot.callback_id = %(callback_id)s
FOR UPDATE OF hot;

-- name: set_callback
-- Give a running attempt a token and the expressions that judge its answer, instead of any that it had.
-- rows:  one if it is running
-- locks: the jobs_hot row
UPDATE awa.jobs_hot
SET
    callback_id = %(callback_id)s,
    callback_timeout_at = clock_timestamp() + %(timeout)s::interval,
    callback_filter = %(filter)s::text,
    callback_on_complete = %(on_complete)s::text,
    callback_on_fail = %(on_fail)s::text,
    callback_transform = %(transform)s::text
WHERE id = %(job_id)s::bigint
    AND run_lease = %(run_lease)s::bigint
    AND state = 'running'
RETURNING id;

-- name: clear_callback
-- Take the token of a running attempt away.
-- rows:  one if it had one
-- locks: the jobs_hot row
UPDATE awa.jobs_hot
SET
    callback_id = NULL,
    callback_timeout_at = NULL,
    callback_filter = NULL,
    callback_on_complete = NULL,
    callback_on_fail = NULL,
    callback_transform = NULL
WHERE id = %(job_id)s::bigint
    AND run_lease = %(run_lease)s::bigint
    AND state = 'running'
    AND callback_id IS NOT NULL
RETURNING id;

-- name: park
-- Have attempts wait, with progress where it is given. From here no deadline applies, not even after the answer.
-- rows:  none
-- locks: jobs_hot rows, held already; unique-claim rows
UPDATE awa.jobs_hot AS hot
SET
    state = 'waiting_external',
    heartbeat_at = NULL,
    deadline_at = NULL,
    progress = coalesce(attempt.progress, hot.progress)
FROM unnest(%(job_ids)s::bigint[], %(progress)s::jsonb[]) AS attempt (job_id, progress)
WHERE hot.id = attempt.job_id;

-- name: unpark
-- Have an attempt run again, its token kept.
-- rows:  none
-- locks: the jobs_hot row, held already; unique-claim rows
UPDATE awa.jobs_hot
SET state = 'running', heartbeat_at = clock_timestamp()
WHERE id = %(job_id)s::bigint;

-- name: resume
-- Have an attempt run on with an answer, its token gone.
-- rows:  none
-- locks: the jobs_hot row, held already; unique-claim rows
UPDATE awa.jobs_hot
SET
    state = 'running',
    heartbeat_at = clock_timestamp(),
    callback_id = NULL,
    callback_timeout_at = NULL,
    callback_filter = NULL,
    callback_on_complete = NULL,
    callback_on_fail = NULL,
    callback_transform = NULL,
    metadata = CASE WHEN jsonb_typeof(metadata) = 'object' THEN metadata ELSE '{}' END
        || jsonb_build_object('_awa_callback_result', %(payload)s::jsonb)
WHERE id = %(job_id)s::bigint;

-- name: extend
-- Give an attempt this much time for its answer.
-- rows:  none
-- locks: the jobs_hot row, held already
UPDATE awa.jobs_hot
SET callback_timeout_at = clock_timestamp() + %(timeout)s::interval
WHERE id = %(job_id)s::bigint;

-- name: consume_result
-- Take the answer away from a running attempt.
-- rows:  one if there was an answer
-- locks: the jobs_hot row
UPDATE awa.jobs_hot
SET metadata = metadata - '_awa_callback_result'
WHERE id = %(job_id)s::bigint
    AND run_lease = %(run_lease)s::bigint
    AND state = 'running'
    AND callback_id IS NULL
    AND jsonb_typeof(metadata) = 'object'
    AND metadata ? '_awa_callback_result'
RETURNING id;

-- name: standings
-- Where jobs are now, and what they were answered with.
-- rows:  one for each that is in either table
-- locks: none
SELECT
    job.id, job.run_lease, job.state, job.callback_id,
    coalesce(jsonb_typeof(job.metadata) = 'object' AND job.metadata ? '_awa_callback_result', false) AS resumed,
    job.metadata -> '_awa_callback_result' AS result
FROM (
    SELECT id, run_lease, state, callback_id, metadata
    FROM awa.jobs_hot
    WHERE id = ANY (%(job_ids)s::bigint[])
    UNION ALL
    SELECT id, run_lease, state, callback_id, metadata
    FROM awa.scheduled_jobs
    WHERE id = ANY (%(job_ids)s::bigint[])
) AS job;
