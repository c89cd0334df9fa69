-- Jobs of queue storage as people see them (contract: queue-storage/admin sections 6 and 7).
--
-- The relation of all jobs is never read as a whole: ids of each place are found by its index, within a limit (newest.sql),
-- and then the jobs of those ids are put together from whatever is stored of them.

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
-- What became of positions: still to be claimed, tombstoned or claimed, and if they completed compactly, as what, and
-- since when it was claimed. In which completion batch an item lies is found by the positions that batches begin and end
-- with. Slots are given with each position, and all but those stay unread.
-- rows:  one for each position
-- locks: none
WITH given AS MATERIALIZED (
    SELECT place, job_id, ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq
    FROM unnest(
        %(job_ids)s::bigint[], %(slots)s::integer[], %(generations)s::bigint[], %(queues)s::text[],
        %(priorities)s::smallint[], %(shards)s::smallint[], %(lane_seqs)s::bigint[]
    ) WITH ORDINALITY AS position (
        job_id, ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, place
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
            SELECT FROM awa.ready_tombstones AS tombstone
            WHERE tombstone.ready_slot = given.ready_slot
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
        FROM awa.ready_claim_attempt_batches AS ledger
        WHERE ledger.ready_slot = given.ready_slot
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
    SELECT batch.*
    FROM (
        SELECT DISTINCT ready_slot, ready_generation, queue, priority, enqueue_shard
        FROM passed
        WHERE emitted
    ) AS used
    CROSS JOIN LATERAL (
        SELECT
            batch.batch_id, batch.ready_slot, batch.ready_generation, batch.queue, batch.priority, batch.enqueue_shard,
            batch.lane_seqs[1] AS first_lane_seq, batch.lane_seqs[batch.completed_count] AS last_lane_seq
        FROM awa.receipt_completion_batches AS batch
        WHERE batch.ready_slot = used.ready_slot
            AND batch.ready_generation = used.ready_generation
            AND batch.queue = used.queue
            AND batch.priority = used.priority
            AND batch.enqueue_shard = used.enqueue_shard
        OFFSET 0
    ) AS batch
),
hits AS MATERIALIZED (
    SELECT passed.place, passed.job_id, passed.ready_slot, passed.lane_seq, bounds.batch_id
    FROM passed
    JOIN bounds USING (ready_slot, ready_generation, queue, priority, enqueue_shard)
    WHERE passed.emitted AND passed.lane_seq BETWEEN bounds.first_lane_seq AND bounds.last_lane_seq
),
completed AS MATERIALIZED (
    SELECT hits.place, batch.*
    FROM hits
    CROSS JOIN LATERAL (
        SELECT
            batch.run_leases[item.index] AS run_lease, batch.attempts[item.index] AS attempt,
            batch.attempted_ats[item.index] AS attempted_at, batch.finalized_at
        FROM awa.receipt_completion_batches AS batch,
            array_position(batch.lane_seqs, hits.lane_seq) AS item (index)
        WHERE batch.ready_slot = hits.ready_slot
            AND batch.batch_id = hits.batch_id
            AND batch.job_ids[item.index] = hits.job_id
        OFFSET 0
    ) AS batch
    WHERE NOT EXISTS (
        SELECT FROM awa.receipt_completion_tombstones AS tombstone
        WHERE tombstone.ready_slot = hits.ready_slot
            AND tombstone.job_id = hits.job_id
            AND tombstone.run_lease = batch.run_lease
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
SELECT
    item.job_id, batch.run_leases[item.index], batch.attempts[item.index], batch.max_attempts[item.index],
    batch.claimed_at, NULL
FROM unnest(%(slots)s::integer[], %(generations)s::bigint[]) AS place (ready_slot, ready_generation)
JOIN awa.lease_claim_batches AS batch USING (ready_slot, ready_generation)
LEFT JOIN closed USING (claim_slot),
    -- Only of those asked for the rest is read.
    unnest(batch.job_ids) WITH ORDINALITY AS item (job_id, index)
WHERE item.job_id = ANY (%(job_ids)s::bigint[])
    AND (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ranges)
    AND (closed.receipts IS NULL OR NOT closed.receipts @> batch.receipt_ids[item.index]);

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
