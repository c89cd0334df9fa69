-- Who leads (contract: queue-storage/maintenance section 1).

-- name: try_to_lead
-- Become the leader if nobody is. While canonical jobs are left over from a move to queue storage, those who can
-- rescue and promote them go first: ours cannot.
-- rows:  one
-- locks: the leader's advisory key, for the session
SELECT CASE
    WHEN (SELECT state FROM awa.storage_transition_state) = 'mixed_transition'
        AND awa.canonical_live_backlog() > 0
        AND EXISTS (
            SELECT
            FROM awa.runtime_instances
            WHERE version NOT LIKE '%%+awa-django%%'
                AND maintenance_alive
                AND NOT shutting_down
                AND last_seen_at > now() - interval '30 seconds'
        )
        THEN false
    ELSE pg_try_advisory_lock(%(key)s)
END;

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
