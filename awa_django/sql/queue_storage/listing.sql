-- Jobs of queue storage as people see them (contract: queue-storage/admin sections 6 and 7).
--
-- The relation of all jobs is never read as a whole: the newest ids of each place are found by its index, within a
-- limit, and then the jobs of those ids are put together from whatever is stored of them.

-- name: facts
-- All that is stored of these jobs under their ids: emissions into lanes, waiting for their time, leases, ends, dead
-- letters. Whoever reads them decides which is the newest. Nothing is joined here, for the planner would pay for every
-- partition of every table more than the rows cost.
-- rows:  one for each fact
-- locks: none
SELECT
    'ready' AS place, job_id, run_lease, kind, queue, args, 'available' AS state, priority, attempt, max_attempts,
    run_at, attempted_at, created_at, unique_key, unique_states, payload, NULL::timestamptz AS finalized_at,
    NULL::timestamptz AS deadline_at, NULL::timestamptz AS heartbeat_at, NULL::uuid AS callback_id,
    NULL::timestamptz AS callback_timeout_at, ready_slot, ready_generation, enqueue_shard, lane_seq,
    NULL::text AS dlq_reason, NULL::timestamptz AS dlq_at, NULL::bigint AS original_run_lease
FROM awa.ready_entries
WHERE job_id = ANY (%(job_ids)s::bigint[])
UNION ALL
SELECT
    'done', job_id, run_lease, kind, queue, args, state::text, priority, attempt, max_attempts, run_at, attempted_at,
    created_at, unique_key, unique_states, payload, finalized_at, NULL, NULL, NULL, NULL, ready_slot,
    ready_generation, enqueue_shard, lane_seq, NULL, NULL, NULL
FROM awa.done_entries
WHERE job_id = ANY (%(job_ids)s::bigint[])
UNION ALL
SELECT
    'lease', job_id, run_lease, NULL, queue, NULL, state::text, priority, attempt, max_attempts, NULL, attempted_at,
    NULL, NULL, NULL, NULL, NULL, deadline_at, heartbeat_at, callback_id, callback_timeout_at, ready_slot,
    ready_generation, enqueue_shard, lane_seq, NULL, NULL, NULL
FROM awa.leases
WHERE job_id = ANY (%(job_ids)s::bigint[])
UNION ALL
SELECT
    'deferred', job_id, run_lease, kind, queue, args, state::text, priority, attempt, max_attempts, run_at,
    attempted_at, created_at, unique_key, unique_states, payload, finalized_at, NULL, NULL, NULL, NULL, NULL, NULL,
    0::smallint, NULL, NULL, NULL, NULL
FROM awa.deferred_jobs
WHERE job_id = ANY (%(job_ids)s::bigint[])
UNION ALL
SELECT
    'dead', job_id, run_lease, kind, queue, args, 'failed', priority, attempt, max_attempts, run_at, attempted_at,
    created_at, unique_key, unique_states, payload, finalized_at, NULL, NULL, NULL, NULL, NULL, NULL, 0::smallint,
    NULL, dlq_reason, dlq_at, original_run_lease
FROM awa.dlq_entries
WHERE job_id = ANY (%(job_ids)s::bigint[]);

