-- What every page of the admin shows in its frame (contract: api/web_ui section 1).

-- name: pulse
-- How the queue does at a glance. Dead letters are counted up to a limit.
-- rows:  one: live workers, leaders among them, unwell ones, the storage engine and its state, dead letters
-- locks: none
WITH live AS (
    SELECT leader, healthy
    FROM awa.runtime_instances
    WHERE NOT shutting_down
        AND last_seen_at >= statement_timestamp() - make_interval(
            secs => least(greatest(30, 3.0 * greatest(snapshot_interval_ms, 1000) / 1000), 1e9)::double precision
        )
),
dead AS (
    SELECT
    FROM awa.dlq_entries
    LIMIT %(limit)s
)
SELECT
    (SELECT count(*) FROM live),
    (SELECT count(*) FROM live WHERE leader),
    (SELECT count(*) FROM live WHERE NOT healthy),
    transition.current_engine,
    transition.state,
    (SELECT count(*) FROM dead)
FROM awa.storage_transition_state AS transition;
