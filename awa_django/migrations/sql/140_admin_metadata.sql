-- Cached counters of canonical rows. Triggers only append marks, and one process counts: counting in the
-- triggers would serialise the transitions of a queue's jobs on its counter row.
-- contract: control-functions, section 5
--
-- Other clients decide by the source text of five functions here whether to replace them (contract:
-- schema, section 2.2). Their bodies name admin_dirty_queue_marks, and the body of refresh_admin_metadata
-- is free of the statement that empties a table at once; keep both so.

-- Marks -----------------------------------------------------------------------------------------------

-- The inserts are plain on purpose: whatever could wait here would make one transition wait for another.

CREATE OR REPLACE FUNCTION awa.mark_dirty_keys_insert()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO awa.admin_dirty_queue_marks (queue)
    SELECT DISTINCT queue FROM new_rows;
    INSERT INTO awa.admin_dirty_kind_marks (kind)
    SELECT DISTINCT kind FROM new_rows;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION awa.mark_dirty_keys_delete()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO awa.admin_dirty_queue_marks (queue)
    SELECT DISTINCT queue FROM old_rows;
    INSERT INTO awa.admin_dirty_kind_marks (kind)
    SELECT DISTINCT kind FROM old_rows;
    RETURN NULL;
END
$$;

-- Heartbeats, progress and priorities change no count and mark nothing.
CREATE OR REPLACE FUNCTION awa.mark_dirty_keys_update()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO awa.admin_dirty_queue_marks (queue)
    SELECT DISTINCT touched.queue
    FROM old_rows AS before
    JOIN new_rows AS after USING (id)
    CROSS JOIN LATERAL (VALUES (before.queue), (after.queue)) AS touched (queue)
    WHERE before.queue <> after.queue OR before.state <> after.state;

    INSERT INTO awa.admin_dirty_kind_marks (kind)
    SELECT DISTINCT touched.kind
    FROM old_rows AS before
    JOIN new_rows AS after USING (id)
    CROSS JOIN LATERAL (VALUES (before.kind), (after.kind)) AS touched (kind)
    WHERE before.kind <> after.kind;
    RETURN NULL;
END
$$;

CREATE TRIGGER trg_jobs_hot_dirty_keys_insert
    AFTER INSERT ON awa.jobs_hot
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION awa.mark_dirty_keys_insert();

CREATE TRIGGER trg_jobs_hot_dirty_keys_update
    AFTER UPDATE ON awa.jobs_hot
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION awa.mark_dirty_keys_update();

CREATE TRIGGER trg_jobs_hot_dirty_keys_delete
    AFTER DELETE ON awa.jobs_hot
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION awa.mark_dirty_keys_delete();

CREATE TRIGGER trg_scheduled_jobs_dirty_keys_insert
    AFTER INSERT ON awa.scheduled_jobs
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION awa.mark_dirty_keys_insert();

CREATE TRIGGER trg_scheduled_jobs_dirty_keys_update
    AFTER UPDATE ON awa.scheduled_jobs
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION awa.mark_dirty_keys_update();

CREATE TRIGGER trg_scheduled_jobs_dirty_keys_delete
    AFTER DELETE ON awa.scheduled_jobs
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT
    EXECUTE FUNCTION awa.mark_dirty_keys_delete();

-- Counts ----------------------------------------------------------------------------------------------

