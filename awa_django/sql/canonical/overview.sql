-- How many canonical jobs of each queue are where, in the columns of queue_storage/overview.

-- name: counts
-- Jobs by queue and state; unless the exact figures are asked for, what the leader counted last where there are many.
-- rows:  one for each queue and state
-- locks: none
WITH size AS MATERIALIZED (
    SELECT %(exact)s::boolean OR sum(reltuples) < 50000 AS countable
    FROM pg_catalog.pg_class
    WHERE oid IN ('awa.jobs_hot'::regclass, 'awa.scheduled_jobs'::regclass)
)
SELECT queue, state::text, count(*)
FROM (
    SELECT queue, state
    FROM awa.jobs_hot
    WHERE (SELECT countable FROM size)
    UNION ALL
    SELECT queue, state
    FROM awa.scheduled_jobs
    WHERE (SELECT countable FROM size)
) AS job
WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
GROUP BY queue, state
UNION ALL
SELECT counted.queue, figure.label, figure.total
FROM awa.queue_state_counts AS counted
CROSS JOIN LATERAL (
    VALUES
        ('scheduled', counted.scheduled), ('available', counted.available), ('running', counted.running),
        ('completed', counted.completed), ('retryable', counted.retryable), ('failed', counted.failed),
        ('cancelled', counted.cancelled), ('waiting_external', counted.waiting_external)
) AS figure (label, total)
WHERE NOT (SELECT countable FROM size)
    AND figure.total > 0
    AND (%(queue)s::text IS NULL OR counted.queue = %(queue)s::text);

-- name: last_hour
-- Jobs that completed within the last hour, as far as they have not been cleaned up.
-- rows:  one for each queue
-- locks: none
SELECT queue, count(*)
FROM awa.jobs_hot
WHERE state = 'completed'
    AND finalized_at >= statement_timestamp() - interval '1 hour'
GROUP BY queue;

-- name: lag
-- Since when the longest waiting job of each queue has been due, found by one step in an index for each queue and priority.
-- rows:  one for each queue in which a job waits
-- locks: none
WITH RECURSIVE head AS (
    (
        SELECT queue, priority, run_at
        FROM awa.jobs_hot
        WHERE state = 'available'
        ORDER BY queue, priority, run_at
        LIMIT 1
    )
    UNION ALL
    SELECT following.queue, following.priority, following.run_at
    FROM head
    CROSS JOIN LATERAL (
        SELECT job.queue, job.priority, job.run_at
        FROM awa.jobs_hot AS job
        WHERE job.state = 'available' AND (job.queue, job.priority) > (head.queue, head.priority)
        ORDER BY job.queue, job.priority, job.run_at
        LIMIT 1
    ) AS following
)
SELECT queue, extract(epoch FROM statement_timestamp() - min(run_at))::double precision
FROM head
GROUP BY queue;

-- name: kinds
-- Kinds of jobs that have not started.
-- rows:  one for each kind
-- locks: none
SELECT kind, count(*)
FROM (
    SELECT kind
    FROM awa.jobs_hot
    WHERE state = 'available'
    UNION ALL
    SELECT kind
    FROM awa.scheduled_jobs
) AS waiting
GROUP BY kind;
