-- Worker processes as operators see them (contract: api/admin_ops section 6, runtime/instances).

-- name: runtimes
-- Every process that reported within a day, or the one given, and whether it has been silent for too long: for three of
-- its intervals, each of a second at least, and for 30 s at least. Of those that have, the latest, at most so many. The
-- JSON is as its process wrote it.
-- rows:  one for each, the one that reported last first; with how many there are in all, and how many of those silent
-- locks: none
WITH seen AS MATERIALIZED (
    SELECT
        instance_id, stale, count(*) OVER () AS total, count(*) FILTER (WHERE stale) OVER () AS silent,
        row_number() OVER (PARTITION BY stale ORDER BY last_seen_at DESC, instance_id) AS place
    FROM (
        SELECT
            instance_id, last_seen_at,
            last_seen_at < statement_timestamp() - make_interval(
                secs => least(greatest(30, 3.0 * greatest(snapshot_interval_ms, 1000) / 1000), 1e9)::double precision
            ) AS stale
        FROM awa.runtime_instances
        WHERE %(instance_id)s::uuid IS NULL OR instance_id = %(instance_id)s::uuid
    ) AS instance
)
SELECT
    seen.total, seen.silent, seen.instance_id, hostname, pid, version, storage_capability, transition_role, started_at,
    last_seen_at, snapshot_interval_ms, seen.stale, healthy, postgres_connected, poll_loop_alive, heartbeat_alive,
    maintenance_alive, shutting_down, leader, global_max_workers, queues, job_kind_descriptor_hashes
FROM seen
JOIN awa.runtime_instances AS instance USING (instance_id)
WHERE NOT seen.stale OR seen.place <= %(silent)s
ORDER BY last_seen_at DESC, seen.instance_id;
