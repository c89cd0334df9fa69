-- Writes through the view jobs, on whichever plane is in force.
-- contract: control-functions, section 3

-- One row of an INSERT, UPDATE or DELETE on the view. An update deletes the old row, guarded by the
-- columns that every transition changes, and inserts the new one, so that it wakes workers, marks counters
-- and passes on unique claims as a move does; a row whose guard no longer holds is skipped. Waits for row
-- locks of other transactions.
CREATE OR REPLACE FUNCTION awa.write_jobs_view()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, awa, public
AS $$
DECLARE
    on_queue_storage constant boolean := awa.active_queue_storage_schema() IS NOT NULL;
    given_states bit(8);
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF on_queue_storage THEN
            IF awa.delete_job_compat(OLD.id) THEN
                RETURN OLD;
            END IF;
            RETURN NULL;
        END IF;
        IF OLD.state IN ('scheduled', 'retryable') THEN
            DELETE FROM awa.scheduled_jobs WHERE id = OLD.id;
        ELSE
            DELETE FROM awa.jobs_hot WHERE id = OLD.id;
        END IF;
        RETURN OLD;
    END IF;

    IF TG_OP = 'UPDATE' THEN
        IF on_queue_storage THEN
            RAISE EXCEPTION 'cannot update job % through awa.jobs: its queue-storage rows are final', OLD.id
                USING ERRCODE = 'feature_not_supported',
                    HINT = 'Use the operations of a client: retry, cancel, move, set priority.';
        END IF;
        IF OLD.state IN ('scheduled', 'retryable') THEN
            DELETE FROM awa.scheduled_jobs
            WHERE id = OLD.id
                AND state = OLD.state
                AND run_lease = OLD.run_lease
                AND callback_id IS NOT DISTINCT FROM OLD.callback_id;
        ELSE
            DELETE FROM awa.jobs_hot
            WHERE id = OLD.id
                AND state = OLD.state
                AND run_lease = OLD.run_lease
                AND callback_id IS NOT DISTINCT FROM OLD.callback_id;
        END IF;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    ELSE
        NEW.queue := coalesce(NEW.queue, 'default');
        NEW.args := coalesce(NEW.args, '{}');
        NEW.state := coalesce(NEW.state, 'available');
        NEW.priority := coalesce(NEW.priority, 2);
        NEW.max_attempts := coalesce(NEW.max_attempts, 25);
        NEW.run_at := coalesce(NEW.run_at, now());
        NEW.metadata := coalesce(NEW.metadata, '{}');
        NEW.tags := coalesce(NEW.tags, '{}');

        IF on_queue_storage THEN
            IF NEW.state NOT IN ('available', 'scheduled', 'retryable') THEN
                RAISE EXCEPTION 'cannot insert a job as % through awa.jobs: queue storage takes new jobs as '
                        'available, scheduled or retryable only', NEW.state
                    USING ERRCODE = 'feature_not_supported';
            END IF;
            IF num_nonnulls(
                    NEW.id, NEW.heartbeat_at, NEW.deadline_at, NEW.attempted_at, NEW.finalized_at,
                    NEW.created_at, NEW.errors, NEW.callback_id, NEW.callback_timeout_at,
                    NEW.callback_filter, NEW.callback_on_complete, NEW.callback_on_fail,
                    NEW.callback_transform, NEW.progress
                ) > 0
                OR coalesce(NEW.attempt, 0) <> 0
                OR coalesce(NEW.run_lease, 0) <> 0
            THEN
                RAISE EXCEPTION 'cannot insert a job with id, attempt, run_lease, errors, progress, callback '
                        'or execution times through awa.jobs: queue storage sets them itself'
                    USING ERRCODE = 'feature_not_supported';
            END IF;
            given_states := NEW.unique_states;
            SELECT * INTO NEW
            FROM awa.insert_job_compat(
                NEW.kind, NEW.queue, NEW.args, NEW.state, NEW.priority, NEW.max_attempts, NEW.run_at,
                NEW.metadata, NEW.tags, NEW.unique_key, NEW.unique_states
            );
            NEW.unique_states := given_states;
            RETURN NEW;
        END IF;

        NEW.id := coalesce(NEW.id, nextval('awa.jobs_id_seq'));
        NEW.attempt := coalesce(NEW.attempt, 0);
        NEW.created_at := coalesce(NEW.created_at, now());
        NEW.errors := coalesce(NEW.errors, '{}');
        NEW.run_lease := coalesce(NEW.run_lease, 0);
    END IF;

    -- By position: the view and both tables have the same columns in the same order.
    IF NEW.state IN ('scheduled', 'retryable') THEN
        INSERT INTO awa.scheduled_jobs VALUES (NEW.*);
    ELSE
        INSERT INTO awa.jobs_hot VALUES (NEW.*);
    END IF;
    RETURN NEW;
END
$$;
