-- Putting taken jobs where they go (contract: runtime/outcomes section 3, queue-storage/transition section 2). The rows
-- are locked by whoever took them, and the unique keys that they enter upon are theirs already. An outcome adds to the
-- errors of a job and never rewrites them; metadata NULL keeps what is stored, if it is an object at all (DEC-18).

-- name: update_hot
-- Jobs that stay where they are. A finished or available job has no callback any more.
-- rows:  none
-- locks: jobs_hot rows, held already; unique-claim rows
UPDATE awa.jobs_hot AS hot
SET
    queue = landing.queue,
    state = landing.state,
    priority = landing.priority,
    attempt = landing.attempt,
    run_at = landing.run_at,
    heartbeat_at = CASE WHEN landing.keeps_clock THEN hot.heartbeat_at END,
    deadline_at = CASE WHEN landing.keeps_clock THEN hot.deadline_at END,
    attempted_at = landing.attempted_at,
    finalized_at = landing.finalized_at,
    errors = hot.errors || ARRAY(SELECT jsonb_array_elements(landing.added_errors)),
    metadata = coalesce(
        landing.metadata,
        CASE WHEN jsonb_typeof(hot.metadata) = 'object' THEN hot.metadata ELSE '{}' END
    ),
    unique_states = landing.unique_states::bit(8),
    callback_id = NULL,
    callback_timeout_at = NULL,
    callback_filter = NULL,
    callback_on_complete = NULL,
    callback_on_fail = NULL,
    callback_transform = NULL,
    progress = landing.progress
FROM unnest(
    %(job_ids)s::bigint[], %(queues)s::text[], %(states)s::awa.job_state[], %(priorities)s::smallint[],
    %(attempts)s::smallint[], %(run_at)s::timestamptz[], %(keeps_clock)s::boolean[],
    %(attempted_at)s::timestamptz[], %(finalized_at)s::timestamptz[], %(added_errors)s::jsonb[],
    %(metadata)s::jsonb[], %(unique_states)s::text[], %(progress)s::jsonb[]
) AS landing (
    id, queue, state, priority, attempt, run_at, keeps_clock, attempted_at, finalized_at, added_errors, metadata,
    unique_states, progress
)
WHERE hot.id = landing.id;

-- name: update_deferred
-- Deferred jobs that stay deferred, in another queue, with another priority or at another time; else that stays too.
-- rows:  one for each: its id and when it is due
-- locks: scheduled_jobs rows, held already; unique-claim rows
UPDATE awa.scheduled_jobs AS waiting
SET
    queue = landing.queue,
    state = landing.state,
    priority = landing.priority,
    attempt = landing.attempt,
    run_at = coalesce(
        landing.run_at, landing.taken_at + make_interval(secs => landing.delay), waiting.run_at
    ),
    attempted_at = landing.attempted_at,
    finalized_at = landing.finalized_at,
    errors = waiting.errors || ARRAY(SELECT jsonb_array_elements(landing.added_errors)),
    metadata = coalesce(
        landing.metadata,
        CASE WHEN jsonb_typeof(waiting.metadata) = 'object' THEN waiting.metadata ELSE '{}' END
    ),
    unique_states = landing.unique_states::bit(8),
    progress = landing.progress
FROM unnest(
    %(job_ids)s::bigint[], %(queues)s::text[], %(states)s::awa.job_state[], %(priorities)s::smallint[],
    %(attempts)s::smallint[], %(taken_at)s::timestamptz[], %(delays)s::double precision[], %(run_at)s::timestamptz[],
    %(attempted_at)s::timestamptz[], %(finalized_at)s::timestamptz[], %(added_errors)s::jsonb[], %(metadata)s::jsonb[],
    %(unique_states)s::text[], %(progress)s::jsonb[]
) AS landing (
    id, queue, state, priority, attempt, taken_at, delay, run_at, attempted_at, finalized_at, added_errors, metadata,
    unique_states, progress
)
WHERE waiting.id = landing.id
RETURNING waiting.id, waiting.run_at;

