-- Taking attempts away that went quiet, ran out of time or got no answer (contract: queue-storage/rescue).
--
-- Candidates are found without locks. The attempt key is only tried, since whoever holds it is moving the
-- attempt; then the evidence is locked, skipping what somebody else holds, and the condition is asked again in a
-- statement that began after that. Receipts are closed by the statement of settle.sql that ends attempts too.

-- name: try_attempts
-- The advisory keys of attempts, as far as they are free, held to the end of the transaction.
-- rows:  one for each attempt whose key was obtained
-- locks: attempt keys, ascending, none of them waited for
SELECT job_id, run_lease
FROM (
    SELECT
        job_id, run_lease,
        pg_try_advisory_xact_lock(hashtextextended('awa.receipt.complete:' || job_id || ':' || run_lease, 0)) AS held
    FROM (
        SELECT job_id, run_lease
        FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease)
        ORDER BY hashtextextended('awa.receipt.complete:' || job_id || ':' || run_lease, 0)
    ) AS ordered
) AS tried
WHERE held;

-- name: quiet_leases
-- Running leases without a sign of life for too long, longest silence first.
-- rows:  one for each, at most limit
-- locks: none
SELECT lease.job_id, lease.run_lease
FROM awa.leases AS lease
LEFT JOIN awa.attempt_state AS state USING (job_id, run_lease)
WHERE lease.state = 'running'
    AND coalesce(state.heartbeat_at, lease.heartbeat_at) < statement_timestamp() - %(silence)s::interval
    AND lease.job_id <> ALL (%(passed_over)s::bigint[])
ORDER BY coalesce(state.heartbeat_at, lease.heartbeat_at)
LIMIT %(limit)s;

-- name: expired_leases
-- Running leases past their deadline, earliest first.
-- rows:  one for each, at most limit
-- locks: none
SELECT job_id, run_lease
FROM awa.leases
WHERE state = 'running'
    AND deadline_at < statement_timestamp()
    AND job_id <> ALL (%(passed_over)s::bigint[])
ORDER BY deadline_at
LIMIT %(limit)s;

-- name: unanswered_leases
-- Leases that wait for a callback past its time, earliest first.
-- rows:  one for each, at most limit
-- locks: none
SELECT job_id, run_lease
FROM awa.leases
WHERE state = 'waiting_external'
    AND callback_timeout_at < statement_timestamp()
    AND job_id <> ALL (%(passed_over)s::bigint[])
ORDER BY callback_timeout_at
LIMIT %(limit)s;

-- name: receipts_of_leases
-- Where the receipts of leases lie. Batches are unnested once, not once for each lease.
-- rows:  one for each lease; claim_slot NULL if no receipt is left
-- locks: none
WITH wanted AS MATERIALIZED (
    SELECT lease.job_id, lease.run_lease, lease.ready_slot, lease.ready_generation
    FROM awa.leases AS lease
    JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS pair (job_id, run_lease)
        USING (job_id, run_lease)
),
item AS MATERIALIZED (
    SELECT batch.claim_slot, batch.batch_id, entry.job_id, entry.run_lease, entry.receipt_id
    FROM (SELECT DISTINCT ready_slot, ready_generation FROM wanted) AS place
    JOIN awa.lease_claim_batches AS batch USING (ready_slot, ready_generation),
        unnest(batch.job_ids, batch.run_leases, batch.receipt_ids) AS entry (job_id, run_lease, receipt_id)
)
SELECT DISTINCT ON (wanted.job_id, wanted.run_lease)
    wanted.job_id, wanted.run_lease,
    coalesce(claim.claim_slot, item.claim_slot),
    coalesce(claim.receipt_id, item.receipt_id),
    CASE WHEN claim.claim_slot IS NULL THEN item.batch_id END
FROM wanted
LEFT JOIN awa.lease_claims AS claim USING (job_id, run_lease)
LEFT JOIN item USING (job_id, run_lease)
ORDER BY wanted.job_id, wanted.run_lease;

-- name: hold_evidence
-- The claim evidence of attempts, as far as nobody else holds it.
-- rows:  one for each attempt whose evidence is held now
-- locks: lease_claims and lease_claim_batches rows, FOR UPDATE, none of them waited for
WITH wanted AS MATERIALIZED (
    SELECT claim_slot, job_id, run_lease, batch_id
    FROM unnest(
        %(claim_slots)s::integer[], %(job_ids)s::bigint[], %(run_leases)s::bigint[], %(batch_ids)s::bigint[]
    ) AS attempt (claim_slot, job_id, run_lease, batch_id)
),
claim_rows AS MATERIALIZED (
    SELECT claim.job_id, claim.run_lease
    FROM awa.lease_claims AS claim
    JOIN wanted USING (claim_slot, job_id, run_lease)
    WHERE wanted.batch_id IS NULL
    FOR UPDATE OF claim SKIP LOCKED
),
claim_batches AS MATERIALIZED (
    SELECT batch.claim_slot, batch.batch_id
    FROM awa.lease_claim_batches AS batch
    WHERE (batch.claim_slot, batch.batch_id) IN (SELECT claim_slot, batch_id FROM wanted)
    FOR UPDATE OF batch SKIP LOCKED
)
SELECT job_id, run_lease
FROM claim_rows
UNION ALL
SELECT wanted.job_id, wanted.run_lease
FROM wanted
JOIN claim_batches USING (claim_slot, batch_id);

