-- Many jobs at once, straight into the ready and deferred tables (contract: queue-storage/enqueue sections 2 to 10).
-- The order of locks is that of these statements: unique claims, lanes, then the ring is read.

-- name: survey
-- What a batch must know first: the clock, and how many shards its queues have.
-- rows:  one at least; one for each of these queues that has a row in queue_meta
-- locks: none
SELECT
    moment.now,
    to_regprocedure('awa.awa_django_reserve_lanes(text[], smallint[], smallint[], bigint[])') IS NOT NULL,
    meta.queue,
    meta.enqueue_shards
FROM (SELECT clock_timestamp() AS now) AS moment
LEFT JOIN awa.queue_meta AS meta ON meta.queue = ANY (%(queues)s::text[]);

-- name: reserve_ids
-- Ids for new jobs.
-- rows:  one: the first id, and all of them if they are not consecutive
-- locks: none
WITH taken AS MATERIALIZED (
    SELECT nextval('awa.job_id_seq') AS id
    FROM generate_series(1, %(total)s)
)
SELECT
    min(id),
    CASE WHEN max(id) - min(id) + 1 <> count(*) THEN array_agg(id ORDER BY id) END
FROM taken;

-- name: claim_keys
-- Take unique keys for new jobs; waits for whoever is just taking one, and leaves the row of a holder alone.
-- rows:  the jobs that got theirs
-- locks: unique-claim rows, in key order
INSERT INTO awa.job_unique_claims (unique_key, job_id)
SELECT wanted.unique_key, wanted.job_id
FROM unnest(%(unique_keys)s::bytea[], %(job_ids)s::bigint[]) AS wanted (unique_key, job_id)
ORDER BY wanted.unique_key
ON CONFLICT (unique_key) DO NOTHING
RETURNING job_id;

-- name: reserve_lanes
-- Positions in lanes, and the place in the ring that all rows of this batch carry.
-- rows:  one for each lane: the first position, slot and generation
-- locks: each lane's allocation key until the transaction ends, lanes ascending; ROW EXCLUSIVE on the ring child
SELECT queue, priority, enqueue_shard, first_lane_seq, ready_slot, ready_generation
FROM awa.awa_django_reserve_lanes(
    %(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[], %(counts)s::bigint[]
);

-- name: lock_missing_lanes
-- On a schema without awa_django_reserve_lanes: lanes that nobody has used yet.
-- rows:  one for each lane that must be registered
-- locks: their registration keys until the transaction ends, lanes ascending
WITH missing AS MATERIALIZED (
    SELECT lane.queue, lane.priority, lane.enqueue_shard
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[])
        AS lane (queue, priority, enqueue_shard)
    LEFT JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
    LEFT JOIN awa.queue_claim_heads AS claim_head USING (queue, priority, enqueue_shard)
    WHERE enqueue_head.seq_name IS NULL
        OR claim_head.seq_name IS NULL
    ORDER BY lane.queue COLLATE "C", lane.priority, lane.enqueue_shard
)
SELECT
    queue, priority, enqueue_shard,
    pg_advisory_xact_lock(hashtextextended(format('awa:%%s:%%s:%%s', queue, priority, enqueue_shard), 0))
FROM missing;

-- name: register_lanes
-- The rows of lanes whose registration keys are held; triggers make the sequences.
-- rows:  none
-- locks: the new rows
WITH lanes AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[])
        AS lane (queue, priority, enqueue_shard)
),
registry AS (
    INSERT INTO awa.queue_lanes (queue, priority)
    SELECT DISTINCT queue, priority
    FROM lanes
    ON CONFLICT (queue, priority) DO NOTHING
),
enqueue_heads AS (
    INSERT INTO awa.queue_enqueue_heads (queue, priority, enqueue_shard)
    SELECT queue, priority, enqueue_shard
    FROM lanes
    ON CONFLICT (queue, priority, enqueue_shard) DO NOTHING
)
INSERT INTO awa.queue_claim_heads (queue, priority, enqueue_shard)
SELECT queue, priority, enqueue_shard
FROM lanes
ON CONFLICT (queue, priority, enqueue_shard) DO NOTHING;

