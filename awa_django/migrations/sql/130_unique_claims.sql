-- Unique claims: which job holds a key.
-- contract: control-functions, section 4

-- Keeps the claims of canonical rows. A row claims its key while its mask has the bit of its state.
-- Release comes before acquire, so a row that moves between the tables in one statement never meets its
-- own claim.
CREATE OR REPLACE FUNCTION awa.sync_job_unique_claims()
RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    was_claiming boolean := false;
    is_claiming boolean := false;
    holder bigint;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        was_claiming := OLD.unique_key IS NOT NULL
            AND coalesce(awa.job_state_in_bitmask(OLD.unique_states, OLD.state), false);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        is_claiming := NEW.unique_key IS NOT NULL
            AND coalesce(awa.job_state_in_bitmask(NEW.unique_states, NEW.state), false);
    END IF;
    IF was_claiming AND is_claiming AND OLD.unique_key = NEW.unique_key AND OLD.id = NEW.id THEN
        RETURN NULL;
    END IF;

    IF was_claiming THEN
        DELETE FROM awa.job_unique_claims
        WHERE unique_key = OLD.unique_key AND job_id = OLD.id;
    END IF;

    WHILE is_claiming LOOP
        -- Waits for a transaction that has taken the key and not ended yet.
        INSERT INTO awa.job_unique_claims (unique_key, job_id)
        VALUES (NEW.unique_key, NEW.id)
        ON CONFLICT (unique_key) DO NOTHING;
        EXIT WHEN FOUND;

        SELECT job_id INTO holder
        FROM awa.job_unique_claims
        WHERE unique_key = NEW.unique_key;
        EXIT WHEN holder = NEW.id;

        -- No row: the holder let go between the two statements, so try again.
        IF FOUND THEN
            RAISE EXCEPTION 'job % cannot claim unique key %: job % holds it',
                    NEW.id, pg_catalog.encode(NEW.unique_key, 'hex'), holder
                USING ERRCODE = 'unique_violation',
                    SCHEMA = 'awa', TABLE = 'job_unique_claims', CONSTRAINT = 'idx_awa_jobs_unique';
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Releases the claim of a queue-storage row, whose mask is text, when it leaves the given state. No claim
-- is no error, and neither is a short mask, whose missing bits are zeros.
CREATE OR REPLACE FUNCTION awa.release_queue_storage_unique_claim(
    p_job_id bigint,
    p_unique_key bytea,
    p_unique_states text,
    p_state awa.job_state
)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, awa, public
AS $$
BEGIN
    IF awa.job_state_in_bitmask(p_unique_states::bit(8), p_state) THEN
        DELETE FROM awa.job_unique_claims
        WHERE unique_key = p_unique_key AND job_id = p_job_id;
    END IF;
END
$$;

CREATE TRIGGER trg_jobs_hot_unique_claims_insert
    AFTER INSERT ON awa.jobs_hot
    FOR EACH ROW
    WHEN (NEW.unique_key IS NOT NULL AND NEW.unique_states IS NOT NULL)
    EXECUTE FUNCTION awa.sync_job_unique_claims();

CREATE TRIGGER trg_jobs_hot_unique_claims_update
    AFTER UPDATE ON awa.jobs_hot
    FOR EACH ROW
    WHEN ((OLD.unique_key IS NOT NULL AND OLD.unique_states IS NOT NULL)
        OR (NEW.unique_key IS NOT NULL AND NEW.unique_states IS NOT NULL))
    EXECUTE FUNCTION awa.sync_job_unique_claims();

CREATE TRIGGER trg_jobs_hot_unique_claims_delete
    AFTER DELETE ON awa.jobs_hot
    FOR EACH ROW
    WHEN (OLD.unique_key IS NOT NULL AND OLD.unique_states IS NOT NULL)
    EXECUTE FUNCTION awa.sync_job_unique_claims();

CREATE TRIGGER trg_scheduled_jobs_unique_claims_insert
    AFTER INSERT ON awa.scheduled_jobs
    FOR EACH ROW
    WHEN (NEW.unique_key IS NOT NULL AND NEW.unique_states IS NOT NULL)
    EXECUTE FUNCTION awa.sync_job_unique_claims();

CREATE TRIGGER trg_scheduled_jobs_unique_claims_update
    AFTER UPDATE ON awa.scheduled_jobs
    FOR EACH ROW
    WHEN ((OLD.unique_key IS NOT NULL AND OLD.unique_states IS NOT NULL)
        OR (NEW.unique_key IS NOT NULL AND NEW.unique_states IS NOT NULL))
    EXECUTE FUNCTION awa.sync_job_unique_claims();

CREATE TRIGGER trg_scheduled_jobs_unique_claims_delete
    AFTER DELETE ON awa.scheduled_jobs
    FOR EACH ROW
    WHEN (OLD.unique_key IS NOT NULL AND OLD.unique_states IS NOT NULL)
    EXECUTE FUNCTION awa.sync_job_unique_claims();
