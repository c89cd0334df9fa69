-- What the leader measures of the canonical tables, while somebody collects metrics.

-- name: queue_metrics
-- The unfinished and the failed jobs of every queue that has any, and the seconds since the oldest job that could be
-- claimed became due; 0 if none could. Canonical failures are never dead letters.
-- rows:  one for each queue
-- locks: none
WITH counted AS (
    SELECT queue, state, count(*) AS jobs, NULL::timestamptz AS since
    FROM awa.jobs_hot
    WHERE state IN ('available', 'running', 'failed', 'waiting_external')
    GROUP BY queue, state
    UNION ALL
    SELECT queue, 'available', 0, min(run_at)
    FROM awa.jobs_hot
    WHERE state = 'available'
    GROUP BY queue
    UNION ALL
    SELECT queue, state, count(*), NULL
    FROM awa.scheduled_jobs
    GROUP BY queue, state
)
SELECT
    queue,
    coalesce(sum(jobs) FILTER (WHERE state = 'available'), 0)::bigint AS available,
    coalesce(sum(jobs) FILTER (WHERE state = 'running'), 0)::bigint AS running,
    coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0)::bigint AS failed,
    coalesce(sum(jobs) FILTER (WHERE state = 'scheduled'), 0)::bigint AS scheduled,
    coalesce(sum(jobs) FILTER (WHERE state = 'retryable'), 0)::bigint AS retryable,
    coalesce(sum(jobs) FILTER (WHERE state = 'waiting_external'), 0)::bigint AS waiting_external,
    0 AS dead_letters,
    coalesce(greatest(extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE isfinite(since))), 0), 0)
        ::double precision AS lag
FROM counted
GROUP BY queue
ORDER BY queue;
