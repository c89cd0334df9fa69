-- What readers of the queue-storage plane see, and the deletion of one job.
-- contract: queue-storage.md, section 3; queue-storage/layout, sections 3 and 7; queue-storage/admin, sections 5 to 7;
-- schema, section 4.5; H-07, H-09, H-10

-- Finished jobs, both shapes as one: rows of done_entries, and the live items of compact completion batches.
-- A terminal fact borrows what it lacks from the ready row of its emission. The row is found by job and position. The
-- priority of the fact need not match, so that one stored under an aged priority keeps its body (H-01); it decides where
-- a job was moved to the same position of another priority, and has a ready row in both lanes.
CREATE OR REPLACE VIEW awa.terminal_jobs AS
SELECT
    done.ready_slot,
    done.ready_generation,
    done.job_id,
    done.kind,
    done.queue,
    coalesce(done.args, ready.args, '{}') AS args,
    done.state,
    done.priority,
    done.attempt,
    done.run_lease,
    coalesce(done.max_attempts, ready.max_attempts, 25::smallint) AS max_attempts,
    done.lane_seq,
    done.enqueue_shard,
    coalesce(done.run_at, ready.run_at, done.finalized_at) AS run_at,
    done.attempted_at,
    done.finalized_at,
    coalesce(done.created_at, ready.created_at, done.finalized_at) AS created_at,
    coalesce(done.unique_key, ready.unique_key) AS unique_key,
    coalesce(done.unique_states, ready.unique_states) AS unique_states,
    coalesce(done.payload, ready.payload, '{}') AS payload
FROM awa.done_entries AS done
LEFT JOIN awa.ready_entries AS ready
    ON ready.ready_slot = done.ready_slot
    AND ready.ready_generation = done.ready_generation
    AND ready.job_id = done.job_id
    AND ready.queue = done.queue
    AND ready.enqueue_shard = done.enqueue_shard
    AND ready.lane_seq = done.lane_seq
    AND (
        ready.priority = done.priority
        OR NOT EXISTS (
            SELECT 1
            FROM awa.ready_entries AS own
            WHERE own.ready_slot = done.ready_slot
              AND own.ready_generation = done.ready_generation
              AND own.job_id = done.job_id
              AND own.queue = done.queue
              AND own.priority = done.priority
              AND own.enqueue_shard = done.enqueue_shard
              AND own.lane_seq = done.lane_seq
        )
    )
UNION ALL
SELECT
    batch.ready_slot,
    batch.ready_generation,
    ready.job_id,
    ready.kind,
    batch.queue,
    ready.args,
    'completed'::awa.job_state,
    batch.priority,
    item.attempt,
    item.run_lease,
    ready.max_attempts,
    item.lane_seq,
    batch.enqueue_shard,
    ready.run_at,
    item.attempted_at,
    batch.finalized_at,
    ready.created_at,
    ready.unique_key,
    ready.unique_states,
    coalesce(ready.payload, '{}')
FROM awa.receipt_completion_batches AS batch
CROSS JOIN LATERAL unnest(batch.job_ids, batch.run_leases, batch.lane_seqs, batch.attempts, batch.attempted_ats)
    AS item (job_id, run_lease, lane_seq, attempt, attempted_at)
JOIN awa.ready_entries AS ready
    ON ready.ready_slot = batch.ready_slot
    AND ready.ready_generation = batch.ready_generation
    AND ready.queue = batch.queue
    AND ready.priority = batch.priority
    AND ready.enqueue_shard = batch.enqueue_shard
    AND ready.lane_seq = item.lane_seq
    AND ready.job_id = item.job_id
WHERE NOT EXISTS (
    SELECT 1
    FROM awa.receipt_completion_tombstones AS tombstone
    WHERE tombstone.ready_slot = batch.ready_slot
      AND tombstone.ready_generation = batch.ready_generation
      AND tombstone.job_id = item.job_id
      AND tombstone.run_lease = item.run_lease
);

