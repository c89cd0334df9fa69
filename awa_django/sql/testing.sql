-- Between two tests.

-- name: reset
-- Makes the schema what a fresh installation is: no rows but its seeds, on queue storage. Only tables that
-- have grown are truncated, as most tests touch a few of some three hundred. The rows of the rings are made
-- anew: moving a cursor by an update is guarded while anybody writes.
-- contract: queue-storage/layout section 11; schema section 7
-- rows:  none
-- locks: each of those tables exclusively, and the lanes' sequences, until the transaction ends
DO $$
DECLARE
    tables text;
    sequences text;
BEGIN
    SELECT string_agg(format('awa.%%I', relname), ', ')
    INTO tables
    FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace
        AND relkind = 'r'
        AND relname <> 'schema_version'
        AND (
            pg_relation_size(oid) > 0
            -- refers to the operations, and has to be truncated with them
            OR relname = 'batch_operation_items' AND pg_relation_size('awa.batch_operations') > 0
        );
    EXECUTE 'TRUNCATE TABLE ' || tables;

    -- The sequences of the lanes: a lane that is new starts at 1.
    SELECT string_agg(format('awa.%%I', relname), ', ')
    INTO sequences
    FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace
        AND relkind = 'S'
        AND relname ~ '^queue_(enqueue|claim)_seq_[0-9a-f]{32}$';
    IF sequences IS NOT NULL THEN
        EXECUTE 'DROP SEQUENCE ' || sequences;
    END IF;

    INSERT INTO awa.queue_ring_state (
        singleton, current_slot, generation, slot_count, terminal_counter_trusted_at
    )
    VALUES (true, 0, 0, 16, now());
    INSERT INTO awa.queue_ring_slots (slot, generation)
    SELECT slot, CASE slot WHEN 0 THEN 0 ELSE -1 END FROM generate_series(0, 15) AS slot;

    INSERT INTO awa.lease_ring_state (singleton, current_slot, generation, slot_count)
    VALUES (true, 0, 0, 8);
    INSERT INTO awa.lease_ring_slots (slot, generation)
    SELECT slot, CASE slot WHEN 0 THEN 0 ELSE -1 END FROM generate_series(0, 7) AS slot;

    INSERT INTO awa.claim_ring_state (singleton, current_slot, generation, slot_count)
    VALUES (true, 0, 0, 8);
    INSERT INTO awa.claim_ring_slots (slot, generation)
    SELECT slot, CASE slot WHEN 0 THEN 0 ELSE -1 END FROM generate_series(0, 7) AS slot;

    INSERT INTO awa.storage_transition_state (singleton, current_engine, state)
    VALUES (true, 'canonical', 'canonical');
    PERFORM awa.storage_auto_finalize_if_fresh('awa');
END
$$;

-- name: limit_wait
-- rows:  none
-- locks: none
SET LOCAL lock_timeout = '10s';
