-- What an examination of the whole installation asks the server (operations.doctor). Nothing here takes locks, and
-- all but the schema's own rights works on a server without schema awa.

-- name: clock
-- What time the database has.
-- rows:  one
-- locks: none
SELECT clock_timestamp();

-- name: notify
-- Send an empty notification.
-- rows:  one
-- locks: none
SELECT pg_notify(%(channel)s::text, '');

-- name: notifications
-- Which part of the room for notifications that somebody has yet to read is taken, from 0 to 1.
-- rows:  one
-- locks: none
SELECT pg_notification_queue_usage();

-- name: session
-- What sessions of this role begin with, whatever this one changed; times in milliseconds.
-- rows:  one
-- locks: none
SELECT
    pg_is_in_recovery() AS in_recovery,
    current_setting('server_version') AS server,
    jsonb_object_agg(name, reset_val) AS settings
FROM pg_catalog.pg_settings
WHERE name IN (
    'statement_timeout', 'lock_timeout', 'idle_session_timeout', 'transaction_timeout',
    'default_transaction_isolation', 'default_transaction_read_only', 'session_replication_role', 'autovacuum',
    'track_counts'
);

-- name: sees_sessions
-- Whether this role sees what sessions of other roles do.
-- rows:  one
-- locks: none
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');

-- name: old_sessions
-- Sessions of this database that keep vacuum back: the oldest open transactions. The examination's own is not one.
-- rows:  at most ten, the oldest first
-- locks: none
SELECT
    pid, coalesce(usename, '?'), coalesce(nullif(application_name, ''), 'no name'), coalesce(state, '?'),
    extract(epoch FROM clock_timestamp() - xact_start)::double precision AS age,
    CASE
        WHEN starts_with(state, 'idle in transaction')
            THEN extract(epoch FROM clock_timestamp() - state_change)::double precision
    END AS idle
FROM pg_catalog.pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND xact_start < clock_timestamp() - make_interval(secs => %(age)s::double precision)
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND backend_type IS DISTINCT FROM 'autovacuum worker'
ORDER BY xact_start
LIMIT 10;

-- name: prepared
-- Prepared transactions of this database that nobody has ended.
-- rows:  at most ten, the oldest first
-- locks: none
SELECT gid, owner::text, extract(epoch FROM clock_timestamp() - prepared)::double precision
FROM pg_catalog.pg_prepared_xacts
WHERE database = current_database()
    AND prepared < clock_timestamp() - make_interval(secs => %(age)s::double precision)
ORDER BY prepared
LIMIT 10;

-- name: horizons
-- Replication slots and standbys that hold old row versions.
-- rows:  one for each: what it is, its name, whether it is in use, transactions it lags behind
-- locks: none
SELECT 'replication slot' AS sort, slot_name::text, active, age(xmin)::bigint AS lag
FROM pg_catalog.pg_replication_slots
WHERE xmin IS NOT NULL AND age(xmin) > %(transactions)s::bigint
UNION ALL
SELECT 'standby', coalesce(nullif(application_name, ''), pid::text), true, age(backend_xmin)::bigint
FROM pg_catalog.pg_stat_replication
WHERE backend_xmin IS NOT NULL AND age(backend_xmin) > %(transactions)s::bigint
ORDER BY lag DESC
LIMIT 10;

-- name: kept_wal
-- Replication slots that nobody uses and that keep files of the write-ahead log.
-- rows:  at most ten, the worst first: name, bytes
-- locks: none
SELECT slot_name::text, kept::bigint
FROM pg_catalog.pg_replication_slots
CROSS JOIN LATERAL pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
) AS kept
WHERE NOT active AND kept > %(bytes)s::bigint
ORDER BY kept DESC
LIMIT 10;

-- name: blockers
-- Sessions of this database that hold locks for which others have waited for long, and do not wait themselves.
-- rows:  at most five, the longest wait first: process id (0 of a prepared transaction), name, state, how many wait,
--        the longest wait, a table that is waited for
-- locks: none
WITH waiting AS MATERIALIZED (
    SELECT waits.pid, waits.waitstart, waits.relation
    FROM pg_catalog.pg_locks AS waits
    JOIN pg_catalog.pg_stat_activity AS session USING (pid)
    WHERE NOT waits.granted
        AND session.datname = current_database()
        AND waits.waitstart < clock_timestamp() - make_interval(secs => %(wait)s::double precision)
),
blocked AS MATERIALIZED (
    SELECT waiting.pid, waiting.waitstart, waiting.relation, blocking.pid AS by
    FROM waiting
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
)
SELECT
    blocked.by, coalesce(nullif(session.application_name, ''), 'no name'), coalesce(session.state, '?'),
    count(DISTINCT blocked.pid),
    extract(epoch FROM clock_timestamp() - min(blocked.waitstart))::double precision AS longest,
    min(blocked.relation::regclass::text)
