-- Batch operations of ours: what awa.batch_operations has no words for (contract: api/admin_ops section 5). Their table is
-- Django's own, in its own schema, so its name stands alone; it may be missing until the project migrates.

-- name: has_table
-- Whether the table is there and this role may use it.
-- rows:  one: whether it may read, whether it may write; false without a table
-- locks: none
SELECT
    coalesce(has_table_privilege(batches.oid, 'SELECT'), false),
    coalesce(
        has_table_privilege(batches.oid, 'INSERT')
        AND has_table_privilege(batches.oid, 'UPDATE')
        AND has_table_privilege(batches.oid, 'DELETE'),
        false
    )
FROM (SELECT to_regclass('awa_django_batchoperation')::oid AS oid) AS batches;

-- name: bounds
-- What bounds the jobs that an operation means: the highest ids that were handed out, and the time.
-- rows:  one: the id of queue storage, that of the canonical tables, and now
-- locks: none
SELECT
    coalesce(pg_sequence_last_value('awa.job_id_seq'::regclass), 0),
    coalesce(pg_sequence_last_value('awa.jobs_id_seq'::regclass), 0),
    clock_timestamp();

-- name: tell_runners
-- Have the workers look, once the transaction commits.
-- rows:  one
-- locks: none
SELECT pg_notify(%(channel)s::text, '');

-- name: submit
-- A new operation.
-- rows:  the operation
-- locks: none
INSERT INTO awa_django_batchoperation (
    id, op_kind, filter, spec, state, submitted_by, submitted_at, processed, skipped, errored, skip_reasons,
    problems, updated_at
)
VALUES (
    %(id)s::uuid, %(op_kind)s::text, %(filter)s::jsonb, %(spec)s::jsonb, 'pending', %(submitted_by)s::text,
    clock_timestamp(), 0, 0, 0, '{}', '[]', clock_timestamp()
)
RETURNING *;

-- name: load
-- One operation.
-- rows:  the operation, if there is one
-- locks: none
SELECT *
FROM awa_django_batchoperation
WHERE id = %(id)s::uuid;

-- name: list
-- Operations, the newest first.
-- rows:  one for each, at most limit
-- locks: none
SELECT *
FROM awa_django_batchoperation
WHERE %(state)s::text IS NULL OR state = %(state)s::text
ORDER BY submitted_at DESC, id DESC
LIMIT %(limit)s;

-- name: problems
-- Jobs that did not change, with why.
-- rows:  one for each, at most limit
-- locks: none
SELECT (problem ->> 'job_id')::bigint, problem ->> 'reason', problem ->> 'text'
FROM awa_django_batchoperation,
    jsonb_array_elements(problems) WITH ORDINALITY AS noted (problem, place)
WHERE id = %(id)s::uuid
ORDER BY place
LIMIT %(limit)s;

-- name: request_cancel
-- Ask the runner to stop after the chunk it is at. One that has not begun is over.
-- rows:  the operation, unless it has ended or is being stopped already
-- locks: its row
UPDATE awa_django_batchoperation
SET state = CASE state WHEN 'pending' THEN 'cancelled' ELSE 'cancelling' END,
    total_matched = CASE state WHEN 'pending' THEN 0 ELSE total_matched END,
    finalized_at = CASE state WHEN 'pending' THEN clock_timestamp() END,
    retention_until = CASE state WHEN 'pending' THEN clock_timestamp() + %(retention)s::interval END,
    updated_at = clock_timestamp()
WHERE id = %(id)s::uuid AND state IN ('pending', 'scanning', 'running')
RETURNING *;

