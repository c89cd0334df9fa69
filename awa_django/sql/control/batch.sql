-- Changes of many waiting jobs that the leader makes bit by bit (contract: api/admin_ops section 5, schema section 5.8).
-- Every client's leader may go on with an operation that another one submitted or began.

-- name: submit
-- A new operation.
-- rows:  the operation
-- locks: none
INSERT INTO awa.batch_operations (id, op_kind, filter, spec, state, submitted_by)
VALUES (
    %(id)s::uuid, %(op_kind)s::text, %(filter)s::jsonb, %(spec)s::jsonb, 'pending', %(submitted_by)s::text
)
RETURNING *;

-- name: load
-- One operation.
-- rows:  the operation, if there is one
-- locks: none
SELECT *
FROM awa.batch_operations
WHERE id = %(id)s::uuid;

-- name: list
-- Operations, the newest first.
-- rows:  one for each, at most limit
-- locks: none
SELECT *
FROM awa.batch_operations
WHERE %(state)s::text IS NULL OR state = %(state)s::text
ORDER BY submitted_at DESC, id DESC
LIMIT %(limit)s;

-- name: request_cancel
-- Ask whoever runs an operation to stop after the chunk it is at.
-- rows:  the operation, unless it has ended or is being stopped already
-- locks: its row
UPDATE awa.batch_operations
SET state = 'cancelling', updated_at = clock_timestamp()
WHERE id = %(id)s::uuid AND state IN ('pending', 'scanning', 'running')
RETURNING *;

