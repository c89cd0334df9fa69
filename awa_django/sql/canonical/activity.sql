-- What happened lately to canonical jobs.

-- name: happened
-- Canonical jobs created and ended, minute by minute, of a minute and sort at most so many, and how long the latest
-- completed ones took. Completed ones are found by their time, the other ends by the queues given.
-- rows:  'now' with the number of the minute that is now; one for each minute and sort, how many; 'took' for each of
--        the samples, with the seconds it ran and had waited
-- locks: none
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM statement_timestamp()) / 60)::bigint AS this_minute
),
bounds AS MATERIALIZED (
    SELECT to_timestamp((this_minute - %(minutes)s::bigint + 1) * 60) AS since, this_minute
    FROM clock
)
SELECT 'now' AS sort, this_minute AS minute, 0 AS jobs, NULL::double precision AS ran, NULL::double precision AS waited
FROM clock
UNION ALL
SELECT 'completed', later.minute, count(*), NULL, NULL
FROM bounds
CROSS JOIN generate_series(bounds.this_minute - %(minutes)s::bigint + 1, bounds.this_minute) AS later (minute)
CROSS JOIN LATERAL (
    SELECT
    FROM awa.jobs_hot
    WHERE state = 'completed'
        AND finalized_at >= to_timestamp(later.minute * 60)
        AND finalized_at < to_timestamp((later.minute + 1) * 60)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    LIMIT %(most_of_minute)s::bigint
) AS job
GROUP BY later.minute
UNION ALL
SELECT wanted.state::text, floor(extract(epoch FROM job.finalized_at) / 60)::bigint AS minute, count(*), NULL, NULL
FROM bounds
CROSS JOIN unnest(%(queues)s::text[]) AS known (queue)
CROSS JOIN unnest('{failed,cancelled}'::awa.job_state[]) AS wanted (state)
CROSS JOIN LATERAL (
    -- As a range of the index, in its order: for a pair that no job has, all of the table might be read.
    SELECT finalized_at
    FROM awa.jobs_hot
    WHERE (queue, state) >= (known.queue, wanted.state) AND (queue, state) <= (known.queue, wanted.state)
    ORDER BY queue, state
    LIMIT %(most)s::bigint
) AS job
WHERE job.finalized_at >= bounds.since
    AND isfinite(job.finalized_at)
    AND (%(queue)s::text IS NULL OR known.queue = %(queue)s::text)
GROUP BY wanted.state, minute
UNION ALL
SELECT 'enqueued', floor(extract(epoch FROM created.created_at) / 60)::bigint AS minute, count(*), NULL, NULL
FROM (
    (
        SELECT created_at
        FROM awa.jobs_hot
        WHERE created_at >= (SELECT since FROM bounds)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        LIMIT %(most)s::bigint
    )
    UNION ALL
    (
        SELECT created_at
        FROM awa.scheduled_jobs
        WHERE created_at >= (SELECT since FROM bounds)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        LIMIT %(most)s::bigint
    )
) AS created
WHERE isfinite(created.created_at)
GROUP BY minute
UNION ALL
SELECT
    'took', floor(extract(epoch FROM latest.finalized_at) / 60)::bigint, 1,
    extract(epoch FROM latest.finalized_at - latest.attempted_at)::double precision,
    CASE WHEN isfinite(latest.run_at) THEN extract(epoch FROM latest.attempted_at - latest.run_at)::double precision END
FROM (
    SELECT finalized_at, attempted_at, run_at
    FROM awa.jobs_hot
    WHERE state = 'completed'
        AND finalized_at >= (SELECT since FROM bounds)
        AND isfinite(finalized_at)
        AND isfinite(attempted_at)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    ORDER BY finalized_at DESC
    LIMIT %(samples)s::bigint
) AS latest;

-- name: failures
-- The latest failures: jobs that failed for good, and those that will be tried again, in the queues given.
-- rows:  one for each, at most limit, latest first: the job and when it failed
-- locks: none
SELECT failed.id, failed.failed_at
FROM unnest(%(queues)s::text[]) AS known (queue)
CROSS JOIN LATERAL (
    (
        SELECT id, finalized_at AS failed_at
        FROM awa.jobs_hot
        WHERE (queue, state) >= (known.queue, 'failed'::awa.job_state)
            AND (queue, state) <= (known.queue, 'failed'::awa.job_state)
        ORDER BY queue, state
        LIMIT %(most)s::bigint
    )
    UNION ALL
    (
        SELECT id, coalesce(attempted_at, created_at)
        FROM awa.scheduled_jobs
        WHERE (queue, state) >= (known.queue, 'retryable'::awa.job_state)
            AND (queue, state) <= (known.queue, 'retryable'::awa.job_state)
        ORDER BY queue, state
        LIMIT %(most)s::bigint
    )
) AS failed
ORDER BY failed.failed_at DESC NULLS LAST, failed.id DESC
LIMIT %(limit)s::bigint;
