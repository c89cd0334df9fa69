-- Handing out jobs.
-- contract: queue-storage/claim; queue-storage/performance, section 2; H-01, H-04, H-05, H-13
--
-- A claim writes two facts and changes none: the emission ledger row that says which positions are spent, and the
-- receipts of the attempts. The cursor of a lane is moved here over committed evidence only, never over what this
-- call hands out: the transaction may still abort, and a sequence does not roll back.

-- The priority a job is ranked by after waiting: one better per p_aging_secs, never better than 1. A run_at in the
-- future ranks it worse, by as much as fits a smallint. The number of intervals is clamped before it is narrowed:
-- a job may have waited for years (H-05). NULL for p_aging_secs: no aging.
CREATE OR REPLACE FUNCTION awa.awa_django_aged_priority(
    p_priority smallint,
    p_run_at timestamptz,
    p_now_epoch double precision,
    p_aging_secs double precision
)
RETURNS smallint
LANGUAGE sql
STABLE
AS $$
    SELECT CASE
        WHEN p_aging_secs IS NULL THEN p_priority
        ELSE greatest(
            1,
            p_priority - greatest(
                -30000, least(4, floor((p_now_epoch - date_part('epoch', p_run_at)) / p_aging_secs))
            )::integer
        )::smallint
    END
$$;

-- Ascending numbers as ranges; nearly always they are one.
CREATE OR REPLACE FUNCTION awa.awa_django_positions(p_numbers bigint[])
RETURNS int8multirange
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog
AS $$
BEGIN
    IF p_numbers[cardinality(p_numbers)] - p_numbers[1] + 1 = cardinality(p_numbers) THEN
        RETURN int8multirange(int8range(p_numbers[1], p_numbers[cardinality(p_numbers)] + 1));
    END IF;
    RETURN (SELECT range_agg(int8range(number, number + 1)) FROM unnest(p_numbers) AS number);
END
$$;

