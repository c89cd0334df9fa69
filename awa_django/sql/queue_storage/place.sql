-- Putting taken jobs where they go (contract: queue-storage/attempts section 2, rescue section 6).

-- name: insert_deferred
-- Jobs that wait for their time: for an instant, else for a delay, else for the backoff of their attempt (DEC-15).
-- rows:  one for each: its id and when it is due
-- locks: none
INSERT INTO awa.deferred_jobs (
    job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts, run_at, attempted_at,
    finalized_at, created_at, unique_key, unique_states, payload
)
SELECT
    job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts,
    coalesce(
        run_at,
        taken_at + make_interval(secs => delay),
        taken_at + awa.backoff_duration(least(attempt, 20)::smallint, max_attempts)
    ),
    attempted_at, finalized_at, created_at, unique_key, unique_states, payload
FROM unnest(
    %(job_ids)s::bigint[], %(kinds)s::text[], %(queues)s::text[], %(args)s::jsonb[],
    %(states)s::awa.job_state[], %(priorities)s::smallint[], %(attempts)s::smallint[],
    %(run_leases)s::bigint[], %(max_attempts)s::smallint[], %(taken_at)s::timestamptz[],
    %(delays)s::double precision[], %(run_at)s::timestamptz[], %(attempted_at)s::timestamptz[], %(finalized_at)s::timestamptz[],
    %(created_at)s::timestamptz[], %(unique_keys)s::bytea[], %(unique_states)s::text[], %(payloads)s::jsonb[]
) AS landing (
    job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts, taken_at, delay, run_at,
    attempted_at, finalized_at, created_at, unique_key, unique_states, payload
)
RETURNING job_id, run_at;

-- name: insert_done
-- Finished jobs. One that ran borrows its body from the ready row; one that did not is whole, at its lane position
-- or, if it had none, in the slot that is current.
-- rows:  none
-- locks: none
WITH ring AS MATERIALIZED (
    SELECT current_slot, generation
    FROM awa.queue_ring_state
),
landed AS MATERIALIZED (
    SELECT
        coalesce(landing.ready_slot, ring.current_slot) AS ready_slot,
        coalesce(landing.ready_generation, ring.generation) AS ready_generation,
        landing.whole,
        landing.job_id, landing.kind, landing.queue, landing.args, landing.state, landing.priority,
        landing.attempt, landing.run_lease, landing.max_attempts,
        coalesce(landing.lane_seq, -landing.job_id) AS lane_seq, landing.enqueue_shard, landing.run_at,
        landing.attempted_at, landing.finalized_at, landing.created_at, landing.unique_key,
        landing.unique_states, landing.payload
    FROM unnest(
        %(ready_slots)s::integer[], %(ready_generations)s::bigint[], %(job_ids)s::bigint[], %(kinds)s::text[],
        %(queues)s::text[], %(args)s::jsonb[], %(states)s::awa.job_state[], %(priorities)s::smallint[],
        %(attempts)s::smallint[], %(run_leases)s::bigint[], %(max_attempts)s::smallint[],
        %(lane_seqs)s::bigint[], %(shards)s::smallint[], %(run_at)s::timestamptz[],
        %(attempted_at)s::timestamptz[], %(finalized_at)s::timestamptz[], %(created_at)s::timestamptz[],
        %(unique_keys)s::bytea[], %(unique_states)s::text[], %(payloads)s::jsonb[], %(whole)s::boolean[]
    ) AS landing (
        ready_slot, ready_generation, job_id, kind, queue, args, state, priority, attempt, run_lease,
        max_attempts, lane_seq, enqueue_shard, run_at, attempted_at, finalized_at, created_at, unique_key,
        unique_states, payload, whole
    )
    CROSS JOIN ring
),
counted AS (
    INSERT INTO awa.queue_terminal_count_deltas (
        ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
    )
    SELECT
        ready_slot, ready_generation, queue, priority, enqueue_shard,
        (job_id & 255)::smallint, count(*)
    FROM landed
    GROUP BY ready_slot, ready_generation, queue, priority, enqueue_shard, job_id & 255
)
INSERT INTO awa.done_entries (
    ready_slot, ready_generation, job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts,
    lane_seq, enqueue_shard, run_at, attempted_at, finalized_at, created_at, unique_key, unique_states, payload
)
SELECT
    ready_slot, ready_generation, job_id, kind, queue,
    CASE WHEN whole THEN args END, state, priority, attempt, run_lease,
    CASE WHEN whole THEN max_attempts END, lane_seq, enqueue_shard,
    CASE WHEN whole THEN run_at END, attempted_at, finalized_at,
    CASE WHEN whole THEN created_at END,
    CASE WHEN whole THEN unique_key END,
    CASE WHEN whole THEN unique_states END, payload
FROM landed;

-- name: insert_dead
-- Dead letters, with their whole body.
-- rows:  none
-- locks: none
INSERT INTO awa.dlq_entries (
    job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts, run_at, attempted_at,
    finalized_at, created_at, unique_key, unique_states, payload, dlq_reason, dlq_at, original_run_lease
)
SELECT
    job_id, kind, queue, args, 'failed', priority, attempt, run_lease, max_attempts, run_at, attempted_at,
    finalized_at, created_at, unique_key, unique_states, payload, dlq_reason, taken_at, run_lease
FROM unnest(
    %(job_ids)s::bigint[], %(kinds)s::text[], %(queues)s::text[], %(args)s::jsonb[],
    %(priorities)s::smallint[], %(attempts)s::smallint[], %(run_leases)s::bigint[],
    %(max_attempts)s::smallint[], %(run_at)s::timestamptz[], %(attempted_at)s::timestamptz[],
    %(finalized_at)s::timestamptz[], %(created_at)s::timestamptz[], %(unique_keys)s::bytea[],
    %(unique_states)s::text[], %(payloads)s::jsonb[], %(reasons)s::text[], %(taken_at)s::timestamptz[]
) AS landing (
    job_id, kind, queue, args, priority, attempt, run_lease, max_attempts, run_at, attempted_at, finalized_at,
    created_at, unique_key, unique_states, payload, dlq_reason, taken_at
);
