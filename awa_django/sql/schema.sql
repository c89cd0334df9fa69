-- What a database says about its schema awa, and who may change it.

-- name: lock_installation
-- rows:  one, without meaning
-- locks: the key of awa's migrations (contract: schema section 3.1), until the transaction ends
SELECT pg_advisory_xact_lock(4708303813013489490);

-- name: lift_time_limit
-- A project's statement_timeout is meant for requests, not for an installation that waits its turn.
-- rows:  none
-- locks: none
SET LOCAL statement_timeout = 0;

-- name: outline
-- What is there, from the system catalogs alone; runs whether or not there is a schema.
-- rows:  one; missing: names of what a worker needs and the schema lacks (contract: schema section 2.3)
WITH needed_relation (kind, name) AS (
    VALUES
        ('sequence', 'job_id_seq'),
        ('sequence', 'lease_claim_receipt_id_seq'),
        ('sequence', 'lease_claim_batch_id_seq'),
        ('table', 'queue_ring_state'),
        ('table', 'ready_entries'),
        ('table', 'ready_claim_attempt_batches'),
        ('table', 'ready_tombstones'),
        ('table', 'ready_segments'),
        ('table', 'done_entries'),
        ('table', 'receipt_completion_batches'),
        ('table', 'receipt_completion_tombstones'),
        ('table', 'queue_terminal_count_deltas'),
        ('table', 'leases'),
        ('table', 'deferred_jobs'),
        ('table', 'lease_claims'),
        ('table', 'lease_claim_batches'),
        ('table', 'lease_claim_closures'),
        ('table', 'lease_claim_closure_batches')
),
needed_column (relation, name) AS (
    VALUES
        ('lease_claim_closure_batches', 'receipt_ranges'),
        ('queue_claim_heads', 'ready_segment_slot'),
        ('queue_claim_heads', 'ready_segment_generation'),
        ('queue_claim_heads', 'ready_segment_next_lane_seq')
),
missing AS (
    SELECT kind || ' ' || name AS what
    FROM needed_relation
    WHERE to_regclass('awa.' || name) IS NULL
    UNION ALL
    SELECT 'column ' || needed.relation || '.' || needed.name
    FROM needed_column AS needed
    WHERE NOT EXISTS (
        SELECT FROM pg_attribute AS present
        WHERE present.attrelid = to_regclass('awa.' || needed.relation)
            AND present.attname = needed.name
            AND NOT present.attisdropped
    )
    UNION ALL
    SELECT 'function claim_ready_runtime returning receipt_id, claim_batch_id and claim_batch_index'
    WHERE NOT EXISTS (
        SELECT FROM pg_proc AS present
        WHERE present.oid
                = to_regprocedure('awa.claim_ready_runtime(text, bigint, double precision, double precision)')
            AND pg_get_function_result(present.oid) LIKE ALL (
                ARRAY['%%receipt_id%%', '%%claim_batch_id%%', '%%claim_batch_index%%']
            )
    )
)
SELECT
    current_setting('server_version_num')::integer AS server,
    current_database()::text AS database,
    (
        EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('awa'))
        OR EXISTS (SELECT FROM pg_type WHERE typnamespace = to_regnamespace('awa'))
        OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('awa'))
    ) AS occupied,
    to_regclass('awa.schema_version') IS NOT NULL AS versioned,
    to_regclass('awa.queue_state_counts') IS NOT NULL AS numbered_as_now,
    to_regclass('awa.ring_cursor_authority') IS NOT NULL AS has_authority,
    obj_description(to_regclass('awa.schema_version'), 'pg_class') AS remark,
    coalesce(has_schema_privilege(to_regnamespace('awa'), 'CREATE'), false) AS may_create,
    coalesce(
        (SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE oid = to_regnamespace('awa')), false
    ) AS may_drop,
    ARRAY(SELECT what FROM missing) AS missing;

-- name: greatest_version
-- rows:  one; NULL while the table is empty
SELECT max(version) FROM awa.schema_version;

-- name: ring_cursor_authority
-- rows:  those of version 43's table, whole (contract: schema section 9)
SELECT to_jsonb(kept.*) FROM awa.ring_cursor_authority AS kept;

-- name: storage_schema
-- rows:  at most one: the schema that holds queue storage, once there is a move to it
SELECT coalesce(details ->> 'schema', 'awa')
FROM awa.storage_transition_state
WHERE state <> 'canonical';

-- name: promote_if_fresh
-- rows:  one: whether the installation was unused and uses queue storage now
-- locks: the storage transition and its marker, until the transaction ends
SELECT awa.storage_auto_finalize_if_fresh('awa');

-- name: private_objects
-- rows:  the names of awa_django's own functions and views in the schema
SELECT DISTINCT proname::text
FROM pg_proc
WHERE pronamespace = to_regnamespace('awa') AND starts_with(proname, 'awa_django_')
UNION
SELECT relname::text
FROM pg_class
WHERE relnamespace = to_regnamespace('awa') AND starts_with(relname, 'awa_django_');

-- name: lock_for_removal
-- rows:  none
-- locks: every table that a new job or a new runtime is written to first, exclusively, until the
--        transaction ends: what remains_of_work then answers stays so
LOCK TABLE
    awa.storage_transition_state,
    awa.jobs_hot,
    awa.scheduled_jobs,
    awa.ready_entries,
    awa.deferred_jobs,
    awa.cron_jobs,
    awa.runtime_instances
IN ACCESS EXCLUSIVE MODE;

-- name: remains_of_work
-- What keeps the schema from being removed.
-- rows:  the names of tables that hold jobs or what belongs to them
SELECT name
FROM (
    VALUES
        ('jobs_hot', EXISTS (SELECT FROM awa.jobs_hot)),
        ('scheduled_jobs', EXISTS (SELECT FROM awa.scheduled_jobs)),
        ('ready_entries', EXISTS (SELECT FROM awa.ready_entries)),
        ('deferred_jobs', EXISTS (SELECT FROM awa.deferred_jobs)),
        ('lease_claims', EXISTS (SELECT FROM awa.lease_claims)),
        ('lease_claim_batches', EXISTS (SELECT FROM awa.lease_claim_batches)),
        ('leases', EXISTS (SELECT FROM awa.leases)),
        ('done_entries', EXISTS (SELECT FROM awa.done_entries)),
        ('receipt_completion_batches', EXISTS (SELECT FROM awa.receipt_completion_batches)),
        ('dlq_entries', EXISTS (SELECT FROM awa.dlq_entries)),
        ('cron_jobs', EXISTS (SELECT FROM awa.cron_jobs)),
        (
            'runtime_instances',
            EXISTS (
                SELECT FROM awa.runtime_instances
                WHERE last_seen_at > clock_timestamp() - interval '90 seconds'
            )
        )
) AS place (name, is_used)
WHERE is_used;

-- name: drop_schema
-- rows:  none
-- locks: everything in it, exclusively
DROP SCHEMA awa CASCADE;
