-- The queue-storage plane: append-only facts in three rings of partitions. A ring is reclaimed a whole
-- slot at a time, by TRUNCATE, so that a finished job leaves no dead tuple behind.
-- contract: queue-storage/layout; schema, section 6
--
-- Rows that must be updated in place (ring states, heads, counters, leases) keep room on their pages and
-- are vacuumed after a fixed number of changes: they are few and hot, and a share of the table's size
-- would never be reached.

-- Rings ------------------------------------------------------------------------------------------

-- The ready ring, 16 slots. terminal_counter_trusted_at says that live counts and deltas add up to the
-- rows of done_entries, as they do from the start here.
CREATE TABLE awa.queue_ring_state (
    singleton                    boolean      NOT NULL DEFAULT true,
    current_slot                 integer      NOT NULL,
    generation                   bigint       NOT NULL,
    slot_count                   integer      NOT NULL,
    terminal_counter_trusted_at  timestamptz,
    PRIMARY KEY (singleton),
    CONSTRAINT queue_ring_state_singleton_check
        CHECK (singleton)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- generation is the last one the slot was current for, -1 before the first.
CREATE TABLE awa.queue_ring_slots (
    slot        integer  NOT NULL,
    generation  bigint   NOT NULL,
    PRIMARY KEY (slot)
)
WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- The lease ring, 8 slots.
CREATE TABLE awa.lease_ring_state (
    singleton     boolean  NOT NULL DEFAULT true,
    current_slot  integer  NOT NULL,
    generation    bigint   NOT NULL,
    slot_count    integer  NOT NULL,
    PRIMARY KEY (singleton),
    CONSTRAINT lease_ring_state_singleton_check
        CHECK (singleton)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- Here generation stays at its seed; rotation works by ring arithmetic.
CREATE TABLE awa.lease_ring_slots (
    slot        integer  NOT NULL,
    generation  bigint   NOT NULL,
    PRIMARY KEY (slot)
)
WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- The receipt ring, 8 slots.
CREATE TABLE awa.claim_ring_state (
    singleton     boolean  NOT NULL DEFAULT true,
    current_slot  integer  NOT NULL,
    generation    bigint   NOT NULL,
    slot_count    integer  NOT NULL,
    PRIMARY KEY (singleton),
    CONSTRAINT claim_ring_state_singleton_check
        CHECK (singleton)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- With where the two rescue scans of the slot have come to; generation stays at its seed.
CREATE TABLE awa.claim_ring_slots (
    slot                         integer      NOT NULL,
    generation                   bigint       NOT NULL,
    rescue_cursor_claimed_at     timestamptz  NOT NULL DEFAULT '-infinity',
    rescue_cursor_job_id         bigint       NOT NULL DEFAULT 0,
    rescue_cursor_run_lease      bigint       NOT NULL DEFAULT 0,
    deadline_cursor_deadline_at  timestamptz  NOT NULL DEFAULT '-infinity',
    deadline_cursor_job_id       bigint       NOT NULL DEFAULT 0,
    deadline_cursor_run_lease    bigint       NOT NULL DEFAULT 0,
    PRIMARY KEY (slot)
)
WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 50,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- Lanes ------------------------------------------------------------------------------------------

-- Registry of lanes. next_seq and claim_seq are unused; the pruned count is read beside the roll-up.
CREATE TABLE awa.queue_lanes (
    queue                   text      NOT NULL,
    priority                smallint  NOT NULL,
    next_seq                bigint    NOT NULL DEFAULT 1,
    claim_seq               bigint    NOT NULL DEFAULT 1,
    pruned_completed_count  bigint    NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
);

-- Allocation head of a lane and shard, by the name of its sequence. next_seq is what a trigger reads to
-- position that sequence, not a cursor.
CREATE TABLE awa.queue_enqueue_heads (
    queue          text      NOT NULL,
    priority       smallint  NOT NULL,
    enqueue_shard  smallint  NOT NULL DEFAULT 0,
    next_seq       bigint    NOT NULL DEFAULT 1,
    seq_name       text,
    PRIMARY KEY (queue, priority, enqueue_shard)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- Claim head; a lock on this row is the lock of the lane. The three ready_segment columns are unused, but
-- readiness checks look for them.
CREATE TABLE awa.queue_claim_heads (
    queue                        text      NOT NULL,
    priority                     smallint  NOT NULL,
    enqueue_shard                smallint  NOT NULL DEFAULT 0,
    claim_seq                    bigint    NOT NULL DEFAULT 1,
    seq_name                     text,
    ready_segment_slot           integer,
    ready_segment_generation     bigint,
    ready_segment_next_lane_seq  bigint,
    PRIMARY KEY (queue, priority, enqueue_shard)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- How many claimers a queue should have at once; advisory.
CREATE TABLE awa.queue_claimer_state (
    queue            text         NOT NULL,
    target_claimers  smallint     NOT NULL,
    updated_at       timestamptz  NOT NULL,
    PRIMARY KEY (queue)
);

-- The claimers it has.
CREATE TABLE awa.queue_claimer_leases (
    queue              text         NOT NULL,
    claimer_slot       smallint     NOT NULL,
    owner_instance_id  uuid         NOT NULL,
    lease_epoch        bigint       NOT NULL DEFAULT 0,
    leased_at          timestamptz  NOT NULL,
    last_claimed_at    timestamptz  NOT NULL,
    expires_at         timestamptz  NOT NULL,
    PRIMARY KEY (queue, claimer_slot)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

CREATE INDEX idx_awa_queue_claimer_leases_owner
    ON awa.queue_claimer_leases (queue, owner_instance_id);

-- Waiting jobs -----------------------------------------------------------------------------------

-- Jobs to run, in lane order; each enqueue, promotion and retry is a row of its own. Never updated.
CREATE TABLE awa.ready_entries (
    ready_slot        integer      NOT NULL,
    ready_generation  bigint       NOT NULL,
    job_id            bigint       NOT NULL,
    kind              text         NOT NULL,
    queue             text         NOT NULL,
    args              jsonb        NOT NULL DEFAULT '{}',
    priority          smallint     NOT NULL,
    attempt           smallint     NOT NULL DEFAULT 0,
    run_lease         bigint       NOT NULL DEFAULT 0,
    max_attempts      smallint     NOT NULL DEFAULT 25,
    lane_seq          bigint       NOT NULL,
    enqueue_shard     smallint     NOT NULL DEFAULT 0,
    run_at            timestamptz  NOT NULL DEFAULT clock_timestamp(),
    attempted_at      timestamptz,
    created_at        timestamptz  NOT NULL DEFAULT clock_timestamp(),
    unique_key        bytea,
    unique_states     text,
    payload           jsonb,
    PRIMARY KEY (ready_slot, queue, priority, enqueue_shard, lane_seq)
)
PARTITION BY LIST (ready_slot);

-- Half-open ranges of lane positions in one slot and generation: the only route from a cursor to its slot.
CREATE TABLE awa.ready_segments (
    ready_slot        integer      NOT NULL,
    ready_generation  bigint       NOT NULL,
    queue             text         NOT NULL,
    priority          smallint     NOT NULL,
    enqueue_shard     smallint     NOT NULL DEFAULT 0,
    first_lane_seq    bigint       NOT NULL,
    next_lane_seq     bigint       NOT NULL,
    first_run_at      timestamptz  NOT NULL,
    created_at        timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq),
    CONSTRAINT ready_segments_check
        CHECK (first_lane_seq < next_lane_seq)
)
PARTITION BY LIST (ready_slot);

CREATE INDEX idx_awa_ready_segments_lane_next
    ON awa.ready_segments (queue, priority, enqueue_shard, next_lane_seq, first_lane_seq);

CREATE INDEX idx_awa_ready_segments_slot
    ON awa.ready_segments (ready_slot, ready_generation);

-- Positions that must not be handed out any more.
CREATE TABLE awa.ready_tombstones (
    ready_slot        integer      NOT NULL,
    ready_generation  bigint       NOT NULL,
    queue             text         NOT NULL,
    priority          smallint     NOT NULL,
    enqueue_shard     smallint     NOT NULL DEFAULT 0,
    lane_seq          bigint       NOT NULL,
    job_id            bigint       NOT NULL,
    tombstoned_at     timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ready_slot, queue, priority, enqueue_shard, lane_seq, ready_generation)
)
PARTITION BY LIST (ready_slot);

-- The emission ledger: positions handed out by one claim. It proves a position spent when the cursor did
-- not move.
CREATE TABLE awa.ready_claim_attempt_batches (
    ready_slot        integer         NOT NULL,
    ready_generation  bigint          NOT NULL,
    batch_id          bigint          NOT NULL DEFAULT nextval('awa.ready_claim_attempt_batch_id_seq'),
    queue             text            NOT NULL,
    priority          smallint        NOT NULL,
    enqueue_shard     smallint        NOT NULL DEFAULT 0,
    claim_slot        integer,
    first_lane_seq    bigint          NOT NULL,
    next_lane_seq     bigint          NOT NULL,
    claimed_count     integer         NOT NULL,
    lane_ranges       int8multirange  NOT NULL,
    claimed_at        timestamptz     NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ready_slot, batch_id),
    CONSTRAINT ready_claim_attempt_batches_check
        CHECK (first_lane_seq < next_lane_seq),
    CONSTRAINT ready_claim_attempt_batches_claimed_count_check
        CHECK (claimed_count > 0)
)
PARTITION BY LIST (ready_slot);

-- Scheduled and retryable jobs.
CREATE TABLE awa.deferred_jobs (
    job_id         bigint         NOT NULL,
    kind           text           NOT NULL,
    queue          text           NOT NULL,
    args           jsonb          NOT NULL DEFAULT '{}',
    state          awa.job_state  NOT NULL,
    priority       smallint       NOT NULL,
    attempt        smallint       NOT NULL DEFAULT 0,
    run_lease      bigint         NOT NULL DEFAULT 0,
    max_attempts   smallint       NOT NULL DEFAULT 25,
    run_at         timestamptz    NOT NULL,
    attempted_at   timestamptz,
    finalized_at   timestamptz,
    created_at     timestamptz    NOT NULL DEFAULT clock_timestamp(),
    unique_key     bytea,
    unique_states  text,
    payload        jsonb,
    PRIMARY KEY (job_id),
    CONSTRAINT deferred_jobs_state_check
        CHECK (state IN ('scheduled', 'retryable'))
);

CREATE INDEX idx_awa_deferred_due
    ON awa.deferred_jobs (state, run_at, queue, priority, job_id);

CREATE INDEX idx_awa_deferred_job_unique
    ON awa.deferred_jobs (unique_key);

-- Running attempts -------------------------------------------------------------------------------

-- Receipts of attempts with a deadline, one a row. closed_at is set with an explicit closure only.
CREATE TABLE awa.lease_claims (
    claim_slot        integer      NOT NULL,
    receipt_id        bigint       NOT NULL DEFAULT nextval('awa.lease_claim_receipt_id_seq'),
    job_id            bigint       NOT NULL,
    run_lease         bigint       NOT NULL,
    ready_slot        integer      NOT NULL,
    ready_generation  bigint       NOT NULL,
    queue             text         NOT NULL,
    priority          smallint     NOT NULL,
    attempt           smallint     NOT NULL,
    max_attempts      smallint     NOT NULL,
    lane_seq          bigint       NOT NULL,
    enqueue_shard     smallint     NOT NULL DEFAULT 0,
    claimed_at        timestamptz  NOT NULL DEFAULT clock_timestamp(),
    materialized_at   timestamptz,
    closed_at         timestamptz,
    deadline_at       timestamptz,
    PRIMARY KEY (claim_slot, job_id, run_lease)
)
PARTITION BY LIST (claim_slot);

CREATE INDEX idx_awa_lease_claims_deadline_brin
    ON awa.lease_claims USING brin (deadline_at) WITH (pages_per_range = 16);

CREATE INDEX idx_awa_lease_claims_deadline_cursor
    ON awa.lease_claims (deadline_at, job_id, run_lease)
    WHERE deadline_at IS NOT NULL;

CREATE INDEX idx_awa_lease_claims_job_run
    ON awa.lease_claims (job_id, run_lease);

CREATE INDEX idx_awa_lease_claims_ready_ref
    ON awa.lease_claims (ready_slot, ready_generation);

CREATE INDEX idx_awa_lease_claims_rescue_cursor
    ON awa.lease_claims (claimed_at, job_id, run_lease);

CREATE INDEX idx_awa_lease_claims_stale
    ON awa.lease_claims (materialized_at, claimed_at, job_id);

-- Receipts of one claim without deadline, as arrays of equal length. Never updated.
CREATE TABLE awa.lease_claim_batches (
    claim_slot        integer         NOT NULL,
    batch_id          bigint          NOT NULL DEFAULT nextval('awa.lease_claim_batch_id_seq'),
    ready_slot        integer         NOT NULL,
    ready_generation  bigint          NOT NULL,
    queue             text            NOT NULL,
    priority          smallint        NOT NULL,
    enqueue_shard     smallint        NOT NULL DEFAULT 0,
    claimed_count     integer         NOT NULL,
    job_ids           bigint[]        NOT NULL,
    run_leases        bigint[]        NOT NULL,
    receipt_ids       bigint[]        NOT NULL,
    receipt_ranges    int8multirange  NOT NULL,
    lane_seqs         bigint[]        NOT NULL,
    attempts          smallint[]      NOT NULL,
    max_attempts      smallint[]      NOT NULL,
    deadline_at       timestamptz,
    claimed_at        timestamptz     NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (claim_slot, batch_id),
    CONSTRAINT lease_claim_batches_check
        CHECK (claimed_count = cardinality(job_ids)),
    CONSTRAINT lease_claim_batches_check1
        CHECK (claimed_count = cardinality(run_leases)),
    CONSTRAINT lease_claim_batches_check2
        CHECK (claimed_count = cardinality(receipt_ids)),
    CONSTRAINT lease_claim_batches_check3
        CHECK (claimed_count = cardinality(lane_seqs)),
    CONSTRAINT lease_claim_batches_check4
        CHECK (claimed_count = cardinality(attempts)),
    CONSTRAINT lease_claim_batches_check5
        CHECK (claimed_count = cardinality(max_attempts)),
    CONSTRAINT lease_claim_batches_claimed_count_check
        CHECK (claimed_count > 0)
)
PARTITION BY LIST (claim_slot);

-- Explicit ends of row receipts.
CREATE TABLE awa.lease_claim_closures (
    claim_slot  integer      NOT NULL,
    job_id      bigint       NOT NULL,
    run_lease   bigint       NOT NULL,
    outcome     text         NOT NULL,
    closed_at   timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (claim_slot, job_id, run_lease)
)
PARTITION BY LIST (claim_slot);

CREATE INDEX idx_awa_lease_claim_closures_job_run
    ON awa.lease_claim_closures (job_id, run_lease);

-- Ends of compact receipts, and of row receipts that completed compactly. Exactly one closure a receipt: a
-- second one would keep its slots from ever being reclaimed.
CREATE TABLE awa.lease_claim_closure_batches (
    claim_slot        integer         NOT NULL,
    ready_slot        integer,
    ready_generation  bigint,
    batch_id          bigint          NOT NULL DEFAULT nextval('awa.lease_claim_closure_batch_id_seq'),
    outcome           text            NOT NULL,
    closed_count      integer         NOT NULL,
    receipt_ids       bigint[]        NOT NULL,
    receipt_ranges    int8multirange  NOT NULL,
    closed_at         timestamptz     NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (claim_slot, batch_id),
    CONSTRAINT lease_claim_closure_batches_check
        CHECK (closed_count = cardinality(receipt_ids)),
    CONSTRAINT lease_claim_closure_batches_closed_count_check
        CHECK (closed_count > 0)
)
PARTITION BY LIST (claim_slot);

-- Attempts that registered a callback and so need a row that can change.
CREATE TABLE awa.leases (
    lease_slot           integer        NOT NULL,
    lease_generation     bigint         NOT NULL,
    ready_slot           integer        NOT NULL,
    ready_generation     bigint         NOT NULL,
    job_id               bigint         NOT NULL,
    queue                text           NOT NULL,
    state                awa.job_state  NOT NULL DEFAULT 'running',
    priority             smallint       NOT NULL,
    attempt              smallint       NOT NULL DEFAULT 1,
    run_lease            bigint         NOT NULL DEFAULT 1,
    max_attempts         smallint       NOT NULL DEFAULT 25,
    lane_seq             bigint         NOT NULL,
    enqueue_shard        smallint       NOT NULL DEFAULT 0,
    heartbeat_at         timestamptz,
    deadline_at          timestamptz,
    attempted_at         timestamptz,
    callback_id          uuid,
    callback_timeout_at  timestamptz,
    PRIMARY KEY (lease_slot, queue, priority, enqueue_shard, lane_seq)
)
PARTITION BY LIST (lease_slot);

-- Heartbeat, progress and callback of an attempt; most short jobs never have a row.
CREATE TABLE awa.attempt_state (
    job_id                bigint       NOT NULL,
    run_lease             bigint       NOT NULL,
    heartbeat_at          timestamptz,
    progress              jsonb,
    callback_filter       text,
    callback_on_complete  text,
    callback_on_fail      text,
    callback_transform    text,
    callback_result       jsonb,
    updated_at            timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, run_lease)
)
WITH (
    fillfactor = 80,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

-- Finished jobs ----------------------------------------------------------------------------------

-- Finished jobs. A row backed by its ready row leaves the body columns NULL. The key has no generation on
-- purpose: a second end for one position is an error, not a duplicate to skip.
CREATE TABLE awa.done_entries (
    ready_slot        integer        NOT NULL,
    ready_generation  bigint         NOT NULL,
    job_id            bigint         NOT NULL,
    kind              text           NOT NULL,
    queue             text           NOT NULL,
    args              jsonb,
    state             awa.job_state  NOT NULL DEFAULT 'completed',
    priority          smallint       NOT NULL,
    attempt           smallint       NOT NULL DEFAULT 1,
    run_lease         bigint         NOT NULL DEFAULT 1,
    max_attempts      smallint,
    lane_seq          bigint         NOT NULL,
    enqueue_shard     smallint       NOT NULL DEFAULT 0,
    run_at            timestamptz,
    attempted_at      timestamptz,
    finalized_at      timestamptz    NOT NULL DEFAULT clock_timestamp(),
    created_at        timestamptz,
    unique_key        bytea,
    unique_states     text,
    payload           jsonb,
    PRIMARY KEY (ready_slot, queue, priority, enqueue_shard, lane_seq)
)
PARTITION BY LIST (ready_slot);

-- Successes of one claim, as arrays; everything else is read from the ready rows.
CREATE TABLE awa.receipt_completion_batches (
    ready_slot        integer        NOT NULL,
    ready_generation  bigint         NOT NULL,
    batch_id          bigint         NOT NULL DEFAULT nextval('awa.receipt_completion_batch_id_seq'),
    claim_slot        integer        NOT NULL,
    queue             text           NOT NULL,
    priority          smallint       NOT NULL,
    enqueue_shard     smallint       NOT NULL DEFAULT 0,
    completed_count   integer        NOT NULL,
    job_ids           bigint[]       NOT NULL,
    run_leases        bigint[]       NOT NULL,
    lane_seqs         bigint[]       NOT NULL,
    attempts          smallint[]     NOT NULL,
    attempted_ats     timestamptz[]  NOT NULL,
    finalized_at      timestamptz    NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ready_slot, batch_id),
    CONSTRAINT receipt_completion_batches_check
        CHECK (completed_count = cardinality(job_ids)),
    CONSTRAINT receipt_completion_batches_check1
        CHECK (completed_count = cardinality(run_leases)),
    CONSTRAINT receipt_completion_batches_check2
        CHECK (completed_count = cardinality(lane_seqs)),
    CONSTRAINT receipt_completion_batches_check3
        CHECK (completed_count = cardinality(attempts)),
    CONSTRAINT receipt_completion_batches_check4
        CHECK (completed_count = cardinality(attempted_ats)),
    CONSTRAINT receipt_completion_batches_completed_count_check
        CHECK (completed_count > 0)
)
PARTITION BY LIST (ready_slot);

-- Items of such batches that were deleted.
CREATE TABLE awa.receipt_completion_tombstones (
    ready_slot        integer      NOT NULL,
    ready_generation  bigint       NOT NULL,
    job_id            bigint       NOT NULL,
    run_lease         bigint       NOT NULL,
    queue             text         NOT NULL,
    priority          smallint     NOT NULL,
    enqueue_shard     smallint     NOT NULL DEFAULT 0,
    lane_seq          bigint       NOT NULL,
    deleted_at        timestamptz  NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ready_slot, job_id, run_lease)
)
PARTITION BY LIST (ready_slot);

-- Dead letters.
CREATE TABLE awa.dlq_entries (
    job_id              bigint         NOT NULL,
    kind                text           NOT NULL,
    queue               text           NOT NULL,
    args                jsonb          NOT NULL DEFAULT '{}',
    state               awa.job_state  NOT NULL DEFAULT 'failed',
    priority            smallint       NOT NULL,
    attempt             smallint       NOT NULL DEFAULT 1,
    run_lease           bigint         NOT NULL DEFAULT 1,
    max_attempts        smallint       NOT NULL DEFAULT 25,
    run_at              timestamptz    NOT NULL DEFAULT clock_timestamp(),
    attempted_at        timestamptz,
    finalized_at        timestamptz    NOT NULL DEFAULT clock_timestamp(),
    created_at          timestamptz    NOT NULL DEFAULT clock_timestamp(),
    unique_key          bytea,
    unique_states       text,
    payload             jsonb,
    dlq_reason          text           NOT NULL,
    dlq_at              timestamptz    NOT NULL DEFAULT clock_timestamp(),
    original_run_lease  bigint         NOT NULL,
    PRIMARY KEY (job_id)
);

CREATE INDEX idx_awa_dlq_queue_time
    ON awa.dlq_entries (queue, dlq_at DESC);

-- Counters ---------------------------------------------------------------------------------------

-- Signed increments of done rows; appended only.
CREATE TABLE awa.queue_terminal_count_deltas (
    ready_slot        integer      NOT NULL,
    ready_generation  bigint       NOT NULL,
    queue             text         NOT NULL,
    priority          smallint     NOT NULL,
    enqueue_shard     smallint     NOT NULL,
    counter_bucket    smallint     NOT NULL DEFAULT 0,
    terminal_delta    bigint       NOT NULL,
    recorded_at       timestamptz  NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT queue_terminal_count_deltas_nonzero
        CHECK (terminal_delta <> 0)
)
PARTITION BY LIST (ready_slot);

-- The increments folded, by slot and lane. One plain table although it carries a slot.
CREATE TABLE awa.queue_terminal_live_counts (
    ready_slot           integer   NOT NULL,
    queue                text      NOT NULL,
    priority             smallint  NOT NULL,
    enqueue_shard        smallint  NOT NULL,
    counter_bucket       smallint  NOT NULL DEFAULT 0,
    live_terminal_count  bigint    NOT NULL DEFAULT 0,
    PRIMARY KEY (ready_slot, queue, priority, enqueue_shard, counter_bucket)
)
WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_vacuum_cost_delay = 2
);

