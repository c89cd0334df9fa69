-- What the leader does to canonical rows besides rescue and promotion (contract: runtime/maintenance sections 2 and 5,
-- control-functions section 5).

-- name: age_priorities
-- Jobs that have waited longer than the interval, longest first: one priority better each time. The first time notes
-- where they began.
-- rows:  one for each
-- locks: jobs_hot rows, passing over those another transaction holds
WITH waiting AS MATERIALIZED (
    SELECT id
    FROM awa.jobs_hot
    WHERE state = 'available'
        AND priority > 1
        AND run_at <= now() - %(interval)s::interval
    ORDER BY run_at, id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
UPDATE awa.jobs_hot
SET
    priority = priority - 1,
    metadata = CASE
        WHEN jsonb_typeof(metadata) <> 'object' OR metadata ? '_awa_original_priority' THEN metadata
        ELSE metadata || jsonb_build_object('_awa_original_priority', priority)
    END
WHERE id = ANY (ARRAY(SELECT id FROM waiting))
RETURNING id;

-- name: recount_marked
-- Count the queues and kinds anew that transitions have marked, those marked longest ago first. While queue storage is in
-- force nobody reads the counts.
-- rows:  how many were counted; none while queue storage is in force
-- locks: advisory lock 1098018130, waiting for it; counter rows
SELECT awa.recompute_dirty_admin_metadata(%(limit)s::integer)
WHERE NOT EXISTS (SELECT FROM awa.runtime_storage_backends WHERE backend = 'queue_storage');

-- name: recount_all
-- Count every queue and kind anew.
-- rows:  one; none while queue storage is in force
-- locks: advisory lock 1098018130, waiting for it; counter rows
SELECT awa.refresh_admin_metadata()
WHERE NOT EXISTS (SELECT FROM awa.runtime_storage_backends WHERE backend = 'queue_storage');

-- name: expire_finished
-- Finished jobs past their time, of the queues in only, or of all but those in other; triggers let their unique keys go.
-- rows:  one for each, at most limit
-- locks: jobs_hot rows, passing over those another transaction holds
WITH completed AS MATERIALIZED (
    SELECT id
    FROM awa.jobs_hot
    WHERE state = 'completed'
        AND finalized_at < now() - %(completed)s::interval
        AND (%(only)s::text[] IS NULL OR queue = ANY (%(only)s::text[]))
        AND queue <> ALL (%(other)s::text[])
    ORDER BY finalized_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
failed AS MATERIALIZED (
    SELECT id
    FROM awa.jobs_hot
    WHERE state IN ('failed', 'cancelled')
        AND finalized_at < now() - %(failed)s::interval
        AND (%(only)s::text[] IS NULL OR queue = ANY (%(only)s::text[]))
        AND queue <> ALL (%(other)s::text[])
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM awa.jobs_hot
WHERE id = ANY (ARRAY(
    SELECT id FROM completed
    UNION ALL
    SELECT id FROM failed
    LIMIT %(limit)s
))
RETURNING id;
