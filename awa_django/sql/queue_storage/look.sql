-- What the leader looks at about once a second to know what is worth doing.

-- name: look
-- When the next deferred job is due, how the rings stand, and how large the children of each slot are.
-- A size of zero means that nothing was written since the slot was emptied; it needs no scan.
-- rows:  one
-- locks: none that anybody but the emptying of a slot waits for
SELECT
    clock.now,
    extract(
        epoch FROM least(
            (
                SELECT greatest(least(run_at, clock.tomorrow), clock.yesterday)
                FROM awa.deferred_jobs
                WHERE state = 'scheduled'
                    AND queue <> ALL (ARRAY(SELECT queue FROM awa.queue_meta WHERE paused))
                ORDER BY run_at
                LIMIT 1
            ),
            (
                SELECT greatest(least(run_at, clock.tomorrow), clock.yesterday)
                FROM awa.deferred_jobs
                WHERE state = 'retryable'
                    AND queue <> ALL (ARRAY(SELECT queue FROM awa.queue_meta WHERE paused))
                ORDER BY run_at
                LIMIT 1
            )
        ) - clock.now
    )::double precision AS due_in,
    queue_ring.generation AS queue_generation,
    ARRAY(
        SELECT sum(pg_relation_size(format('awa.%%s_%%s', family, slot)::regclass))::bigint
        FROM generate_series(0, queue_ring.slot_count - 1) AS slot,
            unnest(ARRAY[
                'ready_entries', 'ready_claim_attempt_batches', 'done_entries', 'ready_tombstones',
                'ready_segments', 'receipt_completion_batches', 'receipt_completion_tombstones',
                'queue_terminal_count_deltas'
            ]) AS family
        GROUP BY slot
        ORDER BY slot
    ) AS queue_bytes,
    claim_ring.generation AS claim_generation,
    ARRAY(
        SELECT sum(pg_relation_size(format('awa.%%s_%%s', family, slot)::regclass))::bigint
        FROM generate_series(0, claim_ring.slot_count - 1) AS slot,
            unnest(ARRAY[
                'lease_claims', 'lease_claim_batches', 'lease_claim_closures', 'lease_claim_closure_batches'
            ]) AS family
        GROUP BY slot
        ORDER BY slot
    ) AS claim_bytes,
    lease_ring.generation AS lease_generation,
    ARRAY(
        SELECT pg_relation_size(format('awa.leases_%%s', slot)::regclass)
        FROM generate_series(0, lease_ring.slot_count - 1) AS slot
        ORDER BY slot
    ) AS lease_bytes,
    EXISTS (
        SELECT FROM awa.batch_operations
        WHERE state IN ('pending', 'scanning', 'running', 'cancelling')
    ) AS operations,
    extract(
        epoch FROM least(
            (
                SELECT greatest(least(run_at, clock.tomorrow), clock.yesterday)
                FROM awa.scheduled_jobs
                WHERE state = 'scheduled'
                ORDER BY run_at
                LIMIT 1
            ),
            (
                SELECT greatest(least(run_at, clock.tomorrow), clock.yesterday)
                FROM awa.scheduled_jobs
                WHERE state = 'retryable'
                ORDER BY run_at
                LIMIT 1
            )
        ) - clock.now
    )::double precision AS canonical_due_in,
    EXISTS (SELECT FROM awa.jobs_hot) OR EXISTS (SELECT FROM awa.scheduled_jobs) AS canonical,
    -- Where queue storage is in force nobody reads the cached counters of the canonical tables.
    NOT EXISTS (SELECT FROM awa.runtime_storage_backends)
        AND (EXISTS (SELECT FROM awa.admin_dirty_queue_marks) OR EXISTS (SELECT FROM awa.admin_dirty_kind_marks))
        AS dirty
FROM awa.queue_ring_state AS queue_ring,
    awa.claim_ring_state AS claim_ring,
    awa.lease_ring_state AS lease_ring,
    (
        SELECT
            statement_timestamp() AS now,
            -- A job may be due at an infinite time, from which nothing can be subtracted.
            statement_timestamp() - interval '1 day' AS yesterday,
            statement_timestamp() + interval '1 day' AS tomorrow
    ) AS clock;