CREATE INDEX idx_awa_queue_terminal_live_counts_queue
    ON awa.queue_terminal_live_counts (queue, priority);

-- Counts of what was pruned; they never decrease.
CREATE TABLE awa.queue_terminal_rollups (
    queue                   text      NOT NULL,
    priority                smallint  NOT NULL,
    pruned_completed_count  bigint    NOT NULL DEFAULT 0,
    pruned_failed_count     bigint    NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, priority)
);

-- Partitions -------------------------------------------------------------------------------------

-- Keys are the parents'; the other indexes belong to the partitions where clients look them up by number.
DO $partitions$
DECLARE
    slots constant integer := 16;
    ddl constant text := $ddl$
        CREATE TABLE awa.ready_entries_{n}
            PARTITION OF awa.ready_entries FOR VALUES IN ({n});
        CREATE INDEX idx_awa_ready_{n}_job
            ON awa.ready_entries_{n} (job_id);
        CREATE INDEX idx_awa_ready_{n}_lane_shard
            ON awa.ready_entries_{n} (queue, priority, enqueue_shard, lane_seq);

        CREATE TABLE awa.ready_segments_{n}
            PARTITION OF awa.ready_segments FOR VALUES IN ({n})
            WITH (
                fillfactor = 90,
                autovacuum_vacuum_threshold = 200,
                autovacuum_vacuum_scale_factor = 0.0,
                autovacuum_vacuum_cost_limit = 2000,
                autovacuum_vacuum_cost_delay = 2
            );

        CREATE TABLE awa.ready_tombstones_{n}
            PARTITION OF awa.ready_tombstones FOR VALUES IN ({n});
        CREATE INDEX idx_awa_ready_tombstones_{n}_job
            ON awa.ready_tombstones_{n} (job_id);
        CREATE INDEX idx_awa_ready_tombstones_{n}_lane_shard
            ON awa.ready_tombstones_{n} (queue, priority, enqueue_shard, lane_seq);

        CREATE TABLE awa.ready_claim_attempt_batches_{n}
            PARTITION OF awa.ready_claim_attempt_batches FOR VALUES IN ({n});
        CREATE INDEX idx_awa_ready_claim_attempt_batches_{n}_claim_slot
            ON awa.ready_claim_attempt_batches_{n} (claim_slot)
            WHERE claim_slot IS NOT NULL;
        CREATE INDEX idx_awa_ready_claim_attempt_batches_{n}_lane
            ON awa.ready_claim_attempt_batches_{n}
                (ready_generation, queue, priority, enqueue_shard, next_lane_seq, first_lane_seq);

        CREATE TABLE awa.done_entries_{n}
            PARTITION OF awa.done_entries FOR VALUES IN ({n});
        CREATE INDEX idx_awa_done_{n}_failed_queue
            ON awa.done_entries_{n} (queue)
            WHERE state = 'failed';
        CREATE INDEX idx_awa_done_{n}_job
            ON awa.done_entries_{n} (job_id);
        CREATE INDEX idx_awa_done_{n}_lane_shard
            ON awa.done_entries_{n} (queue, priority, enqueue_shard, lane_seq);

        CREATE TABLE awa.receipt_completion_batches_{n}
            PARTITION OF awa.receipt_completion_batches FOR VALUES IN ({n});
        CREATE INDEX idx_awa_receipt_completion_batches_{n}_lane
            ON awa.receipt_completion_batches_{n} (ready_generation, queue, priority, enqueue_shard);

        CREATE TABLE awa.receipt_completion_tombstones_{n}
            PARTITION OF awa.receipt_completion_tombstones FOR VALUES IN ({n});
        CREATE INDEX idx_awa_receipt_completion_tombstones_{n}_job
            ON awa.receipt_completion_tombstones_{n} (job_id, run_lease);

        CREATE TABLE awa.queue_terminal_count_deltas_{n}
            PARTITION OF awa.queue_terminal_count_deltas FOR VALUES IN ({n});
    $ddl$;
