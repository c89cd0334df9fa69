-- The control plane: settings, schedules, labels, counters, runtimes, bulk operations and the storage
-- transition.
-- contract: schema, section 5

-- The number that migration commands read; seeded last of all.
CREATE TABLE awa.schema_version (
    version      integer      NOT NULL,
    description  text         NOT NULL,
    applied_at   timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (version)
);

-- Queues, schedules, labels ----------------------------------------------------------------------

-- Operator settings of a queue; a queue without a row has the defaults.
CREATE TABLE awa.queue_meta (
    queue           text         NOT NULL,
    paused          boolean      NOT NULL DEFAULT false,
    paused_at       timestamptz,
    paused_by       text,
    enqueue_shards  smallint     NOT NULL DEFAULT 1,
    PRIMARY KEY (queue),
    CONSTRAINT queue_meta_enqueue_shards_range
        CHECK (enqueue_shards BETWEEN 1 AND 64)
);

-- Periodic schedules. last_enqueued_at is a fire time, not a wall time; it decides who takes a fire.
CREATE TABLE awa.cron_jobs (
    name                text         NOT NULL,
    cron_expr           text         NOT NULL,
    timezone            text         NOT NULL DEFAULT 'UTC',
    kind                text         NOT NULL,
    queue               text         NOT NULL DEFAULT 'default',
    args                jsonb        NOT NULL DEFAULT '{}',
    priority            smallint     NOT NULL DEFAULT 2,
    max_attempts        smallint     NOT NULL DEFAULT 25,
    tags                text[]       NOT NULL DEFAULT '{}',
    metadata            jsonb        NOT NULL DEFAULT '{}',
    missed_fire_policy  text         NOT NULL DEFAULT 'coalesce',
    last_enqueued_at    timestamptz,
    created_at          timestamptz  NOT NULL DEFAULT now(),
    updated_at          timestamptz  NOT NULL DEFAULT now(),
    paused_at           timestamptz,
    paused_by           text,
    PRIMARY KEY (name),
    CONSTRAINT cron_jobs_missed_fire_policy_check
        CHECK (missed_fire_policy IN ('coalesce', 'catch_up'))
);

-- What code says about its queues. Every runtime writes its own again with each snapshot.
CREATE TABLE awa.queue_descriptors (
    queue             text         NOT NULL,
    display_name      text,
    description       text,
    owner             text,
    docs_url          text,
    tags              text[]       NOT NULL DEFAULT '{}',
    extra             jsonb        NOT NULL DEFAULT '{}',
    descriptor_hash   text         NOT NULL,
    sync_interval_ms  bigint       NOT NULL DEFAULT 10000,
    created_at        timestamptz  NOT NULL DEFAULT now(),
    updated_at        timestamptz  NOT NULL DEFAULT now(),
    last_seen_at      timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (queue),
    CONSTRAINT queue_descriptors_description_len
        CHECK (description IS NULL OR length(description) <= 2000),
    CONSTRAINT queue_descriptors_display_length
        CHECK (display_name IS NULL OR length(display_name) <= 200),
    CONSTRAINT queue_descriptors_docs_url_length
        CHECK (docs_url IS NULL OR length(docs_url) <= 2048),
    CONSTRAINT queue_descriptors_hash_length
        CHECK (length(descriptor_hash) <= 128),
    CONSTRAINT queue_descriptors_hash_nonempty
        CHECK (length(descriptor_hash) > 0),
    CONSTRAINT queue_descriptors_owner_length
        CHECK (owner IS NULL OR length(owner) <= 200),
    CONSTRAINT queue_descriptors_queue_length
        CHECK (length(queue) <= 200),
    CONSTRAINT queue_descriptors_queue_nonempty
        CHECK (length(queue) > 0),
    CONSTRAINT queue_descriptors_sync_interval_ms
        CHECK (sync_interval_ms > 0),
    CONSTRAINT queue_descriptors_tags_count
        CHECK (cardinality(tags) <= 20)
);

