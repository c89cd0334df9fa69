-- Why a job of queue storage is not running (operations.why).

-- name: ahead
-- Jobs of the same queue that are handed out before this one, as things are: those before it in its lane, and those of
-- other lanes whose effective priority, or with equal ones whose time, comes first (contract: queue-storage/claim
-- section 2, which ranks whole segments).
-- rows:  one, at most count_up_to
-- locks: none
WITH own AS MATERIALIZED (
    SELECT
        ready.queue, ready.priority, ready.enqueue_shard, ready.lane_seq, ready.run_at,
        greatest(
            1,
            ready.priority - CASE
                WHEN %(aging)s::double precision > 0 AND isfinite(ready.run_at)
                    THEN floor(
                        extract(epoch FROM statement_timestamp() - ready.run_at) / %(aging)s::double precision
                    )
                ELSE 0
            END
        ) AS effective
    FROM awa.ready_entries AS ready
    WHERE ready.job_id = %(job_id)s::bigint
        AND NOT EXISTS (
            SELECT FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.ready_slot = ready.ready_slot
                AND tombstone.ready_generation = ready.ready_generation
                AND tombstone.queue = ready.queue
                AND tombstone.priority = ready.priority
                AND tombstone.enqueue_shard = ready.enqueue_shard
                AND tombstone.lane_seq = ready.lane_seq
        )
    ORDER BY ready.run_lease DESC, ready.ready_generation DESC
    LIMIT 1
),
lane AS MATERIALIZED (
    SELECT
        head.queue, head.priority, head.enqueue_shard, awa.sequence_next_value(head.seq_name) AS cursor,
        (head.priority, head.enqueue_shard) = (own.priority, own.enqueue_shard) AS is_own,
        own.lane_seq AS own_seq, own.run_at AS own_run_at, own.effective AS own_effective
    FROM own
    JOIN awa.queue_claim_heads AS head USING (queue)
    WHERE head.seq_name IS NOT NULL
),
emitted AS MATERIALIZED (
    SELECT
        ledger.ready_slot, ledger.ready_generation, ledger.queue, ledger.priority, ledger.enqueue_shard,
        range_agg(span.positions) AS positions
    FROM lane
    JOIN awa.ready_claim_attempt_batches AS ledger
        ON ledger.queue = lane.queue
        AND ledger.priority = lane.priority
        AND ledger.enqueue_shard = lane.enqueue_shard
        AND ledger.next_lane_seq > lane.cursor
    CROSS JOIN LATERAL unnest(ledger.lane_ranges) AS span (positions)
    GROUP BY ledger.ready_slot, ledger.ready_generation, ledger.queue, ledger.priority, ledger.enqueue_shard
)
SELECT count(*)
FROM (
    SELECT
    FROM lane
    -- Within a lane time and position grow together, so what comes before is at its beginning.
    CROSS JOIN LATERAL (
        SELECT
            entry.ready_slot, entry.ready_generation, entry.queue, entry.priority, entry.enqueue_shard,
            entry.lane_seq, entry.run_at
        FROM awa.ready_entries AS entry
        WHERE entry.queue = lane.queue
            AND entry.priority = lane.priority
            AND entry.enqueue_shard = lane.enqueue_shard
            AND entry.lane_seq >= lane.cursor
        ORDER BY entry.lane_seq
        LIMIT %(count_up_to)s
    ) AS ready
    WHERE CASE
            WHEN lane.is_own THEN ready.lane_seq < lane.own_seq
            ELSE (
                greatest(
                    1,
                    ready.priority - CASE
                        WHEN %(aging)s::double precision > 0 AND isfinite(ready.run_at)
                            THEN floor(
                                extract(epoch FROM statement_timestamp() - ready.run_at)
                                / %(aging)s::double precision
                            )
                        ELSE 0
                    END
                ),
                ready.run_at
            ) < (lane.own_effective, lane.own_run_at)
        END
        AND NOT EXISTS (
            SELECT FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.ready_slot = ready.ready_slot
                AND tombstone.ready_generation = ready.ready_generation
                AND tombstone.queue = ready.queue
                AND tombstone.priority = ready.priority
                AND tombstone.enqueue_shard = ready.enqueue_shard
                AND tombstone.lane_seq = ready.lane_seq
        )
        AND NOT EXISTS (
            SELECT FROM emitted
            WHERE emitted.ready_slot = ready.ready_slot
                AND emitted.ready_generation = ready.ready_generation
                AND emitted.queue = ready.queue
                AND emitted.priority = ready.priority
                AND emitted.enqueue_shard = ready.enqueue_shard
                AND emitted.positions @> ready.lane_seq
        )
    LIMIT %(count_up_to)s
) AS earlier;
