-- A ring slot is not reused while a transaction still writes to it.
-- contract: queue-storage/maintenance, section 4; H-03
--
-- Rotation takes the next slot if its partitions are empty, by its own snapshot. A transaction that read the ring a
-- lap ago and has inserted but not committed is invisible to that look, and its rows would commit under a
-- generation the slot has left: no claim prefers them, no gate counts them, a prune truncates them. What such a
-- transaction cannot hide is its lock on the partition.
--
-- Both triggers drop the update instead of raising: a leader of another kind then believes it rotated, finds the
-- ring where it was, and tries again in a second. Their names sort before those of later schema versions, which
-- put triggers of their own on these tables.

-- Drops a move of the ring onto a slot that another session is writing to, or has written to since the leader looked.
-- First the locks, then the rows, each in a statement of its own: a writer that is gone from the first has committed
-- before the second takes its snapshot.
CREATE OR REPLACE FUNCTION awa.awa_django_guard_ring_state()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM pg_locks AS held
        WHERE held.locktype = 'relation'
          AND held.database = (SELECT here.oid FROM pg_database AS here WHERE here.datname = current_database())
          AND held.mode = 'RowExclusiveLock'
          AND held.granted
          AND held.pid IS DISTINCT FROM pg_backend_pid()
          AND held.relation IN (
                to_regclass(format('awa.ready_entries_%s', NEW.current_slot)),
                to_regclass(format('awa.ready_segments_%s', NEW.current_slot)),
                to_regclass(format('awa.done_entries_%s', NEW.current_slot))
            )
    ) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT 1 FROM awa.ready_entries WHERE ready_slot = NEW.current_slot)
       OR EXISTS (SELECT 1 FROM awa.ready_segments WHERE ready_slot = NEW.current_slot)
       OR EXISTS (SELECT 1 FROM awa.done_entries WHERE ready_slot = NEW.current_slot)
    THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER awa_django_guard_ring_state
    BEFORE UPDATE ON awa.queue_ring_state
    FOR EACH ROW
    WHEN (NEW.current_slot IS DISTINCT FROM OLD.current_slot)
    EXECUTE FUNCTION awa.awa_django_guard_ring_state();

-- Drops the label that belongs to a dropped move: a slot's generation never runs ahead of the ring's. A ring whose
-- cursor is no longer kept in its row (generation below 0) does not speak for its slots.
CREATE OR REPLACE FUNCTION awa.awa_django_guard_ring_slot()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM awa.queue_ring_state AS ring
        WHERE ring.singleton
          AND ring.generation >= 0
          AND ring.generation < NEW.generation
    ) THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER awa_django_guard_ring_slot
    BEFORE UPDATE ON awa.queue_ring_slots
    FOR EACH ROW
    WHEN (NEW.generation > OLD.generation)
    EXECUTE FUNCTION awa.awa_django_guard_ring_slot();
