-- Kinds of jobs as operators see them (contract: api/admin_ops section 6).

-- name: waiting
-- Jobs in lanes that no cursor has passed, by kind: of short lanes all, of long ones those on every so manyth of the
-- pages on which such rows lie. Some may just have been claimed or cancelled.
-- rows:  one for each queue and kind: of short lanes how many, of long ones how many were seen; and for each queue with
--        long lanes one without a kind: how many wait there
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT queue, priority, enqueue_shard, cursor, ends, ends - cursor <= %(short)s::bigint AS is_short
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
),
tail AS MATERIALIZED (
    SELECT
        slot.slot, min((first.ctid::text::point)[0])::integer AS first_page,
        (
            pg_relation_size(format('awa.ready_entries_%%s', slot.slot)::regclass)
            / current_setting('block_size')::integer
        )::integer AS pages
    FROM lane
    CROSS JOIN awa.queue_ring_slots AS slot
    CROSS JOIN LATERAL (
        SELECT ready.ctid
        FROM awa.ready_entries AS ready
        WHERE ready.ready_slot = slot.slot
            AND ready.queue = lane.queue
            AND ready.priority = lane.priority
            AND ready.enqueue_shard = lane.enqueue_shard
            AND ready.lane_seq >= lane.cursor
        ORDER BY ready.lane_seq
        LIMIT 1
    ) AS first
    WHERE NOT lane.is_short
    GROUP BY slot.slot
),
step AS MATERIALIZED (
    SELECT greatest(ceil(sum(pages - first_page)::numeric / %(budget)s::integer), 1)::integer AS stride
    FROM tail
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
SELECT ready.queue, ready.kind, false, count(*)
FROM step
CROSS JOIN tail
CROSS JOIN generate_series(tail.first_page, tail.pages - 1, step.stride) AS page
CROSS JOIN LATERAL (
    SELECT kind, queue, priority, enqueue_shard, lane_seq
    FROM awa.ready_entries
    WHERE ready_slot = tail.slot
        AND ctid >= format('(%%s,0)', page)::tid
        AND ctid < format('(%%s,0)', page + 1)::tid
    OFFSET 0 -- so that a page is read by its number
) AS ready
JOIN lane
    ON lane.queue = ready.queue
    AND lane.priority = ready.priority
    AND lane.enqueue_shard = ready.enqueue_shard
    AND lane.cursor <= ready.lane_seq
WHERE NOT lane.is_short
GROUP BY ready.queue, ready.kind
UNION ALL
SELECT queue, NULL, false, sum(ends - cursor)::bigint
FROM lane
WHERE NOT is_short
GROUP BY queue;

-- name: elsewhere
-- Jobs that are not in lanes, by kind: deferred ones and dead letters, of very many those on a part of the pages;
-- and failed ones, at most so many.
-- rows:  one for each sort, kind and, of deferred ones, queue: how many, and whether all there are were counted; and
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