-- name: hold_quiet_leases
-- Which of these leases are running and quiet still.
-- rows:  one for each
-- locks: lease rows, FOR UPDATE, none of them waited for
SELECT lease.job_id, lease.run_lease
FROM awa.leases AS lease
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS wanted (job_id, run_lease)
    USING (job_id, run_lease)
LEFT JOIN awa.attempt_state AS state USING (job_id, run_lease)
WHERE lease.state = 'running'
    AND coalesce(state.heartbeat_at, lease.heartbeat_at) < statement_timestamp() - %(silence)s::interval
FOR UPDATE OF lease SKIP LOCKED;

-- name: hold_expired_leases
-- Which of these leases are running and past their deadline still.
-- rows:  one for each
-- locks: lease rows, FOR UPDATE, none of them waited for
SELECT lease.job_id, lease.run_lease
FROM awa.leases AS lease
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS wanted (job_id, run_lease)
    USING (job_id, run_lease)
WHERE lease.state = 'running' AND lease.deadline_at < statement_timestamp()
FOR UPDATE OF lease SKIP LOCKED;

-- name: hold_unanswered_leases
-- Which of these leases wait past their callback's time still.
-- rows:  one for each
-- locks: lease rows, FOR UPDATE, none of them waited for
SELECT lease.job_id, lease.run_lease
FROM awa.leases AS lease
JOIN unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS wanted (job_id, run_lease)
    USING (job_id, run_lease)
WHERE lease.state = 'waiting_external' AND lease.callback_timeout_at < statement_timestamp()
FOR UPDATE OF lease SKIP LOCKED;

-- name: claim_slots_in_use
-- The slots that hold receipts, the longest sealed first.
-- rows:  one for each
-- locks: none
SELECT slot
FROM awa.claim_ring_state AS ring, generate_series(0, ring.slot_count - 1) AS slot
WHERE pg_relation_size(format('awa.lease_claims_%%s', slot)::regclass) > 0
    OR pg_relation_size(format('awa.lease_claim_batches_%%s', slot)::regclass) > 0
ORDER BY (slot - ring.current_slot - 1 + ring.slot_count) %% ring.slot_count;

-- name: old_receipts
-- Receipts of a slot that are not closed and older than the silence allowed, from the cursor on and then from the
-- start again. Those of whole batches that are closed are never unnested.
-- rows:  one for each, at most 10 000: its place in the scan, where it lies, and whether it is stale
-- locks: none
WITH closed AS MATERIALIZED (
    SELECT coalesce(range_agg(span), '{}') AS receipts
    FROM awa.lease_claim_closure_batches/*_slot*/ AS closure, unnest(closure.receipt_ranges) AS span
),
open AS (
    SELECT claim.claimed_at, claim.job_id, claim.run_lease, claim.ready_slot, claim.receipt_id, NULL::bigint AS batch_id
    FROM awa.lease_claims/*_slot*/ AS claim
    WHERE claim.claimed_at < statement_timestamp() - %(silence)s::interval
        AND claim.closed_at IS NULL
        AND NOT (SELECT receipts FROM closed) @> claim.receipt_id
    UNION ALL
    SELECT batch.claimed_at, item.job_id, item.run_lease, batch.ready_slot, item.receipt_id, batch.batch_id
    FROM awa.lease_claim_batches/*_slot*/ AS batch,
        unnest(batch.job_ids, batch.run_leases, batch.receipt_ids) AS item (job_id, run_lease, receipt_id)
    WHERE batch.claimed_at < statement_timestamp() - %(silence)s::interval
        AND NOT (SELECT receipts FROM closed) @> batch.receipt_ranges
        AND NOT (SELECT receipts FROM closed) @> item.receipt_id
),
scan AS MATERIALIZED (
    SELECT
        open.*,
        row_number() OVER (
            ORDER BY
                (open.claimed_at, open.job_id, open.run_lease)
                    <= (ring.rescue_cursor_claimed_at, ring.rescue_cursor_job_id, ring.rescue_cursor_run_lease),
                open.claimed_at, open.job_id, open.run_lease
        ) AS place
    FROM open, awa.claim_ring_slots AS ring
    WHERE ring.slot = %(slot)s AND open.job_id <> ALL (%(passed_over)s::bigint[])
    ORDER BY place
    LIMIT 10000
)
SELECT
    scan.claimed_at, scan.job_id, scan.run_lease, scan.receipt_id, scan.batch_id,
    CASE
        WHEN coalesce(state.heartbeat_at, scan.claimed_at) >= statement_timestamp() - %(silence)s::interval THEN false
        WHEN EXISTS (
            SELECT FROM awa.leases AS lease
            WHERE lease.job_id = scan.job_id AND lease.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.lease_claim_closures/*_slot*/ AS closure
            WHERE closure.job_id = scan.job_id AND closure.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.deferred_jobs AS deferred
            WHERE deferred.job_id = scan.job_id AND deferred.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.dlq_entries AS dead
            WHERE dead.job_id = scan.job_id AND dead.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.done_entries AS done
            WHERE done.ready_slot = scan.ready_slot
                AND done.job_id = scan.job_id
                AND done.run_lease = scan.run_lease
        ) THEN false
        ELSE true
    END AS stale
