-- Lanes: the pair of sequences behind each (queue, priority, shard), and the functions that read and move them.
-- contract: queue-storage/enqueue, sections 3 and 4; H-16
--
-- A lane is three rows (queue_lanes, queue_enqueue_heads, queue_claim_heads) and two sequences. It is created on
-- first use and never removed, so "is it there" is one look-up that takes no lock, and creation is rare.
--
-- Who may create one. The sequences are made by a SECURITY DEFINER function, so a producer needs no CREATE on the
-- schema: they belong to the owner of the schema's functions, and receive the grants that awa.job_id_seq carries,
-- which every producer and worker needs anyway (USAGE for enqueuing one by one; USAGE, SELECT and UPDATE for
-- batches and cursors). Grant them to a role on ALL SEQUENCES IN SCHEMA awa and its lanes follow, whoever uses
-- a lane first. The function acts only for a (queue, priority) that is in queue_lanes and only for the 64 shards,
-- so a role that may not insert there can create nothing with it. Without such a row the sequences are made with
-- the caller's own rights, and then CREATE is needed.

-- The name of a lane's sequence. The text is the contract's: clients in other languages compute it too.
CREATE OR REPLACE FUNCTION awa.queue_lane_sequence_name(
    p_prefix text,
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint
)
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog
AS $$
    SELECT p_prefix || '_' || md5(p_queue || ':' || p_priority || ':' || p_enqueue_shard)
$$;

-- The value the next nextval() would return, with nothing changed.
-- rows:  one value; 55000 for a NULL name, 42P01 for a sequence that is not there, 42501 without SELECT on it
-- A sequence that was called answers without its row being scanned. NULL means "never called" or, on later
-- servers, "not yours to read"; reading the row itself tells the two apart.
CREATE OR REPLACE FUNCTION awa.sequence_next_value(p_seq_name text)
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_next bigint;
BEGIN
    IF p_seq_name IS NULL THEN
        RAISE EXCEPTION 'a lane has no sequence name'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'awa.ensure_lane_sequences(queue, priority, shard) creates the sequences and names them.';
    END IF;
    v_next := pg_sequence_last_value(('awa.' || quote_ident(p_seq_name))::regclass) + 1;
    IF v_next IS NULL THEN
        EXECUTE format('SELECT last_value + is_called::integer FROM awa.%I', p_seq_name) INTO STRICT v_next;
    END IF;
    RETURN v_next;
END
$$;

-- Raises a sequence so that its next value is at least p_next. It never lowers one.
-- locks: none if it is there already; else the sequence's key, until the transaction ends. Callers are short or
--        hold the lane's head row as long, and a key of the session would outlive a cancelled statement (H-16)
CREATE OR REPLACE FUNCTION awa.set_sequence_next(p_seq_name text, p_next bigint)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
BEGIN
    IF p_next IS NULL OR p_next <= awa.sequence_next_value(p_seq_name) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(format('%I.%I', 'awa', p_seq_name), 0));
    IF p_next > awa.sequence_next_value(p_seq_name) THEN
        -- "Called" at the value before, not "uncalled" at the value: readers then never see NULL for it.
        PERFORM setval(format('%I.%I', 'awa', p_seq_name)::regclass, p_next - 1, true);
    END IF;
END
$$;

-- Takes p_count consecutive values of an allocation sequence and returns the first.
-- locks: the sequence's key until the transaction ends: commit order becomes lane order, which is what lets a
--        claim take a missing position below a visible one for a gap that stays (enqueue, section 1)
CREATE OR REPLACE FUNCTION awa.awa_django_allocate(p_seq_name text, p_count bigint)
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_sequence constant regclass := ('awa.' || quote_ident(p_seq_name))::regclass;
    v_first bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(format('%I.%I', 'awa', p_seq_name), 0));
    v_first := nextval(v_sequence);
    IF p_count > 1 THEN
        PERFORM setval(v_sequence, v_first + p_count - 1, true);
    END IF;
    RETURN v_first;
END
$$;

-- One sequence of a lane, made with the rights of the current role, with the grants of awa.job_id_seq.
CREATE OR REPLACE FUNCTION awa.awa_django_create_sequence(p_seq_name text)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_grant record;
BEGIN
    -- Cache 1: a session that held a block of values would break the order of the lane.
    EXECUTE format('CREATE SEQUENCE awa.%I AS bigint START WITH 1 MINVALUE 1 CACHE 1', p_seq_name);
    FOR v_grant IN
        SELECT
            CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(role.rolname) END AS grantee,
            string_agg(acl.privilege_type, ', ') AS privileges
        FROM pg_class AS ids
        CROSS JOIN aclexplode(coalesce(ids.relacl, acldefault('s', ids.relowner))) AS acl
        LEFT JOIN pg_roles AS role ON role.oid = acl.grantee
        WHERE ids.oid = 'awa.job_id_seq'::regclass
          AND role.rolname IS DISTINCT FROM current_user
        GROUP BY acl.grantee, role.rolname
    LOOP
        EXECUTE format('GRANT %s ON SEQUENCE awa.%I TO %s', v_grant.privileges, p_seq_name, v_grant.grantee);
    END LOOP;
