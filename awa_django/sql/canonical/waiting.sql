-- Canonical jobs that wait for a callback, in the columns of queue_storage/waiting.

-- name: waiting
-- Attempts that wait, the one whose time is up first; those without a time come last.
-- rows:  one for each after the one given, at most limit: job, its time, whether that is past
-- locks: none
SELECT
    id, callback_timeout_at, coalesce(callback_timeout_at < statement_timestamp(), false) AS overdue
FROM awa.jobs_hot
WHERE state = 'waiting_external'
    AND callback_id IS NOT NULL -- which an index has; whoever waits has one
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    AND (
        %(after_id)s::bigint IS NULL
        OR callback_timeout_at > %(after_at)s::text::timestamptz
        OR (callback_timeout_at IS NULL AND %(after_at)s::text IS NOT NULL)
        OR (
            callback_timeout_at IS NOT DISTINCT FROM %(after_at)s::text::timestamptz
            AND id > %(after_id)s::bigint
        )
    )
ORDER BY callback_timeout_at, id
LIMIT %(limit)s;

-- name: with_callback
-- The job whose attempt has this token, waiting or still running.
-- rows:  one at most
-- locks: none
SELECT id
FROM awa.jobs_hot
WHERE callback_id = %(callback_id)s::uuid;
