-- Kinds of canonical jobs as operators see them.

-- name: counts
-- Canonical jobs of the kinds given by state, of each kind and state at most so many; completed ones of the last hour
-- besides.
-- rows:  one for each kind, queue and state; completed ones of the last hour are 'last_hour'
-- locks: none
SELECT known.kind, job.queue, wanted.state::text AS state, count(*) AS jobs
FROM unnest(%(kinds)s::text[]) AS known (kind)
CROSS JOIN unnest(enum_range(NULL::awa.job_state)) AS wanted (state)
CROSS JOIN LATERAL (
    (
        SELECT queue
        FROM awa.jobs_hot
        WHERE kind = known.kind AND state = wanted.state
        LIMIT %(most)s::bigint
    )
    UNION ALL
    (
        SELECT queue
        FROM awa.scheduled_jobs
        WHERE kind = known.kind AND state = wanted.state
        LIMIT %(most)s::bigint
    )
) AS job
GROUP BY known.kind, job.queue, wanted.state
UNION ALL
SELECT kind, queue, 'last_hour', count(*)
FROM (
    SELECT kind, queue
    FROM awa.jobs_hot
    WHERE state = 'completed' AND finalized_at >= statement_timestamp() - interval '1 hour'
    LIMIT %(most)s::bigint
) AS completed
GROUP BY kind, queue;
