-- What a worker says about itself (contract: runtime/instances, schema section 5.7).

-- name: report
-- Write this process's row anew. One that serves the canonical tables could also serve queue storage, as long as
-- nothing goes there.
-- rows:  none
-- locks: one runtime_instances row
INSERT INTO awa.runtime_instances (
    instance_id, hostname, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy,
    postgres_connected, poll_loop_alive, heartbeat_alive, maintenance_alive, shutting_down, leader,
    global_max_workers, queues, queue_descriptor_hashes, job_kind_descriptor_hashes, storage_capability,
    transition_role
)
VALUES (
    %(instance_id)s, %(hostname)s, %(pid)s, %(version)s, %(started_at)s, now(), %(interval_ms)s, %(healthy)s,
    true, %(poll_loop_alive)s, %(heartbeat_alive)s, %(maintenance_alive)s, %(shutting_down)s, %(leader)s,
    %(global_max_workers)s, %(queues)s::text::jsonb, %(queue_hashes)s::text::jsonb, %(kind_hashes)s::text::jsonb,
    CASE
        WHEN %(is_canonical)s
            AND EXISTS (
                SELECT
                FROM awa.storage_transition_state
                WHERE singleton AND state IN ('mixed_transition', 'active')
            )
            THEN 'canonical_drain_only'
        ELSE 'queue_storage'
    END,
    %(role)s
)
ON CONFLICT (instance_id) DO UPDATE
SET last_seen_at = excluded.last_seen_at,
    healthy = excluded.healthy,
    postgres_connected = excluded.postgres_connected,
    poll_loop_alive = excluded.poll_loop_alive,
    heartbeat_alive = excluded.heartbeat_alive,
    maintenance_alive = excluded.maintenance_alive,
    shutting_down = excluded.shutting_down,
    leader = excluded.leader,
    queues = excluded.queues,
    queue_descriptor_hashes = excluded.queue_descriptor_hashes,
    job_kind_descriptor_hashes = excluded.job_kind_descriptor_hashes,
    storage_capability = excluded.storage_capability,
    transition_role = excluded.transition_role;

-- name: describe_queues
-- Declare these queues; updated_at moves only when a description changed.
-- rows:  none
-- locks: queue_descriptors rows, in name order
INSERT INTO awa.queue_descriptors AS known (
    queue, display_name, description, owner, docs_url, tags, extra, descriptor_hash, sync_interval_ms,
    created_at, updated_at, last_seen_at
)
SELECT
    name, display_name, description, owner, docs_url, ARRAY(SELECT jsonb_array_elements_text(tags)), extra,
    descriptor_hash, %(interval_ms)s, now(), now(), now()
FROM unnest(
    %(names)s::text[], %(display_names)s::text[], %(descriptions)s::text[], %(owners)s::text[],
    %(docs_urls)s::text[], %(tags)s::jsonb[], %(extras)s::jsonb[], %(hashes)s::text[]
) AS declared (name, display_name, description, owner, docs_url, tags, extra, descriptor_hash)
ORDER BY name
ON CONFLICT (queue) DO UPDATE
SET display_name = excluded.display_name,
    description = excluded.description,
    owner = excluded.owner,
    docs_url = excluded.docs_url,
    tags = excluded.tags,
    extra = excluded.extra,
    descriptor_hash = excluded.descriptor_hash,
    sync_interval_ms = excluded.sync_interval_ms,
    updated_at = CASE
        WHEN known.descriptor_hash = excluded.descriptor_hash THEN known.updated_at
        ELSE excluded.updated_at
    END,
    last_seen_at = excluded.last_seen_at;

-- name: describe_kinds
-- Declare these kinds; updated_at moves only when a description changed.
-- rows:  none
-- locks: job_kind_descriptors rows, in name order
INSERT INTO awa.job_kind_descriptors AS known (
    kind, display_name, description, owner, docs_url, tags, extra, descriptor_hash, sync_interval_ms,
    created_at, updated_at, last_seen_at
)
SELECT
    name, display_name, description, owner, docs_url, ARRAY(SELECT jsonb_array_elements_text(tags)), extra,
    descriptor_hash, %(interval_ms)s, now(), now(), now()
FROM unnest(
    %(names)s::text[], %(display_names)s::text[], %(descriptions)s::text[], %(owners)s::text[],
    %(docs_urls)s::text[], %(tags)s::jsonb[], %(extras)s::jsonb[], %(hashes)s::text[]
) AS declared (name, display_name, description, owner, docs_url, tags, extra, descriptor_hash)
ORDER BY name
ON CONFLICT (kind) DO UPDATE
SET display_name = excluded.display_name,
    description = excluded.description,
    owner = excluded.owner,
    docs_url = excluded.docs_url,
    tags = excluded.tags,
    extra = excluded.extra,
    descriptor_hash = excluded.descriptor_hash,
    sync_interval_ms = excluded.sync_interval_ms,
    updated_at = CASE
        WHEN known.descriptor_hash = excluded.descriptor_hash THEN known.updated_at
        ELSE excluded.updated_at
    END,
    last_seen_at = excluded.last_seen_at;
