-- Repairing what other clients leave behind (contract: queue-storage/maintenance section 10; H-07, H-19).

-- name: claims_page
-- Unique claims in key order, and whether anything of their job is left. A ready row stays as long as any receipt,
-- lease or compact success that refers to it, so those need no look of their own.
-- rows:  at most limit: key, job, and whether it is an orphan
-- locks: none
WITH page AS MATERIALIZED (
    SELECT unique_key, job_id
    FROM awa.job_unique_claims
    WHERE unique_key > %(after)s
    ORDER BY unique_key
    LIMIT %(limit)s
)
SELECT
    unique_key, job_id,
    NOT (
        EXISTS (SELECT FROM awa.ready_entries AS ready WHERE ready.job_id = page.job_id)
        OR EXISTS (SELECT FROM awa.deferred_jobs AS deferred WHERE deferred.job_id = page.job_id)
        OR EXISTS (SELECT FROM awa.done_entries AS done WHERE done.job_id = page.job_id)
        OR EXISTS (SELECT FROM awa.dlq_entries AS dead WHERE dead.job_id = page.job_id)
        OR EXISTS (SELECT FROM awa.jobs_hot AS hot WHERE hot.id = page.job_id)
        OR EXISTS (SELECT FROM awa.scheduled_jobs AS scheduled WHERE scheduled.id = page.job_id)
    ) AS orphaned
FROM page
ORDER BY unique_key;

-- name: hold_claims
-- Keep these unique claims as they are, as far as nobody else is at them.
-- rows:  one for each held
-- locks: unique-claim rows, in key order, none of them waited for
SELECT claim.unique_key, claim.job_id
FROM awa.job_unique_claims AS claim
JOIN unnest(%(unique_keys)s::bytea[], %(job_ids)s::bigint[]) AS wanted (unique_key, job_id)
    USING (unique_key, job_id)
ORDER BY claim.unique_key
FOR UPDATE OF claim SKIP LOCKED;

-- name: release_orphans
-- Let go of those claims whose job is nowhere still.
-- rows:  one for each released
-- locks: unique-claim rows, held already
DELETE FROM awa.job_unique_claims AS claim
USING unnest(%(unique_keys)s::bytea[], %(job_ids)s::bigint[]) AS held (unique_key, job_id)
WHERE claim.unique_key = held.unique_key
    AND claim.job_id = held.job_id
    AND NOT EXISTS (SELECT FROM awa.ready_entries AS ready WHERE ready.job_id = held.job_id)
    AND NOT EXISTS (SELECT FROM awa.deferred_jobs AS deferred WHERE deferred.job_id = held.job_id)
    AND NOT EXISTS (SELECT FROM awa.done_entries AS done WHERE done.job_id = held.job_id)
    AND NOT EXISTS (SELECT FROM awa.dlq_entries AS dead WHERE dead.job_id = held.job_id)
    AND NOT EXISTS (SELECT FROM awa.jobs_hot AS hot WHERE hot.id = held.job_id)
    AND NOT EXISTS (SELECT FROM awa.scheduled_jobs AS scheduled WHERE scheduled.id = held.job_id)
RETURNING claim.job_id;

-- name: idle_states
-- Heartbeat rows that nobody has touched for an hour and that belong to no attempt. A live attempt beats, and one
-- that waits for a callback has a lease.
-- rows:  at most limit
-- locks: none
SELECT state.job_id, state.run_lease
FROM awa.attempt_state AS state
WHERE greatest(state.heartbeat_at, state.updated_at) < statement_timestamp() - interval '1 hour'
    AND NOT EXISTS (
        SELECT FROM awa.leases AS lease
        WHERE lease.job_id = state.job_id AND lease.run_lease = state.run_lease
    )
    AND NOT EXISTS (
        SELECT FROM awa.lease_claims AS claim
        WHERE claim.job_id = state.job_id AND claim.run_lease = state.run_lease
    )
    AND NOT EXISTS (
        SELECT
        FROM awa.lease_claim_batches AS batch,
            unnest(batch.job_ids, batch.run_leases) AS item (job_id, run_lease)
        WHERE item.job_id = state.job_id AND item.run_lease = state.run_lease
    )
LIMIT %(limit)s;

-- name: forget_idle_states
-- Remove such rows.
-- rows:  one for each
-- locks: attempt_state rows; the attempts' keys are held
DELETE FROM awa.attempt_state AS state
USING unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS idle (job_id, run_lease)
WHERE state.job_id = idle.job_id
    AND state.run_lease = idle.run_lease
    AND greatest(state.heartbeat_at, state.updated_at) < statement_timestamp() - interval '1 hour'
RETURNING state.job_id;
