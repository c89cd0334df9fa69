-- Where the newest jobs are that people look for: ids of each place, found by its index and within a limit. What they are
-- is in listing.sql.

-- name: newest
-- The newest ids of each place in which a wanted state may be found, as far as kind, queue, tag and
-- time of creation may match. What may
-- not be told from a place's own columns passes, since whoever loads the job asks again. Where jobs that wait are not
-- wanted, positions that no cursor has passed are left out, and where any state is not, emissions of jobs that have come
-- to another place since, which has them: there may be very many, newer than all others.
-- rows:  one for each place: ids, at most size, highest first, and if they are fewer the id down to which rows were
--        walked, NULL for all there are
-- locks: none
WITH backlog AS MATERIALIZED (
    -- The cursors of lanes with positions that are still to be claimed, in one value: joined to each row that is walked
    -- over, lanes would be gone through for each.
    SELECT jsonb_object_agg(priority || '/' || enqueue_shard || '/' || queue, cursor) AS cursors
    FROM (
        SELECT
            queue, priority, enqueue_shard, awa.sequence_next_value(claim.seq_name) AS cursor,
            awa.sequence_next_value(enqueue.seq_name) AS ends
        FROM awa.queue_claim_heads AS claim
        JOIN awa.queue_enqueue_heads AS enqueue USING (queue, priority, enqueue_shard)
        WHERE %(ready)s::boolean AND NOT %(available)s::boolean AND claim.seq_name IS NOT NULL
    ) AS lane
    WHERE cursor < ends
),
lowest AS MATERIALIZED (
    -- The last emission that is walked over.
    SELECT job_id
    FROM awa.ready_entries
    WHERE job_id < %(before)s::bigint AND %(ready)s::boolean
    ORDER BY job_id DESC
    OFFSET %(walk)s - 1
    LIMIT 1
),
ready AS MATERIALIZED (
    SELECT
        'ready' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT emission.*
                FROM (
                    SELECT job_id, kind, queue, created_at, payload, priority, enqueue_shard, lane_seq
                    FROM awa.ready_entries
                    WHERE job_id < %(before)s::bigint AND %(ready)s::boolean
                    ORDER BY job_id DESC
                    LIMIT %(walk)s
                ) AS emission
                -- All of them at once, and before anything else is asked: the planner takes what passes a filter for so
                -- few that it would go through all of these again for each.
                WHERE NOT EXISTS (
                    SELECT
                    FROM (
                        SELECT job_id
                        FROM awa.leases
                        WHERE job_id < %(before)s::bigint AND %(ready)s::boolean AND NOT %(held)s::boolean
                            AND job_id >= coalesce((SELECT job_id FROM lowest), 0)
                        UNION ALL
                        SELECT job_id
                        FROM awa.deferred_jobs
                        WHERE job_id < %(before)s::bigint AND %(ready)s::boolean AND %(narrow)s::boolean
                            AND job_id >= coalesce((SELECT job_id FROM lowest), 0)
                        UNION ALL
                        SELECT job_id
                        FROM awa.dlq_entries
                        WHERE job_id < %(before)s::bigint AND %(ready)s::boolean AND %(narrow)s::boolean
                            AND job_id >= coalesce((SELECT job_id FROM lowest), 0)
                        UNION ALL
                        SELECT job_id
                        FROM awa.done_entries
                        WHERE job_id < %(before)s::bigint AND %(ready)s::boolean AND %(narrow)s::boolean
                            AND job_id >= coalesce((SELECT job_id FROM lowest), 0)
                            -- Ends may leave to emissions what tags and time they are of.
                            AND %(tag)s::text IS NULL
                            AND %(created_from)s::timestamptz IS NULL
                            AND %(created_before)s::timestamptz IS NULL
                    ) AS elsewhere
                    WHERE elsewhere.job_id = emission.job_id
                )
                OFFSET 0
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
                AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
                AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
                AND walked.lane_seq < coalesce(
                    (
                        (SELECT cursors FROM backlog)
                        ->> (walked.priority || '/' || walked.enqueue_shard || '/' || walked.queue)
                    )::bigint,
                    9223372036854775807
                )
            ORDER BY walked.job_id DESC
            LIMIT %(size)s
        ) AS job_ids
),
deferred AS MATERIALIZED (
    SELECT
        'deferred' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, kind, queue, created_at, payload
                FROM awa.deferred_jobs
                WHERE job_id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
                AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
                AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
            LIMIT %(size)s
        ) AS job_ids
),
done AS MATERIALIZED (
    SELECT
        'done' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, ready_slot, kind, queue, created_at, payload
                FROM awa.done_entries
                WHERE job_id < %(before)s::bigint AND state = ANY (%(done)s::awa.job_state[])
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND CASE
                    WHEN %(tag)s::text IS NULL
                        AND %(created_from)s::timestamptz IS NULL
                        AND %(created_before)s::timestamptz IS NULL
                        THEN true
                    -- What it does not say itself its emission does, which ready has found if that is looked for.
                    WHEN walked.payload IS NULL OR walked.created_at IS NULL
                        THEN NOT %(ready)s::boolean AND EXISTS (
                            SELECT
                            FROM awa.ready_entries AS emission
                            WHERE emission.ready_slot = walked.ready_slot
                                AND emission.job_id = walked.job_id
                                AND (
                                    %(tag)s::text IS NULL
                                    OR coalesce(walked.payload, emission.payload) -> 'tags' ? %(tag)s::text
                                )
                                AND (%(created_from)s::timestamptz IS NULL OR emission.created_at >= %(created_from)s::timestamptz)
                                AND (%(created_before)s::timestamptz IS NULL OR emission.created_at < %(created_before)s::timestamptz)
                        )
                    ELSE (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
                        AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
                        AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
                END
            LIMIT %(size)s
        ) AS job_ids
),
dead AS MATERIALIZED (
    SELECT
        'dead' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, kind, queue, created_at, payload
                FROM awa.dlq_entries
                WHERE job_id < %(before)s::bigint AND %(dead)s::boolean
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
                AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
                AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
            LIMIT %(size)s
        ) AS job_ids
)
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (SELECT job_id FROM lowest) END AS lowest
FROM ready
UNION ALL
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT job_id
        FROM awa.deferred_jobs
        WHERE job_id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
        ORDER BY job_id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM deferred