END
$$;

-- Both sequences of a lane, as far as they are missing, with the rights of the current role.
-- locks: the lane's registration key until the transaction ends; a second creator would otherwise meet a
--        unique violation in the catalogue instead of the sequence
CREATE OR REPLACE FUNCTION awa.awa_django_create_lane_sequences(
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint
)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text;
BEGIN
    PERFORM pg_advisory_xact_lock(
        hashtextextended('awa:' || p_queue || ':' || p_priority || ':' || p_enqueue_shard, 0)
    );
    FOREACH v_name IN ARRAY ARRAY[
        awa.queue_lane_sequence_name('queue_enqueue_seq', p_queue, p_priority, p_enqueue_shard),
        awa.queue_lane_sequence_name('queue_claim_seq', p_queue, p_priority, p_enqueue_shard)
    ] LOOP
        IF to_regclass('awa.' || v_name) IS NULL THEN
            PERFORM awa.awa_django_create_sequence(v_name);
        END IF;
    END LOOP;
END
$$;

-- The same for a role without CREATE on the schema, for registered lanes only. True if it acted.
CREATE OR REPLACE FUNCTION awa.awa_django_create_registered_lane_sequences(
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint
)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_enqueue_shard NOT BETWEEN 0 AND 63 THEN
        RETURN false;
    END IF;
    PERFORM 1
    FROM awa.queue_lanes AS lane
    WHERE lane.queue = p_queue
      AND lane.priority = p_priority;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM awa.awa_django_create_lane_sequences(p_queue, p_priority, p_enqueue_shard);
    RETURN true;
END
$$;

-- Creates what is missing of a lane's sequences. Two look-ups and no lock when nothing is.
CREATE OR REPLACE FUNCTION awa.awa_django_need_lane_sequences(
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint
)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
BEGIN
    IF to_regclass(
           'awa.' || awa.queue_lane_sequence_name('queue_enqueue_seq', p_queue, p_priority, p_enqueue_shard)
       ) IS NOT NULL
       AND to_regclass(
           'awa.' || awa.queue_lane_sequence_name('queue_claim_seq', p_queue, p_priority, p_enqueue_shard)
       ) IS NOT NULL
    THEN
        RETURN;
    END IF;
    IF NOT awa.awa_django_create_registered_lane_sequences(p_queue, p_priority, p_enqueue_shard) THEN
        PERFORM awa.awa_django_create_lane_sequences(p_queue, p_priority, p_enqueue_shard);
    END IF;
END
$$;

-- Both sequences of a lane, and their names in its heads where those are missing or differ.
CREATE OR REPLACE FUNCTION awa.ensure_lane_sequences(
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint
)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_enqueue_name constant text :=
        awa.queue_lane_sequence_name('queue_enqueue_seq', p_queue, p_priority, p_enqueue_shard);
    v_claim_name constant text :=
        awa.queue_lane_sequence_name('queue_claim_seq', p_queue, p_priority, p_enqueue_shard);
BEGIN
    PERFORM awa.awa_django_need_lane_sequences(p_queue, p_priority, p_enqueue_shard);
    UPDATE awa.queue_enqueue_heads AS head
    SET seq_name = v_enqueue_name
    WHERE head.queue = p_queue
      AND head.priority = p_priority
      AND head.enqueue_shard = p_enqueue_shard
      AND head.seq_name IS DISTINCT FROM v_enqueue_name;
    UPDATE awa.queue_claim_heads AS head
    SET seq_name = v_claim_name
    WHERE head.queue = p_queue
      AND head.priority = p_priority
      AND head.enqueue_shard = p_enqueue_shard
      AND head.seq_name IS DISTINCT FROM v_claim_name;
END
$$;