-- name: positions
-- What became of positions of one slot: still to be claimed, tombstoned or claimed, and if they completed compactly, as
-- what, and since when it was claimed. In which completion batch an item lies is found by the positions that batches
-- begin and end with.
-- rows:  one for each position
-- locks: none
WITH given AS MATERIALIZED (
    SELECT place, job_id, ready_generation, queue, priority, enqueue_shard, lane_seq
    FROM unnest(
        %(job_ids)s::bigint[], %(generations)s::bigint[], %(queues)s::text[], %(priorities)s::smallint[],
        %(shards)s::smallint[], %(lane_seqs)s::bigint[]
    ) WITH ORDINALITY AS position (
        job_id, ready_generation, queue, priority, enqueue_shard, lane_seq, place
    )
),
lane AS MATERIALIZED (
    SELECT
        head.queue, head.priority, head.enqueue_shard,
        CASE WHEN head.seq_name IS NULL THEN 1 ELSE awa.sequence_next_value(head.seq_name) END AS cursor
    FROM awa.queue_claim_heads AS head
    WHERE (head.queue, head.priority, head.enqueue_shard) IN (SELECT queue, priority, enqueue_shard FROM given)
),
passed AS MATERIALIZED (
    SELECT
        given.*,
        given.lane_seq < lane.cursor OR emission.claimed_at IS NOT NULL AS emitted,
        emission.claimed_at,
        EXISTS (
            SELECT FROM awa.ready_tombstones/*_ready*/ AS tombstone
            WHERE tombstone.ready_slot = %(slot)s::integer
                AND tombstone.ready_generation = given.ready_generation
                AND tombstone.queue = given.queue
                AND tombstone.priority = given.priority
                AND tombstone.enqueue_shard = given.enqueue_shard
                AND tombstone.lane_seq = given.lane_seq
        ) AS tombstoned
    FROM given
    LEFT JOIN lane USING (queue, priority, enqueue_shard)
    LEFT JOIN LATERAL (
        SELECT ledger.claimed_at
        FROM awa.ready_claim_attempt_batches/*_ready*/ AS ledger
        WHERE ledger.ready_slot = %(slot)s::integer
            AND ledger.ready_generation = given.ready_generation
            AND ledger.queue = given.queue
            AND ledger.priority = given.priority
            AND ledger.enqueue_shard = given.enqueue_shard
            AND ledger.next_lane_seq > given.lane_seq
            AND ledger.first_lane_seq <= given.lane_seq
            AND ledger.lane_ranges @> given.lane_seq
        LIMIT 1
    ) AS emission ON true
),
bounds AS MATERIALIZED (
    SELECT
        batch.batch_id, batch.ready_generation, batch.queue, batch.priority, batch.enqueue_shard,
        batch.lane_seqs[1] AS first_lane_seq, batch.lane_seqs[batch.completed_count] AS last_lane_seq
    FROM (
        SELECT DISTINCT ready_generation, queue, priority, enqueue_shard
        FROM passed
        WHERE emitted
    ) AS used
    JOIN awa.receipt_completion_batches/*_ready*/ AS batch USING (ready_generation, queue, priority, enqueue_shard)
    WHERE batch.ready_slot = %(slot)s::integer
),
hits AS MATERIALIZED (
    SELECT passed.place, passed.job_id, passed.lane_seq, bounds.batch_id
    FROM passed
    JOIN bounds USING (ready_generation, queue, priority, enqueue_shard)
    WHERE passed.emitted AND passed.lane_seq BETWEEN bounds.first_lane_seq AND bounds.last_lane_seq
),
items AS MATERIALIZED (
    SELECT hits.place, hits.job_id, hits.batch_id, array_position(batch.lane_seqs, hits.lane_seq) AS index
    FROM hits
    JOIN awa.receipt_completion_batches/*_ready*/ AS batch
        ON batch.ready_slot = %(slot)s::integer AND batch.batch_id = hits.batch_id
),
completed AS (
    SELECT
        items.place, batch.run_leases[items.index] AS run_lease, batch.attempts[items.index] AS attempt,
        batch.attempted_ats[items.index] AS attempted_at, batch.finalized_at
    FROM items
    JOIN awa.receipt_completion_batches/*_ready*/ AS batch
        ON batch.ready_slot = %(slot)s::integer AND batch.batch_id = items.batch_id
    WHERE batch.job_ids[items.index] = items.job_id
        AND NOT EXISTS (
            SELECT FROM awa.receipt_completion_tombstones/*_ready*/ AS tombstone
            WHERE tombstone.ready_slot = %(slot)s::integer
                AND tombstone.job_id = items.job_id
                AND tombstone.run_lease = batch.run_leases[items.index]
        )
)
SELECT
    passed.emitted, passed.tombstoned, completed.run_lease, completed.attempt, completed.attempted_at,
    completed.finalized_at, passed.claimed_at
FROM passed
LEFT JOIN completed USING (place)
ORDER BY passed.place;

-- name: open_attempts
-- Receipts of these jobs that are open. Of claim batches only those with something open are unnested.
-- rows:  one for each
-- locks: none
WITH closed AS MATERIALIZED (
    SELECT closure.claim_slot, range_agg(span) AS receipts
    FROM unnest(%(slots)s::integer[], %(generations)s::bigint[]) AS place (ready_slot, ready_generation)
    JOIN awa.lease_claim_closure_batches AS closure USING (ready_slot, ready_generation),
        unnest(closure.receipt_ranges) AS span
    GROUP BY closure.claim_slot
)
SELECT claim.job_id, claim.run_lease, claim.attempt, claim.max_attempts, claim.claimed_at, claim.deadline_at
FROM awa.lease_claims AS claim
LEFT JOIN closed USING (claim_slot)
WHERE claim.job_id = ANY (%(job_ids)s::bigint[])
    AND claim.closed_at IS NULL
    AND (closed.receipts IS NULL OR NOT closed.receipts @> claim.receipt_id)
