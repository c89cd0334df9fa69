-- What operators' functions need beside the planes (contract: api/admin_ops).

-- name: open_desk
-- Begin an operator's work: no compiled plans until the transaction ends, and a time limit for statements if one is
-- given, in milliseconds.
-- rows:  one: the schema that takes new jobs, NULL for the canonical tables; whether those hold any job; whether this
--        transaction may only read; what the two settings were
-- locks: none
WITH before AS MATERIALIZED (    -- read before it is changed
    SELECT current_setting('jit') AS jit, current_setting('statement_timeout') AS statement_timeout
)
SELECT
    awa.active_queue_storage_schema(),
    EXISTS (SELECT FROM awa.jobs_hot) OR EXISTS (SELECT FROM awa.scheduled_jobs),
    current_setting('transaction_read_only') = 'on',
    before.jit,
    before.statement_timeout,
    set_config('jit', 'off', true),
    CASE
        WHEN %(statement_timeout)s::bigint IS NOT NULL
            THEN set_config('statement_timeout', %(statement_timeout)s::text, true)
    END
FROM before;

-- name: close_desk
-- Give the caller's transaction its settings back.
-- rows:  one
-- locks: none
SELECT set_config('jit', %(jit)s::text, true), set_config('statement_timeout', %(statement_timeout)s::text, true);

-- name: notify_cancelled
-- Tell the workers that run these attempts, once the transaction commits.
-- rows:  one for each
-- locks: none
SELECT pg_notify('awa:cancel', format('{"job_id":%%s,"run_lease":%%s}', attempt.job_id, attempt.run_lease))
FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease);