-- name: reserve_registered_lanes
-- Positions in lanes that are registered.
-- rows:  one for each lane: the first position
-- locks: each lane's allocation key until the transaction ends, lanes ascending
WITH lanes AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, total
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[], %(counts)s::bigint[])
        AS lane (queue, priority, enqueue_shard, total)
    ORDER BY queue COLLATE "C", priority, enqueue_shard
)
SELECT queue, priority, enqueue_shard, awa.reserve_enqueue_seq(queue, priority, enqueue_shard, total)
FROM lanes;

-- name: read_ring
-- The slot that ready rows go to now, and its generation; read after the reservation (H-03).
-- rows:  one
-- locks: none
SELECT ring.current_slot, ring.generation
FROM awa.queue_ring_state AS ring
WHERE ring.singleton;

-- name: copy_ready
-- New ready rows; what is not named has the value of a job that never ran.
-- rows:  none
-- locks: none
COPY awa.ready_entries (
    ready_slot, ready_generation, queue, priority, enqueue_shard, run_at, created_at, job_id, lane_seq, kind, args,
    max_attempts, unique_key, unique_states, payload
) FROM STDIN;

-- name: copy_deferred
-- New jobs that wait for their time.
-- rows:  none
-- locks: none
COPY awa.deferred_jobs (
    job_id, kind, queue, args, state, priority, max_attempts, run_at, created_at, unique_key, unique_states, payload
) FROM STDIN;

-- name: insert_segments
-- One segment for each lane's run of positions, and one wake-up for each queue.
-- rows:  one for each queue
-- locks: none
WITH segments AS (
    INSERT INTO awa.ready_segments (
        ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq, next_lane_seq, first_run_at
    )
    SELECT
        %(slot)s::integer, %(generation)s::bigint, lane.queue, lane.priority, lane.enqueue_shard,
        lane.first_lane_seq, lane.first_lane_seq + lane.total, lane.run_at
    FROM unnest(
        %(queues)s::text[], %(priorities)s::smallint[], %(shards)s::smallint[], %(firsts)s::bigint[],
        %(counts)s::bigint[], %(run_at)s::timestamptz[]
    ) AS lane (queue, priority, enqueue_shard, first_lane_seq, total, run_at)
    ON CONFLICT (ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq) DO NOTHING
)
SELECT pg_notify('awa:' || woken.queue, '')
FROM (SELECT DISTINCT unnest(%(queues)s::text[]) AS queue) AS woken;

-- name: insert_ready
-- Jobs that ran before or waited, at new positions of their lanes.
-- rows:  none
-- locks: none
INSERT INTO awa.ready_entries (
    ready_slot, ready_generation, job_id, kind, queue, args, priority, attempt, run_lease, max_attempts, lane_seq,
    enqueue_shard, run_at, attempted_at, created_at, unique_key, unique_states, payload
)
SELECT
    %(slot)s::integer, %(generation)s::bigint, job.job_id, job.kind, job.queue, job.args, job.priority, job.attempt,
    job.run_lease, job.max_attempts, job.lane_seq, job.enqueue_shard, job.run_at, job.attempted_at,
    job.created_at, job.unique_key, job.unique_states, job.payload
FROM unnest(
    %(job_ids)s::bigint[], %(kinds)s::text[], %(queues)s::text[], %(args)s::jsonb[], %(priorities)s::smallint[],
    %(attempts)s::smallint[], %(run_leases)s::bigint[], %(max_attempts)s::smallint[], %(lane_seqs)s::bigint[],
    %(shards)s::smallint[], %(run_at)s::timestamptz[], %(attempted_at)s::timestamptz[],
    %(created_at)s::timestamptz[], %(unique_keys)s::bytea[], %(unique_states)s::text[], %(payloads)s::jsonb[]
) AS job (
    job_id, kind, queue, args, priority, attempt, run_lease, max_attempts, lane_seq, enqueue_shard, run_at,
    attempted_at, created_at, unique_key, unique_states, payload
);