UNION ALL
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT job_id
        FROM awa.done_entries
        WHERE job_id < %(before)s::bigint AND state = ANY (%(done)s::awa.job_state[])
        ORDER BY job_id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM done
UNION ALL
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT job_id
        FROM awa.dlq_entries
        WHERE job_id < %(before)s::bigint AND %(dead)s::boolean
        ORDER BY job_id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM dead;

-- name: ids_created
-- Between which ids the jobs lie that were created in a time. Ids are dealt in the order of time, but for what slack
-- allows, so both ends are found by halving. Each step looks at the jobs of the next few ids, for one may say
-- something odd of itself; the end is past those.
-- rows:  one: the first id that may be of this time, and the first that is later; NULL where no such time is given
-- locks: none
WITH RECURSIVE search AS (
    SELECT asked.name, asked.at, 1::bigint AS low, highest.job_id + 1 AS high, highest.job_id + 1 AS past
    FROM (
            VALUES
                ('from', %(created_from)s::timestamptz - %(slack)s::interval),
                ('before', %(created_before)s::timestamptz + %(slack)s::interval)
        ) AS asked (name, at),
        (
            SELECT coalesce(
                greatest(
                    (SELECT max(job_id) FROM awa.ready_entries),
                    (SELECT max(job_id) FROM awa.deferred_jobs),
                    (SELECT max(job_id) FROM awa.dlq_entries)
                ),
                0
            )
        ) AS highest (job_id)
    WHERE asked.at IS NOT NULL
    UNION ALL
    SELECT
        search.name, search.at,
        CASE WHEN near.is_early THEN near.job_id + 1 ELSE search.low END,
        CASE WHEN near.is_early THEN search.high ELSE half.middle END,
        CASE WHEN near.is_early THEN search.past ELSE near.last_id + 1 END
    FROM search
    CROSS JOIN LATERAL (SELECT search.low + (search.high - search.low) / 2) AS half (middle)
    CROSS JOIN LATERAL (
        SELECT
            coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY next.created_at) < search.at, false) AS is_early,
            coalesce(min(next.job_id), half.middle) AS job_id, coalesce(max(next.job_id), half.middle) AS last_id
        FROM (
            (
                SELECT job_id, created_at
                FROM awa.ready_entries
                WHERE job_id >= half.middle AND job_id < search.high
                ORDER BY job_id
                LIMIT 5
            )
            UNION ALL
            (
                SELECT job_id, created_at
                FROM awa.deferred_jobs
                WHERE job_id >= half.middle AND job_id < search.high
                ORDER BY job_id
                LIMIT 5
            )
            UNION ALL
            (
                SELECT job_id, created_at
                FROM awa.dlq_entries
                WHERE job_id >= half.middle AND job_id < search.high
                ORDER BY job_id
                LIMIT 5
            )
            ORDER BY job_id
            LIMIT 5
        ) AS next
    ) AS near
    WHERE search.low < search.high
)
SELECT
    (SELECT low FROM search WHERE name = 'from' AND low >= high) AS first_id,
    (SELECT past FROM search WHERE name = 'before' AND low >= high) AS later_id;

