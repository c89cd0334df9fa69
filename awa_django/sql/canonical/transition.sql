-- Where a canonical job goes that is put off (contract: queue-storage/transition section 1).

-- name: hold_routing
-- Keep every step of a move to another storage out until the transaction ends.
-- rows:  one, without meaning; none where the transition's row is missing
-- locks: the transition's row, FOR SHARE
SELECT
FROM awa.storage_transition_state
WHERE singleton
FOR SHARE;

-- name: route
-- The schema that takes new jobs; NULL stands for the canonical tables. Must be a statement of its own: the function
-- sees what the statement saw that called it, and hold_routing may have waited.
-- rows:  one
-- locks: none
SELECT awa.active_queue_storage_schema();