-- name: purge
-- Forget operations that ended before an instant, the oldest first; their items go with them.
-- rows:  one for each
-- locks: batch_operations rows, passing over those another transaction holds
WITH old AS MATERIALIZED (
    SELECT id
    FROM awa.batch_operations
    WHERE state IN ('completed', 'cancelled', 'failed')
        AND finalized_at < %(before)s::timestamptz
    ORDER BY finalized_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM awa.batch_operations AS operation
USING old
WHERE operation.id = old.id
RETURNING operation.id;

-- name: try_runner
-- Be the only runner of the fleet, if nobody else is, until the session lets go.
-- rows:  one: whether we are
-- locks: the runners' advisory lock, for the session; never waited for
SELECT pg_try_advisory_lock(4708303812828419139);

-- name: release_runner
-- Let another runner have a turn.
-- rows:  one
-- locks: none
SELECT pg_advisory_unlock(4708303812828419139);

-- name: next
-- The operation to work on: of those that have not ended the one submitted first.
-- rows:  the operation, if there is one
-- locks: none
SELECT *
FROM awa.batch_operations
WHERE state IN ('pending', 'scanning', 'running', 'cancelling')
ORDER BY submitted_at, id
LIMIT 1;

-- name: begin
-- Begin to collect, up to the highest id that was handed out until now.
-- rows:  the operation, unless somebody asked to stop it
-- locks: its row
UPDATE awa.batch_operations
SET state = 'scanning',
    started_at = coalesce(started_at, clock_timestamp()),
    runner_instance = %(runner)s::uuid,
    cursor = coalesce(
        cursor, jsonb_build_object('after_job_id', 0, 'max_job_id', coalesce(pg_sequence_last_value(%(ids)s::regclass), 0))
    ),
    updated_at = clock_timestamp()
WHERE id = %(id)s::uuid AND state IN ('pending', 'scanning')
RETURNING *;

-- name: storage
-- Where new jobs go, and since when.
-- rows:  one
-- locks: none
SELECT state, entered_at
FROM awa.storage_transition_state
WHERE singleton;

-- name: collect
-- Note jobs as items, and how far the search has come.
-- rows:  one, unless somebody asked to stop the operation
-- locks: the operation's row
WITH reached AS (
    UPDATE awa.batch_operations
    SET cursor = cursor || jsonb_build_object('after_job_id', %(after)s::bigint), updated_at = clock_timestamp()
    WHERE id = %(id)s::uuid AND state = 'scanning'
    RETURNING id
),
items AS (
    INSERT INTO awa.batch_operation_items (operation_id, job_id)
    SELECT reached.id, job_id
    FROM reached, unnest(%(job_ids)s::bigint[]) AS job_id
    ON CONFLICT (operation_id, job_id) DO NOTHING
)
SELECT id
FROM reached;

-- name: collected
-- All jobs are noted; the work begins.
-- rows:  none
-- locks: the operation's row
UPDATE awa.batch_operations
SET state = 'running',
    cursor = cursor || jsonb_build_object('after_job_id', 0),
    total_matched = (
        SELECT count(*)
        FROM awa.batch_operation_items AS item
        WHERE item.operation_id = batch_operations.id
    ),
    updated_at = clock_timestamp()
WHERE id = %(id)s::uuid AND state = 'scanning';

-- name: items
-- What is to be done next.
-- rows:  one for each job, at most limit, lowest id first
-- locks: none
SELECT job_id
FROM awa.batch_operation_items
WHERE operation_id = %(id)s::uuid AND state = 'pending'
ORDER BY job_id
LIMIT %(limit)s;

-- name: settle_items
-- What became of jobs, counted once each.
-- rows:  one
-- locks: their items; the operation's row
WITH settled AS (
    UPDATE awa.batch_operation_items AS item
    SET state = result.state, error = result.error, processed_at = clock_timestamp()
    FROM unnest(%(job_ids)s::bigint[], %(states)s::text[], %(errors)s::text[]) AS result (job_id, state, error)
    WHERE item.operation_id = %(id)s::uuid AND item.job_id = result.job_id AND item.state = 'pending'
    RETURNING item.job_id, item.state, item.error
),
totals AS (
    SELECT
        count(*) FILTER (WHERE state = 'processed') AS processed,
        count(*) FILTER (WHERE state = 'skipped') AS skipped,
        count(*) FILTER (WHERE state = 'errored') AS errored,
        max('job_id=' || job_id || ': ' || error) FILTER (WHERE state = 'errored') AS last_error
    FROM settled
)
UPDATE awa.batch_operations AS operation
SET processed = operation.processed + totals.processed,
    skipped = operation.skipped + totals.skipped,
    errored = operation.errored + totals.errored,
    last_error = coalesce(totals.last_error, operation.last_error),
    runner_instance = %(runner)s::uuid,
    updated_at = clock_timestamp()
FROM totals
WHERE operation.id = %(id)s::uuid;

-- name: finish
-- The operation is over. What is left of it was stopped, and counts as skipped.
-- rows:  the operation, unless it changed meanwhile
-- locks: the operation's row, then its items
WITH over AS (
    UPDATE awa.batch_operations
    SET state = %(state)s::text,
        finalized_at = clock_timestamp(),
        retention_until = clock_timestamp() + %(retention)s::interval,
        last_error = coalesce(%(error)s::text, last_error),
        runner_instance = %(runner)s::uuid,
        total_matched = coalesce(
            total_matched,
            (
                SELECT count(*)
                FROM awa.batch_operation_items AS item
                WHERE item.operation_id = batch_operations.id
            )
        ),
        skipped = skipped + (
            SELECT count(*)
            FROM awa.batch_operation_items AS item
            WHERE item.operation_id = batch_operations.id AND item.state = 'pending'
        ),
        updated_at = clock_timestamp()
    WHERE id = %(id)s::uuid AND state = %(from_state)s::text
    RETURNING *
),
left_over AS (
    UPDATE awa.batch_operation_items AS item
    SET state = 'skipped', processed_at = clock_timestamp()
    FROM over
    WHERE item.operation_id = over.id AND item.state = 'pending'
)
SELECT *
FROM over;

-- name: problems
-- Jobs of an operation whose change failed.
-- rows:  one for each, at most limit: its id, that it failed, and the error
-- locks: none
SELECT job_id, 'error', error
FROM awa.batch_operation_items
WHERE operation_id = %(id)s::uuid AND state = 'errored'
ORDER BY job_id
LIMIT %(limit)s;