-- Reserves p_count positions of a lane and returns the first; with none to reserve, the position that would be next.
-- rows:  one value; 55000 if the lane has no named enqueue head
-- locks: the allocation key until the transaction ends (awa_django_allocate)
CREATE OR REPLACE FUNCTION awa.reserve_enqueue_seq(
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint,
    p_count bigint
)
RETURNS bigint
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_seq_name text;
BEGIN
    SELECT head.seq_name
    INTO v_seq_name
    FROM awa.queue_enqueue_heads AS head
    WHERE head.queue = p_queue
      AND head.priority = p_priority
      AND head.enqueue_shard = p_enqueue_shard;

    IF p_count > 0 AND (v_seq_name IS NULL OR to_regclass('awa.' || quote_ident(v_seq_name)) IS NULL) THEN
        PERFORM awa.ensure_lane_sequences(p_queue, p_priority, p_enqueue_shard);
        SELECT head.seq_name
        INTO v_seq_name
        FROM awa.queue_enqueue_heads AS head
        WHERE head.queue = p_queue
          AND head.priority = p_priority
          AND head.enqueue_shard = p_enqueue_shard;
    END IF;
    IF v_seq_name IS NULL THEN
        RAISE EXCEPTION 'lane (queue %, priority %, shard %) is not registered', p_queue, p_priority, p_enqueue_shard
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Insert its rows in awa.queue_lanes, awa.queue_enqueue_heads and awa.queue_claim_heads first.';
    END IF;

    IF p_count > 0 THEN
        RETURN awa.awa_django_allocate(v_seq_name, p_count);
    END IF;
    RETURN awa.sequence_next_value(v_seq_name);
END
$$;

-- Registers a lane and returns the name of its allocation sequence. For callers that did not find it.
-- locks: the registration key, then the new rows, until the transaction ends
CREATE OR REPLACE FUNCTION awa.awa_django_register_lane(
    p_queue text,
    p_priority smallint,
    p_enqueue_shard smallint
)
RETURNS text
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_seq_name text;
BEGIN
    PERFORM pg_advisory_xact_lock(
        hashtextextended('awa:' || p_queue || ':' || p_priority || ':' || p_enqueue_shard, 0)
    );
    -- The registry first: it is what allows a role without CREATE to have the sequences made.
    INSERT INTO awa.queue_lanes (queue, priority)
    VALUES (p_queue, p_priority)
    ON CONFLICT (queue, priority) DO NOTHING;
    INSERT INTO awa.queue_enqueue_heads (queue, priority, enqueue_shard)
    VALUES (p_queue, p_priority, p_enqueue_shard)
    ON CONFLICT (queue, priority, enqueue_shard) DO NOTHING;
    INSERT INTO awa.queue_claim_heads (queue, priority, enqueue_shard)
    VALUES (p_queue, p_priority, p_enqueue_shard)
    ON CONFLICT (queue, priority, enqueue_shard) DO NOTHING;

    SELECT head.seq_name
    INTO v_seq_name
    FROM awa.queue_enqueue_heads AS head
    WHERE head.queue = p_queue
      AND head.priority = p_priority
      AND head.enqueue_shard = p_enqueue_shard;
    RETURN v_seq_name;
END
$$;

-- Keeps an enqueue head and its sequence together, for clients that write the head themselves.
-- An insert runs this even when ON CONFLICT then drops the row, on every enqueue of some clients: with the lane
-- in place it costs look-ups and takes no lock.
CREATE OR REPLACE FUNCTION awa.queue_enqueue_head_sequence_sync()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
DECLARE
    v_wanted bigint;
BEGIN
    PERFORM awa.awa_django_need_lane_sequences(NEW.queue, NEW.priority, NEW.enqueue_shard);
    NEW.seq_name :=
        awa.queue_lane_sequence_name('queue_enqueue_seq', NEW.queue, NEW.priority, NEW.enqueue_shard);
    IF TG_OP = 'UPDATE' AND NEW.next_seq > OLD.next_seq THEN
        v_wanted := NEW.next_seq - OLD.next_seq;
        NEW.next_seq := awa.awa_django_allocate(NEW.seq_name, v_wanted) + v_wanted;
    ELSE
        PERFORM awa.set_sequence_next(NEW.seq_name, NEW.next_seq);
    END IF;
    RETURN NEW;
END
$$;

-- The same for a claim head. An update of claim_seq leaves the cursor alone: only evidence moves a cursor.
CREATE OR REPLACE FUNCTION awa.queue_claim_head_sequence_sync()
RETURNS trigger
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog
AS $$
BEGIN
    PERFORM awa.awa_django_need_lane_sequences(NEW.queue, NEW.priority, NEW.enqueue_shard);
    NEW.seq_name :=
        awa.queue_lane_sequence_name('queue_claim_seq', NEW.queue, NEW.priority, NEW.enqueue_shard);
    IF TG_OP = 'INSERT' THEN
        PERFORM awa.set_sequence_next(NEW.seq_name, NEW.claim_seq);
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER queue_enqueue_heads_sequence_sync
    BEFORE INSERT OR UPDATE OF next_seq ON awa.queue_enqueue_heads
    FOR EACH ROW
    EXECUTE FUNCTION awa.queue_enqueue_head_sequence_sync();

CREATE OR REPLACE TRIGGER queue_claim_heads_sequence_sync
    BEFORE INSERT OR UPDATE OF claim_seq ON awa.queue_claim_heads
    FOR EACH ROW
    EXECUTE FUNCTION awa.queue_claim_head_sequence_sync();