-- The same about job kinds.
CREATE TABLE awa.job_kind_descriptors (
    kind              text         NOT NULL,
    display_name      text,
    description       text,
    owner             text,
    docs_url          text,
    tags              text[]       NOT NULL DEFAULT '{}',
    extra             jsonb        NOT NULL DEFAULT '{}',
    descriptor_hash   text         NOT NULL,
    sync_interval_ms  bigint       NOT NULL DEFAULT 10000,
    created_at        timestamptz  NOT NULL DEFAULT now(),
    updated_at        timestamptz  NOT NULL DEFAULT now(),
    last_seen_at      timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (kind),
    CONSTRAINT job_kind_descriptors_description_len
        CHECK (description IS NULL OR length(description) <= 2000),
    CONSTRAINT job_kind_descriptors_display_length
        CHECK (display_name IS NULL OR length(display_name) <= 200),
    CONSTRAINT job_kind_descriptors_docs_url_length
        CHECK (docs_url IS NULL OR length(docs_url) <= 2048),
    CONSTRAINT job_kind_descriptors_hash_length
        CHECK (length(descriptor_hash) <= 128),
    CONSTRAINT job_kind_descriptors_hash_nonempty
        CHECK (length(descriptor_hash) > 0),
    CONSTRAINT job_kind_descriptors_kind_length
        CHECK (length(kind) <= 200),
    CONSTRAINT job_kind_descriptors_kind_nonempty
        CHECK (length(kind) > 0),
    CONSTRAINT job_kind_descriptors_owner_length
        CHECK (owner IS NULL OR length(owner) <= 200),
    CONSTRAINT job_kind_descriptors_sync_interval_ms
        CHECK (sync_interval_ms > 0),
    CONSTRAINT job_kind_descriptors_tags_count
        CHECK (cardinality(tags) <= 20)
);

-- Cached counters of canonical rows --------------------------------------------------------------

-- Rows a queue has in each state.
CREATE TABLE awa.queue_state_counts (
    queue             text    NOT NULL,
    scheduled         bigint  NOT NULL DEFAULT 0,
    available         bigint  NOT NULL DEFAULT 0,
    running           bigint  NOT NULL DEFAULT 0,
    completed         bigint  NOT NULL DEFAULT 0,
    retryable         bigint  NOT NULL DEFAULT 0,
    failed            bigint  NOT NULL DEFAULT 0,
    cancelled         bigint  NOT NULL DEFAULT 0,
    waiting_external  bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (queue)
);

-- Queues that have rows, and how many.
CREATE TABLE awa.job_queue_catalog (
    queue      text    NOT NULL,
    ref_count  bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (queue)
);

-- Kinds that have rows, and how many.
CREATE TABLE awa.job_kind_catalog (
    kind       text    NOT NULL,
    ref_count  bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (kind)
);

-- "The counts of this key are out of date". Appended to by every change of a job, so nothing here may ever
-- make a writer wait: no key, no index, no constraint.
CREATE TABLE awa.admin_dirty_queue_marks (
    queue       text         NOT NULL,
    touched_at  timestamptz  NOT NULL DEFAULT now()
);

-- The same about kinds.
CREATE TABLE awa.admin_dirty_kind_marks (
    kind        text         NOT NULL,
    touched_at  timestamptz  NOT NULL DEFAULT now()
);

-- Superseded by the mark tables; nothing reads or writes these two, but a patch by another client copies
-- from them and fails if they are missing (contract: schema, section 2.2).
CREATE TABLE awa.admin_dirty_queues (
    queue       text         NOT NULL,
    touched_at  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (queue)
);

-- The same about kinds.
CREATE TABLE awa.admin_dirty_kinds (
    kind        text         NOT NULL,
    touched_at  timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (kind)
);

-- Runtimes ---------------------------------------------------------------------------------------

-- One row a worker process. Clients read the list whole, so a malformed row stops all of them.
CREATE TABLE awa.runtime_instances (
    instance_id                 uuid         NOT NULL,
    hostname                    text,
    pid                         integer      NOT NULL,
    version                     text         NOT NULL,
    started_at                  timestamptz  NOT NULL,
    last_seen_at                timestamptz  NOT NULL DEFAULT now(),
    snapshot_interval_ms        bigint       NOT NULL,
    healthy                     boolean      NOT NULL,
    postgres_connected          boolean      NOT NULL,
    poll_loop_alive             boolean      NOT NULL,
    heartbeat_alive             boolean      NOT NULL,
    shutting_down               boolean      NOT NULL,
    leader                      boolean      NOT NULL,
    global_max_workers          integer,
    queues                      jsonb        NOT NULL DEFAULT '[]',
    maintenance_alive           boolean      NOT NULL DEFAULT false,
    queue_descriptor_hashes     jsonb        NOT NULL DEFAULT '{}',
    job_kind_descriptor_hashes  jsonb        NOT NULL DEFAULT '{}',
    storage_capability          text         NOT NULL DEFAULT 'canonical',
    transition_role             text         NOT NULL DEFAULT 'auto',
    PRIMARY KEY (instance_id),
    CONSTRAINT chk_awa_runtime_instances_storage_capability
        CHECK (storage_capability IN ('canonical', 'canonical_drain_only', 'queue_storage')),
    CONSTRAINT chk_awa_runtime_instances_transition_role
        CHECK (transition_role IN ('auto', 'canonical_drain', 'queue_storage_target'))
);

