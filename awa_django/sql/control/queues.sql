-- Queues as operators see and set them (contract: api/admin_ops sections 3 and 6, queue-storage/admin sections 7 and 8).

-- name: pause
-- Nobody claims from the queue or promotes its jobs from the commit on; again refreshes time and name.
-- rows:  none
-- locks: the queue's row
INSERT INTO awa.queue_meta (queue, paused, paused_at, paused_by)
VALUES (%(queue)s::text, true, clock_timestamp(), %(by)s::text)
ON CONFLICT (queue) DO UPDATE
SET paused = true, paused_at = excluded.paused_at, paused_by = excluded.paused_by;

-- name: resume
-- The queue works again; when and by whom it was paused last stays.
-- rows:  one if it was paused
-- locks: the queue's row
UPDATE awa.queue_meta
SET paused = false
WHERE queue = %(queue)s::text AND paused
RETURNING queue;

-- name: wake
-- Have the workers of a queue look at it, once the transaction commits.
-- rows:  one
-- locks: none
SELECT pg_notify('awa:' || %(queue)s::text, '');

-- name: set_shards
-- How many lanes each priority of a queue has from now on.
-- rows:  none
-- locks: the queue's row
INSERT INTO awa.queue_meta (queue, enqueue_shards)
VALUES (%(queue)s::text, %(shards)s::smallint)
ON CONFLICT (queue) DO UPDATE
SET enqueue_shards = excluded.enqueue_shards;

-- name: pruned_failures
-- Failed jobs of a queue that its history has forgotten.
-- rows:  one
-- locks: none
SELECT coalesce(sum(pruned_failed_count), 0)::bigint
FROM awa.queue_terminal_rollups
WHERE queue = %(queue)s::text;

-- name: settings
-- Queues that have a setting or a description, or that a live worker serves.
-- rows:  one for each name
-- locks: none
WITH live AS MATERIALIZED (
    SELECT queues, queue_descriptor_hashes
    FROM awa.runtime_instances
    WHERE last_seen_at >= statement_timestamp() - make_interval(
        secs => least(greatest(30, 3.0 * greatest(snapshot_interval_ms, 1000) / 1000), 1e9)::double precision
    )
),
served AS (
    SELECT DISTINCT element ->> 'queue' AS queue
    FROM live, jsonb_array_elements(live.queues) AS element
    WHERE jsonb_typeof(live.queues) = 'array'
),
hashes AS (
    SELECT hash.key AS queue, count(DISTINCT hash.value) > 1 AS mismatch
    FROM live, jsonb_each_text(live.queue_descriptor_hashes) AS hash
    WHERE jsonb_typeof(live.queue_descriptor_hashes) = 'object'
    GROUP BY hash.key
)
SELECT
    queue, meta.paused, meta.paused_at, meta.paused_by, meta.enqueue_shards,
    served.queue IS NOT NULL AS served,
    descriptor.display_name, descriptor.description, descriptor.owner, descriptor.docs_url,
    to_jsonb(descriptor.tags) AS tags, descriptor.extra, descriptor.last_seen_at,
    descriptor.last_seen_at < statement_timestamp() - make_interval(
        secs => least(greatest(30, 3.0 * descriptor.sync_interval_ms / 1000), 1e9)::double precision
    ) AS stale,
    hashes.mismatch
FROM awa.queue_meta AS meta
FULL JOIN awa.queue_descriptors AS descriptor USING (queue)
FULL JOIN served USING (queue)
LEFT JOIN hashes USING (queue)
WHERE queue IS NOT NULL;
