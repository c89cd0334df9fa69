-- The rows and privileges of a fresh installation, its version last.
-- contract: schema, sections 2.1, 3.7 and 7

-- Whatever default privileges the database has, PUBLIC gets nothing here but the execution of functions,
-- which run with the caller's rights; and not of the one that creates tables.
REVOKE ALL ON SCHEMA awa FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA awa FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA awa FROM PUBLIC;
REVOKE EXECUTE
    ON FUNCTION awa.install_queue_storage_substrate(text, integer, integer, integer, boolean)
    FROM PUBLIC;

INSERT INTO awa.storage_transition_state (
    singleton, current_engine, prepared_engine, state, transition_epoch, details,
    entered_at, updated_at, finalized_at
)
VALUES (true, 'canonical', NULL, 'canonical', 0, '{}', now(), now(), NULL);

-- Version 40 at once. Clients look at the greatest number only, but people read the list: it is complete,
-- and there never was a version 8.
INSERT INTO awa.schema_version (version, description)
SELECT version, 'part of schema version 40, installed whole by awa_django'
FROM generate_series(1, 40) AS version
WHERE version <> 8;