CREATE INDEX idx_awa_runtime_instances_last_seen
    ON awa.runtime_instances (last_seen_at DESC);

CREATE INDEX idx_awa_runtime_instances_transition_role
    ON awa.runtime_instances (transition_role, last_seen_at);

-- Bulk operations --------------------------------------------------------------------------------

-- A durable change of many jobs, applied in chunks by the maintenance leader.
CREATE TABLE awa.batch_operations (
    id               uuid         NOT NULL,
    op_kind          text         NOT NULL,
    filter           jsonb        NOT NULL,
    spec             jsonb        NOT NULL,
    state            text         NOT NULL,
    submitted_by     text,
    submitted_at     timestamptz  NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    finalized_at     timestamptz,
    cursor           jsonb,
    total_matched    bigint,
    processed        bigint       NOT NULL DEFAULT 0,
    skipped          bigint       NOT NULL DEFAULT 0,
    errored          bigint       NOT NULL DEFAULT 0,
    last_error       text,
    runner_instance  uuid,
    retention_until  timestamptz,
    updated_at       timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id),
    CONSTRAINT batch_operations_op_kind_check
        CHECK (op_kind IN ('set_priority', 'move_queue')),
    CONSTRAINT batch_operations_state_check
        CHECK (state IN ('pending', 'scanning', 'running', 'cancelling', 'completed', 'cancelled', 'failed'))
);

CREATE INDEX idx_batch_operations_retention
    ON awa.batch_operations (retention_until)
    WHERE retention_until IS NOT NULL;

CREATE INDEX idx_batch_operations_state_submitted
    ON awa.batch_operations (state, submitted_at);

-- The jobs one operation selected, and what became of each.
CREATE TABLE awa.batch_operation_items (
    operation_id  uuid         NOT NULL,
    job_id        bigint       NOT NULL,
    state         text         NOT NULL DEFAULT 'pending',
    error         text,
    processed_at  timestamptz,
    PRIMARY KEY (operation_id, job_id),
    FOREIGN KEY (operation_id)
        REFERENCES awa.batch_operations (id)
        ON DELETE CASCADE,
    CONSTRAINT batch_operation_items_state_check
        CHECK (state IN ('pending', 'processed', 'skipped', 'errored'))
);

CREATE INDEX idx_batch_operation_items_pending
    ON awa.batch_operation_items (operation_id, job_id)
    WHERE state = 'pending';

-- Storage transition -----------------------------------------------------------------------------

-- Which engine takes new work: one row. No trigger guards it, since installers write it directly.
CREATE TABLE awa.storage_transition_state (
    singleton         boolean      NOT NULL DEFAULT true,
    current_engine    text         NOT NULL,
    prepared_engine   text,
    state             text         NOT NULL,
    transition_epoch  bigint       NOT NULL DEFAULT 0,
    details           jsonb        NOT NULL DEFAULT '{}',
    entered_at        timestamptz  NOT NULL DEFAULT now(),
    updated_at        timestamptz  NOT NULL DEFAULT now(),
    finalized_at      timestamptz,
    PRIMARY KEY (singleton),
    CONSTRAINT storage_transition_state_check
        CHECK (state NOT IN ('prepared', 'mixed_transition') OR prepared_engine IS NOT NULL),
    CONSTRAINT storage_transition_state_current_engine_check
        CHECK (btrim(current_engine) <> ''),
    CONSTRAINT storage_transition_state_singleton_check
        CHECK (singleton),
    CONSTRAINT storage_transition_state_state_check
        CHECK (state IN ('canonical', 'prepared', 'mixed_transition', 'active'))
);

-- The marker that queue storage is in force, and in which schema; admin clients choose their plane by it
-- alone.
CREATE TABLE awa.runtime_storage_backends (
    backend      text         NOT NULL,
    schema_name  text         NOT NULL,
    updated_at   timestamptz  NOT NULL DEFAULT now(),
    PRIMARY KEY (backend)
);
