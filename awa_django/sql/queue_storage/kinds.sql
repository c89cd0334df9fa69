-- Kinds of jobs as operators see them (contract: api/admin_ops section 6).

-- name: waiting
-- Jobs in lanes that no cursor has passed, by kind: of short lanes all, of each long one those on short stretches all along
-- it. Some may just have been claimed or cancelled.
-- rows:  one for each queue and kind: whether the lanes are short, and how many jobs, of long lanes in proportion
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT
        queue, priority, enqueue_shard, cursor, ends, ends - cursor <= %(short)s::bigint AS is_short,
        greatest(
            %(stretches)s::bigint / greatest(count(*) FILTER (WHERE ends - cursor > %(short)s::bigint) OVER (), 1), 4
        ) AS stretches
    FROM (
        SELECT
            claim_head.queue, claim_head.priority, claim_head.enqueue_shard,
            awa.sequence_next_value(claim_head.seq_name) AS cursor,
            awa.sequence_next_value(enqueue_head.seq_name) AS ends
        FROM awa.queue_claim_heads AS claim_head
        JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
        WHERE claim_head.seq_name IS NOT NULL AND enqueue_head.seq_name IS NOT NULL
    ) AS head
    WHERE cursor < ends
)
SELECT lane.queue, waiting.kind, true AS is_short, sum(waiting.jobs)::bigint AS jobs
FROM lane
-- Lane by lane: joined as one, all of the ring may be read to find what waits.
CROSS JOIN LATERAL (
    SELECT ready.kind, count(*) AS jobs
    FROM awa.ready_entries AS ready
    WHERE ready.queue = lane.queue
        AND ready.priority = lane.priority
        AND ready.enqueue_shard = lane.enqueue_shard
        AND ready.lane_seq >= lane.cursor
    GROUP BY ready.kind
) AS waiting
WHERE lane.is_short
GROUP BY lane.queue, waiting.kind
UNION ALL
SELECT queue, kind, false, greatest(round(sum(positions * jobs / seen)), 1)::bigint
FROM (
    SELECT
        lane.queue, lane.ends - lane.cursor AS positions, ready.kind, count(*)::numeric AS jobs,
        sum(count(*)) OVER (PARTITION BY lane.queue, lane.priority, lane.enqueue_shard) AS seen
    FROM lane
    CROSS JOIN LATERAL generate_series(0, lane.stretches - 1) AS number
    CROSS JOIN LATERAL (
        SELECT
            lane.cursor + (lane.ends - lane.cursor) * number / lane.stretches
            -- What is done in turns would show in every so manyth position.
            + (hashint8(number) & 2147483647)
            %% greatest((lane.ends - lane.cursor) / lane.stretches - %(width)s::bigint, 1)
    ) AS stretch (low)
    CROSS JOIN LATERAL (
        SELECT kind
        FROM awa.ready_entries
        WHERE queue = lane.queue
            AND priority = lane.priority
            AND enqueue_shard = lane.enqueue_shard
            AND lane_seq >= stretch.low
            AND lane_seq < stretch.low + %(width)s::bigint
        OFFSET 0 -- so that each is found by the lane's index
    ) AS ready
    WHERE NOT lane.is_short
    GROUP BY lane.queue, lane.priority, lane.enqueue_shard, lane.cursor, lane.ends, ready.kind
) AS part
GROUP BY queue, kind;

-- name: finished
-- Jobs that lanes have handed out and that have finished, without dead letters, by kind: judged by those on short stretches
-- all along each lane. Of a job with several emissions the first counts, and of one that was moved the last.
-- rows:  one for each kind: how many, in proportion
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT
        head.queue, head.priority, head.enqueue_shard, first.lane_seq AS first_seq,
        head.cursor - first.lane_seq AS positions,
        greatest(%(stretches)s::bigint / greatest(count(*) OVER (), 1), 4) AS stretches
    FROM (
        SELECT queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) AS cursor
        FROM awa.queue_claim_heads
        WHERE seq_name IS NOT NULL
    ) AS head
    CROSS JOIN LATERAL (
        SELECT ready.lane_seq
        FROM awa.ready_entries AS ready
        WHERE ready.queue = head.queue
            AND ready.priority = head.priority
            AND ready.enqueue_shard = head.enqueue_shard
        ORDER BY ready.lane_seq
        LIMIT 1
    ) AS first
    WHERE first.lane_seq < head.cursor
),
seen AS MATERIALIZED (
    SELECT
        ready.*,
        -- Where stretches would overlap, each ends where the next begins.
        lane.positions::numeric / least(lane.positions, lane.stretches * %(width)s::bigint) AS stands_for
    FROM lane
    CROSS JOIN LATERAL generate_series(0, lane.stretches - 1) AS number
    CROSS JOIN LATERAL (
        SELECT
            lane.first_seq + lane.positions * number / lane.stretches
            + (hashint8(number) & 2147483647)
            %% greatest(lane.positions / lane.stretches - %(width)s::bigint, 1),
            lane.first_seq + lane.positions * (number + 1) / lane.stretches
    ) AS stretch (low, high)
    CROSS JOIN LATERAL (
        SELECT ready_slot, ready_generation, job_id, kind, queue, priority, enqueue_shard, lane_seq
        FROM awa.ready_entries
        WHERE queue = lane.queue
            AND priority = lane.priority
            AND enqueue_shard = lane.enqueue_shard
            AND lane_seq >= stretch.low
            AND lane_seq < least(stretch.low + %(width)s::bigint, stretch.high)
            AND run_lease = 0
        OFFSET 0 -- so that each is found by the lane's index
    ) AS ready
)
SELECT kind, round(sum(stands_for))::bigint AS jobs
FROM seen
-- Counted one by one, or all there are would be joined to a few.
WHERE (SELECT count(*) FROM awa.leases AS lease WHERE lease.job_id = seen.job_id) = 0
    AND (SELECT count(*) FROM awa.deferred_jobs AS deferred WHERE deferred.job_id = seen.job_id) = 0
    AND (SELECT count(*) FROM awa.dlq_entries AS letter WHERE letter.job_id = seen.job_id) = 0
    AND (
        (
            SELECT count(*)
            FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.ready_slot = seen.ready_slot
                AND tombstone.ready_generation = seen.ready_generation
                AND tombstone.queue = seen.queue
                AND tombstone.priority = seen.priority
                AND tombstone.enqueue_shard = seen.enqueue_shard
                AND tombstone.lane_seq = seen.lane_seq
        ) = 0
        OR (
            SELECT count(*)
            FROM awa.done_entries AS done
            WHERE done.job_id = seen.job_id AND done.state = 'cancelled'
        ) > 0
    )
