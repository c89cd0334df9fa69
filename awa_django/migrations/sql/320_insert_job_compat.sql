-- One job in, from any client: the function behind single inserts, inserts into awa.jobs, and cron.
-- contract: queue-storage/enqueue, sections 5 to 9; control-functions, section 2

-- Inserts a job where the active engine keeps new work, and returns it as the view awa.jobs shows it.
-- rows:  the job; 23514 for a value out of range, 23505 on idx_awa_jobs_unique for a taken unique key,
--        22023 for a state no job starts in, 40001 at REPEATABLE READ if the ring has turned since the transaction's
--        snapshot, 0A000 if queue storage is active in another schema
-- locks: until the transaction ends: the unique claim, then the allocation key of the lane (with it commit order
--        is lane order, so other producers of the lane wait), and the registration key of a lane that is new
CREATE OR REPLACE FUNCTION awa.insert_job_compat(
    p_kind text,
    p_queue text DEFAULT 'default'::text,
    p_args jsonb DEFAULT '{}'::jsonb,
    p_state awa.job_state DEFAULT 'available'::awa.job_state,
    p_priority smallint DEFAULT 2,
    p_max_attempts smallint DEFAULT 25,
    p_run_at timestamptz DEFAULT NULL::timestamptz,
    p_metadata jsonb DEFAULT '{}'::jsonb,
    p_tags text[] DEFAULT ARRAY[]::text[],
    p_unique_key bytea DEFAULT NULL::bytea,
    p_unique_states bit DEFAULT NULL::"bit",
    p_ordering_key bytea DEFAULT NULL::bytea
)
RETURNS awa.jobs
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, awa, public
AS $$
DECLARE
    v_now constant timestamptz := clock_timestamp();
    v_job awa.jobs;
    v_schema text;
    v_payload jsonb;
    v_shards integer;
    v_shard smallint := 0;
    v_seq_name text;
    v_lane_seq bigint;
    v_slot integer;
    v_generation bigint;
