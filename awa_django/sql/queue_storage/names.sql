-- Names of queues and kinds among the jobs of queue storage: those that statistics know to be common, and those of the
-- newest jobs. The tables themselves are never searched for them.

-- name: queues
-- Queues of deferred jobs and dead letters; others have lanes.
-- rows:  one for each name
-- locks: none
SELECT value AS name
FROM pg_catalog.pg_stats AS stats, unnest(stats.most_common_vals::text::text[]) AS common (value)
WHERE stats.schemaname = 'awa'
    AND stats.tablename IN ('deferred_jobs', 'dlq_entries')
    AND stats.attname = 'queue'
UNION
(
    SELECT queue
    FROM awa.deferred_jobs
    ORDER BY job_id DESC
    LIMIT %(newest)s
)
UNION
(
    SELECT queue
    FROM awa.dlq_entries
    ORDER BY job_id DESC
    LIMIT %(newest)s
);

-- name: kinds
-- Kinds of jobs, wherever they are.
-- rows:  one for each name
-- locks: none
SELECT value AS name
FROM pg_catalog.pg_stats AS stats, unnest(stats.most_common_vals::text::text[]) AS common (value)
WHERE stats.schemaname = 'awa'
    AND (stats.tablename IN ('deferred_jobs', 'dlq_entries') OR stats.tablename LIKE 'ready\_entries\_%%')
    AND stats.attname = 'kind'
UNION
SELECT kind
FROM (
    (
        SELECT kind
        FROM awa.ready_entries
        ORDER BY job_id DESC
        LIMIT %(newest)s
    )
    UNION ALL
    (
        SELECT kind
        FROM awa.deferred_jobs
        ORDER BY job_id DESC
        LIMIT %(newest)s
    )
    UNION ALL
    (
        SELECT kind
        FROM awa.dlq_entries
        ORDER BY job_id DESC
        LIMIT %(newest)s
    )
) AS newest;
