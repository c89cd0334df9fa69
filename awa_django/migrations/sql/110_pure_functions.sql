-- Functions of their arguments alone, apart from the dice in one of them.
-- contract: control-functions, section 1

-- Whether a job claims its unique key in this state. Bits are numbered from the left, in enum order. A
-- mask too short for the state's bit is an error (2202E): the argument type has no length.
CREATE OR REPLACE FUNCTION awa.job_state_in_bitmask(bitmask bit, state awa.job_state)
RETURNS boolean
LANGUAGE sql
IMMUTABLE
BEGIN ATOMIC
    SELECT CASE state
        WHEN 'scheduled'        THEN get_bit(bitmask, 0) = 1
        WHEN 'available'        THEN get_bit(bitmask, 1) = 1
        WHEN 'running'          THEN get_bit(bitmask, 2) = 1
        WHEN 'completed'        THEN get_bit(bitmask, 3) = 1
        WHEN 'retryable'        THEN get_bit(bitmask, 4) = 1
        WHEN 'failed'           THEN get_bit(bitmask, 5) = 1
        WHEN 'cancelled'        THEN get_bit(bitmask, 6) = 1
        WHEN 'waiting_external' THEN get_bit(bitmask, 7) = 1
        ELSE false
    END;
END;

-- How long a failed attempt waits for its next one: 2^attempt seconds and up to a quarter more, at most 24
-- hours. The exponent is clamped before the power is taken, since max_attempts goes up to 1000 and
-- intervals do not go up to 2^1000 seconds; below -30 nothing is left of a microsecond. GREATEST and LEAST
-- pass over a NULL attempt, which so waits the full 24 hours.
CREATE OR REPLACE FUNCTION awa.backoff_duration(attempt smallint, max_attempts smallint)
RETURNS interval
LANGUAGE sql
VOLATILE
BEGIN ATOMIC
    SELECT make_interval(
        secs => LEAST(
            power(2::double precision, GREATEST(LEAST(attempt, 17), -30)) * (1 + random() / 4),
            86400
        )
    );
END;

-- The tags in the payload of a queue-storage job; none is an empty array.
CREATE OR REPLACE FUNCTION awa.queue_storage_payload_tags(p_payload jsonb)
RETURNS text[]
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog
AS $$
DECLARE
    tags constant jsonb := p_payload -> 'tags';
BEGIN
    CASE coalesce(jsonb_typeof(tags), 'null')
        WHEN 'null' THEN
            RETURN '{}';
        WHEN 'array' THEN
            RETURN ARRAY(SELECT jsonb_array_elements_text(tags));
        ELSE
            RAISE EXCEPTION 'payload key "tags" holds a JSON %, not an array', jsonb_typeof(tags)
                USING ERRCODE = 'invalid_parameter_value';
    END CASE;
END
$$;

-- The error entries in the payload of a queue-storage job, oldest first; none is NULL.
CREATE OR REPLACE FUNCTION awa.queue_storage_payload_errors(p_payload jsonb)
RETURNS jsonb[]
LANGUAGE plpgsql
IMMUTABLE
SET search_path = pg_catalog
AS $$
DECLARE
    errors constant jsonb := p_payload -> 'errors';
BEGIN
    IF jsonb_typeof(errors) = 'array' THEN
        RETURN nullif(ARRAY(SELECT jsonb_array_elements(errors)), '{}');
    END IF;
    RETURN NULL;
END
$$;
