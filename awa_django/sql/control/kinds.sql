-- Kinds as workers declare them (contract: api/admin_ops section 6, runtime/instances section 2).

-- name: declared
-- Kinds that have a description, or that a live worker declares.
-- rows:  one for each: its description, and how many live workers declare it
-- locks: none
WITH hashes AS (
    SELECT hash.key AS kind, count(*) AS workers, count(DISTINCT hash.value) > 1 AS mismatch
    FROM awa.runtime_instances AS instance, jsonb_each_text(instance.job_kind_descriptor_hashes) AS hash
    WHERE jsonb_typeof(instance.job_kind_descriptor_hashes) = 'object'
        AND instance.last_seen_at >= statement_timestamp() - make_interval(
            secs => least(greatest(30, 3.0 * greatest(instance.snapshot_interval_ms, 1000) / 1000), 1e9)
        )
    GROUP BY hash.key
)
SELECT
    kind, descriptor.display_name, descriptor.description, descriptor.owner, descriptor.docs_url,
    to_jsonb(descriptor.tags) AS tags, descriptor.extra, descriptor.last_seen_at,
    descriptor.last_seen_at < statement_timestamp() - make_interval(
        secs => least(greatest(30, 3.0 * descriptor.sync_interval_ms / 1000), 1e9)::double precision
    ) AS stale,
    hashes.mismatch, coalesce(hashes.workers, 0) AS workers
FROM awa.job_kind_descriptors AS descriptor
FULL JOIN hashes USING (kind);