-- name: newest_open
-- The newest ids of attempts that go on: open receipts, and leases. There are as many as jobs run or wait for an
-- answer; batches that are closed as a whole are not unnested.
-- rows:  one, as of newest
-- locks: none
WITH closed AS MATERIALIZED (
    SELECT closure.claim_slot, range_agg(span) AS receipts
    FROM awa.lease_claim_closure_batches AS closure, unnest(closure.receipt_ranges) AS span
    GROUP BY closure.claim_slot
),
open AS MATERIALIZED (
    SELECT claim.job_id
    FROM awa.lease_claims AS claim
    LEFT JOIN closed USING (claim_slot)
    WHERE claim.closed_at IS NULL
        AND (closed.receipts IS NULL OR NOT closed.receipts @> claim.receipt_id)
        AND (%(queue)s::text IS NULL OR claim.queue = %(queue)s::text)
    UNION
    SELECT item.job_id
    FROM awa.lease_claim_batches AS batch
    LEFT JOIN closed USING (claim_slot),
        unnest(batch.job_ids, batch.receipt_ids) AS item (job_id, receipt_id)
    WHERE (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
        AND (closed.receipts IS NULL OR NOT closed.receipts @> item.receipt_id)
        AND (%(queue)s::text IS NULL OR batch.queue = %(queue)s::text)
    UNION
    SELECT lease.job_id
    FROM awa.leases AS lease
    WHERE %(queue)s::text IS NULL OR lease.queue = %(queue)s::text
)
SELECT
    'open' AS place,
    ARRAY(
        SELECT job_id
        FROM open
        WHERE job_id < %(before)s::bigint
        ORDER BY job_id DESC
        LIMIT %(size)s
    ) AS job_ids,
    NULL::bigint AS lowest;

-- name: newest_of_queue
-- The newest ids of one queue in lanes, among the ends and the dead letters, of a queue with so few positions and ends
-- that all are read by their index. Of kind, tag and time as in newest.
-- rows:  none for a queue with more; else one for each place, as of newest
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT
        enqueue.queue, enqueue.priority, enqueue.enqueue_shard, awa.sequence_next_value(enqueue.seq_name) AS ends,
        CASE WHEN claim.seq_name IS NULL THEN 1 ELSE awa.sequence_next_value(claim.seq_name) END AS cursor
    FROM awa.queue_enqueue_heads AS enqueue
    LEFT JOIN awa.queue_claim_heads AS claim USING (queue, priority, enqueue_shard)
    WHERE enqueue.queue = %(queue)s::text AND enqueue.seq_name IS NOT NULL
),
extent AS MATERIALIZED (
    SELECT coalesce(sum(lane.ends - first.lane_seq), 0) AS positions
    FROM lane
    CROSS JOIN LATERAL (
        SELECT ready.lane_seq
        FROM awa.ready_entries AS ready
        WHERE ready.queue = lane.queue
            AND ready.priority = lane.priority
            AND ready.enqueue_shard = lane.enqueue_shard
        ORDER BY ready.lane_seq
        LIMIT 1
    ) AS first
),
ended AS MATERIALIZED (
    SELECT job_id, ready_slot, kind, state, created_at, payload
    FROM awa.done_entries
    WHERE queue = %(queue)s::text
        AND cardinality(%(done)s::text[]) > 0
        AND (SELECT positions FROM extent) <= %(few)s::bigint
    LIMIT %(few)s::bigint + 1
),
letters AS MATERIALIZED (
    SELECT job_id, kind, created_at, payload
    FROM awa.dlq_entries
    WHERE queue = %(queue)s::text
        AND %(dead)s::boolean
        AND (SELECT positions FROM extent) <= %(few)s::bigint
    LIMIT %(few)s::bigint + 1
),
size AS MATERIALIZED (
    SELECT greatest(
        (SELECT positions FROM extent), (SELECT count(*) FROM ended), (SELECT count(*) FROM letters)
    ) <= %(few)s::bigint AS is_small
)
SELECT
    'ready' AS place,
    ARRAY(
        SELECT waiting.job_id
        FROM lane
        CROSS JOIN LATERAL (
            SELECT job_id, kind, created_at, payload
            FROM awa.ready_entries AS ready
            WHERE ready.queue = lane.queue
                AND ready.priority = lane.priority
                AND ready.enqueue_shard = lane.enqueue_shard
                AND (%(available)s::boolean OR ready.lane_seq < lane.cursor)
            OFFSET 0    -- by the lane's index
        ) AS waiting
        WHERE %(ready)s::boolean
            AND waiting.job_id < %(before)s::bigint
            AND (%(kind)s::text IS NULL OR waiting.kind = %(kind)s::text)
            AND (%(tag)s::text IS NULL OR waiting.payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR waiting.created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR waiting.created_at < %(created_before)s::timestamptz)
        ORDER BY waiting.job_id DESC
        LIMIT %(size)s
    ) AS job_ids,
    NULL::bigint AS lowest