FROM blocked
LEFT JOIN pg_catalog.pg_stat_activity AS session ON session.pid = blocked.by
WHERE blocked.by NOT IN (SELECT pid FROM waiting)
GROUP BY blocked.by, session.application_name, session.state
ORDER BY longest DESC
LIMIT 5;

-- name: connections
-- How many connections there may be, and are. A limit of -1 is none.
-- rows:  one
-- locks: none
SELECT
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS most,
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname IS NOT NULL) AS used,
    (SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = current_user) AS role_most,
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE usename = current_user) AS role_used,
    (SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = current_database()) AS database_most,
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname = current_database()) AS database_used;

-- name: rights
-- What this role may not do that producers, workers and the leader do (contract: api/security section 2). A lane's
-- sequences are made by the role that stores its first job; in a schema of ours by its owner, for whoever does.
-- rows:  one: whether lanes can be made for it, sequences it may not use, tables it may not write or empty, functions it
--        may not call, whether it may write to the table of batch operations (NULL without one)
-- locks: none
SELECT
    current_user::text,
    has_schema_privilege('awa', 'CREATE') OR EXISTS (
        SELECT
        FROM pg_catalog.pg_proc AS maker
        JOIN pg_catalog.pg_proc AS sync ON sync.oid = to_regprocedure('awa.queue_enqueue_head_sequence_sync()')
        WHERE maker.oid = to_regprocedure(
                'awa.awa_django_create_registered_lane_sequences(text, smallint, smallint)'
            )
            AND maker.prosecdef
            AND has_schema_privilege(maker.proowner, 'awa', 'CREATE')
            AND has_function_privilege(maker.oid, 'EXECUTE')
            AND sync.prosrc LIKE '%%awa_django_need_lane_sequences%%'
    ) AS may_make_lanes,
    ARRAY(
        SELECT relname::text
        FROM pg_catalog.pg_class
        WHERE relnamespace = 'awa'::regnamespace
            AND relkind = 'S'
            AND NOT (
                has_sequence_privilege(oid, 'USAGE')
                AND has_sequence_privilege(oid, 'SELECT')
                AND has_sequence_privilege(oid, 'UPDATE')
            )
        ORDER BY relname
    ) AS sequences,
    ARRAY(
        SELECT relname::text
        FROM pg_catalog.pg_class
        WHERE relnamespace = 'awa'::regnamespace
            AND relkind IN ('r', 'p')
            AND NOT (
                has_table_privilege(oid, 'SELECT')
                AND has_table_privilege(oid, 'INSERT')
                AND has_table_privilege(oid, 'UPDATE')
                AND has_table_privilege(oid, 'DELETE')
            )
        ORDER BY relname
    ) AS tables,
    ARRAY(
        SELECT relname::text
        FROM pg_catalog.pg_class
        WHERE relnamespace = 'awa'::regnamespace
            AND relkind = 'r'
            AND relispartition
            AND NOT has_table_privilege(oid, 'TRUNCATE')
        ORDER BY relname
    ) AS untruncatable,
    ARRAY(
        SELECT DISTINCT proname::text
        FROM pg_catalog.pg_proc
        WHERE pronamespace = 'awa'::regnamespace
            AND proname <> 'install_queue_storage_substrate'    -- the schema's owner alone calls it
            AND NOT has_function_privilege(oid, 'EXECUTE')
        ORDER BY proname::text
    ) AS functions,
    has_table_privilege(batches.oid, 'SELECT')
        AND has_table_privilege(batches.oid, 'INSERT')
        AND has_table_privilege(batches.oid, 'UPDATE')
        AND has_table_privilege(batches.oid, 'DELETE') AS may_run_batches
FROM (SELECT to_regclass('awa_django_batchoperation')::oid AS oid) AS batches;

