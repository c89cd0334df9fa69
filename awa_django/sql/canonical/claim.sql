-- Handing out jobs (contract: runtime/dispatcher section 4).

-- name: claim
-- Due jobs of a queue that is not paused, made running. One that the running state would have take a unique key which
-- another job holds is refused: it stays as it is. A payload with nothing in it is NULL, and costs nothing.
-- rows:  one for each job, started or refused, in the order to run them, at most limit
-- locks: jobs_hot rows, passing over those another transaction holds; unique-claim rows
WITH chosen AS MATERIALIZED (
    SELECT
        hot.*,
        coalesce(unique_key IS NOT NULL AND substring(unique_states::text, 2, 2) = '01', false) AS needs_key
    FROM awa.jobs_hot AS hot
    WHERE queue = %(queue)s::text
        AND state = 'available'
        AND run_at <= now()
        AND NOT EXISTS (
            SELECT FROM awa.queue_meta AS meta
            WHERE meta.queue = %(queue)s::text AND meta.paused
        )
    ORDER BY priority, run_at, id
    LIMIT %(limit)s
    FOR UPDATE OF hot SKIP LOCKED
),
released AS MATERIALIZED (
    -- The trigger of the update below would come too late for another job of the claim that takes the key.
    SELECT count(*) FILTER (
        WHERE awa.release_queue_storage_unique_claim(id, unique_key, unique_states::text, 'available') IS NULL
    )
    FROM chosen
    WHERE unique_key IS NOT NULL AND substring(unique_states::text, 2, 2) = '10'
),
acquired AS (
    -- The trigger finds the key held by its own job.
    INSERT INTO awa.job_unique_claims AS claim (unique_key, job_id)
    SELECT DISTINCT ON (unique_key) unique_key, id
    FROM chosen
    CROSS JOIN released
    WHERE needs_key
    ORDER BY unique_key, priority, run_at, id
    ON CONFLICT (unique_key) DO UPDATE
    SET job_id = excluded.job_id
    WHERE claim.job_id = excluded.job_id
    RETURNING job_id
),
started AS (
    UPDATE awa.jobs_hot
    SET
        state = 'running',
        -- Deaths and delays do not end a job, so the count may reach the end of its type before the job does.
        attempt = least(attempt + 1, 32767),
        run_lease = run_lease + 1,
        attempted_at = now(),
        heartbeat_at = now(),
        deadline_at = now() + nullif(%(deadline)s::interval, '0')
    -- An array keeps the planner from reading the whole table for a join whose size it cannot know.
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM chosen
        WHERE NOT needs_key OR id IN (SELECT job_id FROM acquired)
    ))
    RETURNING id, attempt, run_lease, attempted_at, deadline_at
)
SELECT
    chosen.id,
    coalesce(started.run_lease, chosen.run_lease),
    chosen.kind, chosen.queue, chosen.args,
    coalesce(started.attempt, chosen.attempt),
    chosen.max_attempts, chosen.priority,
    -- A time before Python's first year, such as -infinity, would keep the others of the batch from being read.
    greatest(chosen.run_at, '0001-01-02 00:00+00'), started.deadline_at, started.attempted_at, chosen.created_at,
    chosen.unique_key, chosen.unique_states::text,
    CASE
        WHEN chosen.metadata <> '{}' OR chosen.tags <> '{}' OR chosen.errors <> '{}' OR chosen.progress IS NOT NULL
            THEN jsonb_build_object(
                'metadata', chosen.metadata,
                'tags', chosen.tags,
                'errors', coalesce(to_jsonb(chosen.errors), '[]'),
                'progress', chosen.progress
            )
    END,
    started.id IS NULL AS refused
FROM chosen
LEFT JOIN started ON started.id = chosen.id
ORDER BY chosen.priority, chosen.run_at, chosen.id;

-- name: backlog
-- Whether a queue that is not paused has due jobs that no committed claim has taken.
-- rows:  one
-- locks: none
SELECT EXISTS (
    SELECT FROM awa.jobs_hot
    WHERE queue = %(queue)s::text
        AND state = 'available'
        AND run_at <= now()
) AND NOT EXISTS (
    SELECT FROM awa.queue_meta AS meta
    WHERE meta.queue = %(queue)s::text AND meta.paused
);
