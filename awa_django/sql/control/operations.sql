-- What operators' functions need beside the planes (contract: api/admin_ops).

-- name: jit_off
-- No compiled plans until the transaction ends.
-- rows:  one: what the setting was
-- locks: none
SELECT current_setting('jit'), set_config('jit', 'off', true);

-- name: jit_on
-- Compiled plans again, until the transaction ends.
-- rows:  one
-- locks: none
SELECT set_config('jit', 'on', true);

-- name: notify_cancelled
-- Tell the workers that run these attempts, once the transaction commits.
-- rows:  one for each
-- locks: none
SELECT pg_notify('awa:cancel', format('{"job_id":%%s,"run_lease":%%s}', attempt.job_id, attempt.run_lease))
FROM unnest(%(job_ids)s::bigint[], %(run_leases)s::bigint[]) AS attempt (job_id, run_lease);
