-- Attempts that wait for a callback, as operators see them (contract: api/web_ui section 2).

-- name: waiting
-- Attempts that wait, the one whose time is up first; those without a time come last.
-- rows:  one for each after the one given, at most limit: job, its time, whether that is past
-- locks: none
SELECT
    job_id, callback_timeout_at, coalesce(callback_timeout_at < statement_timestamp(), false) AS overdue
FROM awa.leases
WHERE state = 'waiting_external'
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    AND (
        %(after_id)s::bigint IS NULL
        OR callback_timeout_at > %(after_at)s::text::timestamptz
        OR (callback_timeout_at IS NULL AND %(after_at)s::text IS NOT NULL)
        OR (
            callback_timeout_at IS NOT DISTINCT FROM %(after_at)s::text::timestamptz
            AND job_id > %(after_id)s::bigint
        )
    )
ORDER BY callback_timeout_at, job_id
LIMIT %(limit)s;

-- name: with_callback
-- The job whose attempt has this token, waiting or still running.
-- rows:  one at most
-- locks: none
SELECT job_id
FROM awa.leases
WHERE callback_id = %(callback_id)s::uuid;