GROUP BY kind;

-- name: elsewhere
-- Jobs that are not in lanes, by kind: deferred ones and dead letters, of very many those on a part of the pages;
-- and failed ones, at most so many.
-- rows:  one for each sort, kind and, of deferred ones, queue: how many, and whether all there are were counted; one
--        'held' for each kind of the newest attempts that go on, at most newest of them; and
--        'counted' for each queue, without a kind: how many done rows the counters say it has, if they can be trusted
-- locks: none
WITH part AS MATERIALIZED (
    SELECT relname AS relation, least(1, %(most)s::double precision / greatest(reltuples, 1)) AS read
    FROM pg_catalog.pg_class
    WHERE oid IN ('awa.deferred_jobs'::regclass, 'awa.dlq_entries'::regclass)
),
-- Repeatable, so that figures do not jump from look to look.
deferred AS (
    SELECT kind, queue
    FROM awa.deferred_jobs TABLESAMPLE SYSTEM ((
        SELECT 100 * read
        FROM part
        WHERE relation = 'deferred_jobs'
    )) REPEATABLE (1)
),
dead AS (
    SELECT kind
    FROM awa.dlq_entries TABLESAMPLE SYSTEM ((
        SELECT 100 * read
        FROM part
        WHERE relation = 'dlq_entries'
    )) REPEATABLE (1)
),
failed AS (
    SELECT kind
    FROM awa.done_entries
    WHERE state = 'failed'
    LIMIT %(most)s::bigint
)
SELECT
    'deferred' AS sort, deferred.kind, deferred.queue, ceil(count(*) / part.read)::bigint AS jobs,
    part.read = 1 AS exact
FROM deferred
JOIN part ON part.relation = 'deferred_jobs'
GROUP BY deferred.kind, deferred.queue, part.read
UNION ALL
SELECT 'dead', dead.kind, NULL, ceil(count(*) / part.read)::bigint, part.read = 1
FROM dead
JOIN part ON part.relation = 'dlq_entries'
GROUP BY dead.kind, part.read
UNION ALL
SELECT 'failed', kind, NULL, count(*), sum(count(*)) OVER () < %(most)s::bigint
FROM failed
GROUP BY kind
UNION ALL
SELECT 'held', emission.kind, NULL, count(*), true
FROM (
    SELECT job_id, ready_slot
    FROM awa.leases
    ORDER BY job_id DESC
    LIMIT %(newest)s
) AS lease
CROSS JOIN LATERAL (
    SELECT kind
    FROM awa.ready_entries
    WHERE ready_slot = lease.ready_slot AND job_id = lease.job_id
    LIMIT 1
) AS emission
GROUP BY emission.kind
UNION ALL
SELECT 'held', kind, NULL, count(*), true
FROM (
    -- Of attempts that hold a receipt alone.
    SELECT kind
    FROM awa.ready_entries
    ORDER BY job_id DESC
    LIMIT %(newest)s
) AS emission
GROUP BY kind
UNION ALL
SELECT 'counted', NULL, queue, sum(total)::bigint, true
FROM (
    SELECT queue, live_terminal_count AS total
    FROM awa.queue_terminal_live_counts
    UNION ALL
    SELECT queue, terminal_delta
    FROM awa.queue_terminal_count_deltas
) AS counter
WHERE EXISTS (
    SELECT
    FROM awa.queue_ring_state
    WHERE terminal_counter_trusted_at IS NOT NULL
)
GROUP BY queue;
