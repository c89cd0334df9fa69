-- What keeps a queue from working, seen from the whole database (operations.why, operations.doctor).

-- name: standing
-- How a queue is set, and the time.
-- rows:  one
-- locks: none
SELECT statement_timestamp() AS now, coalesce(meta.paused, false) AS paused, meta.paused_at, meta.paused_by
FROM (VALUES (%(queue)s::text)) AS asked (queue)
LEFT JOIN awa.queue_meta AS meta USING (queue);

-- name: newest_id
-- The greatest id that was given to a job of either storage, whatever became of it; 0 if none was. A role that may
-- not look is told that all were.
-- rows:  one
-- locks: none
SELECT coalesce(max(CASE WHEN has_sequence_privilege(seq.oid, 'USAGE') OR has_sequence_privilege(seq.oid, 'SELECT')
    THEN pg_sequence_last_value(seq.oid) ELSE 9223372036854775807 END), 0)
FROM (VALUES ('awa.job_id_seq'::regclass::oid), ('awa.jobs_id_seq'::regclass::oid)) AS seq (oid);

-- name: leader
-- The session that leads the fleet. Of other roles' sessions only the process id may be visible.
-- rows:  at most one
-- locks: none
SELECT held.pid, activity.application_name, activity.client_addr::text, activity.state, activity.backend_start
FROM pg_catalog.pg_locks AS held
LEFT JOIN pg_catalog.pg_stat_activity AS activity USING (pid)
WHERE held.locktype = 'advisory'
    AND held.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND held.classid::bigint = %(key)s::bigint >> 32
    AND held.objid::bigint = %(key)s::bigint & 4294967295
    AND held.objsubid = 1
    AND held.granted;