-- name: defer
-- Jobs that wait for their time, moved to the other table: until an instant, else for a delay, else for the backoff
-- of their attempt (DEC-1, DEC-15). No worker answers for them (DEC-2); the callback of an attempt that gave itself
-- back stays.
-- rows:  one for each: its id and when it is due
-- locks: jobs_hot rows, held already; unique-claim rows
WITH landing AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(job_ids)s::bigint[], %(queues)s::text[], %(states)s::awa.job_state[], %(priorities)s::smallint[],
        %(attempts)s::smallint[], %(taken_at)s::timestamptz[], %(delays)s::double precision[],
        %(run_at)s::timestamptz[], %(attempted_at)s::timestamptz[], %(finalized_at)s::timestamptz[],
        %(added_errors)s::jsonb[], %(metadata)s::jsonb[], %(unique_states)s::text[],
        %(keeps_callback)s::boolean[], %(progress)s::jsonb[]
    ) AS landing (
        id, queue, state, priority, attempt, taken_at, delay, run_at, attempted_at, finalized_at, added_errors,
        metadata, unique_states, keeps_callback, progress
    )
),
lifted AS (
    DELETE FROM awa.jobs_hot AS hot
    USING landing
    WHERE hot.id = landing.id
    RETURNING hot.*
)
INSERT INTO awa.scheduled_jobs (
    id, kind, queue, args, state, priority, attempt, max_attempts, run_at, attempted_at, finalized_at, created_at,
    errors, metadata, tags, unique_key, unique_states, callback_id, callback_timeout_at, callback_filter,
    callback_on_complete, callback_on_fail, callback_transform, run_lease, progress
)
SELECT
    lifted.id, lifted.kind, landing.queue, lifted.args, landing.state, landing.priority, landing.attempt,
    lifted.max_attempts,
    coalesce(
        landing.run_at,
        landing.taken_at + make_interval(secs => landing.delay),
        landing.taken_at + awa.backoff_duration(least(landing.attempt, 20)::smallint, lifted.max_attempts)
    ),
    landing.attempted_at, landing.finalized_at, lifted.created_at,
    lifted.errors || ARRAY(SELECT jsonb_array_elements(landing.added_errors)),
    coalesce(
        landing.metadata,
        CASE WHEN jsonb_typeof(lifted.metadata) = 'object' THEN lifted.metadata ELSE '{}' END
    ),
    lifted.tags,
    lifted.unique_key, landing.unique_states::bit(8),
    CASE WHEN landing.keeps_callback THEN lifted.callback_id END,
    CASE WHEN landing.keeps_callback THEN lifted.callback_timeout_at END,
    CASE WHEN landing.keeps_callback THEN lifted.callback_filter END,
    CASE WHEN landing.keeps_callback THEN lifted.callback_on_complete END,
    CASE WHEN landing.keeps_callback THEN lifted.callback_on_fail END,
    CASE WHEN landing.keeps_callback THEN lifted.callback_transform END,
    lifted.run_lease, landing.progress
FROM lifted
JOIN landing USING (id)
RETURNING id, run_at;

-- name: undefer
-- Deferred jobs that wait no longer, moved to the other table: available, or ended before they came to run. Neither
-- heartbeat, deadline nor callback comes along. Available ones wake the workers of their queue.
-- rows:  none
-- locks: scheduled_jobs rows, held already; unique-claim rows
WITH landing AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(job_ids)s::bigint[], %(queues)s::text[], %(states)s::awa.job_state[], %(priorities)s::smallint[],
        %(attempts)s::smallint[], %(run_at)s::timestamptz[], %(attempted_at)s::timestamptz[],
        %(finalized_at)s::timestamptz[], %(added_errors)s::jsonb[], %(metadata)s::jsonb[],
        %(unique_states)s::text[], %(progress)s::jsonb[]
    ) AS landing (
        id, queue, state, priority, attempt, run_at, attempted_at, finalized_at, added_errors, metadata,
        unique_states, progress
    )
),
lifted AS (
    DELETE FROM awa.scheduled_jobs AS waiting
    USING landing
    WHERE waiting.id = landing.id
    RETURNING waiting.*
)
INSERT INTO awa.jobs_hot (
    id, kind, queue, args, state, priority, attempt, max_attempts, run_at, attempted_at, finalized_at, created_at,
    errors, metadata, tags, unique_key, unique_states, run_lease, progress
)
SELECT
    lifted.id, lifted.kind, landing.queue, lifted.args, landing.state, landing.priority, landing.attempt,
    lifted.max_attempts, landing.run_at, landing.attempted_at, landing.finalized_at, lifted.created_at,
    lifted.errors || ARRAY(SELECT jsonb_array_elements(landing.added_errors)),
    coalesce(
        landing.metadata,
        CASE WHEN jsonb_typeof(lifted.metadata) = 'object' THEN lifted.metadata ELSE '{}' END
    ),
    lifted.tags,
    lifted.unique_key, landing.unique_states::bit(8),
    lifted.run_lease, landing.progress
FROM lifted
JOIN landing USING (id);

-- name: wake
-- Tell the workers of queues whose jobs became available where they were: no trigger sees that.
-- rows:  one for each queue
-- locks: none
SELECT pg_notify('awa:' || queue, '')
FROM (SELECT DISTINCT unnest(%(queues)s::text[]) AS queue) AS woken;

-- name: drop_hot
-- Jobs that go nowhere; triggers let their unique keys go.
-- rows:  none
-- locks: jobs_hot rows, held already; unique-claim rows
DELETE FROM awa.jobs_hot
WHERE id = ANY (%(job_ids)s::bigint[]);

-- name: drop_deferred
-- Deferred jobs that go nowhere; triggers let their unique keys go.
-- rows:  none
-- locks: scheduled_jobs rows, held already; unique-claim rows
DELETE FROM awa.scheduled_jobs
WHERE id = ANY (%(job_ids)s::bigint[]);
