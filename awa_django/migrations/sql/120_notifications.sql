-- The wake-up of workers: an empty message on channel awa:QUEUE when a due job comes in.
-- contract: control-functions, section 2

-- Updates wake nobody: statements that make a row available insert it again. A queue name over 59 bytes
-- does not fit a channel name and fails the insert with 22023.
CREATE OR REPLACE FUNCTION awa.notify_new_job()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('awa:' || NEW.queue, '');
    RETURN NULL;
END
$$;

CREATE TRIGGER trg_awa_notify
    AFTER INSERT ON awa.jobs_hot
    FOR EACH ROW
    WHEN (NEW.state = 'available' AND NEW.run_at <= now())
    EXECUTE FUNCTION awa.notify_new_job();
