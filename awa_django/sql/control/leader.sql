-- Who leads (contract: queue-storage/maintenance section 1).

-- name: try_to_lead
-- Become the leader if nobody is.
-- rows:  one
-- locks: the leader's advisory key, for the session
SELECT pg_try_advisory_lock(%(key)s);

-- name: is_leading
-- Whether this session holds the leader's key.
-- rows:  one
-- locks: none
SELECT EXISTS (
    SELECT
    FROM pg_locks
    WHERE locktype = 'advisory'
        AND pid = pg_backend_pid()
        AND classid::bigint = %(key)s >> 32
        AND objid::bigint = %(key)s & 4294967295
        AND objsubid = 1
        AND granted
);

-- name: stop_leading
-- Let somebody else lead.
-- rows:  one
-- locks: none
SELECT pg_advisory_unlock(%(key)s);