-- name: catalogue
-- What somebody may have changed about the schema that is dangerous.
-- rows:  one: indexes that are gone, indexes that are not valid, triggers that are off, lane sequences that hand numbers
--        out in blocks, tables that a crash empties, tables that autovacuum passes over
-- locks: none
SELECT
    ARRAY(
        SELECT wanted.name
        FROM unnest(%(indexes)s::text[]) AS wanted (name)
        WHERE to_regclass('awa.' || wanted.name) IS NULL
        UNION ALL
        -- Of the children of a ring some have fewer than the others.
        SELECT 'one of ' || child
        FROM (
            SELECT
                class.relname::text AS child,
                count(index.indexrelid) AS present,
                max(count(index.indexrelid)) OVER (PARTITION BY inherits.inhparent) AS wanted
            FROM pg_catalog.pg_inherits AS inherits
            JOIN pg_catalog.pg_class AS class ON class.oid = inherits.inhrelid
            LEFT JOIN pg_catalog.pg_index AS index ON index.indrelid = class.oid
            WHERE class.relnamespace = 'awa'::regnamespace AND class.relkind = 'r'
            GROUP BY inherits.inhparent, class.oid, class.relname
        ) AS children
        WHERE present < wanted
        ORDER BY 1
    ) AS missing_indexes,
    ARRAY(
        SELECT class.relname::text
        FROM pg_catalog.pg_index AS index
        JOIN pg_catalog.pg_class AS class ON class.oid = index.indexrelid
        WHERE class.relnamespace = 'awa'::regnamespace AND NOT index.indisvalid
        ORDER BY class.relname
    ) AS invalid_indexes,
    ARRAY(
        SELECT class.relname || '.' || trigger.tgname
        FROM pg_catalog.pg_trigger AS trigger
        JOIN pg_catalog.pg_class AS class ON class.oid = trigger.tgrelid
        WHERE class.relnamespace = 'awa'::regnamespace AND NOT trigger.tgisinternal AND trigger.tgenabled = 'D'
        ORDER BY class.relname, trigger.tgname
    ) AS triggers_off,
    ARRAY(
        SELECT class.relname::text
        FROM pg_catalog.pg_sequence AS sequence
        JOIN pg_catalog.pg_class AS class ON class.oid = sequence.seqrelid
        WHERE class.relnamespace = 'awa'::regnamespace
            AND sequence.seqcache > 1
            AND class.relname ~ '^queue_(enqueue|claim)_seq_'
        ORDER BY class.relname
    ) AS cached_sequences,
    ARRAY(
        SELECT relname::text
        FROM pg_catalog.pg_class
        WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r' AND relpersistence = 'u'
        ORDER BY relname
    ) AS unlogged,
    ARRAY(
        SELECT relname::text
        FROM pg_catalog.pg_class
        WHERE relnamespace = 'awa'::regnamespace
            AND relkind = 'r'
            AND reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0']
        ORDER BY relname
    ) AS unvacuumed;

-- name: dead_rows
-- Tables of the schema in which vacuum has fallen behind.
-- rows:  at most five, the worst first: name, dead and live rows, when it was vacuumed last
-- locks: none
SELECT relname::text, n_dead_tup, n_live_tup, greatest(last_vacuum, last_autovacuum)
FROM pg_catalog.pg_stat_user_tables
WHERE schemaname = 'awa' AND n_dead_tup > %(dead)s::bigint AND n_dead_tup > n_live_tup
ORDER BY n_dead_tup DESC
LIMIT 5;

-- name: unanalyzed
-- Tables of the schema of more than so many bytes of which the planner knows nothing, as after a restore.
-- rows:  one if there are any: how many, and the name of the largest
-- locks: none
SELECT count(*), (array_agg(relname::text ORDER BY pg_relation_size(oid) DESC))[1]
FROM pg_catalog.pg_class
WHERE relnamespace = 'awa'::regnamespace
    AND relkind = 'r'
    AND reltuples < 0
    AND pg_relation_size(oid) > %(bytes)s::bigint
HAVING count(*) > 0;

-- name: wraparound
-- Transactions since the oldest row of this database was frozen, and after how many vacuum is forced to.
-- rows:  one
-- locks: none
SELECT age(datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint
FROM pg_catalog.pg_database
WHERE datname = current_database();
