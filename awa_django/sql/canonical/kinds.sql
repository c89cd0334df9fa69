-- Kinds of canonical jobs as operators see them.

-- name: counts
-- Canonical jobs of the kinds given by state, of each kind and state at most so many; completed ones of the last hour
-- besides. Each is a range of the index, in its order: for a pair that no job has, all of the table might be read.
-- rows:  one for each kind and state, without a queue; one for each kind, state and queue that the first jobs of it are on,
--        with none counted; completed ones of the last hour are 'last_hour'
-- locks: none
WITH pair AS MATERIALIZED (
    SELECT known.kind, wanted.state
    FROM unnest(%(kinds)s::text[]) AS known (kind)
    CROSS JOIN unnest(enum_range(NULL::awa.job_state)) AS wanted (state)
)
SELECT pair.kind, NULL AS queue, pair.state::text AS state, count(*) AS jobs
FROM pair
CROSS JOIN LATERAL (
    (
        SELECT
        FROM awa.jobs_hot
        WHERE (kind, state) >= (pair.kind, pair.state) AND (kind, state) <= (pair.kind, pair.state)
        ORDER BY kind, state
        LIMIT %(most)s::bigint
    )
    UNION ALL
    (
        SELECT
        FROM awa.scheduled_jobs
        WHERE (kind, state) >= (pair.kind, pair.state) AND (kind, state) <= (pair.kind, pair.state)
        ORDER BY kind, state
        LIMIT %(most)s::bigint
    )
) AS job
GROUP BY pair.kind, pair.state
UNION ALL
SELECT DISTINCT pair.kind, job.queue, pair.state::text, 0
FROM pair
CROSS JOIN LATERAL (
    (
        SELECT queue
        FROM awa.jobs_hot
        WHERE (kind, state) >= (pair.kind, pair.state) AND (kind, state) <= (pair.kind, pair.state)
        ORDER BY kind, state
        LIMIT 50
    )
    UNION ALL
    (
        SELECT queue
        FROM awa.scheduled_jobs
        WHERE (kind, state) >= (pair.kind, pair.state) AND (kind, state) <= (pair.kind, pair.state)
        ORDER BY kind, state
        LIMIT 50
    )
) AS job
WHERE pair.state IN ('available', 'scheduled', 'retryable')
UNION ALL
SELECT kind, queue, 'last_hour', count(*)
FROM (
    SELECT kind, queue
    FROM awa.jobs_hot
    WHERE state = 'completed' AND finalized_at >= statement_timestamp() - interval '1 hour'
    LIMIT %(most)s::bigint
) AS completed
GROUP BY kind, queue;