BEGIN
    FOR slot IN 0 .. slots - 1 LOOP
        EXECUTE replace(ddl, '{n}', slot::text);
    END LOOP;
END
$partitions$;

DO $partitions$
DECLARE
    slots constant integer := 8;
    ddl constant text := $ddl$
        CREATE TABLE awa.lease_claims_{n}
            PARTITION OF awa.lease_claims FOR VALUES IN ({n})
            WITH (
                fillfactor = 50,
                autovacuum_vacuum_threshold = 200,
                autovacuum_vacuum_scale_factor = 0.0,
                autovacuum_vacuum_cost_limit = 2000,
                autovacuum_vacuum_cost_delay = 2
            );

        CREATE TABLE awa.lease_claim_batches_{n}
            PARTITION OF awa.lease_claim_batches FOR VALUES IN ({n});
        CREATE INDEX idx_awa_lease_claim_batches_{n}_ready_ref
            ON awa.lease_claim_batches_{n} (ready_slot, ready_generation);
        CREATE INDEX idx_awa_lease_claim_batches_{n}_receipt_ranges
            ON awa.lease_claim_batches_{n} USING gist (receipt_ranges);
        CREATE INDEX idx_awa_lease_claim_batches_{n}_rescue_cursor
            ON awa.lease_claim_batches_{n} (claimed_at, batch_id);

        CREATE TABLE awa.lease_claim_closures_{n}
            PARTITION OF awa.lease_claim_closures FOR VALUES IN ({n});

        CREATE TABLE awa.lease_claim_closure_batches_{n}
            PARTITION OF awa.lease_claim_closure_batches FOR VALUES IN ({n});
        CREATE INDEX idx_awa_lease_claim_closure_batches_{n}_ready_ref
            ON awa.lease_claim_closure_batches_{n} (ready_slot, ready_generation)
            WHERE ready_slot IS NOT NULL;
        CREATE INDEX idx_awa_lease_claim_closure_batches_{n}_receipt_ranges
            ON awa.lease_claim_closure_batches_{n} USING gist (receipt_ranges);
    $ddl$;
