-- The canonical plane: every job is one mutable row, and moves between two tables with its state.
-- contract: schema, sections 4.1 and 5.4

-- Jobs in every state but the two deferred ones. Column order is part of the contract: the same 27 in both
-- tables and in the view jobs, so that whole rows can be moved and united.
CREATE TABLE awa.jobs_hot (
    id                    bigint         NOT NULL DEFAULT nextval('awa.jobs_id_seq'),
    kind                  text           NOT NULL,
    queue                 text           NOT NULL DEFAULT 'default',
    args                  jsonb          NOT NULL DEFAULT '{}',
    state                 awa.job_state  NOT NULL DEFAULT 'available',
    priority              smallint       NOT NULL DEFAULT 2,
    attempt               smallint       NOT NULL DEFAULT 0,
    max_attempts          smallint       NOT NULL DEFAULT 25,
    run_at                timestamptz    NOT NULL DEFAULT now(),
    heartbeat_at          timestamptz,
    deadline_at           timestamptz,
    attempted_at          timestamptz,
    finalized_at          timestamptz,
    created_at            timestamptz    NOT NULL DEFAULT now(),
    errors                jsonb[]        DEFAULT '{}',
    metadata              jsonb          NOT NULL DEFAULT '{}',
    tags                  text[]         NOT NULL DEFAULT '{}',
    unique_key            bytea,
    unique_states         bit(8),
    callback_id           uuid,
    callback_timeout_at   timestamptz,
    callback_filter       text,
    callback_on_complete  text,
    callback_on_fail      text,
    callback_transform    text,
    run_lease             bigint         NOT NULL DEFAULT 0,
    progress              jsonb,
    PRIMARY KEY (id),
    CONSTRAINT jobs_hot_kind_length
        CHECK (length(kind) <= 200),
    CONSTRAINT jobs_hot_max_attempts_range
        CHECK (max_attempts BETWEEN 1 AND 1000),
    CONSTRAINT jobs_hot_priority_in_range
        CHECK (priority BETWEEN 1 AND 4),
    CONSTRAINT jobs_hot_queue_name_length
        CHECK (length(queue) <= 200),
    CONSTRAINT jobs_hot_state_check
        CHECK (state NOT IN ('scheduled', 'retryable')),
    CONSTRAINT jobs_hot_tags_count
        CHECK (cardinality(tags) <= 20)
);

CREATE UNIQUE INDEX idx_awa_jobs_hot_callback_id
    ON awa.jobs_hot (callback_id)
    WHERE callback_id IS NOT NULL;

CREATE INDEX idx_awa_jobs_hot_callback_timeout
    ON awa.jobs_hot (callback_timeout_at)
    WHERE state = 'waiting_external' AND callback_timeout_at IS NOT NULL;

CREATE INDEX idx_awa_jobs_hot_completed_finalized
    ON awa.jobs_hot (finalized_at DESC, queue)
    WHERE state = 'completed' AND finalized_at IS NOT NULL;

CREATE INDEX idx_awa_jobs_hot_created_at
    ON awa.jobs_hot USING brin (created_at) WITH (pages_per_range = 32);

CREATE INDEX idx_awa_jobs_hot_deadline
    ON awa.jobs_hot (deadline_at)
    WHERE state = 'running' AND deadline_at IS NOT NULL;

CREATE INDEX idx_awa_jobs_hot_dequeue
    ON awa.jobs_hot (queue, priority, run_at, id)
    WHERE state = 'available';

CREATE INDEX idx_awa_jobs_hot_heartbeat
    ON awa.jobs_hot (heartbeat_at)
    WHERE state = 'running';

CREATE INDEX idx_awa_jobs_hot_kind_state
    ON awa.jobs_hot (kind, state);

CREATE INDEX idx_awa_jobs_hot_queue_state
    ON awa.jobs_hot (queue, state);

CREATE INDEX idx_awa_jobs_hot_tags
    ON awa.jobs_hot USING gin (tags)
    WHERE tags IS NOT NULL AND tags <> '{}';

-- Jobs that are not due yet. The two run_at indexes are partial by state: a statement has to name the
-- state as a literal to use them.
CREATE TABLE awa.scheduled_jobs (
    id                    bigint         NOT NULL DEFAULT nextval('awa.jobs_id_seq'),
    kind                  text           NOT NULL,
    queue                 text           NOT NULL DEFAULT 'default',
    args                  jsonb          NOT NULL DEFAULT '{}',
    state                 awa.job_state  NOT NULL DEFAULT 'scheduled',
    priority              smallint       NOT NULL DEFAULT 2,
    attempt               smallint       NOT NULL DEFAULT 0,
    max_attempts          smallint       NOT NULL DEFAULT 25,
    run_at                timestamptz    NOT NULL DEFAULT now(),
    heartbeat_at          timestamptz,
    deadline_at           timestamptz,
    attempted_at          timestamptz,
    finalized_at          timestamptz,
    created_at            timestamptz    NOT NULL DEFAULT now(),
    errors                jsonb[]        DEFAULT '{}',
    metadata              jsonb          NOT NULL DEFAULT '{}',
    tags                  text[]         NOT NULL DEFAULT '{}',
    unique_key            bytea,
    unique_states         bit(8),
    callback_id           uuid,
    callback_timeout_at   timestamptz,
    callback_filter       text,
    callback_on_complete  text,
    callback_on_fail      text,
    callback_transform    text,
    run_lease             bigint         NOT NULL DEFAULT 0,
    progress              jsonb,
    PRIMARY KEY (id),
    CONSTRAINT scheduled_jobs_kind_length
        CHECK (length(kind) <= 200),
    CONSTRAINT scheduled_jobs_max_attempts_range
        CHECK (max_attempts BETWEEN 1 AND 1000),
    CONSTRAINT scheduled_jobs_priority_in_range
        CHECK (priority BETWEEN 1 AND 4),
    CONSTRAINT scheduled_jobs_queue_name_length
        CHECK (length(queue) <= 200),
    CONSTRAINT scheduled_jobs_state_check
        CHECK (state IN ('scheduled', 'retryable')),
    CONSTRAINT scheduled_jobs_tags_count
        CHECK (cardinality(tags) <= 20)
);

CREATE INDEX idx_awa_scheduled_jobs_created_at
    ON awa.scheduled_jobs USING brin (created_at) WITH (pages_per_range = 32);

CREATE INDEX idx_awa_scheduled_jobs_kind_state
    ON awa.scheduled_jobs (kind, state);

CREATE INDEX idx_awa_scheduled_jobs_queue_state
    ON awa.scheduled_jobs (queue, state);

CREATE INDEX idx_awa_scheduled_jobs_run_at_retryable
    ON awa.scheduled_jobs (run_at, id, queue)
    WHERE state = 'retryable';

CREATE INDEX idx_awa_scheduled_jobs_run_at_scheduled
    ON awa.scheduled_jobs (run_at, id, queue)
    WHERE state = 'scheduled';

CREATE INDEX idx_awa_scheduled_jobs_tags
    ON awa.scheduled_jobs USING gin (tags)
    WHERE tags IS NOT NULL AND tags <> '{}';

-- Who holds a unique key, on either plane. Not a primary key: 23505 names idx_awa_jobs_unique to clients
-- and users.
CREATE TABLE awa.job_unique_claims (
    unique_key  bytea   NOT NULL,
    job_id      bigint  NOT NULL
);

CREATE UNIQUE INDEX idx_awa_jobs_unique
    ON awa.job_unique_claims (unique_key);
