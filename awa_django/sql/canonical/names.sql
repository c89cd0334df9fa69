-- Names of queues and kinds among the canonical jobs, each found by one step in an index.

-- name: names
-- Every queue and every kind of a canonical job.
-- rows:  one for each: what it names, 'queue' or 'kind', and the name
-- locks: none
WITH RECURSIVE hot_queues AS (
    (
        SELECT queue
        FROM awa.jobs_hot
        ORDER BY queue
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM awa.jobs_hot AS job
        WHERE job.queue > hot_queues.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM hot_queues
    WHERE hot_queues.queue IS NOT NULL
),
later_queues AS (
    (
        SELECT queue
        FROM awa.scheduled_jobs
        ORDER BY queue
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM awa.scheduled_jobs AS job
        WHERE job.queue > later_queues.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM later_queues
    WHERE later_queues.queue IS NOT NULL
),
hot_kinds AS (
    (
        SELECT kind
        FROM awa.jobs_hot
        ORDER BY kind
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT job.kind
        FROM awa.jobs_hot AS job
        WHERE job.kind > hot_kinds.kind
        ORDER BY job.kind
        LIMIT 1
    )
    FROM hot_kinds
    WHERE hot_kinds.kind IS NOT NULL
),
later_kinds AS (
    (
        SELECT kind
        FROM awa.scheduled_jobs
        ORDER BY kind
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT job.kind
        FROM awa.scheduled_jobs AS job
        WHERE job.kind > later_kinds.kind
        ORDER BY job.kind
        LIMIT 1
    )
    FROM later_kinds
    WHERE later_kinds.kind IS NOT NULL
)
SELECT 'queue' AS thing, queue AS name
FROM hot_queues
WHERE queue IS NOT NULL
UNION
SELECT 'queue', queue
FROM later_queues
WHERE queue IS NOT NULL
UNION
SELECT 'kind', kind
FROM hot_kinds
WHERE kind IS NOT NULL
UNION
SELECT 'kind', kind
FROM later_kinds
WHERE kind IS NOT NULL;