BEGIN
    FOR slot IN 0 .. slots - 1 LOOP
        EXECUTE replace(ddl, '{n}', slot::text);
    END LOOP;
END
$partitions$;

DO $partitions$
DECLARE
    slots constant integer := 8;
    ddl constant text := $ddl$
        CREATE TABLE awa.leases_{n}
            PARTITION OF awa.leases FOR VALUES IN ({n})
            WITH (
                fillfactor = 50,
                autovacuum_vacuum_threshold = 200,
                autovacuum_vacuum_scale_factor = 0.0,
                autovacuum_vacuum_cost_limit = 2000,
                autovacuum_vacuum_cost_delay = 2
            );
        CREATE INDEX idx_awa_leases_{n}_callback
            ON awa.leases_{n} (callback_id);
        CREATE INDEX idx_awa_leases_{n}_job
            ON awa.leases_{n} (job_id, run_lease);
        CREATE INDEX idx_awa_leases_{n}_lane_shard
            ON awa.leases_{n} (queue, priority, enqueue_shard, lane_seq);
        CREATE INDEX idx_awa_leases_{n}_ready_ref
            ON awa.leases_{n} (ready_slot, ready_generation);
        CREATE INDEX idx_awa_leases_{n}_state_callback_timeout
            ON awa.leases_{n} (state, callback_timeout_at);
        CREATE INDEX idx_awa_leases_{n}_state_deadline
            ON awa.leases_{n} (state, deadline_at);
    $ddl$;
BEGIN
    FOR slot IN 0 .. slots - 1 LOOP
        EXECUTE replace(ddl, '{n}', slot::text);
    END LOOP;
END
$partitions$;

-- Seeds ------------------------------------------------------------------------------------------

INSERT INTO awa.queue_ring_state (
    singleton, current_slot, generation, slot_count, terminal_counter_trusted_at
)
VALUES (true, 0, 0, 16, now());

INSERT INTO awa.queue_ring_slots (slot, generation)
SELECT slot, CASE slot WHEN 0 THEN 0 ELSE -1 END
FROM generate_series(0, 15) AS slot;

INSERT INTO awa.lease_ring_state (singleton, current_slot, generation, slot_count)
VALUES (true, 0, 0, 8);

INSERT INTO awa.lease_ring_slots (slot, generation)
SELECT slot, CASE slot WHEN 0 THEN 0 ELSE -1 END
FROM generate_series(0, 7) AS slot;

INSERT INTO awa.claim_ring_state (singleton, current_slot, generation, slot_count)
VALUES (true, 0, 0, 8);

INSERT INTO awa.claim_ring_slots (slot, generation)
SELECT slot, CASE slot WHEN 0 THEN 0 ELSE -1 END
FROM generate_series(0, 7) AS slot;
