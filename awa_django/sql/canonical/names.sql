-- Names of queues and kinds among the canonical jobs, each found by one step in an index.

-- name: queues
-- Every queue of a canonical job.
-- rows:  one for each name
-- locks: none
WITH RECURSIVE hot AS (
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
        WHERE job.queue > hot.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM hot
    WHERE hot.queue IS NOT NULL
),
later AS (
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
        WHERE job.queue > later.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM later
    WHERE later.queue IS NOT NULL
)
SELECT queue AS name
FROM hot
WHERE queue IS NOT NULL
UNION
SELECT queue
FROM later
WHERE queue IS NOT NULL;

-- name: kinds
-- Every kind of a canonical job.
-- rows:  one for each name
-- locks: none
WITH RECURSIVE hot AS (
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
        WHERE job.kind > hot.kind
        ORDER BY job.kind
        LIMIT 1
    )
    FROM hot
    WHERE hot.kind IS NOT NULL
),
later AS (
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
        WHERE job.kind > later.kind
        ORDER BY job.kind
        LIMIT 1
    )
    FROM later
    WHERE later.kind IS NOT NULL
)
SELECT kind AS name
FROM hot
WHERE kind IS NOT NULL
UNION
SELECT kind
FROM later
WHERE kind IS NOT NULL;