-- name: purge
-- Forget operations that ended before an instant, the oldest first.
-- rows:  one for each
-- locks: operation rows, passing over those another transaction holds
WITH old AS MATERIALIZED (
    SELECT id
    FROM awa_django_batchoperation
    WHERE state IN ('completed', 'cancelled', 'failed')
        AND finalized_at < %(before)s::timestamptz
    ORDER BY finalized_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM awa_django_batchoperation AS operation
USING old
WHERE operation.id = old.id
RETURNING operation.id;

-- name: expire
-- Forget operations past their time.
-- rows:  one for each
-- locks: operation rows, passing over those another transaction holds
WITH expired AS MATERIALIZED (
    SELECT id
    FROM awa_django_batchoperation
    WHERE state IN ('completed', 'cancelled', 'failed') AND retention_until < statement_timestamp()
    ORDER BY retention_until
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM awa_django_batchoperation AS operation
USING expired
WHERE operation.id = expired.id
RETURNING operation.id;

-- name: has_work
-- Whether there is something to do that nobody does: the operation whose turn it is has not been touched for a while,
-- or there are some to forget.
-- rows:  one
-- locks: none
SELECT
    EXISTS (
        SELECT
        FROM (
            SELECT updated_at
            FROM awa_django_batchoperation
            WHERE state IN ('pending', 'scanning', 'running', 'cancelling')
            ORDER BY submitted_at, id
            LIMIT 1
        ) AS first
        WHERE first.updated_at < clock_timestamp() - %(silence)s::interval
    )
    OR EXISTS (
        SELECT
        FROM awa_django_batchoperation
        WHERE state IN ('completed', 'cancelled', 'failed') AND retention_until < statement_timestamp()
    );

-- name: try_runner
-- Be the only runner of the database, if nobody else is, until the session lets go.
-- rows:  one: whether we are
-- locks: our runners' advisory lock, which is not that of awa.batch_operations; never waited for
SELECT pg_try_advisory_lock(%(key)s::bigint);

-- name: release_runner
-- Let another runner have a turn.
-- rows:  one
-- locks: none
SELECT pg_advisory_unlock(%(key)s::bigint);

-- name: limit_waits
-- Wait no longer than this for what others hold, from now on.
-- rows:  one
-- locks: none
SELECT set_config('lock_timeout', %(milliseconds)s::text, false);

-- name: next
-- The operation to work on: of those that have not ended the one submitted first.
-- rows:  the operation, if there is one
-- locks: none
SELECT *
FROM awa_django_batchoperation
WHERE state IN ('pending', 'scanning', 'running', 'cancelling')
ORDER BY submitted_at, id
LIMIT 1;

-- name: begin
-- Begin to count, within these bounds.
-- rows:  the operation, unless somebody asked to stop it
-- locks: its row
UPDATE awa_django_batchoperation
SET state = 'scanning',
    started_at = coalesce(started_at, clock_timestamp()),
    runner_instance = %(runner)s::uuid,
    cursor = coalesce(cursor, %(mark)s::jsonb),
    updated_at = clock_timestamp()
WHERE id = %(id)s::uuid AND state IN ('pending', 'scanning')
RETURNING *;

-- name: counting
-- Say that somebody is at it.
-- rows:  one, unless somebody asked to stop it
-- locks: its row
UPDATE awa_django_batchoperation
SET updated_at = clock_timestamp(), runner_instance = %(runner)s::uuid
WHERE id = %(id)s::uuid AND state IN ('scanning', 'running')
RETURNING id;

-- name: counted
-- It is known how many there are; the work begins.
-- rows:  none
-- locks: its row
UPDATE awa_django_batchoperation
SET state = 'running', total_matched = %(total)s::bigint, updated_at = clock_timestamp()
WHERE id = %(id)s::uuid AND state = 'scanning';

-- name: hold
-- How far the operation is, for the next chunk.
-- rows:  one: its state, its cursor, its skip reasons and its problems
-- locks: its row, until the transaction ends
SELECT state, cursor, skip_reasons, problems
FROM awa_django_batchoperation
WHERE id = %(id)s::uuid
FOR UPDATE;

-- name: settle
-- What became of a chunk, and where to go on.
-- rows:  none
-- locks: the operation's row, held already
UPDATE awa_django_batchoperation
SET processed = processed + %(processed)s::bigint,
    skipped = skipped + %(skipped)s::bigint,
    errored = errored + %(errored)s::bigint,
    skip_reasons = %(skip_reasons)s::jsonb,
    problems = coalesce(%(problems)s::jsonb, problems),
    last_error = coalesce(%(error)s::text, last_error),
    cursor = %(mark)s::jsonb,
    runner_instance = %(runner)s::uuid,
    updated_at = clock_timestamp()
WHERE id = %(id)s::uuid;

-- name: finish
-- The operation is over. Jobs that were counted and did not have their turn are skipped ones; those that came after the
-- count are counted now.
-- rows:  the operation, unless it changed meanwhile
-- locks: its row
WITH ending AS MATERIALIZED (
    SELECT
        id, greatest(coalesce(total_matched, 0) - processed - skipped - errored, 0) AS rest
    FROM awa_django_batchoperation
    WHERE id = %(id)s::uuid AND state = %(from_state)s::text
    FOR UPDATE
)
UPDATE awa_django_batchoperation AS operation
SET state = %(state)s::text,
    finalized_at = clock_timestamp(),
    retention_until = clock_timestamp() + %(retention)s::interval,
    last_error = coalesce(%(error)s::text, last_error),
    runner_instance = %(runner)s::uuid,
    total_matched = processed + skipped + errored + ending.rest,
    skipped = skipped + ending.rest,
    skip_reasons = CASE
        WHEN ending.rest = 0 THEN skip_reasons
        ELSE skip_reasons || jsonb_build_object(
            %(rest_reason)s::text,
            coalesce((skip_reasons ->> %(rest_reason)s::text)::bigint, 0) + ending.rest
        )
    END,
    updated_at = clock_timestamp()
FROM ending
WHERE operation.id = ending.id
RETURNING operation.*;
