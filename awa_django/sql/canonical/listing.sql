-- Jobs of the canonical tables as people see them.

-- name: load
-- These jobs.
-- rows:  one for each job that exists
-- locks: none
SELECT
    job.id, job.run_lease, job.kind, job.queue, job.args, job.state::text, job.priority, job.attempt,
    job.max_attempts, job.run_at, job.attempted_at, job.created_at, job.unique_key, job.unique_states::text,
    jsonb_build_object(
        'metadata', job.metadata, 'tags', to_jsonb(job.tags), 'errors', coalesce(to_jsonb(job.errors), '[]')
    ) AS payload,
    job.progress, job.finalized_at, job.deadline_at, job.heartbeat_at, job.callback_id, job.callback_timeout_at,
    job.callback_filter, job.callback_on_complete, job.callback_on_fail, job.callback_transform
FROM (
    SELECT *
    FROM awa.jobs_hot
    WHERE id = ANY (%(job_ids)s::bigint[])
    UNION ALL
    SELECT *
    FROM awa.scheduled_jobs
    WHERE id = ANY (%(job_ids)s::bigint[])
) AS job
ORDER BY job.id DESC;

-- name: waiting
-- Jobs that nobody has started, and those that wait for a retry or an answer, in the states given.
-- rows:  one for each, lowest id first, at most limit: its id, and how many there are in all
-- locks: none
SELECT job.id, count(*) OVER () AS total
FROM (
    SELECT id, kind, queue, tags, created_at
    FROM awa.jobs_hot
    WHERE state = ANY (%(hot)s::awa.job_state[])
    UNION ALL
    SELECT id, kind, queue, tags, created_at
    FROM awa.scheduled_jobs
    WHERE state = ANY (%(deferred)s::awa.job_state[])
) AS job
WHERE job.id > %(after)s::bigint
    AND (%(until)s::bigint IS NULL OR job.id <= %(until)s::bigint)
    AND (%(job_ids)s::bigint[] IS NULL OR job.id = ANY (%(job_ids)s::bigint[]))
    AND (%(kind)s::text IS NULL OR job.kind = %(kind)s::text)
    AND (%(queue)s::text IS NULL OR job.queue = %(queue)s::text)
    AND (%(tag)s::text IS NULL OR job.tags @> ARRAY[%(tag)s::text])
    AND (%(created_from)s::timestamptz IS NULL OR job.created_at >= %(created_from)s::timestamptz)
    AND (%(created_before)s::timestamptz IS NULL OR job.created_at < %(created_before)s::timestamptz)
ORDER BY job.id
LIMIT %(limit)s;

-- name: jobs_of_key
-- Jobs with this unique key that have not finished, whether they hold it now or not.
-- rows:  one for each id, lowest first
-- locks: none
SELECT id
FROM awa.jobs_hot
WHERE unique_key = %(unique_key)s::bytea AND state IN ('available', 'running', 'waiting_external')
UNION
SELECT id
FROM awa.scheduled_jobs
WHERE unique_key = %(unique_key)s::bytea
ORDER BY id;