FROM scan
LEFT JOIN awa.attempt_state AS state USING (job_id, run_lease)
ORDER BY scan.place;

-- name: still_quiet
-- Which of these attempts have given no sign of life meanwhile.
-- rows:  one for each
-- locks: none
SELECT wanted.job_id, wanted.run_lease
FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS wanted (job_id, run_lease)
LEFT JOIN awa.attempt_state AS state USING (job_id, run_lease)
WHERE state.heartbeat_at IS NULL OR state.heartbeat_at < statement_timestamp() - %(silence)s::interval;

-- name: overdue_receipts
-- Row receipts of a slot that are not closed and past their deadline, from the cursor on and then from the start
-- again.
-- rows:  one for each, at most 10 000: its place in the scan, where it lies, and whether it is to be taken
-- locks: none
WITH closed AS MATERIALIZED (
    SELECT coalesce(range_agg(span), '{}') AS receipts
    FROM awa.lease_claim_closure_batches/*_slot*/ AS closure, unnest(closure.receipt_ranges) AS span
),
scan AS MATERIALIZED (
    SELECT
        claim.deadline_at, claim.job_id, claim.run_lease, claim.ready_slot, claim.receipt_id,
        row_number() OVER (
            ORDER BY
                (claim.deadline_at, claim.job_id, claim.run_lease)
                    <= (
                        ring.deadline_cursor_deadline_at, ring.deadline_cursor_job_id,
                        ring.deadline_cursor_run_lease
                    ),
                claim.deadline_at, claim.job_id, claim.run_lease
        ) AS place
    FROM awa.lease_claims/*_slot*/ AS claim, awa.claim_ring_slots AS ring
    WHERE ring.slot = %(slot)s
        AND claim.deadline_at < statement_timestamp()
        AND claim.closed_at IS NULL
        AND NOT (SELECT receipts FROM closed) @> claim.receipt_id
        AND claim.job_id <> ALL (%(passed_over)s::bigint[])
    ORDER BY place
    LIMIT 10000
)
SELECT
    scan.deadline_at, scan.job_id, scan.run_lease, scan.receipt_id, NULL::bigint AS batch_id,
    CASE
        WHEN EXISTS (
            SELECT FROM awa.leases AS lease
            WHERE lease.job_id = scan.job_id AND lease.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.lease_claim_closures/*_slot*/ AS closure
            WHERE closure.job_id = scan.job_id AND closure.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.deferred_jobs AS deferred
            WHERE deferred.job_id = scan.job_id AND deferred.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.dlq_entries AS dead
            WHERE dead.job_id = scan.job_id AND dead.run_lease = scan.run_lease
        ) THEN false
        WHEN EXISTS (
            SELECT FROM awa.done_entries AS done
            WHERE done.ready_slot = scan.ready_slot
                AND done.job_id = scan.job_id
                AND done.run_lease = scan.run_lease
        ) THEN false
        ELSE true
    END AS overdue
FROM scan
ORDER BY scan.place;

-- name: move_stale_cursor
-- Where the next scan for stale receipts of a slot goes on. It only saves work: a scan wraps round.
-- rows:  none
-- locks: the slot's row
UPDATE awa.claim_ring_slots
SET rescue_cursor_claimed_at = %(at)s, rescue_cursor_job_id = %(job_id)s, rescue_cursor_run_lease = %(run_lease)s
WHERE slot = %(slot)s;

-- name: move_deadline_cursor
-- Where the next scan for overdue receipts of a slot goes on.
-- rows:  none
-- locks: the slot's row
UPDATE awa.claim_ring_slots
SET deadline_cursor_deadline_at = %(at)s,
    deadline_cursor_job_id = %(job_id)s,
    deadline_cursor_run_lease = %(run_lease)s
WHERE slot = %(slot)s;
