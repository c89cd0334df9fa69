-- Enqueuing: the shard of an ordering key, and everything a bulk producer needs before it copies its rows.
-- contract: queue-storage/enqueue, sections 2, 5 and 10; api/ordering_and_partitions, section 1; H-03
-- insert_job_compat() returns a row of the view awa.jobs and so comes after it, in 320_insert_job_compat.sql.

-- The shard of an ordering key: its 64-bit hash (multiply by 2^40 + 435, then add the byte) modulo the shards.
-- The hash is kept in two halves of 32 bits, since bigint has no unsigned multiplication that wraps, and numeric
-- takes ten times as long.
CREATE OR REPLACE FUNCTION awa.awa_django_ordering_shard(p_ordering_key bytea, p_shards integer)
RETURNS smallint
LANGUAGE plpgsql
IMMUTABLE
STRICT
SET search_path = pg_catalog
AS $$
DECLARE
    c_half constant bigint := 4294967296;
    v_high bigint := 3421674724;    -- 14695981039346656037 / 2^32
    v_low bigint := 2216829733;     -- 14695981039346656037 % 2^32
    v_product bigint;
BEGIN
    FOR v_index IN 0 .. length(p_ordering_key) - 1 LOOP
        v_product := v_low * 435 + get_byte(p_ordering_key, v_index);
        v_high := (v_high * 435 + v_product / c_half + v_low * 256) % c_half;
        v_low := v_product % c_half;
    END LOOP;
    RETURN (v_high % p_shards * (c_half % p_shards) + v_low) % p_shards;
END
$$;

-- Nothing at READ COMMITTED. At a stricter level, makes sure that the ring this transaction sees is still the ring:
-- rows placed by a snapshot from before a rotation would fall behind rows of the same lane, or into a slot in reuse.
-- rows:  none; 40001 if the ring has moved since the transaction's snapshot, and the transaction has to start again
-- locks: none that stays. The row lock that finds the newer version is given back at once with its subtransaction:
--        held to the end it would stop the leader at its next rotation
-- SECURITY DEFINER because the lock needs UPDATE on the ring, which producers do not have. It reveals nothing.
CREATE OR REPLACE FUNCTION awa.awa_django_check_ring_snapshot()
RETURNS void
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM 1
        FROM awa.queue_ring_state AS ring
        WHERE ring.singleton
        FOR SHARE;
        RAISE EXCEPTION 'the ring is current' USING ERRCODE = 'AWA00';
    EXCEPTION
        WHEN SQLSTATE 'AWA00' THEN
            NULL;
    END;
END
$$;

-- The slot and generation for rows that are inserted by later statements of this transaction.
-- rows:  the current slot of the queue ring and its generation
-- locks: ROW EXCLUSIVE on the slot's children until the transaction ends, the mark that keeps a rotation from
--        coming round to them (H-03): between reading the ring and the first insert there is no other trace of it
CREATE OR REPLACE FUNCTION awa.awa_django_hold_ready_slot(OUT ready_slot integer, OUT ready_generation bigint)
RETURNS record
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_generation bigint;
BEGIN
    PERFORM awa.awa_django_check_ring_snapshot();
    SELECT ring.current_slot, ring.generation
    INTO STRICT ready_slot, ready_generation
    FROM awa.queue_ring_state AS ring
    WHERE ring.singleton;
    LOOP
        -- A role that reaches the children through their parents alone cannot lock them by name.
        EXIT WHEN NOT has_table_privilege(format('awa.ready_entries_%s', ready_slot), 'INSERT');
        EXECUTE format('LOCK TABLE awa.ready_entries_%s IN ROW EXCLUSIVE MODE', ready_slot);
        v_generation := ready_generation;
        SELECT ring.current_slot, ring.generation
        INTO STRICT ready_slot, ready_generation
        FROM awa.queue_ring_state AS ring
        WHERE ring.singleton;
        EXIT WHEN ready_generation = v_generation;
    END LOOP;
END
$$;

-- Places for a batch: registers the lanes that are missing, reserves p_counts[i] positions of lane i, and only then
-- reads the ring. One round trip before a COPY into awa.ready_entries.
-- rows:  one per lane and in lane order (queue, priority, shard): the first position reserved, and the slot and
--        generation that all rows and segments of this batch must carry
-- locks: per lane, in that order, the registration key if it is new, and the allocation key; then the ready slot
--        (awa_django_hold_ready_slot). All until the transaction ends
CREATE OR REPLACE FUNCTION awa.awa_django_reserve_lanes(
    p_queues text[],
    p_priorities smallint[],
    p_enqueue_shards smallint[],
    p_counts bigint[]
)
RETURNS TABLE (
    queue text,
    priority smallint,
    enqueue_shard smallint,
    first_lane_seq bigint,
    ready_slot integer,
    ready_generation bigint
)
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
#variable_conflict use_column
DECLARE
    v_lane record;
    v_place record;
    v_seq_name text;
    v_queues text[] := '{}';
    v_priorities smallint[] := '{}';
    v_shards smallint[] := '{}';
    v_firsts bigint[] := '{}';
BEGIN
    FOR v_lane IN
        SELECT wanted.queue, wanted.priority, wanted.enqueue_shard, wanted.total
        FROM unnest(p_queues, p_priorities, p_enqueue_shards, p_counts)
            AS wanted (queue, priority, enqueue_shard, total)
        ORDER BY wanted.queue COLLATE "C", wanted.priority, wanted.enqueue_shard
    LOOP
        IF (v_lane.total > 0) IS NOT TRUE THEN
            RAISE EXCEPTION 'cannot reserve % positions of lane (queue %, priority %, shard %)',
                v_lane.total, v_lane.queue, v_lane.priority, v_lane.enqueue_shard
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Pass four arrays of one length, with counts of at least 1.';
        END IF;
        SELECT head.seq_name
        INTO v_seq_name
        FROM awa.queue_enqueue_heads AS head
        WHERE head.queue = v_lane.queue
          AND head.priority = v_lane.priority
          AND head.enqueue_shard = v_lane.enqueue_shard;
        IF v_seq_name IS NULL THEN
            v_seq_name := awa.awa_django_register_lane(v_lane.queue, v_lane.priority, v_lane.enqueue_shard);
        END IF;
        v_queues := v_queues || v_lane.queue;
        v_priorities := v_priorities || v_lane.priority;
        v_shards := v_shards || v_lane.enqueue_shard;
        v_firsts := v_firsts || awa.awa_django_allocate(v_seq_name, v_lane.total);
    END LOOP;

    SELECT held.ready_slot, held.ready_generation
    INTO STRICT v_place
    FROM awa.awa_django_hold_ready_slot() AS held;
    RETURN QUERY
    SELECT
        lane.queue,
        lane.priority,
        lane.enqueue_shard,
        lane.first_lane_seq,
        v_place.ready_slot,
        v_place.ready_generation
    FROM unnest(v_queues, v_priorities, v_shards, v_firsts)
        AS lane (queue, priority, enqueue_shard, first_lane_seq);
END
$$;