-- Up to p_max_batch jobs of a queue, best lane first, in lane order within a lane; none while it is paused.
--
-- rows:  one per attempt. With a deadline (p_deadline_secs > 0) each has a row in lease_claims and its times;
--        without, it is an item of a lease_claim_batches row and its times are NULL. priority is aged by
--        p_aging_secs (0 = not at all); lane_priority is the one on record
-- locks: FOR UPDATE on the claim head of every lane it takes from, until the transaction ends, passing over lanes
--        that another claimer holds; and the key of a claim sequence if its cursor had to be moved
--
-- The checks of evidence need a snapshot taken after the lock on the lane, so under REPEATABLE READ, where there is
-- none, the call fails (25001) instead of handing a job out twice.
--
-- A worker may start a handler after the commit and no sooner, and then moves the cursors past what it got.
--
-- Nearly all the cost of a claim was planning: eight to sixteen partitions per relation and statement. Hence plans
-- that are made once per session (plan_cache_mode) and that stay right while a partition grows from empty to
-- millions of rows between two ANALYZEs: index scans and nothing else, and no compilation of a plan whose
-- estimate went astray (enable_seqscan, enable_bitmapscan, jit).
CREATE OR REPLACE FUNCTION awa.claim_ready_runtime(
    p_queue text,
    p_max_batch bigint,
    p_deadline_secs double precision,
    p_aging_secs double precision
)
RETURNS TABLE (
    ready_slot integer,
    ready_generation bigint,
    lane_seq bigint,
    enqueue_shard smallint,
    lease_slot integer,
    lease_generation bigint,
    claim_slot integer,
    receipt_id bigint,
    claim_batch_id bigint,
    claim_batch_index integer,
    job_id bigint,
    kind text,
    queue text,
    args jsonb,
    lane_priority smallint,
    priority smallint,
    attempt smallint,
    run_lease bigint,
    max_attempts smallint,
    run_at timestamptz,
    heartbeat_at timestamptz,
    deadline_at timestamptz,
    attempted_at timestamptz,
    created_at timestamptz,
    unique_key bytea,
    unique_states text,
    payload jsonb
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, awa, public
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    -- Lanes that yield jobs in one call, each some five statements. Lanes that yield none are not counted.
    c_lanes constant integer := 8;
    -- Tombstones read at a time. Thousands of cancelled jobs in a row take several rounds, not one large set.
    c_tombstones constant integer := 1000;

    v_now constant timestamptz := clock_timestamp();
    v_now_epoch constant double precision := extract(epoch FROM v_now);
    v_aging constant double precision := CASE WHEN p_aging_secs > 0 THEN p_aging_secs END;
    v_deadline constant timestamptz := CASE
        WHEN p_deadline_secs > 0 THEN v_now + make_interval(secs => p_deadline_secs)
    END;
    v_claimed_at constant timestamptz := CASE WHEN p_deadline_secs > 0 THEN v_now END;

    -- What this transaction wrote is no ground for moving a cursor: an earlier claim, or a deletion.
    v_may_move constant boolean := coalesce(current_setting('awa_django.uncommitted_evidence', true), '') = '';

    v_left bigint := p_max_batch;
    v_lanes integer := 0;
    v_priorities smallint[];
    v_shards smallint[];
    v_seq_names text[];
    v_cursors bigint[];
    v_ends bigint[];
    v_lane record;

    v_cursor bigint;            -- the lane's cursor: nothing below it is left
    v_from bigint;              -- where to look next; above the cursor once this call took rows of the lane
    v_slot integer;             -- the head segment
    v_generation bigint;
    v_spent int8multirange;     -- evidence in that slot, complete up to the horizon
    v_horizon bigint;
    v_first bigint;
    v_count bigint;
    v_taken bigint;             -- rows taken from this lane

    v_claim_slot integer;
    v_lease_slot integer;
    v_lease_generation bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'jobs of queue "%" cannot be claimed at isolation level %',
            p_queue, current_setting('transaction_isolation')
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'Claim in a READ COMMITTED transaction.';
    END IF;
    IF (v_left > 0) IS NOT TRUE THEN
        RETURN;
    END IF;

    -- 1. Lanes with positions between claim and allocation cursor. An idle poll ends here.
    SELECT
        array_agg(lane.priority),
        array_agg(lane.enqueue_shard),
        array_agg(lane.seq_name),
        array_agg(lane.cursor),
        array_agg(lane.ends)
    INTO v_priorities, v_shards, v_seq_names, v_cursors, v_ends
    FROM (
        SELECT
            head.priority,
            head.enqueue_shard,
            head.seq_name,
            coalesce(
                pg_sequence_last_value(('awa.' || head.seq_name)::regclass) + 1,
                awa.sequence_next_value(head.seq_name)
            ) AS cursor,
            coalesce(
                pg_sequence_last_value(('awa.' || enqueue_head.seq_name)::regclass) + 1,
                awa.sequence_next_value(enqueue_head.seq_name)
            ) AS ends
        FROM awa.queue_claim_heads AS head
        JOIN awa.queue_enqueue_heads AS enqueue_head
            USING (queue, priority, enqueue_shard)
        WHERE head.queue = p_queue
          AND head.seq_name IS NOT NULL
          AND enqueue_head.seq_name IS NOT NULL
        OFFSET 0    -- so that each cursor is read once
    ) AS lane
    WHERE lane.cursor < lane.ends;
    IF v_priorities IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1
    FROM awa.queue_meta AS meta
    WHERE meta.queue = p_queue
      AND meta.paused;
    IF FOUND THEN
        RETURN;
    END IF;

    -- 2. Best lane first. A lane whose head is not visible yet has nothing to hand out.
    <<lanes>>
    FOR v_lane IN
        SELECT
            lane.priority,
            lane.enqueue_shard,
            lane.seq_name,
            lane.cursor,
            lane.ends,
            segment.ready_slot,
            segment.ready_generation
        FROM unnest(v_priorities, v_shards, v_seq_names, v_cursors, v_ends)
            AS lane (priority, enqueue_shard, seq_name, cursor, ends)
        CROSS JOIN LATERAL (
            SELECT candidate.ready_slot, candidate.ready_generation, candidate.first_run_at
            FROM awa.ready_segments AS candidate
            WHERE candidate.queue = p_queue
              AND candidate.priority = lane.priority
              AND candidate.enqueue_shard = lane.enqueue_shard
              AND candidate.next_lane_seq > lane.cursor
            ORDER BY candidate.next_lane_seq
            LIMIT 1
        ) AS segment
        ORDER BY
            awa.awa_django_aged_priority(lane.priority, segment.first_run_at, v_now_epoch, v_aging),
            segment.first_run_at,
            lane.priority,
            lane.enqueue_shard
    LOOP
        PERFORM 1
        FROM awa.queue_claim_heads AS head
        WHERE head.queue = p_queue
          AND head.priority = v_lane.priority
          AND head.enqueue_shard = v_lane.enqueue_shard
        FOR UPDATE SKIP LOCKED;
        CONTINUE lanes WHEN NOT FOUND;

        -- 3. With the lane held, every statement sees what its previous holder committed. The cursor is read again
        --    for the same reason; if it stood still, so did the head segment.
        v_cursor := coalesce(
            pg_sequence_last_value(('awa.' || v_lane.seq_name)::regclass) + 1,
            awa.sequence_next_value(v_lane.seq_name)
        );
        v_from := v_cursor;
        v_taken := 0;
        v_slot := CASE WHEN v_cursor = v_lane.cursor THEN v_lane.ready_slot END;
        v_generation := v_lane.ready_generation;

        <<segments>>
        WHILE v_left > 0 AND v_from < v_lane.ends LOOP
            IF v_slot IS NULL THEN
                SELECT candidate.ready_slot, candidate.ready_generation
                INTO v_slot, v_generation
                FROM awa.ready_segments AS candidate
                WHERE candidate.queue = p_queue
                  AND candidate.priority = v_lane.priority
                  AND candidate.enqueue_shard = v_lane.enqueue_shard
                  AND candidate.next_lane_seq > v_from
                ORDER BY candidate.next_lane_seq
                LIMIT 1;
                EXIT segments WHEN NOT FOUND;
            END IF;

            -- 4. What is spent from here on: emitted, or tombstoned. Usually nothing.
            SELECT range_agg(evidence.positions), max(evidence.tombstone)
            INTO v_spent, v_horizon
            FROM (
                SELECT unnest(ledger.lane_ranges) AS positions, NULL::bigint AS tombstone
                FROM awa.ready_claim_attempt_batches AS ledger
                WHERE ledger.ready_slot = v_slot
                  AND ledger.ready_generation = v_generation
                  AND ledger.queue = p_queue
                  AND ledger.priority = v_lane.priority
                  AND ledger.enqueue_shard = v_lane.enqueue_shard
                  AND ledger.next_lane_seq > v_from
                UNION ALL
                SELECT int8range(dead.lane_seq, dead.lane_seq + 1), dead.horizon
                FROM (
                    SELECT
                        tombstone.lane_seq,
                        -- The last of a full round; what lies beyond it has not been read.
                        CASE WHEN row_number() OVER (ORDER BY tombstone.lane_seq) = c_tombstones
                            THEN tombstone.lane_seq
                        END AS horizon
                    FROM awa.ready_tombstones AS tombstone
                    WHERE tombstone.ready_slot = v_slot
                      AND tombstone.ready_generation = v_generation
                      AND tombstone.queue = p_queue
                      AND tombstone.priority = v_lane.priority
                      AND tombstone.enqueue_shard = v_lane.enqueue_shard
                      AND tombstone.lane_seq >= v_from
                    ORDER BY tombstone.lane_seq
                    LIMIT c_tombstones
                ) AS dead
            ) AS evidence;

            IF v_spent IS NOT NULL THEN
                -- 5. The first row that is not spent. Everything below it is spent or a gap: a position that is
                --    missing below a visible one was rolled back and cannot appear any more (H-04).
                SELECT ready.lane_seq
                INTO v_first
                FROM awa.ready_entries AS ready
                WHERE ready.ready_slot = v_slot
                  AND ready.ready_generation = v_generation
                  AND ready.queue = p_queue
                  AND ready.priority = v_lane.priority
                  AND ready.enqueue_shard = v_lane.enqueue_shard
                  AND ready.lane_seq >= v_from
                  AND (v_horizon IS NULL OR ready.lane_seq <= v_horizon)
                  AND NOT v_spent @> ready.lane_seq
                ORDER BY ready.lane_seq
                LIMIT 1;
                IF v_first IS NULL AND v_horizon IS NOT NULL THEN
                    v_first := v_horizon + 1;
                ELSIF v_first IS NULL THEN
                    -- All of this slot's share of the lane is spent, to its last row. Where that is, the evidence
                    -- says: to look for the row would take another snapshot, and pass over jobs that were stored
                    -- since the last one.
                    v_first := upper(v_spent);
                    v_slot := NULL;
                END IF;
                v_from := v_first;
                IF v_may_move AND v_taken = 0 AND v_from > v_cursor THEN
                    PERFORM awa.set_sequence_next(v_lane.seq_name, v_from);
                    v_cursor := v_from;
                END IF;
                CONTINUE segments WHEN v_slot IS NULL OR v_from > v_horizon;
            ELSE
                v_spent := '{}';
            END IF;

            IF v_claim_slot IS NULL THEN
                SELECT claim_ring.current_slot, lease_ring.current_slot, lease_ring.generation
                INTO STRICT v_claim_slot, v_lease_slot, v_lease_generation
                FROM awa.claim_ring_state AS claim_ring
                CROSS JOIN awa.lease_ring_state AS lease_ring
                WHERE claim_ring.singleton
                  AND lease_ring.singleton;
            END IF;

            -- 6. Take: one scan of the rows, then ledger and receipts from it. The evidence carries the priority of
            --    the lane; completion, callbacks and history find the ready row by it (H-01). A job that counts no
            --    further stays at its number of attempts: an error here would keep the whole lane waiting (DEC-18).
            IF v_deadline IS NULL THEN
                RETURN QUERY
                WITH taken AS MATERIALIZED (
                    SELECT
                        ready.*,
                        nextval('awa.lease_claim_receipt_id_seq'::regclass) AS receipt_id
                    FROM (
                        SELECT candidate.*
                        FROM awa.ready_entries AS candidate
                        WHERE candidate.ready_slot = v_slot
                          AND candidate.ready_generation = v_generation
                          AND candidate.queue = p_queue
                          AND candidate.priority = v_lane.priority
                          AND candidate.enqueue_shard = v_lane.enqueue_shard
                          AND candidate.lane_seq >= v_from
                          AND (v_horizon IS NULL OR candidate.lane_seq <= v_horizon)
                          AND NOT v_spent @> candidate.lane_seq
                        ORDER BY candidate.lane_seq
                        LIMIT v_left
                    ) AS ready
                ),
                summary AS MATERIALIZED (
                    SELECT
                        count(*)::integer AS claimed_count,
                        min(taken.lane_seq) AS first_lane_seq,
                        max(taken.lane_seq) + 1 AS next_lane_seq,
                        array_agg(taken.job_id) AS job_ids,
                        array_agg(taken.run_lease + 1) AS run_leases,
                        array_agg(taken.receipt_id) AS receipt_ids,
                        array_agg(taken.lane_seq) AS lane_seqs,
                        array_agg(least(taken.attempt + 1, 32767)::smallint) AS attempts,
                        array_agg(taken.max_attempts) AS max_attempts
                    FROM taken
                ),
                emitted AS (
                    INSERT INTO awa.ready_claim_attempt_batches (
                        ready_slot, ready_generation, queue, priority, enqueue_shard, claim_slot, first_lane_seq,
                        next_lane_seq, claimed_count, lane_ranges, claimed_at
                    )
                    SELECT
                        v_slot, v_generation, p_queue, v_lane.priority, v_lane.enqueue_shard, v_claim_slot,
                        summary.first_lane_seq, summary.next_lane_seq, summary.claimed_count,
                        awa.awa_django_positions(summary.lane_seqs), v_now
                    FROM summary
                    WHERE summary.claimed_count > 0
                ),
                receipts AS (
                    INSERT INTO awa.lease_claim_batches (
                        claim_slot, ready_slot, ready_generation, queue, priority, enqueue_shard, claimed_count,
                        job_ids, run_leases, receipt_ids, receipt_ranges, lane_seqs, attempts, max_attempts,
                        claimed_at
                    )
                    SELECT
                        v_claim_slot, v_slot, v_generation, p_queue, v_lane.priority, v_lane.enqueue_shard,
                        summary.claimed_count, summary.job_ids, summary.run_leases, summary.receipt_ids,
                        awa.awa_django_positions(summary.receipt_ids), summary.lane_seqs, summary.attempts,
                        summary.max_attempts, v_now
                    FROM summary
                    WHERE summary.claimed_count > 0
                    RETURNING batch_id
                )
                SELECT
                    taken.ready_slot,
                    taken.ready_generation,
                    taken.lane_seq,
                    taken.enqueue_shard,
                    v_lease_slot,
                    v_lease_generation,
                    v_claim_slot,
                    taken.receipt_id,
                    receipts.batch_id,
                    (row_number() OVER (ORDER BY taken.lane_seq))::integer,
                    taken.job_id,
                    taken.kind,
                    taken.queue,
                    taken.args,
                    taken.priority,
                    awa.awa_django_aged_priority(taken.priority, taken.run_at, v_now_epoch, v_aging),
                    least(taken.attempt + 1, 32767)::smallint,
                    taken.run_lease + 1,
                    taken.max_attempts,
                    taken.run_at,
                    v_claimed_at,
                    v_deadline,
                    v_claimed_at,
                    taken.created_at,
                    taken.unique_key,
                    taken.unique_states,
                    coalesce(taken.payload, '{}')
                FROM receipts
                CROSS JOIN taken
                ORDER BY taken.lane_seq;
            ELSE
                RETURN QUERY
                WITH taken AS MATERIALIZED (
                    SELECT
                        ready.*,
                        nextval('awa.lease_claim_receipt_id_seq'::regclass) AS receipt_id
                    FROM (
                        SELECT candidate.*
                        FROM awa.ready_entries AS candidate
                        WHERE candidate.ready_slot = v_slot
                          AND candidate.ready_generation = v_generation
                          AND candidate.queue = p_queue
                          AND candidate.priority = v_lane.priority
                          AND candidate.enqueue_shard = v_lane.enqueue_shard
                          AND candidate.lane_seq >= v_from
                          AND (v_horizon IS NULL OR candidate.lane_seq <= v_horizon)
                          AND NOT v_spent @> candidate.lane_seq
                        ORDER BY candidate.lane_seq
                        LIMIT v_left
                    ) AS ready
                ),
                emitted AS (
                    INSERT INTO awa.ready_claim_attempt_batches (
                        ready_slot, ready_generation, queue, priority, enqueue_shard, claim_slot, first_lane_seq,
                        next_lane_seq, claimed_count, lane_ranges, claimed_at
                    )
                    SELECT
                        v_slot, v_generation, p_queue, v_lane.priority, v_lane.enqueue_shard, v_claim_slot,
                        min(taken.lane_seq), max(taken.lane_seq) + 1, count(*),
                        awa.awa_django_positions(array_agg(taken.lane_seq)), v_now
                    FROM taken
                    HAVING count(*) > 0
                ),
                receipts AS (
                    INSERT INTO awa.lease_claims (
                        claim_slot, receipt_id, job_id, run_lease, ready_slot, ready_generation, queue, priority,
                        attempt, max_attempts, lane_seq, enqueue_shard, claimed_at, deadline_at
                    )
                    SELECT
                        v_claim_slot, taken.receipt_id, taken.job_id, taken.run_lease + 1, v_slot, v_generation,
                        p_queue, v_lane.priority, least(taken.attempt + 1, 32767)::smallint, taken.max_attempts, taken.lane_seq,
                        v_lane.enqueue_shard, v_now, v_deadline
                    FROM taken
                )
                SELECT
                    taken.ready_slot,
                    taken.ready_generation,
                    taken.lane_seq,
                    taken.enqueue_shard,
                    v_lease_slot,
                    v_lease_generation,
                    v_claim_slot,
                    taken.receipt_id,
                    NULL::bigint,
                    NULL::integer,
                    taken.job_id,
                    taken.kind,
                    taken.queue,
                    taken.args,
                    taken.priority,
                    awa.awa_django_aged_priority(taken.priority, taken.run_at, v_now_epoch, v_aging),
                    least(taken.attempt + 1, 32767)::smallint,
                    taken.run_lease + 1,
                    taken.max_attempts,
                    taken.run_at,
                    v_claimed_at,
                    v_deadline,
                    v_claimed_at,
                    taken.created_at,
                    taken.unique_key,
                    taken.unique_states,
                    coalesce(taken.payload, '{}')
                FROM taken
                ORDER BY taken.lane_seq;
            END IF;

            GET DIAGNOSTICS v_count = ROW_COUNT;
            v_left := v_left - v_count;
            v_taken := v_taken + v_count;
            -- A segment without rows is not evidence of anything; what is behind it stays out of reach.
            EXIT segments WHEN v_left <= 0 OR v_count = 0;
            -- The slot gave less than was asked: go on behind what was read, there or in the next slot.
            IF v_horizon IS NULL THEN
                SELECT max(ledger.next_lane_seq)
                INTO STRICT v_from
                FROM awa.ready_claim_attempt_batches AS ledger
                WHERE ledger.ready_slot = v_slot
                  AND ledger.ready_generation = v_generation
                  AND ledger.queue = p_queue
                  AND ledger.priority = v_lane.priority
                  AND ledger.enqueue_shard = v_lane.enqueue_shard;
                v_slot := NULL;
            ELSE
                v_from := v_horizon + 1;
            END IF;
        END LOOP segments;

        IF v_taken > 0 THEN
            v_lanes := v_lanes + 1;
        END IF;
        EXIT lanes WHEN v_left <= 0 OR v_lanes >= c_lanes;
    END LOOP lanes;

    IF v_lanes > 0 THEN
        PERFORM set_config('awa_django.uncommitted_evidence', 'claim', true);
    END IF;
END
$$;