FROM size
WHERE is_small
UNION ALL
SELECT
    'done',
    ARRAY(
        SELECT ended.job_id
        FROM ended
        WHERE ended.job_id < %(before)s::bigint
            AND ended.state = ANY (%(done)s::awa.job_state[])
            AND (%(kind)s::text IS NULL OR ended.kind = %(kind)s::text)
            AND CASE
                WHEN %(tag)s::text IS NULL
                    AND %(created_from)s::timestamptz IS NULL
                    AND %(created_before)s::timestamptz IS NULL
                    THEN true
                -- What it does not say itself its emission does, which ready has found if that is looked for.
                WHEN ended.payload IS NULL OR ended.created_at IS NULL
                    THEN NOT %(ready)s::boolean AND EXISTS (
                        SELECT
                        FROM awa.ready_entries AS emission
                        WHERE emission.ready_slot = ended.ready_slot
                            AND emission.job_id = ended.job_id
                            AND (
                                %(tag)s::text IS NULL
                                OR coalesce(ended.payload, emission.payload) -> 'tags' ? %(tag)s::text
                            )
                            AND (%(created_from)s::timestamptz IS NULL OR emission.created_at >= %(created_from)s::timestamptz)
                            AND (%(created_before)s::timestamptz IS NULL OR emission.created_at < %(created_before)s::timestamptz)
                    )
                ELSE (%(tag)s::text IS NULL OR ended.payload -> 'tags' ? %(tag)s::text)
                    AND (%(created_from)s::timestamptz IS NULL OR ended.created_at >= %(created_from)s::timestamptz)
                    AND (%(created_before)s::timestamptz IS NULL OR ended.created_at < %(created_before)s::timestamptz)
            END
        ORDER BY ended.job_id DESC
        LIMIT %(size)s
    ),
    NULL
