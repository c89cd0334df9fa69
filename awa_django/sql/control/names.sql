-- Names of queues and kinds that are on record somewhere, for choices and suggestions.

-- name: queues
-- Queues that have a lane, a setting, a description, a schedule or a worker.
-- rows:  one for each name
-- locks: none
SELECT queue
FROM awa.queue_lanes
UNION
SELECT queue
FROM awa.queue_enqueue_heads
UNION
SELECT queue
FROM awa.queue_meta
UNION
SELECT queue
FROM awa.queue_descriptors
UNION
SELECT queue
FROM awa.cron_jobs
UNION
SELECT element ->> 'queue'
FROM awa.runtime_instances AS instance
CROSS JOIN LATERAL jsonb_array_elements(
    CASE WHEN jsonb_typeof(instance.queues) = 'array' THEN instance.queues ELSE '[]' END
) AS element
WHERE jsonb_typeof(element -> 'queue') = 'string';

-- name: kinds
-- Kinds that have a description or a schedule, or that a worker declares.
-- rows:  one for each name
-- locks: none
SELECT kind
FROM awa.job_kind_descriptors
UNION
SELECT kind
FROM awa.cron_jobs
UNION
SELECT declared.kind
FROM awa.runtime_instances AS instance
CROSS JOIN LATERAL jsonb_object_keys(
    CASE
        WHEN jsonb_typeof(instance.job_kind_descriptor_hashes) = 'object' THEN instance.job_kind_descriptor_hashes
        ELSE '{}'
    END
) AS declared (kind);
