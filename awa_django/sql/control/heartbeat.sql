-- Signs of life of a worker's attempts (contract: runtime/completion-heartbeat section 2).

-- name: limit_wait
-- Wait no longer than this for attempts that another transaction holds, say that of an answer to their callback.
-- rows:  none
-- locks: none
SET LOCAL lock_timeout = '500ms';
