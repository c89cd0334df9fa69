-- One installer at a time, and only where nothing is: whoever waited here finds the schema of the first.
-- The key is the one that the awa client takes for its own migrations. Locks are held until the
-- transaction ends.
-- contract: schema, sections 2.1, 3.1 and 3.8
SELECT pg_advisory_xact_lock(4708303813013489490);

DO $$
BEGIN
    IF current_setting('server_version_num')::integer < 140000 THEN
        RAISE EXCEPTION 'schema awa needs PostgreSQL 14 or newer, and this server is %',
                current_setting('server_version')
            USING ERRCODE = 'feature_not_supported';
    END IF;
    IF to_regclass('awa.schema_version') IS NOT NULL THEN
        RAISE EXCEPTION 'schema awa is installed in database % already', current_database()
            USING ERRCODE = 'duplicate_schema',
                HINT = 'Nothing needs to be done; "manage.py migrate" adopts it.';
    END IF;
    IF EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('awa'))
        OR EXISTS (SELECT FROM pg_type WHERE typnamespace = to_regnamespace('awa'))
        OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('awa'))
    THEN
        RAISE EXCEPTION 'schema awa of database % holds other objects, or half an installation',
                current_database()
            USING ERRCODE = 'duplicate_schema',
                HINT = 'Look at what it holds; if that may go, DROP SCHEMA awa CASCADE and install again.';
    END IF;
END
$$;
