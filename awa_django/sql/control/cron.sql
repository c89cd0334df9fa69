-- Schedules and their fires (contract: runtime/cron, schema section 5.3).

-- name: declare
-- Write what code says about these schedules; their last fires and pauses stay.
-- rows:  none
-- locks: cron_jobs rows, in name order
INSERT INTO awa.cron_jobs (
    name, cron_expr, timezone, kind, queue, args, priority, max_attempts, tags, metadata, missed_fire_policy,
    created_at, updated_at
)
SELECT
    name, cron_expr, timezone, kind, queue, args, priority, max_attempts,
    ARRAY(SELECT jsonb_array_elements_text(tags)), metadata, missed_fire_policy, now(), now()
FROM unnest(
    %(names)s::text[], %(expressions)s::text[], %(timezones)s::text[], %(kinds)s::text[], %(queues)s::text[],
    %(args)s::jsonb[], %(priorities)s::smallint[], %(max_attempts)s::smallint[], %(tags)s::jsonb[],
    %(metadata)s::jsonb[], %(policies)s::text[]
) AS declared (
    name, cron_expr, timezone, kind, queue, args, priority, max_attempts, tags, metadata, missed_fire_policy
)
ORDER BY name
ON CONFLICT (name) DO UPDATE
SET cron_expr = excluded.cron_expr,
    timezone = excluded.timezone,
    kind = excluded.kind,
    queue = excluded.queue,
    args = excluded.args,
    priority = excluded.priority,
    max_attempts = excluded.max_attempts,
    tags = excluded.tags,
    metadata = excluded.metadata,
    missed_fire_policy = excluded.missed_fire_policy,
    updated_at = excluded.updated_at;

-- name: look
-- What decides when each schedule fires, as it is now. Instants are text: a row that holds one which no
-- client can represent must not keep the others from being read.
-- rows:  one for each schedule, in name order
-- locks: none
SELECT
    name, cron_expr, timezone, missed_fire_policy, last_enqueued_at::text, created_at::text,
    paused_at IS NOT NULL AS paused, jsonb_typeof(metadata) AS metadata_type, statement_timestamp() AS now
FROM awa.cron_jobs
ORDER BY name;

-- name: limit_wait
-- A fire that waits for somebody's transaction gives way to the other schedules, and comes again.
-- rows:  none
-- locks: none
SET LOCAL lock_timeout = '2s';

-- name: take_fires
-- Take fires of one schedule, ascending, and enqueue a job for each; nothing if somebody else took one since it was
-- read, or it is paused, or its metadata could not be read by those who claim.
-- rows:  the kind and queue of each job
-- locks: the cron_jobs row; then as insert_job, for each
WITH taken AS (
    UPDATE awa.cron_jobs
    SET last_enqueued_at = (%(fires)s::timestamptz[])[cardinality(%(fires)s::timestamptz[])],
        updated_at = now()
    WHERE name = %(name)s
        AND last_enqueued_at IS NOT DISTINCT FROM %(seen)s::timestamptz
        AND paused_at IS NULL
        AND jsonb_typeof(metadata) = 'object'
    RETURNING name, kind, queue, args, priority, max_attempts, tags, metadata
)
SELECT taken.kind, taken.queue
FROM taken
CROSS JOIN unnest(%(fires)s::timestamptz[]) AS fire (at)
CROSS JOIN LATERAL awa.insert_job_compat(
    p_kind => taken.kind,
    p_queue => taken.queue,
    p_args => taken.args,
    p_state => 'available',
    p_priority => taken.priority,
    p_max_attempts => taken.max_attempts,
    p_metadata => taken.metadata || jsonb_build_object(
        'cron_name', taken.name,
        -- As PostgreSQL prints it in zone UTC, whatever zone this session is in.
        'cron_fire_time', to_char(fire.at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"+00"')
    ),
    p_tags => taken.tags
) AS job;

-- name: trigger
-- Enqueue one job of a schedule now, paused or not; its last fire stays.
-- rows:  the id of the job; none if there is no such schedule
-- locks: as insert_job
SELECT job.id
FROM awa.cron_jobs AS schedule
CROSS JOIN LATERAL awa.insert_job_compat(
    p_kind => schedule.kind,
    p_queue => schedule.queue,
    p_args => schedule.args,
    p_state => 'available',
    p_priority => schedule.priority,
    p_max_attempts => schedule.max_attempts,
    p_metadata => CASE jsonb_typeof(schedule.metadata) WHEN 'object' THEN schedule.metadata ELSE '{}' END
        || jsonb_build_object('cron_name', schedule.name, 'triggered_manually', true),
    p_tags => schedule.tags
) AS job
WHERE schedule.name = %(name)s;

-- name: schedules
-- Everything about every schedule, or about one. An instant that no client can represent is NULL.
-- rows:  one for each, in name order
-- locks: none
SELECT
    name, cron_expr, timezone, kind, queue, args::text, priority, max_attempts, tags, metadata::text,
    missed_fire_policy,
    CASE WHEN last_enqueued_at BETWEEN '0002-01-01 00:00+00' AND '9998-12-30 00:00+00' THEN last_enqueued_at END,
    created_at, updated_at, paused_at, paused_by, statement_timestamp()
FROM awa.cron_jobs
WHERE name = coalesce(%(name)s::text, name)
ORDER BY name;

-- name: pause
-- Stop the automatic fires of a schedule; again, with another name and time.
-- rows:  one if it exists
-- locks: the cron_jobs row
UPDATE awa.cron_jobs
SET paused_at = statement_timestamp(),
    paused_by = %(by)s,
    updated_at = now()
WHERE name = %(name)s
RETURNING name;

-- name: resume
-- Let a schedule fire again.
-- rows:  one if it exists
-- locks: the cron_jobs row
UPDATE awa.cron_jobs
SET paused_at = NULL,
    paused_by = NULL,
    updated_at = now()
WHERE name = %(name)s
RETURNING name;

-- name: delete
-- Remove a schedule; a worker that declares it brings it back.
-- rows:  one if it existed
-- locks: the cron_jobs row
DELETE FROM awa.cron_jobs
WHERE name = %(name)s
RETURNING name;
