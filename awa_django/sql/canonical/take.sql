-- Locking the rows of jobs that are to go elsewhere (contract: runtime/outcomes section 2, runtime/maintenance
-- sections 3 and 4). A row stays where it is until it is placed; the lock is what takes it. Every statement answers
-- with the transaction's time and the whole row, in the column order that both tables and all clients share.

-- name: take_attempts
-- Attempts that still run under the lease they were claimed with.
-- rows:  one for each, by id
-- locks: jobs_hot rows, ids ascending, waiting for whoever holds them
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
    ON attempt.job_id = hot.id AND attempt.run_lease = hot.run_lease
WHERE hot.state = 'running'
ORDER BY hot.id
FOR UPDATE OF hot;

-- name: hold_attempts
-- The same locks, for a batch that more than one statement will change.
-- rows:  nothing of interest
-- locks: jobs_hot rows, ids ascending, waiting for whoever holds them
SELECT
FROM awa.jobs_hot
WHERE id = ANY (%(job_ids)s::bigint[])
ORDER BY id
FOR UPDATE;

-- name: take_stale
-- Running attempts whose worker has gone quiet, longest silence first.
-- rows:  at most limit
-- locks: jobs_hot rows, passing over those another transaction holds
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
WHERE state = 'running'
    AND heartbeat_at < now() - %(silence)s::interval
    AND id <> ALL (%(passed_over)s::bigint[])
ORDER BY heartbeat_at
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: take_past_deadline
-- Running attempts that outlived their deadline, earliest first.
-- rows:  at most limit
-- locks: jobs_hot rows, passing over those another transaction holds
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
WHERE state = 'running'
    AND deadline_at < now()
    AND id <> ALL (%(passed_over)s::bigint[])
ORDER BY deadline_at
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: take_unanswered
-- Parked attempts whose callback did not come in time, earliest first.
-- rows:  at most limit
-- locks: jobs_hot rows, passing over those another transaction holds
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
WHERE state = 'waiting_external'
    AND callback_timeout_at < now()
    AND id <> ALL (%(passed_over)s::bigint[])
ORDER BY callback_timeout_at
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: take_due_scheduled
-- Scheduled jobs whose time has come. The state is a literal here and in the next, as the partial indexes need it.
-- rows:  at most limit, by time and id
-- locks: scheduled_jobs rows, passing over those another transaction holds
SELECT now() AS taken_at, waiting.*
FROM awa.scheduled_jobs AS waiting
WHERE state = 'scheduled'
    AND run_at <= now()
    AND id <> ALL (%(passed_over)s::bigint[])
ORDER BY run_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: take_due_retryable
-- Jobs whose backoff or delay is over.
-- rows:  at most limit, by time and id
-- locks: scheduled_jobs rows, passing over those another transaction holds
SELECT now() AS taken_at, waiting.*
FROM awa.scheduled_jobs AS waiting
WHERE state = 'retryable'
    AND run_at <= now()
    AND id <> ALL (%(passed_over)s::bigint[])
ORDER BY run_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: take_named
-- Jobs by id, of those states that are not deferred.
-- rows:  one for each, by id
-- locks: jobs_hot rows, ids ascending, waiting for whoever holds them
SELECT now() AS taken_at, hot.*
FROM awa.jobs_hot AS hot
WHERE id = ANY (%(job_ids)s::bigint[])
    AND state = ANY (%(states)s::awa.job_state[])
ORDER BY id
FOR UPDATE;

-- name: take_named_deferred
-- Jobs by id, of the deferred states.
-- rows:  one for each, by id
-- locks: scheduled_jobs rows, ids ascending, waiting for whoever holds them
SELECT now() AS taken_at, waiting.*
FROM awa.scheduled_jobs AS waiting
WHERE id = ANY (%(job_ids)s::bigint[])
    AND state = ANY (%(states)s::awa.job_state[])
ORDER BY id
FOR UPDATE;
