-- Looking through places for jobs that an operation means, downward and a bounded stretch at a time
-- (contract: api/admin_ops section 5). A stretch is cut out by an index first and filtered then, so that a filter which
-- few jobs pass costs no more. Nothing is locked; whoever takes the jobs asks again.

-- name: next_lane
-- The lane after the one given in which something may wait.
-- rows:  at most one: the lane, and the position that is handed out next
-- locks: none
SELECT
    claim_head.queue, claim_head.priority, claim_head.enqueue_shard,
    awa.sequence_next_value(enqueue_head.seq_name) AS end_seq
FROM awa.queue_claim_heads AS claim_head
JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
WHERE claim_head.seq_name IS NOT NULL
    AND enqueue_head.seq_name IS NOT NULL
    AND (%(only)s::text IS NULL OR claim_head.queue = %(only)s::text)
    AND (
        %(queue)s::text IS NULL
        OR (claim_head.queue, claim_head.priority, claim_head.enqueue_shard)
            > (%(queue)s::text, %(priority)s::smallint, %(shard)s::smallint)
    )
    AND awa.sequence_next_value(enqueue_head.seq_name) > awa.sequence_next_value(claim_head.seq_name)
ORDER BY claim_head.queue, claim_head.priority, claim_head.enqueue_shard
LIMIT 1;

-- name: lane
-- Jobs that wait in a stretch of a lane: at or above its cursor, and neither tombstoned nor emitted (H-10). The stretch is
-- so many positions, which nearly all are used: a limit would have all of the lane sorted.
-- rows:  one: whether there is more below, the lowest position looked at, and positions and ids, the last first
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT
        awa.sequence_next_value(head.seq_name) AS cursor,
        greatest(awa.sequence_next_value(head.seq_name), %(below)s::bigint - %(scan)s::bigint) AS lowest
    FROM awa.queue_claim_heads AS head
    WHERE head.queue = %(lane_queue)s::text
        AND head.priority = %(priority)s::smallint
        AND head.enqueue_shard = %(shard)s::smallint
        AND head.seq_name IS NOT NULL
),
stretch AS MATERIALIZED (
    SELECT
        ready.ready_slot, ready.ready_generation, ready.lane_seq, ready.job_id,
        ready.job_id <= %(until)s::bigint
            AND (%(kind)s::text IS NULL OR ready.kind = %(kind)s::text)
            AND (%(tag)s::text IS NULL OR ready.payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR ready.created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR ready.created_at < %(created_before)s::timestamptz)
            AS meant
    FROM awa.ready_entries AS ready
    WHERE ready.queue = %(lane_queue)s::text
        AND ready.priority = %(priority)s::smallint
        AND ready.enqueue_shard = %(shard)s::smallint
        AND ready.lane_seq >= (SELECT lowest FROM lane)
        AND ready.lane_seq < %(below)s::bigint
),
tombstones AS MATERIALIZED (
    SELECT tombstone.ready_slot, tombstone.ready_generation, tombstone.lane_seq
    FROM awa.ready_tombstones AS tombstone
    WHERE tombstone.queue = %(lane_queue)s::text
        AND tombstone.priority = %(priority)s::smallint
        AND tombstone.enqueue_shard = %(shard)s::smallint
        AND tombstone.lane_seq >= (SELECT lowest FROM lane)
        AND tombstone.lane_seq < %(below)s::bigint
),
emitted AS MATERIALIZED (
    SELECT ledger.ready_slot, ledger.ready_generation, range_agg(span.positions) AS positions
    FROM lane
    JOIN awa.ready_claim_attempt_batches AS ledger
        ON ledger.queue = %(lane_queue)s::text
        AND ledger.priority = %(priority)s::smallint
        AND ledger.enqueue_shard = %(shard)s::smallint
        AND ledger.next_lane_seq > lane.lowest
        AND ledger.first_lane_seq < %(below)s::bigint
    CROSS JOIN LATERAL unnest(ledger.lane_ranges) AS span (positions)
    GROUP BY ledger.ready_slot, ledger.ready_generation
),
waiting AS MATERIALIZED (
    SELECT stretch.lane_seq, stretch.job_id
    FROM stretch
    WHERE stretch.meant
        AND NOT EXISTS (
            SELECT FROM tombstones
            WHERE tombstones.ready_slot = stretch.ready_slot
                AND tombstones.ready_generation = stretch.ready_generation
                AND tombstones.lane_seq = stretch.lane_seq
        )
        AND NOT EXISTS (
            SELECT FROM emitted
            WHERE emitted.ready_slot = stretch.ready_slot
                AND emitted.ready_generation = stretch.ready_generation
                AND emitted.positions @> stretch.lane_seq
        )
)
SELECT
    (SELECT lowest > cursor FROM lane) AS more,
    (SELECT lowest FROM lane) AS lowest,
    array_agg(lane_seq ORDER BY lane_seq DESC) AS lane_seqs,
    array_agg(job_id ORDER BY lane_seq DESC) AS job_ids