UNION ALL
SELECT item.job_id, item.run_lease, item.attempt, item.max_attempts, batch.claimed_at, NULL
FROM unnest(%(slots)s::integer[], %(generations)s::bigint[]) AS place (ready_slot, ready_generation)
JOIN awa.lease_claim_batches AS batch USING (ready_slot, ready_generation)
LEFT JOIN closed USING (claim_slot),
    unnest(batch.job_ids, batch.run_leases, batch.receipt_ids, batch.attempts, batch.max_attempts)
        AS item (job_id, run_lease, receipt_id, attempt, max_attempts)
WHERE item.job_id = ANY (%(job_ids)s::bigint[])
    AND (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
    AND (closed.receipts IS NULL OR NOT closed.receipts @> item.receipt_id);

-- name: attempt_states
-- Heartbeat, progress and callback of attempts.
-- rows:  one for each that has any
-- locks: none
SELECT
    state.job_id, state.run_lease, state.heartbeat_at, state.progress, state.callback_filter,
    state.callback_on_complete, state.callback_on_fail, state.callback_transform,
    state.callback_result IS NOT NULL AS resumed, state.callback_result
FROM awa.attempt_state AS state
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
    USING (job_id, run_lease);

-- name: newest
-- The newest ids of each place in which a wanted state may be found, as far as kind, queue and tag may match. What may
-- not be told from a place's own columns passes, since whoever loads the job asks again. Where jobs that wait are not
-- wanted, positions that no cursor has passed are left out: there may be very many, newer than all others.
-- rows:  one for each place: ids, at most size, highest first, and if they are fewer the id down to which rows were
--        walked, NULL for all there are
-- locks: none
WITH backlog AS MATERIALIZED (    -- lanes with positions that are still to be claimed
    SELECT claim.queue, claim.priority, claim.enqueue_shard, awa.sequence_next_value(claim.seq_name) AS cursor
    FROM awa.queue_claim_heads AS claim
    JOIN awa.queue_enqueue_heads AS enqueue USING (queue, priority, enqueue_shard)
    WHERE %(ready)s::boolean
        AND NOT %(available)s::boolean
        AND claim.seq_name IS NOT NULL
        AND awa.sequence_next_value(claim.seq_name) < awa.sequence_next_value(enqueue.seq_name)
),
ready AS MATERIALIZED (
    SELECT
        'ready' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, kind, queue, payload, priority, enqueue_shard, lane_seq
                FROM awa.ready_entries
                WHERE job_id < %(before)s::bigint AND %(ready)s::boolean
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
                AND walked.lane_seq < coalesce(
                    (
                        SELECT backlog.cursor
                        FROM backlog
                        WHERE backlog.queue = walked.queue
                            AND backlog.priority = walked.priority
                            AND backlog.enqueue_shard = walked.enqueue_shard
                    ),
                    9223372036854775807
                )
            LIMIT %(size)s
        ) AS job_ids
),
deferred AS MATERIALIZED (
    SELECT
        'deferred' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, kind, queue, payload
                FROM awa.deferred_jobs
                WHERE job_id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
            LIMIT %(size)s
        ) AS job_ids
),
done AS MATERIALIZED (
    SELECT
        'done' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, kind, queue, payload
                FROM awa.done_entries
                WHERE job_id < %(before)s::bigint AND state = ANY (%(done)s::awa.job_state[])
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
            LIMIT %(size)s
        ) AS job_ids
),
dead AS MATERIALIZED (
    SELECT
        'dead' AS place,
        ARRAY(
            SELECT walked.job_id
            FROM (
                SELECT job_id, kind, queue, payload
                FROM awa.dlq_entries
                WHERE job_id < %(before)s::bigint AND %(dead)s::boolean
                ORDER BY job_id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
            LIMIT %(size)s
        ) AS job_ids
)
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT job_id
        FROM awa.ready_entries
        WHERE job_id < %(before)s::bigint AND %(ready)s::boolean
        ORDER BY job_id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
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

-- name: newest_available
-- The newest ids in lanes that no cursor has passed, as far as kind, queue and tag match. Some may have been claimed
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
            SELECT job_id, kind, payload
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
        ORDER BY waiting.job_id DESC
        LIMIT %(size)s
    ) AS job_ids
),
many AS MATERIALIZED (
    SELECT ARRAY(
        SELECT walked.job_id
        FROM (
            SELECT job_id, kind, queue, priority, enqueue_shard, lane_seq, payload
            FROM awa.ready_entries
            WHERE job_id < %(before)s::bigint AND (SELECT NOT is_small FROM extent)
            ORDER BY job_id DESC
            LIMIT %(walk)s
        ) AS walked
        WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR walked.payload -> 'tags' ? %(tag)s::text)
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

-- name: waiting
-- Jobs that nobody runs: available ones, at or above the cursor of their lane and neither tombstoned nor emitted
-- (H-10), those that wait for their time, and those that wait for an answer. The emission ledger is one set of ranges for each lane and slot: asked row by row it
-- would be read once for each job.
-- rows:  one for each, lowest id first, at most limit: its id, and how many there are in all
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT head.queue, head.priority, head.enqueue_shard, awa.sequence_next_value(head.seq_name) AS cursor
    FROM awa.queue_claim_heads AS head
    WHERE head.seq_name IS NOT NULL
        AND %(available)s::boolean
        AND (%(queue)s::text IS NULL OR head.queue = %(queue)s::text)
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
),
matching AS (
    SELECT ready.job_id, ready.kind, ready.created_at, ready.payload
    FROM lane
    JOIN awa.ready_entries AS ready
        ON ready.queue = lane.queue
        AND ready.priority = lane.priority
        AND ready.enqueue_shard = lane.enqueue_shard
        AND ready.lane_seq >= lane.cursor
    WHERE NOT EXISTS (
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
    UNION ALL
    SELECT job_id, kind, created_at, payload
    FROM awa.deferred_jobs
    WHERE state = ANY (%(deferred)s::awa.job_state[])
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    UNION ALL
    SELECT lease.job_id, ready.kind, ready.created_at, ready.payload
    FROM awa.leases AS lease
    JOIN LATERAL (
        SELECT emission.*
        FROM awa.ready_entries AS emission
        WHERE emission.ready_slot = lease.ready_slot
            AND emission.ready_generation = lease.ready_generation
            AND emission.job_id = lease.job_id
            AND emission.queue = lease.queue
            AND emission.enqueue_shard = lease.enqueue_shard
            AND emission.lane_seq = lease.lane_seq
        ORDER BY emission.priority = lease.priority DESC
        LIMIT 1
    ) AS ready ON true
    WHERE %(parked)s::boolean
        AND lease.state = 'waiting_external'
        AND (%(queue)s::text IS NULL OR lease.queue = %(queue)s::text)
)
SELECT job_id, count(*) OVER () AS total
FROM matching
WHERE job_id > %(after)s::bigint
    AND (%(until)s::bigint IS NULL OR job_id <= %(until)s::bigint)
    AND (%(job_ids)s::bigint[] IS NULL OR job_id = ANY (%(job_ids)s::bigint[]))
    AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
    AND (%(tag)s::text IS NULL OR payload -> 'tags' ? %(tag)s::text)
    AND (%(created_from)s::timestamptz IS NULL OR created_at >= %(created_from)s::timestamptz)
    AND (%(created_before)s::timestamptz IS NULL OR created_at < %(created_before)s::timestamptz)
ORDER BY job_id
LIMIT %(limit)s;

-- name: jobs_of_key
-- Jobs with this unique key that have not finished, whether they hold it now or not: waiting in a lane, for their time, or
-- among the attempts given.
-- rows:  one for each id, lowest first
-- locks: none
WITH lane AS MATERIALIZED (
    SELECT head.queue, head.priority, head.enqueue_shard, awa.sequence_next_value(head.seq_name) AS cursor
    FROM awa.queue_claim_heads AS head
    WHERE head.seq_name IS NOT NULL
)
SELECT ready.job_id
FROM lane
JOIN awa.ready_entries AS ready
    ON ready.queue = lane.queue
    AND ready.priority = lane.priority
    AND ready.enqueue_shard = lane.enqueue_shard
    AND ready.lane_seq >= lane.cursor
WHERE ready.unique_key = %(unique_key)s::bytea
UNION
SELECT ready.job_id
FROM awa.ready_entries AS ready
WHERE ready.job_id = ANY (%(open_ids)s::bigint[])
    AND ready.unique_key = %(unique_key)s::bytea
UNION
SELECT deferred.job_id
FROM awa.deferred_jobs AS deferred
WHERE deferred.unique_key = %(unique_key)s::bytea
ORDER BY job_id;

-- name: dead_letters
-- Dead letters, the newest first, after the one given.
-- rows:  one for each id, at most limit
-- locks: none
SELECT job_id
FROM awa.dlq_entries
WHERE (%(kind)s::text IS NULL OR kind = %(kind)s::text)
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    AND (%(tag)s::text IS NULL OR payload -> 'tags' ? %(tag)s::text)
    AND (%(dlq_at)s::timestamptz IS NULL OR (dlq_at, job_id) < (%(dlq_at)s::timestamptz, %(job_id)s::bigint))
ORDER BY dlq_at DESC, job_id DESC
LIMIT %(limit)s;
