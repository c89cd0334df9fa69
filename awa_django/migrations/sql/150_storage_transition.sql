-- The storage transition: which engine takes new work, and how a fleet moves from one to the other.
-- contract: control-functions, section 6
--
--     canonical -> prepared -> mixed_transition -> active     storage_prepare, _enter_mixed_transition,
--                                                             _finalize
--     prepared, mixed_transition while unused -> canonical    storage_abort
--     canonical, while the installation is unused -> active   storage_auto_finalize_if_fresh
--
-- Locks: the singleton, then the marker row, then everything else. Enqueues and claims lock neither; they
-- resolve the engine under their own snapshot.

-- Resolution ------------------------------------------------------------------------------------------

-- The one rule: while a fleet moves and after, the engine moved to takes new work. Inlined by the planner.
CREATE OR REPLACE FUNCTION awa.awa_django_engine_in_force(
    state text,
    current_engine text,
    prepared_engine text
)
RETURNS text
LANGUAGE sql
IMMUTABLE
BEGIN ATOMIC
    SELECT coalesce(
        nullif(
            btrim(
                CASE
                    WHEN state IN ('mixed_transition', 'active')
                        THEN coalesce(prepared_engine, current_engine)
                    ELSE current_engine
                END
            ),
            ''
        ),
        'canonical'
    );
END;

-- The engine that takes new work; never NULL.
CREATE OR REPLACE FUNCTION awa.active_storage_engine()
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, awa
AS $$
BEGIN
    RETURN coalesce(
        (
            SELECT awa.awa_django_engine_in_force(state, current_engine, prepared_engine)
            FROM awa.storage_transition_state
            WHERE singleton
        ),
        'canonical'
    );
END
$$;

-- The schema of queue storage while that takes new work, else NULL.
CREATE OR REPLACE FUNCTION awa.active_queue_storage_schema()
RETURNS text
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, awa, public
AS $$
BEGIN
    RETURN (
        SELECT coalesce(
            nullif(details ->> 'schema', ''),
            (SELECT schema_name FROM awa.runtime_storage_backends WHERE backend = 'queue_storage'),
            'awa'
        )
        FROM awa.storage_transition_state
        WHERE singleton
            AND awa.awa_django_engine_in_force(state, current_engine, prepared_engine) = 'queue_storage'
    );
END
$$;

-- The singleton and the engine derived from it. No row means that the singleton is missing, which is fatal
-- to every client. The functions that change the state answer with this after their change.
CREATE OR REPLACE FUNCTION awa.storage_status()
RETURNS TABLE (
    current_engine text,
    active_engine text,
    prepared_engine text,
    state text,
    transition_epoch bigint,
    details jsonb,
    entered_at timestamptz,
    updated_at timestamptz,
    finalized_at timestamptz
)
LANGUAGE sql
STABLE
SET search_path = pg_catalog, awa
AS $$
    SELECT
        transition.current_engine,
        awa.active_storage_engine(),
        transition.prepared_engine,
        transition.state,
        transition.transition_epoch,
        transition.details,
        transition.entered_at,
        transition.updated_at,
        transition.finalized_at
    FROM awa.storage_transition_state AS transition
    WHERE transition.singleton
$$;

-- Canonical jobs that are not finished.
CREATE OR REPLACE FUNCTION awa.canonical_live_backlog()
RETURNS bigint
LANGUAGE sql
STABLE
SET search_path = pg_catalog, awa
AS $$
    SELECT
        (SELECT count(*) FROM awa.jobs_hot WHERE state NOT IN ('completed', 'failed', 'cancelled'))
        + (SELECT count(*) FROM awa.scheduled_jobs)
$$;

-- True, or 55000 when new work no longer goes to the canonical tables.
CREATE OR REPLACE FUNCTION awa.assert_writable_canonical_storage()
RETURNS boolean
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, awa
AS $$
DECLARE
    engine constant text := awa.active_storage_engine();
BEGIN
    IF engine <> 'canonical' THEN
        RAISE EXCEPTION 'canonical storage takes no new work: the active engine is %', engine
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN true;
END
$$;

-- What the transitions share -----------------------------------------------------------------------------

