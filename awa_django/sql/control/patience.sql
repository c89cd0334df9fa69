-- How long somebody who waits for an answer over HTTP waits for whoever holds what is to be changed.

-- name: wait_briefly
-- For the rest of the transaction. A transaction that has been forgotten open would hold threads of the site else.
-- rows:  none
-- locks: none
SET LOCAL lock_timeout = '10s';
