-- Names of queues and kinds that are on record somewhere, for choices and suggestions.

-- name: names
-- Queues that have a lane, a setting, a description, a schedule or a worker, and kinds that have a description or a
-- schedule, or that a worker declares.
-- rows:  one for each: what it names, 'queue' or 'kind', and the name
-- locks: none
SELECT 'queue' AS thing, queue AS name
FROM awa.queue_lanes
UNION
SELECT 'queue', queue
FROM awa.queue_enqueue_heads
UNION
SELECT 'queue', queue
FROM awa.queue_meta
UNION
SELECT 'queue', queue
FROM awa.queue_descriptors
UNION
SELECT 'queue', queue
FROM awa.cron_jobs
UNION
SELECT 'queue', element ->> 'queue'
FROM awa.runtime_instances AS instance
CROSS JOIN LATERAL jsonb_array_elements(
    CASE WHEN jsonb_typeof(instance.queues) = 'array' THEN instance.queues ELSE '[]' END
) AS element
WHERE jsonb_typeof(element -> 'queue') = 'string'
UNION
SELECT 'kind', kind
FROM awa.job_kind_descriptors
UNION
SELECT 'kind', kind
FROM awa.cron_jobs
UNION
SELECT 'kind', declared.kind
FROM awa.runtime_instances AS instance
CROSS JOIN LATERAL jsonb_object_keys(
    CASE
        WHEN jsonb_typeof(instance.job_kind_descriptor_hashes) = 'object' THEN instance.job_kind_descriptor_hashes
        ELSE '{}'
    END
) AS declared (kind);
