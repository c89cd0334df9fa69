-- What a worker calls at start-up to have queue storage installed. Here it is part of the schema, so there is
-- nothing to do but to refuse what this schema cannot be.
-- contract: queue-storage.md, section 4; schema, sections 2.3 and 3

-- Does nothing for the substrate this schema has: schema awa, rings of 16, 8 and 8 slots, receipts on.
-- rows:  none; 0A000 for another schema, 22023 for other sizes or without receipts
-- locks: the installer's key until the transaction ends
CREATE OR REPLACE FUNCTION awa.install_queue_storage_substrate(
    p_schema text,
    p_queue_slot_count integer DEFAULT 16,
    p_lease_slot_count integer DEFAULT 8,
    p_claim_slot_count integer DEFAULT 8,
    p_lease_claim_receipts boolean DEFAULT true
)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, awa, public
AS $$
BEGIN
    IF p_schema IS DISTINCT FROM 'awa' THEN
        RAISE EXCEPTION 'queue storage cannot be installed in schema "%"', coalesce(p_schema, 'NULL')
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'This installation keeps its queue storage in schema "awa"; configure workers for it.';
    END IF;
    IF (p_queue_slot_count, p_lease_slot_count, p_claim_slot_count) IS DISTINCT FROM (16, 8, 8) THEN
        RAISE EXCEPTION 'rings of % queue, % lease and % claim slots cannot be installed in schema "awa"',
            p_queue_slot_count, p_lease_slot_count, p_claim_slot_count
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Its rings have 16, 8 and 8 slots.';
    END IF;
    IF p_lease_claim_receipts IS NOT TRUE THEN
        RAISE EXCEPTION 'queue storage without receipts cannot be installed in schema "awa"'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Claims are always recorded as receipts here; pass true.';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('awa.queue_storage.install:awa', 0));
END
$$;

REVOKE EXECUTE ON FUNCTION awa.install_queue_storage_substrate(text, integer, integer, integer, boolean) FROM PUBLIC;

-- Does nothing for schema awa, whose receipt tables are created with the fill factors they need; 0A000 for another.
CREATE OR REPLACE FUNCTION awa.apply_receipt_plane_fillfactor(p_schema text)
RETURNS void
LANGUAGE plpgsql
VOLATILE
SET search_path = pg_catalog, awa
AS $$
BEGIN
    IF p_schema IS DISTINCT FROM 'awa' THEN
        RAISE EXCEPTION 'schema "%" holds no queue storage of this installation', coalesce(p_schema, 'NULL')
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'This installation keeps its queue storage in schema "awa"; configure workers for it.';
    END IF;
END
$$;