-- Ready rows that a claim may still hand out: at or above the cursor, not cancelled, not emitted. The ledger counts:
-- until a worker has moved the cursor, a running job lies above it (H-10).
CREATE OR REPLACE VIEW awa.awa_django_available_jobs AS
WITH lane AS MATERIALIZED (
    SELECT
        head.queue,
        head.priority,
        head.enqueue_shard,
        coalesce(
            pg_sequence_last_value(('awa.' || head.seq_name)::regclass) + 1,
            awa.sequence_next_value(head.seq_name)
        ) AS cursor
    FROM awa.queue_claim_heads AS head
    WHERE head.seq_name IS NOT NULL
),
-- One range set for each lane and slot: asked row by row, the ledger would be read once for each job.
emitted AS MATERIALIZED (
    SELECT
        ledger.ready_slot,
        ledger.ready_generation,
        ledger.queue,
        ledger.priority,
        ledger.enqueue_shard,
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
SELECT ready.*
FROM lane
JOIN awa.ready_entries AS ready
    ON ready.queue = lane.queue
    AND ready.priority = lane.priority
    AND ready.enqueue_shard = lane.enqueue_shard
    AND ready.lane_seq >= lane.cursor
WHERE NOT EXISTS (
        SELECT 1
        FROM awa.ready_tombstones AS tombstone
        WHERE tombstone.ready_slot = ready.ready_slot
          AND tombstone.ready_generation = ready.ready_generation
          AND tombstone.queue = ready.queue
          AND tombstone.priority = ready.priority
          AND tombstone.enqueue_shard = ready.enqueue_shard
          AND tombstone.lane_seq = ready.lane_seq
    )
  AND NOT EXISTS (
        SELECT 1
        FROM emitted
        WHERE emitted.ready_slot = ready.ready_slot
          AND emitted.ready_generation = ready.ready_generation
          AND emitted.queue = ready.queue
          AND emitted.priority = ready.priority
          AND emitted.enqueue_shard = ready.enqueue_shard
          AND emitted.positions @> ready.lane_seq
    );

-- Attempts whose receipt is open, whether or not they also have a lease row: claimed, and not closed by any
-- evidence. batch_id and batch_index are NULL for a receipt that is a row of its own.
CREATE OR REPLACE VIEW awa.awa_django_open_receipts AS
SELECT receipt.*
FROM (
    SELECT
        claim.claim_slot,
        NULL::bigint AS batch_id,
        NULL::integer AS batch_index,
        claim.receipt_id,
        claim.job_id,
        claim.run_lease,
        claim.ready_slot,
        claim.ready_generation,
        claim.queue,
        claim.priority,
        claim.enqueue_shard,
        claim.lane_seq,
        claim.attempt,
        claim.max_attempts,
        claim.claimed_at,
        claim.deadline_at
    FROM awa.lease_claims AS claim
    WHERE claim.closed_at IS NULL
      AND NOT EXISTS (
            SELECT 1
            FROM awa.lease_claim_closures AS closure
            WHERE closure.claim_slot = claim.claim_slot
              AND closure.job_id = claim.job_id
              AND closure.run_lease = claim.run_lease
        )
      AND NOT EXISTS (
            SELECT 1
            FROM awa.lease_claim_closure_batches AS closures
            WHERE closures.claim_slot = claim.claim_slot
              AND closures.receipt_ranges @> claim.receipt_id
        )
    UNION ALL
    SELECT
        batch.claim_slot,
        batch.batch_id,
        item.index::integer,
        item.receipt_id,
        item.job_id,
        item.run_lease,
        batch.ready_slot,
        batch.ready_generation,
        batch.queue,
        batch.priority,
        batch.enqueue_shard,
        item.lane_seq,
        item.attempt,
        item.max_attempts,
        batch.claimed_at,
        batch.deadline_at
    FROM awa.lease_claim_batches AS batch
    -- One probe of the closures per batch; only a batch with something open is unpacked.
    CROSS JOIN LATERAL (
        SELECT batch.receipt_ranges - coalesce(range_agg(closed.receipts), '{}') AS receipts
        FROM awa.lease_claim_closure_batches AS closures
        CROSS JOIN LATERAL unnest(closures.receipt_ranges) AS closed (receipts)
        WHERE closures.claim_slot = batch.claim_slot
          AND closures.receipt_ranges && batch.receipt_ranges
    ) AS open
    CROSS JOIN LATERAL unnest(
        batch.receipt_ids, batch.job_ids, batch.run_leases, batch.lane_seqs, batch.attempts, batch.max_attempts
    ) WITH ORDINALITY AS item (receipt_id, job_id, run_lease, lane_seq, attempt, max_attempts, index)
    WHERE NOT isempty(open.receipts)
      AND open.receipts @> item.receipt_id
      AND NOT EXISTS (
            SELECT 1
            FROM awa.lease_claim_closures AS closure
            WHERE closure.claim_slot = batch.claim_slot
              AND closure.job_id = item.job_id
              AND closure.run_lease = item.run_lease
        )
) AS receipt
-- A closure that was lost: where the attempt ended is evidence enough.
WHERE NOT EXISTS (
        SELECT 1
        FROM awa.done_entries AS done
        WHERE done.job_id = receipt.job_id
          AND done.run_lease = receipt.run_lease
    )
  AND NOT EXISTS (
        SELECT 1
        FROM awa.deferred_jobs AS deferred
        WHERE deferred.job_id = receipt.job_id
          AND deferred.run_lease = receipt.run_lease
    )
  AND NOT EXISTS (
        SELECT 1
        FROM awa.dlq_entries AS dead
        WHERE dead.job_id = receipt.job_id
          AND dead.run_lease = receipt.run_lease
    );

-- Every job of the plane that takes new work, as the view awa.jobs shows it: canonical rows while the engine is
-- canonical, else whatever queue storage holds. A job that runs on a receipt alone is among them, as running.
-- rows:  one per job; all of them before any filter of the caller, which a function cannot see
-- Compiling a plan over some two hundred partitions takes half a second; running it takes milliseconds (jit).
CREATE OR REPLACE FUNCTION awa.jobs_compat()
RETURNS TABLE (
    id bigint,
    kind text,
    queue text,
    args jsonb,
    state awa.job_state,
    priority smallint,
    attempt smallint,
    max_attempts smallint,
    run_at timestamptz,
    heartbeat_at timestamptz,
    deadline_at timestamptz,
    attempted_at timestamptz,
    finalized_at timestamptz,
    created_at timestamptz,
    errors jsonb[],
    metadata jsonb,
    tags text[],
    unique_key bytea,
    unique_states bit,
    callback_id uuid,
    callback_timeout_at timestamptz,
    callback_filter text,
    callback_on_complete text,
    callback_on_fail text,
    callback_transform text,
    run_lease bigint,
    progress jsonb
)
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, awa, public
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_schema constant text := awa.active_queue_storage_schema();
BEGIN
    IF v_schema IS NULL THEN
        RETURN QUERY
        SELECT
            hot.id, hot.kind, hot.queue, hot.args, hot.state, hot.priority, hot.attempt, hot.max_attempts, hot.run_at,
            hot.heartbeat_at, hot.deadline_at, hot.attempted_at, hot.finalized_at, hot.created_at, hot.errors,
            hot.metadata, hot.tags, hot.unique_key, hot.unique_states, hot.callback_id, hot.callback_timeout_at,
            hot.callback_filter, hot.callback_on_complete, hot.callback_on_fail, hot.callback_transform,
            hot.run_lease, hot.progress
        FROM awa.jobs_hot AS hot
        UNION ALL
        SELECT
            later.id, later.kind, later.queue, later.args, later.state, later.priority, later.attempt,
            later.max_attempts, later.run_at, later.heartbeat_at, later.deadline_at, later.attempted_at,
            later.finalized_at, later.created_at, later.errors, later.metadata, later.tags, later.unique_key,
            later.unique_states, later.callback_id, later.callback_timeout_at, later.callback_filter,
            later.callback_on_complete, later.callback_on_fail, later.callback_transform, later.run_lease,
            later.progress
        FROM awa.scheduled_jobs AS later;
        RETURN;
    END IF;
    IF v_schema <> 'awa' THEN
        RAISE EXCEPTION 'queue storage is active in schema "%", which this installation does not serve', v_schema
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Only the schema "awa" is supported. awa.storage_status() shows what is active.';
    END IF;

    RETURN QUERY
    WITH job AS (
        SELECT
            ready.job_id, ready.kind, ready.queue, ready.args, 'available'::awa.job_state AS state, ready.priority,
            ready.attempt, ready.max_attempts, ready.run_at, NULL::timestamptz AS heartbeat_at,
            NULL::timestamptz AS deadline_at, ready.attempted_at, NULL::timestamptz AS finalized_at,
            ready.created_at, ready.unique_key, ready.unique_states, NULL::uuid AS callback_id,
            NULL::timestamptz AS callback_timeout_at, ready.run_lease, ready.payload
        FROM awa.awa_django_available_jobs AS ready
        UNION ALL
        SELECT
            deferred.job_id, deferred.kind, deferred.queue, deferred.args, deferred.state, deferred.priority,
            deferred.attempt, deferred.max_attempts, deferred.run_at, NULL, NULL, deferred.attempted_at,
            deferred.finalized_at, deferred.created_at, deferred.unique_key, deferred.unique_states, NULL, NULL,
            deferred.run_lease, deferred.payload
        FROM awa.deferred_jobs AS deferred
        UNION ALL
        SELECT
            lease.job_id, ready.kind, lease.queue, ready.args, lease.state, lease.priority, lease.attempt,
            lease.max_attempts, ready.run_at, lease.heartbeat_at, lease.deadline_at, lease.attempted_at, NULL,
            ready.created_at, ready.unique_key, ready.unique_states, lease.callback_id, lease.callback_timeout_at,
            lease.run_lease, ready.payload
        FROM awa.leases AS lease
        JOIN awa.ready_entries AS ready
            ON ready.ready_slot = lease.ready_slot
            AND ready.ready_generation = lease.ready_generation
            AND ready.job_id = lease.job_id
            AND ready.queue = lease.queue
            AND ready.enqueue_shard = lease.enqueue_shard
            AND ready.lane_seq = lease.lane_seq
            AND (
                ready.priority = lease.priority
                OR NOT EXISTS (
                    SELECT 1
                    FROM awa.ready_entries AS own
                    WHERE own.ready_slot = lease.ready_slot
                      AND own.ready_generation = lease.ready_generation
                      AND own.job_id = lease.job_id
                      AND own.queue = lease.queue
                      AND own.priority = lease.priority
                      AND own.enqueue_shard = lease.enqueue_shard
                      AND own.lane_seq = lease.lane_seq
                )
            )
        UNION ALL
        SELECT
            receipt.job_id, ready.kind, receipt.queue, ready.args, 'running', receipt.priority, receipt.attempt,
            receipt.max_attempts, ready.run_at, NULL, receipt.deadline_at, receipt.claimed_at, NULL,
            ready.created_at, ready.unique_key, ready.unique_states, NULL, NULL, receipt.run_lease, ready.payload
        FROM awa.awa_django_open_receipts AS receipt
        JOIN awa.ready_entries AS ready
            ON ready.ready_slot = receipt.ready_slot
            AND ready.ready_generation = receipt.ready_generation
            AND ready.job_id = receipt.job_id
            AND ready.queue = receipt.queue
            AND ready.enqueue_shard = receipt.enqueue_shard
            AND ready.lane_seq = receipt.lane_seq
            AND (
                ready.priority = receipt.priority
                OR NOT EXISTS (
                    SELECT 1
                    FROM awa.ready_entries AS own
                    WHERE own.ready_slot = receipt.ready_slot
                      AND own.ready_generation = receipt.ready_generation
                      AND own.job_id = receipt.job_id
                      AND own.queue = receipt.queue
                      AND own.priority = receipt.priority
                      AND own.enqueue_shard = receipt.enqueue_shard
                      AND own.lane_seq = receipt.lane_seq
                )
            )
        WHERE NOT EXISTS (
            SELECT 1
            FROM awa.leases AS lease
            WHERE lease.job_id = receipt.job_id
              AND lease.run_lease = receipt.run_lease
        )
        UNION ALL
        SELECT
            terminal.job_id, terminal.kind, terminal.queue, terminal.args, terminal.state, terminal.priority,
            terminal.attempt, terminal.max_attempts, terminal.run_at, NULL, NULL, terminal.attempted_at,
            terminal.finalized_at, terminal.created_at, terminal.unique_key, terminal.unique_states, NULL, NULL,
            terminal.run_lease, terminal.payload
        FROM awa.terminal_jobs AS terminal
        UNION ALL
        SELECT
            dead.job_id, dead.kind, dead.queue, dead.args, 'failed', dead.priority, dead.attempt, dead.max_attempts,
            dead.run_at, NULL, NULL, dead.attempted_at, dead.finalized_at, dead.created_at, dead.unique_key,
            dead.unique_states, NULL, NULL, dead.run_lease, dead.payload
        FROM awa.dlq_entries AS dead
    )
    SELECT
        job.job_id,
        job.kind,
        job.queue,
        job.args,
        job.state,
        job.priority,
        job.attempt,
        job.max_attempts,
        job.run_at,
        coalesce(live.heartbeat_at, job.heartbeat_at),
        job.deadline_at,
        job.attempted_at,
        job.finalized_at,
        job.created_at,
        -- Most jobs have neither errors nor tags; the functions are called for those that do.
        CASE WHEN job.payload -> 'errors' <> '[]' THEN awa.queue_storage_payload_errors(job.payload) END,
        coalesce(job.payload -> 'metadata', '{}')
            || CASE
                WHEN live.callback_result IS NULL THEN '{}'
                ELSE jsonb_build_object('_awa_callback_result', live.callback_result)
            END,
        CASE WHEN job.payload -> 'tags' <> '[]' THEN awa.queue_storage_payload_tags(job.payload) ELSE '{}' END,
        job.unique_key,
        job.unique_states::bit(8),
        job.callback_id,
        job.callback_timeout_at,
        live.callback_filter,
        live.callback_on_complete,
        live.callback_on_fail,
        live.callback_transform,
        job.run_lease,
        coalesce(live.progress, nullif(job.payload -> 'progress', 'null'))
    FROM job
    LEFT JOIN awa.attempt_state AS live
        ON live.job_id = job.job_id
        AND live.run_lease = job.run_lease
        AND job.state IN ('running', 'waiting_external');
END
$$;

-- Closes the receipt of one attempt, if it is open, and says whether it was.
-- rows:  true if this call wrote the closure; false if the receipt has one, or there is no receipt
-- locks: the attempt's key, then its claim row or claim batch, until the transaction ends. Evidence is read in a
--        statement after the locks, so of two callers exactly one closes
CREATE OR REPLACE FUNCTION awa.awa_django_close_receipt(p_job_id bigint, p_run_lease bigint, p_outcome text)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_claim record;
    v_receipt_id bigint;
    v_closed_at constant timestamptz := clock_timestamp();
BEGIN
    PERFORM pg_advisory_xact_lock(
        hashtextextended('awa.receipt.complete:' || p_job_id || ':' || p_run_lease, 0)
    );

    SELECT claim.claim_slot, claim.receipt_id, claim.closed_at
    INTO v_claim
    FROM awa.lease_claims AS claim
    WHERE claim.job_id = p_job_id
      AND claim.run_lease = p_run_lease
    FOR UPDATE;
    IF FOUND THEN
        PERFORM 1
        FROM awa.lease_claim_closure_batches AS closures
        WHERE closures.claim_slot = v_claim.claim_slot
          AND closures.receipt_ranges @> v_claim.receipt_id;
        IF FOUND OR v_claim.closed_at IS NOT NULL THEN
            RETURN false;
        END IF;
        INSERT INTO awa.lease_claim_closures (claim_slot, job_id, run_lease, outcome, closed_at)
        VALUES (v_claim.claim_slot, p_job_id, p_run_lease, p_outcome, v_closed_at)
        ON CONFLICT (claim_slot, job_id, run_lease) DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        UPDATE awa.lease_claims AS claim
        SET closed_at = v_closed_at
        WHERE claim.claim_slot = v_claim.claim_slot
          AND claim.job_id = p_job_id
          AND claim.run_lease = p_run_lease;
        RETURN true;
    END IF;

    -- A compact receipt is found through the emission: the job's ready row, then the claims of its slot.
    SELECT
        batch.claim_slot,
        batch.ready_slot,
        batch.ready_generation,
        batch.receipt_ids,
        array_position(batch.job_ids, p_job_id) AS index
    INTO v_claim
    FROM awa.ready_entries AS ready
    JOIN awa.lease_claim_batches AS batch
        ON batch.ready_slot = ready.ready_slot
        AND batch.ready_generation = ready.ready_generation
        AND batch.queue = ready.queue
        AND batch.enqueue_shard = ready.enqueue_shard
    WHERE ready.job_id = p_job_id
      AND ready.run_lease = p_run_lease - 1
      AND batch.run_leases[array_position(batch.job_ids, p_job_id)] = p_run_lease
    FOR UPDATE OF batch;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_receipt_id := v_claim.receipt_ids[v_claim.index];
    PERFORM 1
    FROM awa.lease_claim_closure_batches AS closures
    WHERE closures.claim_slot = v_claim.claim_slot
      AND closures.receipt_ranges @> v_receipt_id;
    IF FOUND THEN
        RETURN false;
    END IF;
    PERFORM 1
    FROM awa.lease_claim_closures AS closure
    WHERE closure.claim_slot = v_claim.claim_slot
      AND closure.job_id = p_job_id
      AND closure.run_lease = p_run_lease;
    IF FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO awa.lease_claim_closure_batches (
        claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges, closed_at
    )
    VALUES (
        v_claim.claim_slot, v_claim.ready_slot, v_claim.ready_generation, p_outcome, 1, ARRAY[v_receipt_id],
        int8multirange(int8range(v_receipt_id, v_receipt_id + 1)), v_closed_at
    );
    RETURN true;
END
$$;

-- Deletes one job from wherever it is. True if it was there; the caller is DELETE FROM awa.jobs.
-- A running attempt loses its receipt, so its outcome will be stale, and its worker is told on awa:cancel.
-- rows:  true or false; 55000 unless queue storage is active
-- locks: by what is found: the lane's claim head, then the ready row; a deferred, finished or dead-lettered row;
--        the attempt's key, then claim evidence and lease. The unique claim last
CREATE OR REPLACE FUNCTION awa.delete_job_compat(p_id bigint)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, awa, public
SET jit = off
AS $$
DECLARE
    v_schema constant text := awa.active_queue_storage_schema();
    v_job record;
    v_state awa.job_state;
    v_closed boolean;
BEGIN
    IF v_schema IS NULL THEN
        RAISE EXCEPTION 'job % cannot be deleted from queue storage: it is not active', p_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Canonical jobs are rows of awa.jobs_hot and awa.scheduled_jobs.';
    END IF;
    IF v_schema <> 'awa' THEN
        RAISE EXCEPTION 'queue storage is active in schema "%", which this installation does not serve', v_schema
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Only the schema "awa" is supported. awa.storage_status() shows what is active.';
    END IF;

    -- A job may move on between two looks: promoted, claimed, retried. A second round meets it where it went.
    FOR v_round IN 1 .. 2 LOOP
        -- Available. The claim head is held while deciding, so no claim can take the job meanwhile; and evidence is
        -- read again after the locks, since an emission leaves the cursor behind (H-10).
        FOR v_job IN
            SELECT
                ready.ready_slot, ready.ready_generation, ready.queue, ready.priority, ready.enqueue_shard,
                ready.lane_seq, ready.unique_key, ready.unique_states
            FROM awa.awa_django_available_jobs AS ready
            WHERE ready.job_id = p_id
            ORDER BY ready.run_lease DESC, ready.ready_generation DESC
        LOOP
            PERFORM 1
            FROM awa.queue_claim_heads AS head
            WHERE head.queue = v_job.queue
              AND head.priority = v_job.priority
              AND head.enqueue_shard = v_job.enqueue_shard
            FOR UPDATE;
            PERFORM 1
            FROM awa.ready_entries AS ready
            WHERE ready.ready_slot = v_job.ready_slot
              AND ready.ready_generation = v_job.ready_generation
              AND ready.queue = v_job.queue
              AND ready.priority = v_job.priority
              AND ready.enqueue_shard = v_job.enqueue_shard
              AND ready.lane_seq = v_job.lane_seq
            FOR UPDATE;
            PERFORM 1
            FROM awa.awa_django_available_jobs AS ready
            WHERE ready.job_id = p_id
              AND ready.ready_slot = v_job.ready_slot
              AND ready.queue = v_job.queue
              AND ready.priority = v_job.priority
              AND ready.enqueue_shard = v_job.enqueue_shard
              AND ready.lane_seq = v_job.lane_seq;
            CONTINUE WHEN NOT FOUND;

            INSERT INTO awa.ready_tombstones (
                ready_slot, ready_generation, queue, priority, enqueue_shard, lane_seq, job_id
            )
            VALUES (
                v_job.ready_slot, v_job.ready_generation, v_job.queue, v_job.priority, v_job.enqueue_shard,
                v_job.lane_seq, p_id
            )
            ON CONFLICT DO NOTHING;
            -- A claim of this transaction passes the tombstone, but must not move the cursor over it yet.
            PERFORM set_config('awa_django.uncommitted_evidence', 'tombstone', true);
            PERFORM awa.release_queue_storage_unique_claim(p_id, v_job.unique_key, v_job.unique_states, 'available');
            RETURN true;
        END LOOP;

        -- Scheduled or retryable.
        DELETE FROM awa.deferred_jobs AS deferred
        WHERE deferred.job_id = p_id
        RETURNING deferred.state, deferred.unique_key, deferred.unique_states
        INTO v_job;
        IF FOUND THEN
            PERFORM awa.release_queue_storage_unique_claim(p_id, v_job.unique_key, v_job.unique_states, v_job.state);
            RETURN true;
        END IF;

        -- Running or parked, with a lease row or on its receipt alone. Its receipt is closed, or a rescue would
        -- take the attempt for lost and bring the job back (H-09).
        FOR v_job IN
            SELECT ready.run_lease + 1 AS run_lease, ready.unique_key, ready.unique_states
            FROM awa.ready_entries AS ready
            WHERE ready.job_id = p_id
              AND NOT EXISTS (
                    SELECT 1
                    FROM awa.terminal_jobs AS terminal
                    WHERE terminal.job_id = p_id
                      AND terminal.run_lease = ready.run_lease + 1
                )
              AND NOT EXISTS (
                    SELECT 1
                    FROM awa.dlq_entries AS dead
                    WHERE dead.job_id = p_id
                      AND dead.run_lease = ready.run_lease + 1
                )
            ORDER BY ready.run_lease DESC
        LOOP
            v_closed := awa.awa_django_close_receipt(p_id, v_job.run_lease, 'cancelled');
            DELETE FROM awa.leases AS lease
            WHERE lease.job_id = p_id
              AND lease.run_lease = v_job.run_lease
            RETURNING lease.state INTO v_state;
            CONTINUE WHEN NOT FOUND AND NOT v_closed;
            v_state := coalesce(v_state, 'running');

            DELETE FROM awa.attempt_state AS live
            WHERE live.job_id = p_id
              AND live.run_lease = v_job.run_lease;
            PERFORM awa.release_queue_storage_unique_claim(p_id, v_job.unique_key, v_job.unique_states, v_state);
            PERFORM pg_notify(
                'awa:cancel', format('{"job_id":%s,"run_lease":%s}', p_id, v_job.run_lease)
            );
            RETURN true;
        END LOOP;

        -- Finished, as a row. A receipt that lost its closure is closed first: with the row goes the evidence.
        SELECT
            done.ready_slot, done.ready_generation, done.queue, done.priority, done.enqueue_shard, done.lane_seq,
            done.run_lease, done.state
        INTO v_job
        FROM awa.done_entries AS done
        WHERE done.job_id = p_id
        ORDER BY done.finalized_at DESC
        LIMIT 1
        FOR UPDATE;
        IF FOUND THEN
            PERFORM awa.release_queue_storage_unique_claim(
                p_id, terminal.unique_key, terminal.unique_states, terminal.state
            )
            FROM awa.terminal_jobs AS terminal
            WHERE terminal.job_id = p_id
              AND terminal.run_lease = v_job.run_lease
              AND terminal.state = v_job.state;
            PERFORM awa.awa_django_close_receipt(p_id, v_job.run_lease, 'terminal_removed');
            DELETE FROM awa.done_entries AS done
            WHERE done.ready_slot = v_job.ready_slot
              AND done.queue = v_job.queue
              AND done.priority = v_job.priority
              AND done.enqueue_shard = v_job.enqueue_shard
              AND done.lane_seq = v_job.lane_seq
              AND done.job_id = p_id;
            INSERT INTO awa.queue_terminal_count_deltas (
                ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
            )
            VALUES (
                v_job.ready_slot, v_job.ready_generation, v_job.queue, v_job.priority, v_job.enqueue_shard,
                ((p_id % 256 + 256) % 256)::smallint, -1
            );
            RETURN true;
        END IF;

        -- Finished, as an item of a completion batch.
        FOR v_job IN
            SELECT
                terminal.ready_slot, terminal.ready_generation, terminal.queue, terminal.priority,
                terminal.enqueue_shard, terminal.lane_seq, terminal.run_lease, terminal.state, terminal.unique_key,
                terminal.unique_states
            FROM awa.terminal_jobs AS terminal
            WHERE terminal.job_id = p_id
            ORDER BY terminal.finalized_at DESC
        LOOP
            INSERT INTO awa.receipt_completion_tombstones (
                ready_slot, ready_generation, job_id, run_lease, queue, priority, enqueue_shard, lane_seq
            )
            VALUES (
                v_job.ready_slot, v_job.ready_generation, p_id, v_job.run_lease, v_job.queue, v_job.priority,
                v_job.enqueue_shard, v_job.lane_seq
            )
            ON CONFLICT (ready_slot, job_id, run_lease) DO NOTHING;
            CONTINUE WHEN NOT FOUND;
            PERFORM awa.release_queue_storage_unique_claim(p_id, v_job.unique_key, v_job.unique_states, v_job.state);
            RETURN true;
        END LOOP;

        -- Dead-lettered.
        DELETE FROM awa.dlq_entries AS dead
        WHERE dead.job_id = p_id
        RETURNING dead.state, dead.unique_key, dead.unique_states
        INTO v_job;
        IF FOUND THEN
            PERFORM awa.release_queue_storage_unique_claim(p_id, v_job.unique_key, v_job.unique_states, v_job.state);
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END
$$;
