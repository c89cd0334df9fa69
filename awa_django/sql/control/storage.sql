-- Which engine takes new jobs, and the steps from one to the other (contract: control-functions section 6).

-- name: lock_transition
-- Keep every other step out, before anything that this one decides on is read.
-- rows:  one; none where the row is missing
-- locks: the transition's row, FOR UPDATE
SELECT state
FROM awa.storage_transition_state
WHERE singleton
FOR UPDATE;

-- name: report
-- How far a move is, and what the next steps look at. A runtime counts as long as it may be running: three of its own
-- snapshot intervals in whole seconds, and at least 30 s, however healthy it is.
-- rows:  one; none where the transition's row is missing
-- locks: none
WITH live AS MATERIALIZED (
    SELECT storage_capability, transition_role
    FROM awa.runtime_instances
    WHERE extract(epoch FROM now() - last_seen_at)
        <= GREATEST(30, 3 * (GREATEST(snapshot_interval_ms, 1000) / 1000))
)
SELECT
    status.state,
    status.current_engine,
    status.active_engine,
    status.prepared_engine,
    status.transition_epoch,
    nullif(status.details ->> 'schema', '') AS named_schema,
    coalesce((status.details -> 'auto_finalized') = 'true', false) AS auto_finalized,
    awa.canonical_live_backlog() AS backlog,
    status.entered_at,
    status.updated_at,
    status.finalized_at,
    (SELECT count(*) FROM live WHERE storage_capability = 'canonical') AS canonical,
    (SELECT count(*) FROM live WHERE storage_capability = 'canonical_drain_only') AS canonical_drain_only,
    (SELECT count(*) FROM live WHERE storage_capability = 'queue_storage') AS queue_storage,
    (
        SELECT count(*)
        FROM live
        WHERE storage_capability = 'queue_storage' AND transition_role = 'queue_storage_target'
    ) AS targets
FROM awa.storage_status() AS status;

-- name: used_tables
-- The tables of queue storage in schema awa that hold jobs, or what is left of them.
-- rows:  their names
-- locks: none
SELECT place.name
FROM (
    VALUES
        ('ready_entries', EXISTS (SELECT FROM awa.ready_entries)),
        ('ready_claim_attempt_batches', EXISTS (SELECT FROM awa.ready_claim_attempt_batches)),
        ('ready_tombstones', EXISTS (SELECT FROM awa.ready_tombstones)),
        ('ready_segments', EXISTS (SELECT FROM awa.ready_segments)),
        ('deferred_jobs', EXISTS (SELECT FROM awa.deferred_jobs)),
        ('leases', EXISTS (SELECT FROM awa.leases)),
        ('lease_claims', EXISTS (SELECT FROM awa.lease_claims)),
        ('lease_claim_closures', EXISTS (SELECT FROM awa.lease_claim_closures)),
        ('lease_claim_closure_batches', EXISTS (SELECT FROM awa.lease_claim_closure_batches)),
        ('attempt_state', EXISTS (SELECT FROM awa.attempt_state)),
        ('done_entries', EXISTS (SELECT FROM awa.done_entries)),
        ('receipt_completion_batches', EXISTS (SELECT FROM awa.receipt_completion_batches)),
        ('receipt_completion_tombstones', EXISTS (SELECT FROM awa.receipt_completion_tombstones)),
        ('dlq_entries', EXISTS (SELECT FROM awa.dlq_entries))
) AS place (name, is_used)
WHERE place.is_used;

-- name: writers
-- Other transactions that may have stored jobs in queue storage, as they lock its tables to write.
-- rows:  one
-- locks: none
SELECT count(DISTINCT (held.pid, held.virtualtransaction))
FROM pg_locks AS held
WHERE held.locktype = 'relation'
    AND held.mode = 'RowExclusiveLock'
    AND held.granted
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND held.relation IN ('awa.ready_entries'::regclass, 'awa.deferred_jobs'::regclass)
    AND held.pid IS DISTINCT FROM pg_backend_pid();

-- name: prepare
-- Choose queue storage in schema awa as the engine to move to.
-- rows:  one, as storage_status
-- locks: the transition's row
SELECT state
FROM awa.storage_prepare('queue_storage', '{"schema": "awa"}');

-- name: enter_mixed
-- Send new jobs to queue storage.
-- rows:  one, as storage_status
-- locks: the transition's row, then the marker
SELECT state
FROM awa.storage_enter_mixed_transition();

-- name: finalize
-- End the move.
-- rows:  one, as storage_status
-- locks: the transition's row
SELECT state
FROM awa.storage_finalize();

-- name: abort
-- Go back to the canonical tables.
-- rows:  one, as storage_status
-- locks: the transition's row, then the marker
SELECT state
FROM awa.storage_abort();

-- name: promote_if_fresh
-- Put queue storage in force where nothing was ever stored and nobody runs.
-- rows:  one: whether that was done
-- locks: the transition's row
SELECT awa.storage_auto_finalize_if_fresh('awa');
