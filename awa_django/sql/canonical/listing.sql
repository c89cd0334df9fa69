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

-- name: newest
-- The newest ids of each table in which a wanted state may be found, as far as kind, queue and tag match.
-- rows:  one for each table: ids, at most size, highest first, and if they are fewer the id down to which rows were
--        walked, NULL for all there are
-- locks: none
WITH hot AS MATERIALIZED (
    SELECT
        'hot' AS place,
        ARRAY(
            SELECT walked.id
            FROM (
                SELECT id, kind, queue, tags
                FROM awa.jobs_hot
                WHERE id < %(before)s::bigint AND state = ANY (%(hot)s::awa.job_state[])
                ORDER BY id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.tags @> ARRAY[%(tag)s::text])
            LIMIT %(size)s
        ) AS job_ids
),
later AS MATERIALIZED (
    SELECT
        'later' AS place,
        ARRAY(
            SELECT walked.id
            FROM (
                SELECT id, kind, queue, tags
                FROM awa.scheduled_jobs
                WHERE id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
                ORDER BY id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.tags @> ARRAY[%(tag)s::text])
            LIMIT %(size)s
        ) AS job_ids
)
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT id
        FROM awa.jobs_hot
        WHERE id < %(before)s::bigint AND state = ANY (%(hot)s::awa.job_state[])
        ORDER BY id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM hot
UNION ALL
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT id
        FROM awa.scheduled_jobs
        WHERE id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
        ORDER BY id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM later;

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