FROM size
WHERE is_small
UNION ALL
SELECT
    'dead',
    ARRAY(
        SELECT letters.job_id
        FROM letters
        WHERE letters.job_id < %(before)s::bigint
            AND (%(kind)s::text IS NULL OR letters.kind = %(kind)s::text)
            AND (%(tag)s::text IS NULL OR letters.payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR letters.created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR letters.created_at < %(created_before)s::timestamptz)
        ORDER BY letters.job_id DESC
        LIMIT %(size)s
    ),
    NULL
FROM size
WHERE is_small;

-- name: newest_running
-- The newest ids of attempts that run: leases, and open receipts without one. There are as many as workers execute, but
-- attempts that wait for an answer have receipts, too, so those are passed over all at once.
-- rows:  one, as of newest
-- locks: none
WITH closed AS MATERIALIZED (
    SELECT closure.claim_slot, range_agg(span) AS receipts
    FROM awa.lease_claim_closure_batches AS closure, unnest(closure.receipt_ranges) AS span
    GROUP BY closure.claim_slot
),
leased AS MATERIALIZED (
    SELECT job_id, state, ready_slot
    FROM awa.leases
    WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
),
running AS MATERIALIZED (
    SELECT claim.job_id, claim.ready_slot
    FROM awa.lease_claims AS claim
    LEFT JOIN closed USING (claim_slot)
    WHERE claim.closed_at IS NULL
        AND (closed.receipts IS NULL OR NOT closed.receipts @> claim.receipt_id)
        AND (%(queue)s::text IS NULL OR claim.queue = %(queue)s::text)
    UNION ALL
    SELECT item.job_id, batch.ready_slot
    FROM awa.lease_claim_batches AS batch
    LEFT JOIN closed USING (claim_slot),
        unnest(batch.job_ids, batch.receipt_ids) AS item (job_id, receipt_id)
    WHERE (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
        AND (closed.receipts IS NULL OR NOT closed.receipts @> item.receipt_id)
        AND (%(queue)s::text IS NULL OR batch.queue = %(queue)s::text)
)
SELECT
    'running' AS place,
    ARRAY(
        SELECT DISTINCT attempt.job_id
        FROM (
            SELECT running.job_id, running.ready_slot
            FROM running
            LEFT JOIN leased USING (job_id)
            WHERE leased.job_id IS NULL
            UNION ALL
            SELECT job_id, ready_slot
            FROM leased
            WHERE state = 'running'
        ) AS attempt
        WHERE attempt.job_id < %(before)s::bigint
            AND (
                (
                    %(kind)s::text IS NULL
                    AND %(tag)s::text IS NULL
                    AND %(created_from)s::timestamptz IS NULL
                    AND %(created_before)s::timestamptz IS NULL
                )
                OR EXISTS (
                    SELECT
                    FROM awa.ready_entries AS body
                    WHERE body.ready_slot = attempt.ready_slot
                        AND body.job_id = attempt.job_id
                        AND (%(kind)s::text IS NULL OR body.kind = %(kind)s::text)
                        AND (%(tag)s::text IS NULL OR body.payload -> 'tags' ? %(tag)s::text)
                        AND (%(created_from)s::timestamptz IS NULL OR body.created_at >= %(created_from)s::timestamptz)
                        AND (%(created_before)s::timestamptz IS NULL OR body.created_at < %(created_before)s::timestamptz)
                )
            )
        ORDER BY attempt.job_id DESC
        LIMIT %(size)s
    ) AS job_ids,
    NULL::bigint AS lowest;

-- name: newest_parked
-- The newest ids of attempts that wait for an answer, as far as kind, queue, tag and time match.
-- rows:  one, as of newest
-- locks: none
WITH parked AS MATERIALIZED (
    SELECT ARRAY(
        SELECT walked.job_id
        FROM (
            SELECT job_id, queue, ready_slot
            FROM awa.leases
            WHERE job_id < %(before)s::bigint AND state = 'waiting_external'
            ORDER BY job_id DESC
            LIMIT %(walk)s
        ) AS walked
        WHERE (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
            AND (
                (
                    %(kind)s::text IS NULL
                    AND %(tag)s::text IS NULL
                    AND %(created_from)s::timestamptz IS NULL
                    AND %(created_before)s::timestamptz IS NULL
                )
                OR EXISTS (
                    SELECT
                    FROM awa.ready_entries AS body
                    WHERE body.ready_slot = walked.ready_slot
                        AND body.job_id = walked.job_id
                        AND (%(kind)s::text IS NULL OR body.kind = %(kind)s::text)
                        AND (%(tag)s::text IS NULL OR body.payload -> 'tags' ? %(tag)s::text)
                        AND (%(created_from)s::timestamptz IS NULL OR body.created_at >= %(created_from)s::timestamptz)
                        AND (%(created_before)s::timestamptz IS NULL OR body.created_at < %(created_before)s::timestamptz)
                )
            )
        LIMIT %(size)s
    ) AS job_ids
)
SELECT
    'parked' AS place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT job_id
        FROM awa.leases
        WHERE job_id < %(before)s::bigint AND state = 'waiting_external'
        ORDER BY job_id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM parked;

-- name: newest_available
-- The newest ids in lanes that no cursor has passed, as far as kind, queue, tag and time match. Some may have been claimed
-- or cancelled, which whoever loads the job finds out. Lanes that hold few are read; otherwise the newest rows are walked.
-- rows:  one, as of newest
-- locks: none
WITH backlog AS MATERIALIZED (
    SELECT
        claim.queue, claim.priority, claim.enqueue_shard,
        awa.sequence_next_value(claim.seq_name) AS cursor, awa.sequence_next_value(enqueue.seq_name) AS end_seq
    FROM awa.queue_claim_heads AS claim
    JOIN awa.queue_enqueue_heads AS enqueue USING (queue, priority, enqueue_shard)
    WHERE claim.seq_name IS NOT NULL
        AND (%(queue)s::text IS NULL OR claim.queue = %(queue)s::text)
        AND awa.sequence_next_value(claim.seq_name) < awa.sequence_next_value(enqueue.seq_name)
),
extent AS MATERIALIZED (
    SELECT coalesce(sum(end_seq - cursor), 0) <= 10000 AS is_small
    FROM backlog
),
few AS MATERIALIZED (
    SELECT ARRAY(
        SELECT waiting.job_id
        FROM backlog
        CROSS JOIN LATERAL (
            SELECT job_id, kind, created_at, payload
            FROM awa.ready_entries AS ready
            WHERE ready.queue = backlog.queue
                AND ready.priority = backlog.priority
                AND ready.enqueue_shard = backlog.enqueue_shard
                AND ready.lane_seq >= backlog.cursor
            OFFSET 0    -- by the lane's index
        ) AS waiting
        WHERE (SELECT is_small FROM extent)
            AND waiting.job_id < %(before)s::bigint
            AND (%(kind)s::text IS NULL OR waiting.kind = %(kind)s::text)
            AND (%(tag)s::text IS NULL OR waiting.payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR waiting.created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR waiting.created_at < %(created_before)s::timestamptz)
        ORDER BY waiting.job_id DESC
        LIMIT %(size)s
    ) AS job_ids
),
many AS MATERIALIZED (
    SELECT ARRAY(
        SELECT walked.job_id
        FROM (
            SELECT job_id, kind, queue, priority, enqueue_shard, lane_seq, created_at, payload
            FROM awa.ready_entries
            WHERE job_id < %(before)s::bigint AND (SELECT NOT is_small FROM extent)
            ORDER BY job_id DESC
            LIMIT %(walk)s
        ) AS walked
        WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
            AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
            AND EXISTS (
                SELECT FROM backlog
                WHERE backlog.queue = walked.queue
                    AND backlog.priority = walked.priority
                    AND backlog.enqueue_shard = walked.enqueue_shard
                    AND backlog.cursor <= walked.lane_seq
            )
        LIMIT %(size)s
    ) AS job_ids
)
SELECT
    'available' AS place, few.job_ids || many.job_ids AS job_ids,
    CASE WHEN cardinality(many.job_ids) < %(size)s AND NOT extent.is_small THEN (
        SELECT job_id
        FROM awa.ready_entries
        WHERE job_id < %(before)s::bigint
        ORDER BY job_id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM few, many, extent;