-- Counts these queues anew and writes what it finds; a queue without rows loses its counters. The caller
-- holds advisory lock 1098018130, or the counter tables themselves.
CREATE OR REPLACE FUNCTION awa.awa_django_recount_queues(p_queues text[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
BEGIN
    WITH counted AS (
        SELECT
            queue,
            count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
            count(*) FILTER (WHERE state = 'available') AS available,
            count(*) FILTER (WHERE state = 'running') AS running,
            count(*) FILTER (WHERE state = 'completed') AS completed,
            count(*) FILTER (WHERE state = 'retryable') AS retryable,
            count(*) FILTER (WHERE state = 'failed') AS failed,
            count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
            count(*) FILTER (WHERE state = 'waiting_external') AS waiting_external,
            count(*) AS total
        FROM (
            SELECT queue, state FROM awa.jobs_hot WHERE queue = ANY (p_queues)
            UNION ALL
            SELECT queue, state FROM awa.scheduled_jobs WHERE queue = ANY (p_queues)
        ) AS job
        GROUP BY queue
    ), counts_written AS (
        INSERT INTO awa.queue_state_counts AS held (
            queue, scheduled, available, running, completed, retryable, failed, cancelled, waiting_external
        )
        SELECT
            queue, scheduled, available, running, completed, retryable, failed, cancelled, waiting_external
        FROM counted
        ON CONFLICT (queue) DO UPDATE SET
            scheduled = EXCLUDED.scheduled,
            available = EXCLUDED.available,
            running = EXCLUDED.running,
            completed = EXCLUDED.completed,
            retryable = EXCLUDED.retryable,
            failed = EXCLUDED.failed,
            cancelled = EXCLUDED.cancelled,
            waiting_external = EXCLUDED.waiting_external
        WHERE held IS DISTINCT FROM EXCLUDED
    ), catalog_written AS (
        INSERT INTO awa.job_queue_catalog AS held (queue, ref_count)
        SELECT queue, total FROM counted
        ON CONFLICT (queue) DO UPDATE SET ref_count = EXCLUDED.ref_count
        WHERE held.ref_count <> EXCLUDED.ref_count
    ), empty AS (
        SELECT queue FROM unnest(p_queues) AS queue
        EXCEPT
        SELECT queue FROM counted
    ), counts_dropped AS (
        DELETE FROM awa.queue_state_counts WHERE queue IN (SELECT queue FROM empty)
    )
    DELETE FROM awa.job_queue_catalog WHERE queue IN (SELECT queue FROM empty);
END
$$;

-- The same for kinds.
CREATE OR REPLACE FUNCTION awa.awa_django_recount_kinds(p_kinds text[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
BEGIN
    WITH counted AS (
        SELECT kind, count(*) AS total
        FROM (
            SELECT kind FROM awa.jobs_hot WHERE kind = ANY (p_kinds)
            UNION ALL
            SELECT kind FROM awa.scheduled_jobs WHERE kind = ANY (p_kinds)
        ) AS job
        GROUP BY kind
    ), catalog_written AS (
        INSERT INTO awa.job_kind_catalog AS held (kind, ref_count)
        SELECT kind, total FROM counted
        ON CONFLICT (kind) DO UPDATE SET ref_count = EXCLUDED.ref_count
        WHERE held.ref_count <> EXCLUDED.ref_count
    ), empty AS (
        SELECT kind FROM unnest(p_kinds) AS kind
        EXCEPT
        SELECT kind FROM counted
    )
    DELETE FROM awa.job_kind_catalog WHERE kind IN (SELECT kind FROM empty);
END
$$;

-- Counts every queue and kind that has rows or counters.
CREATE OR REPLACE FUNCTION awa.awa_django_recount_all()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, awa
AS $$
BEGIN
    PERFORM awa.awa_django_recount_queues(ARRAY(
        SELECT queue FROM awa.jobs_hot
        UNION
        SELECT queue FROM awa.scheduled_jobs
        UNION
        SELECT queue FROM awa.queue_state_counts
        UNION
        SELECT queue FROM awa.job_queue_catalog
    ));
    PERFORM awa.awa_django_recount_kinds(ARRAY(
        SELECT kind FROM awa.jobs_hot
        UNION
        SELECT kind FROM awa.scheduled_jobs
        UNION
        SELECT kind FROM awa.job_kind_catalog
    ));
END
$$;

-- Recounts up to p_batch_size marked queues and as many kinds, those marked longest ago first, and returns
-- how many keys that were; callers repeat until 0. Holds advisory lock 1098018130 to the end of the
-- transaction.
CREATE OR REPLACE FUNCTION awa.recompute_dirty_admin_metadata(p_batch_size integer DEFAULT 100)
RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    queues text[];
    kinds text[];
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(1098018130);

    -- Marks go first, in a statement of their own: a mark that the delete sees belongs to a committed
    -- change, which the later count then sees too. One that comes in meanwhile stays for the next call.
    queues := ARRAY(
        SELECT queue
        FROM awa.admin_dirty_queue_marks
        GROUP BY queue
        ORDER BY min(touched_at), queue
        LIMIT p_batch_size
    );
    DELETE FROM awa.admin_dirty_queue_marks WHERE queue = ANY (queues);
    PERFORM awa.awa_django_recount_queues(queues);

    kinds := ARRAY(
        SELECT kind
        FROM awa.admin_dirty_kind_marks
        GROUP BY kind
        ORDER BY min(touched_at), kind
        LIMIT p_batch_size
    );
    DELETE FROM awa.admin_dirty_kind_marks WHERE kind = ANY (kinds);
    PERFORM awa.awa_django_recount_kinds(kinds);

    RETURN cardinality(queues) + cardinality(kinds);
END
$$;

-- Recounts everything. Holds advisory lock 1098018130 to the end of the transaction, and no lock that a
-- job's transition would wait for.
CREATE OR REPLACE FUNCTION awa.refresh_admin_metadata()
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(1098018130);
    DELETE FROM awa.admin_dirty_queue_marks;
    DELETE FROM awa.admin_dirty_kind_marks;
    PERFORM awa.awa_django_recount_all();
END
$$;

-- Fills the counters from nothing, under an exclusive lock on the three tables to the end of the
-- transaction; for repair by hand. Marks stay.
CREATE OR REPLACE FUNCTION awa.rebuild_admin_metadata()
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    TRUNCATE awa.queue_state_counts, awa.job_queue_catalog, awa.job_kind_catalog;
    PERFORM awa.awa_django_recount_all();
END
$$;