BEGIN
    v_job.kind := p_kind;
    v_job.queue := coalesce(p_queue, 'default');
    v_job.args := coalesce(p_args, '{}');
    v_job.state := coalesce(p_state, 'available');
    v_job.priority := coalesce(p_priority, 2);
    v_job.max_attempts := coalesce(p_max_attempts, 25);
    v_job.metadata := coalesce(p_metadata, '{}');
    v_job.tags := coalesce(p_tags, '{}');

    IF length(v_job.kind) > 200
       OR length(v_job.queue) > 200
       OR v_job.priority NOT BETWEEN 1 AND 4
       OR v_job.max_attempts NOT BETWEEN 1 AND 1000
       OR cardinality(v_job.tags) > 20
    THEN
        RAISE EXCEPTION 'job refused: %', CASE
                WHEN length(v_job.kind) > 200
                    THEN format('its kind has %s characters, at most 200 are allowed', length(v_job.kind))
                WHEN length(v_job.queue) > 200
                    THEN format('its queue name has %s characters, at most 200 are allowed', length(v_job.queue))
                WHEN v_job.priority NOT BETWEEN 1 AND 4
                    THEN format('priority %s is outside 1 to 4', v_job.priority)
                WHEN v_job.max_attempts NOT BETWEEN 1 AND 1000
                    THEN format('max_attempts %s is outside 1 to 1000', v_job.max_attempts)
                ELSE format('it has %s tags, at most 20 are allowed', cardinality(v_job.tags))
            END
            USING ERRCODE = 'check_violation';
    END IF;

    -- The settled case in one look, and the whole rule for every other.
    SELECT 'awa'
    INTO v_schema
    FROM awa.storage_transition_state AS transition
    WHERE transition.singleton
      AND transition.state = 'active'
      AND transition.current_engine = 'queue_storage'
      AND transition.prepared_engine IS NULL
      AND transition.details ->> 'schema' = 'awa';
    IF v_schema IS NULL THEN
        v_schema := awa.active_queue_storage_schema();
    END IF;

    IF v_schema IS NULL THEN
        -- run_at defaults to now(), not to the clock: the wake-up trigger compares it with now().
        IF v_job.state IN ('scheduled', 'retryable') THEN
            INSERT INTO awa.scheduled_jobs AS job (
                kind, queue, args, state, priority, max_attempts, run_at, metadata, tags, unique_key, unique_states
            )
            VALUES (
                v_job.kind, v_job.queue, v_job.args, v_job.state, v_job.priority, v_job.max_attempts,
                coalesce(p_run_at, now()), v_job.metadata, v_job.tags, p_unique_key, p_unique_states
            )
            RETURNING job.* INTO v_job;
        ELSE
            INSERT INTO awa.jobs_hot AS job (
                kind, queue, args, state, priority, max_attempts, run_at, metadata, tags, unique_key, unique_states
            )
            VALUES (
                v_job.kind, v_job.queue, v_job.args, v_job.state, v_job.priority, v_job.max_attempts,
                coalesce(p_run_at, now()), v_job.metadata, v_job.tags, p_unique_key, p_unique_states
            )
            RETURNING job.* INTO v_job;
        END IF;
        RETURN v_job;
    END IF;
    IF v_schema <> 'awa' THEN
        RAISE EXCEPTION 'queue storage is active in schema "%", which this installation does not serve', v_schema
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Only the schema "awa" is supported. awa.storage_status() shows what is active.';
    END IF;
    IF v_job.state NOT IN ('available', 'scheduled', 'retryable') THEN
        RAISE EXCEPTION 'a new job cannot be in state "%"', v_job.state
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Insert it as available, scheduled or retryable.';
    END IF;

    v_job.id := nextval('awa.job_id_seq'::regclass);
    v_job.attempt := 0;
    v_job.run_lease := 0;
    v_job.run_at := coalesce(p_run_at, v_now);
    v_job.created_at := v_now;
    v_job.errors := '{}';
    IF p_unique_key IS NOT NULL AND awa.job_state_in_bitmask(p_unique_states, v_job.state) THEN
        INSERT INTO awa.job_unique_claims (unique_key, job_id)
        VALUES (p_unique_key, v_job.id);
    END IF;
    v_job.unique_key := p_unique_key;
    v_job.unique_states := p_unique_states;

    v_payload := jsonb_build_object(
        'metadata', v_job.metadata, 'tags', v_job.tags, 'errors', '[]'::jsonb, 'progress', NULL
    );

    IF v_job.state <> 'available' THEN
        INSERT INTO awa.deferred_jobs (
            job_id, kind, queue, args, state, priority, attempt, run_lease, max_attempts, run_at, finalized_at,
            created_at, unique_key, unique_states, payload
        )
        VALUES (
            v_job.id, v_job.kind, v_job.queue, v_job.args, v_job.state, v_job.priority, 0, 0, v_job.max_attempts,
            -- A retryable row says when its last attempt ended; this one stands for an attempt made elsewhere.
            v_job.run_at, CASE WHEN v_job.state = 'retryable' THEN v_now END,
            v_now, p_unique_key, p_unique_states::text, v_payload
        );
        RETURN v_job;
    END IF;

    SELECT meta.enqueue_shards
    INTO v_shards
    FROM awa.queue_meta AS meta
    WHERE meta.queue = v_job.queue;
    IF v_shards > 1 THEN
        v_shard := coalesce(
            awa.awa_django_ordering_shard(p_ordering_key, v_shards), (pg_backend_pid() % v_shards)::smallint
        );
    END IF;

    SELECT head.seq_name
    INTO v_seq_name
    FROM awa.queue_enqueue_heads AS head
    WHERE head.queue = v_job.queue
      AND head.priority = v_job.priority
      AND head.enqueue_shard = v_shard;
    IF v_seq_name IS NULL THEN
        v_seq_name := awa.awa_django_register_lane(v_job.queue, v_job.priority, v_shard);
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('awa.' || v_seq_name, 0));
    v_lane_seq := nextval(('awa.' || v_seq_name)::regclass);

    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM awa.awa_django_check_ring_snapshot();
    END IF;
    -- The ring is read by the statement that inserts, and after the reservation: a slot of its own snapshot,
    -- never older than that of a lower position.
    WITH placed AS (
        INSERT INTO awa.ready_entries (
            ready_slot, ready_generation, job_id, kind, queue, args, priority, attempt, run_lease, max_attempts,
            lane_seq, enqueue_shard, run_at, created_at, unique_key, unique_states, payload
        )
        SELECT
            ring.current_slot, ring.generation, v_job.id, v_job.kind, v_job.queue, v_job.args, v_job.priority, 0, 0,
            v_job.max_attempts, v_lane_seq, v_shard, v_job.run_at, v_now, p_unique_key, p_unique_states::text,
            v_payload
        FROM awa.queue_ring_state AS ring
        WHERE ring.singleton
        RETURNING ready_slot, ready_generation
    )
    INSERT INTO awa.ready_segments (
        ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq, next_lane_seq, first_run_at
    )
    SELECT
        placed.ready_slot, placed.ready_generation, v_job.queue, v_job.priority, v_shard, v_lane_seq, v_lane_seq + 1,
        v_job.run_at
    FROM placed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'awa.queue_ring_state has no row'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The schema was installed incompletely; run manage.py migrate.';
    END IF;

    PERFORM pg_notify('awa:' || v_job.queue, '');
    RETURN v_job;
END
$$;