FROM waiting;

-- name: deferred
-- Jobs that wait for their time.
-- rows:  one: whether there is more below, the lowest id looked at, and the ids, the highest first
-- locks: none
WITH stretch AS MATERIALIZED (
    SELECT
        job_id,
        state = ANY (%(states)s::awa.job_state[])
            AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR created_at < %(created_before)s::timestamptz)
            AS meant
    FROM awa.deferred_jobs
    WHERE job_id < %(below)s::bigint
    ORDER BY job_id DESC
    LIMIT %(scan)s
)
SELECT count(*) >= %(scan)s, min(job_id), array_agg(job_id ORDER BY job_id DESC) FILTER (WHERE meant)
FROM stretch;

-- name: dead
-- Dead letters of jobs that had failed by then.
-- rows:  as of deferred
-- locks: none
WITH stretch AS MATERIALIZED (
    SELECT
        job_id,
        (%(kind)s::text IS NULL OR kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR created_at < %(created_before)s::timestamptz)
            AND (finalized_at > %(ended_by)s::timestamptz) IS NOT TRUE
            AS meant
    FROM awa.dlq_entries
    WHERE job_id < %(below)s::bigint
    ORDER BY job_id DESC
    LIMIT %(scan)s
)
SELECT count(*) >= %(scan)s, min(job_id), array_agg(job_id ORDER BY job_id DESC) FILTER (WHERE meant)
FROM stretch;

-- name: done
-- Finished rows of jobs that had ended by then. One that ran may lack tags and the time of its creation, which are in its ready row: then it passes,
-- and is to be loaded.
-- rows:  as of deferred
-- locks: none
WITH stretch AS MATERIALIZED (
    SELECT
        job_id,
        state = ANY (%(states)s::awa.job_state[])
            AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR payload IS NULL OR payload -> 'tags' ? %(tag)s::text)
            AND (
                %(created_from)s::timestamptz IS NULL
                OR created_at IS NULL
                OR created_at >= %(created_from)s::timestamptz
            )
            AND (
                %(created_before)s::timestamptz IS NULL
                OR created_at IS NULL
                OR created_at < %(created_before)s::timestamptz
            )
            AND (finalized_at > %(ended_by)s::timestamptz) IS NOT TRUE AS meant
    FROM awa.done_entries
    WHERE job_id < %(below)s::bigint
    ORDER BY job_id DESC
    LIMIT %(scan)s
)
SELECT count(*) >= %(scan)s, min(job_id), array_agg(job_id ORDER BY job_id DESC) FILTER (WHERE meant)
FROM stretch;

-- name: failures
-- Jobs that had failed by then, by the index that holds no others, as long as they are few. The state is a literal, as the index needs.
-- rows:  one: how many there are, and the ids of those that pass, the highest first
-- locks: none
WITH failed AS MATERIALIZED (
    SELECT
        job_id,
        job_id < %(below)s::bigint
            AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            AND (finalized_at > %(ended_by)s::timestamptz) IS NOT TRUE AS meant
    FROM awa.done_entries
    WHERE state = 'failed'
    LIMIT %(scan)s
)
SELECT count(*), array_agg(job_id ORDER BY job_id DESC) FILTER (WHERE meant)
FROM failed;
