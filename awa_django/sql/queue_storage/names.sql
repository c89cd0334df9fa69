-- Names of queues and kinds among the jobs of queue storage: those that statistics know to be common, and those of the
-- newest jobs. The tables themselves are never searched for them.

-- name: names
-- Queues of deferred jobs and dead letters, for others have lanes, and kinds of jobs, wherever they are.
-- rows:  one for each: what it names, 'queue' or 'kind', and the name
-- locks: none
SELECT stats.attname::text AS thing, common.value AS name
FROM pg_catalog.pg_stats AS stats, unnest(stats.most_common_vals::text::text[]) AS common (value)
WHERE stats.schemaname = 'awa'
    AND (
        (stats.tablename IN ('deferred_jobs', 'dlq_entries') AND stats.attname IN ('queue', 'kind'))
        OR (stats.tablename LIKE 'ready\_entries\_%%' AND stats.attname = 'kind')
    )
UNION
SELECT named.thing, named.name
FROM (
    (
        SELECT NULL AS queue, kind
        FROM awa.ready_entries
        ORDER BY job_id DESC
        LIMIT %(newest)s
    )
    UNION ALL
    (
        SELECT queue, kind
        FROM awa.deferred_jobs
        ORDER BY job_id DESC
        LIMIT %(newest)s
    )
    UNION ALL
    (
        SELECT queue, kind
        FROM awa.dlq_entries
        ORDER BY job_id DESC
        LIMIT %(newest)s
    )
) AS newest
CROSS JOIN LATERAL (VALUES ('queue', newest.queue), ('kind', newest.kind)) AS named (thing, name)
WHERE named.name IS NOT NULL;
