-- What nobody needs any more, outside the rings (contract: runtime/maintenance section 5).
-- Each statement removes a bounded number of rows, oldest first where it matters; the caller repeats it.

-- name: expire_dead_letters
-- Dead letters past their time, with the unique keys they hold (H-07, D5); of some queues only, or of all but others.
-- rows:  one for each dead letter removed
-- locks: dlq_entries rows, passing over those another transaction holds; then unique-claim rows
WITH expired AS MATERIALIZED (
    SELECT job_id
    FROM awa.dlq_entries
    WHERE dlq_at < statement_timestamp() - %(retention)s::interval
        AND (%(only)s::text[] IS NULL OR queue = ANY (%(only)s::text[]))
        AND queue <> ALL (%(other)s::text[])
    ORDER BY dlq_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM awa.dlq_entries AS dead
    USING expired
    WHERE dead.job_id = expired.job_id
    RETURNING dead.job_id, dead.unique_key
),
released AS (
    DELETE FROM awa.job_unique_claims AS claim
    USING removed
    WHERE claim.unique_key = removed.unique_key AND claim.job_id = removed.job_id
)
SELECT job_id
FROM removed;

-- name: expire_instances
-- Rows of runtimes that nobody has seen for long.
-- rows:  none
-- locks: runtime_instances rows
DELETE FROM awa.runtime_instances
WHERE last_seen_at < statement_timestamp() - %(retention)s::interval;

-- name: expire_queue_descriptors
-- Descriptions of queues that no runtime has declared for long.
-- rows:  none
-- locks: queue_descriptors rows
DELETE FROM awa.queue_descriptors
WHERE last_seen_at < statement_timestamp() - %(retention)s::interval;

-- name: expire_kind_descriptors
-- Descriptions of kinds that no runtime has declared for long.
-- rows:  none
-- locks: job_kind_descriptors rows
DELETE FROM awa.job_kind_descriptors
WHERE last_seen_at < statement_timestamp() - %(retention)s::interval;

-- name: expire_operations
-- Finished bulk operations past their time; their items go with them.
-- rows:  one for each
-- locks: batch_operations rows, passing over those another transaction holds
WITH expired AS MATERIALIZED (
    SELECT id
    FROM awa.batch_operations
    WHERE retention_until < statement_timestamp() AND state IN ('completed', 'cancelled', 'failed')
    ORDER BY retention_until
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM awa.batch_operations AS operation
USING expired
WHERE operation.id = expired.id
RETURNING operation.id;