-- The singleton, locked against every other transition to the end of the transaction; 55000 if there is
-- none.
CREATE OR REPLACE FUNCTION awa.awa_django_lock_storage_transition()
RETURNS awa.storage_transition_state
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
DECLARE
    transition awa.storage_transition_state;
BEGIN
    SELECT * INTO transition
    FROM awa.storage_transition_state
    WHERE singleton
    FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'awa.storage_transition_state has no row'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'An installation writes that row; restore it before any transition.';
    END IF;
    RETURN transition;
END
$$;

-- Runtimes that may be running: seen within three of their snapshot intervals, in whole seconds, and 30
-- seconds at the least. How healthy they are does not matter. Compared as numbers, so that no interval a
-- row may hold overflows.
CREATE OR REPLACE FUNCTION awa.awa_django_live_runtimes()
RETURNS TABLE (capability text, role text)
LANGUAGE sql
STABLE
AS $$
    SELECT runtime.storage_capability, runtime.transition_role
    FROM awa.runtime_instances AS runtime
    WHERE extract(epoch FROM now() - runtime.last_seen_at)
        <= GREATEST(30, 3 * (GREATEST(runtime.snapshot_interval_ms, 1000) / 1000))
$$;

-- Raises 55000 while a runtime lives that knows canonical storage only.
CREATE OR REPLACE FUNCTION awa.awa_django_refuse_canonical_runtimes(p_step text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
DECLARE
    canonical_only constant bigint := (
        SELECT count(*) FROM awa.awa_django_live_runtimes() WHERE capability = 'canonical'
    );
BEGIN
    IF canonical_only > 0 THEN
        RAISE EXCEPTION 'cannot %: % live runtime(s) can execute canonical storage only',
                p_step, canonical_only
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Stop them, or replace them by a release with queue storage.';
    END IF;
END
$$;

-- Says that queue storage takes work, and where, to the clients that choose their plane by this row.
CREATE OR REPLACE FUNCTION awa.awa_django_mark_queue_storage(p_schema text)
RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, awa
AS $$
    INSERT INTO awa.runtime_storage_backends (backend, schema_name, updated_at)
    VALUES ('queue_storage', p_schema, now())
    ON CONFLICT (backend) DO UPDATE SET
        schema_name = EXCLUDED.schema_name,
        updated_at = EXCLUDED.updated_at
$$;

-- Transitions --------------------------------------------------------------------------------------------

-- Chooses the engine to move to. Neither the marker nor the substrate is touched or looked at, and any
-- name but that of the current engine is taken: the next step decides. Repeating the same choice keeps the
-- epoch.
CREATE OR REPLACE FUNCTION awa.storage_prepare(p_engine text, p_details jsonb DEFAULT '{}')
RETURNS TABLE (
    current_engine text,
    active_engine text,
    prepared_engine text,
    state text,
    transition_epoch bigint,
    details jsonb,
    entered_at timestamptz,
    updated_at timestamptz,
    finalized_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
DECLARE
    engine constant text := btrim(p_engine);
    new_details constant jsonb := coalesce(p_details, '{}');
    held awa.storage_transition_state;
    repeated boolean;
BEGIN
    IF coalesce(engine, '') = '' THEN
        RAISE EXCEPTION 'cannot prepare storage: the engine is blank'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    held := awa.awa_django_lock_storage_transition();
    IF engine = held.current_engine THEN
        RAISE EXCEPTION 'cannot prepare storage: % is the current engine already', engine
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF held.state NOT IN ('canonical', 'prepared') THEN
        RAISE EXCEPTION 'cannot prepare storage: the state is %, not canonical or prepared', held.state
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;

    repeated := held.state = 'prepared' AND held.prepared_engine = engine AND held.details = new_details;
    UPDATE awa.storage_transition_state AS transition SET
        prepared_engine = engine,
        state = 'prepared',
        details = new_details,
        transition_epoch = CASE WHEN repeated THEN held.transition_epoch ELSE held.transition_epoch + 1 END,
        entered_at = CASE WHEN repeated THEN held.entered_at ELSE now() END,
        updated_at = now(),
        finalized_at = NULL
    WHERE transition.singleton;
    RETURN QUERY SELECT * FROM awa.storage_status();
END
$$;

-- Sends new work to queue storage while canonical rows are drained. Needs a live runtime in the target
-- role, since those in role auto that started before keep to canonical work.
CREATE OR REPLACE FUNCTION awa.storage_enter_mixed_transition()
RETURNS TABLE (
    current_engine text,
    active_engine text,
    prepared_engine text,
    state text,
    transition_epoch bigint,
    details jsonb,
    entered_at timestamptz,
    updated_at timestamptz,
    finalized_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, awa, public
AS $$
DECLARE
    held constant awa.storage_transition_state := awa.awa_django_lock_storage_transition();
    target constant text := coalesce(nullif(held.details ->> 'schema', ''), 'awa');
    missing text;
BEGIN
    IF held.state <> 'prepared' THEN
        RAISE EXCEPTION 'cannot enter the mixed transition: the state is %, not prepared', held.state
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Call storage_prepare first.';
    END IF;
    IF held.prepared_engine <> 'queue_storage' THEN
        RAISE EXCEPTION 'cannot enter the mixed transition: the prepared engine is %, not queue_storage',
                held.prepared_engine
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT string_agg(relation, ', ') INTO missing
    FROM unnest(ARRAY['queue_ring_state', 'ready_entries', 'leases']) AS relation
    WHERE to_regclass(format('%I.%I', target, relation)) IS NULL;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'cannot enter the mixed transition: schema % has no %', target, missing
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Install the substrate with install_queue_storage_substrate.';
    END IF;

    PERFORM awa.awa_django_refuse_canonical_runtimes('enter the mixed transition');
    IF NOT EXISTS (
        SELECT FROM awa.awa_django_live_runtimes()
        WHERE role = 'queue_storage_target' AND capability = 'queue_storage'
    ) THEN
        RAISE EXCEPTION 'cannot enter the mixed transition: no live runtime has role queue_storage_target'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Start one first, or nobody would run the new work.';
    END IF;

    PERFORM awa.awa_django_mark_queue_storage(target);
    UPDATE awa.storage_transition_state AS transition SET
        state = 'mixed_transition',
        transition_epoch = held.transition_epoch + 1,
        entered_at = now(),
        updated_at = now(),
        finalized_at = NULL
    WHERE transition.singleton;
    RETURN QUERY SELECT * FROM awa.storage_status();
END
$$;

-- Ends the transition once no canonical job is left to run. There is no way back.
CREATE OR REPLACE FUNCTION awa.storage_finalize()
RETURNS TABLE (
    current_engine text,
    active_engine text,
    prepared_engine text,
    state text,
    transition_epoch bigint,
    details jsonb,
    entered_at timestamptz,
    updated_at timestamptz,
    finalized_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, awa, public
AS $$
DECLARE
    held constant awa.storage_transition_state := awa.awa_django_lock_storage_transition();
    backlog bigint;
BEGIN
    IF held.state <> 'mixed_transition' THEN
        RAISE EXCEPTION 'cannot finalize storage: the state is %, not mixed_transition', held.state
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF held.prepared_engine <> 'queue_storage' THEN
        RAISE EXCEPTION 'cannot finalize storage: the prepared engine is %, not queue_storage',
                held.prepared_engine
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    backlog := awa.canonical_live_backlog();
    IF backlog > 0 THEN
        RAISE EXCEPTION 'cannot finalize storage: % canonical job(s) are not finished', backlog
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Let a runtime that serves canonical storage drain them.';
    END IF;
    PERFORM awa.awa_django_refuse_canonical_runtimes('finalize storage');

    UPDATE awa.storage_transition_state AS transition SET
        current_engine = held.prepared_engine,
        prepared_engine = NULL,
        state = 'active',
        transition_epoch = held.transition_epoch + 1,
        entered_at = now(),
        updated_at = now(),
        finalized_at = now()
    WHERE transition.singleton;
    RETURN QUERY SELECT * FROM awa.storage_status();
END
$$;

-- Goes back to canonical storage, from a mixed transition only while queue storage is unused. In state
-- active it changes nothing, marker included, and does not fail: other installers call it in any state.
CREATE OR REPLACE FUNCTION awa.storage_abort()
RETURNS TABLE (
    current_engine text,
    active_engine text,
    prepared_engine text,
    state text,
    transition_epoch bigint,
    details jsonb,
    entered_at timestamptz,
    updated_at timestamptz,
    finalized_at timestamptz
)
LANGUAGE plpgsql
SET search_path = pg_catalog, awa, public
AS $$
DECLARE
    held constant awa.storage_transition_state := awa.awa_django_lock_storage_transition();
    target constant text := coalesce(nullif(held.details ->> 'schema', ''), 'awa');
    live bigint;
    relation text;
    used boolean;
BEGIN
    IF held.state = 'active' THEN
        RETURN QUERY SELECT * FROM awa.storage_status();
        RETURN;
    END IF;

    IF held.state = 'mixed_transition' THEN
        SELECT count(*) INTO live
        FROM awa.awa_django_live_runtimes()
        WHERE capability = 'queue_storage';
        IF live > 0 THEN
            RAISE EXCEPTION 'cannot abort the mixed transition: % live runtime(s) execute queue storage', live
                USING ERRCODE = 'object_not_in_prerequisite_state',
                    HINT = 'Stop them first.';
        END IF;

        IF to_regclass(format('%I.ready_entries', target)) IS NOT NULL THEN
            FOREACH relation IN ARRAY ARRAY[
                'ready_entries', 'ready_claim_attempt_batches', 'ready_tombstones', 'ready_segments',
                'deferred_jobs', 'leases', 'lease_claims', 'lease_claim_closures',
                'lease_claim_closure_batches', 'attempt_state', 'done_entries',
                'receipt_completion_batches', 'receipt_completion_tombstones', 'dlq_entries'
            ] LOOP
                CONTINUE WHEN to_regclass(format('%I.%I', target, relation)) IS NULL;
                EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I)', target, relation) INTO used;
                IF used THEN
                    RAISE EXCEPTION 'cannot abort the mixed transition: %.% has rows', target, relation
                        USING ERRCODE = 'object_not_in_prerequisite_state',
                            HINT = 'Queue storage has taken work; finish the transition instead.';
                END IF;
            END LOOP;
        END IF;
    END IF;

    DELETE FROM awa.runtime_storage_backends WHERE backend = 'queue_storage';
    UPDATE awa.storage_transition_state AS transition SET
        prepared_engine = NULL,
        state = 'canonical',
        details = '{}',
        transition_epoch = CASE held.state
            WHEN 'canonical' THEN held.transition_epoch
            ELSE held.transition_epoch + 1
        END,
        entered_at = CASE held.state WHEN 'canonical' THEN held.entered_at ELSE now() END,
        updated_at = now(),
        finalized_at = NULL
    WHERE transition.singleton;
    RETURN QUERY SELECT * FROM awa.storage_status();
END
$$;

-- Promotes an installation that nobody has used yet straight to queue storage, and says whether it did.
-- The first of several callers gets true, the others false. That the substrate exists is the caller's
-- business.
CREATE OR REPLACE FUNCTION awa.storage_auto_finalize_if_fresh(p_schema text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
DECLARE
    held constant awa.storage_transition_state := awa.awa_django_lock_storage_transition();
    target constant text := coalesce(nullif(btrim(p_schema), ''), 'awa');
BEGIN
    IF held.state <> 'canonical' OR held.prepared_engine IS NOT NULL THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT FROM awa.runtime_instances WHERE last_seen_at >= now() - interval '90 seconds') THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT FROM awa.jobs) THEN
        RETURN false;
    END IF;

    PERFORM awa.awa_django_mark_queue_storage(target);
    UPDATE awa.storage_transition_state AS transition SET
        current_engine = 'queue_storage',
        prepared_engine = NULL,
        state = 'active',
        details = jsonb_build_object('schema', target, 'auto_finalized', true),
        transition_epoch = held.transition_epoch + 1,
        entered_at = now(),
        updated_at = now(),
        finalized_at = now()
    WHERE transition.singleton;
    RETURN true;
END
$$;
