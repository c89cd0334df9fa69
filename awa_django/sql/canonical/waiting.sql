-- Canonical jobs that wait for a callback, in the columns of queue_storage/waiting.

-- name: waiting
-- Attempts that wait, the one whose time is up first; those without a time come last. Kind, tag and time of creation
-- are those of the job.
-- rows:  of the first after the one given, at most walk, those that pass and, if there may be more, the last one: job, its
--        time, whether that is past, whether it passes, whether there may be more; at most limit
-- locks: none
WITH timed AS MATERIALIZED (
    SELECT id AS job_id, callback_timeout_at
    FROM awa.jobs_hot
    WHERE state = 'waiting_external'
        AND callback_timeout_at >= coalesce(%(after_at)s::text::timestamptz, '-infinity')
        AND (%(after_id)s::bigint IS NULL OR %(after_at)s::text IS NOT NULL)
        AND (
            %(after_id)s::bigint IS NULL
            OR callback_timeout_at > %(after_at)s::text::timestamptz
            OR id > %(after_id)s::bigint
        )
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (%(job_ids)s::bigint[] IS NULL OR id = ANY (%(job_ids)s::bigint[]))
    ORDER BY callback_timeout_at, id
    LIMIT %(walk)s::bigint
),
timeless AS (
    SELECT id AS job_id, callback_timeout_at
    FROM awa.jobs_hot
    WHERE state = 'waiting_external'
        AND callback_timeout_at IS NULL
        AND (%(after_id)s::bigint IS NULL OR %(after_at)s::text IS NOT NULL OR id > %(after_id)s::bigint)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
        AND (%(job_ids)s::bigint[] IS NULL OR id = ANY (%(job_ids)s::bigint[]))
    ORDER BY id
    -- Nothing is read where others come first.
    LIMIT %(walk)s::bigint - (SELECT count(*) FROM timed)
),
walked AS MATERIALIZED (
    SELECT found.*, row_number() OVER (ORDER BY callback_timeout_at, job_id) AS place
    FROM (
        SELECT *
        FROM timed
        UNION ALL
        SELECT *
        FROM timeless
    ) AS found
)
SELECT
    walked.job_id, walked.callback_timeout_at,
    coalesce(walked.callback_timeout_at < statement_timestamp(), false) AS overdue, passing.passes,
    walked.place = %(walk)s::bigint AS is_last
FROM walked
CROSS JOIN LATERAL (
    SELECT
        (
            %(kind)s::text IS NULL
            AND %(tag)s::text IS NULL
            AND %(created_from)s::timestamptz IS NULL
            AND %(created_before)s::timestamptz IS NULL
        )
        OR EXISTS (
            SELECT
            FROM awa.jobs_hot AS body
            WHERE body.id = walked.job_id
                AND (%(kind)s::text IS NULL OR body.kind = %(kind)s::text)
                AND (%(tag)s::text IS NULL OR body.tags @> ARRAY[%(tag)s::text])
                AND (%(created_from)s::timestamptz IS NULL OR body.created_at >= %(created_from)s::timestamptz)
                AND (%(created_before)s::timestamptz IS NULL OR body.created_at < %(created_before)s::timestamptz)
        ) AS passes
) AS passing
WHERE passing.passes OR walked.place = %(walk)s::bigint
ORDER BY walked.place
LIMIT %(limit)s::bigint;

-- name: with_callback
-- The job whose attempt has this token, waiting or still running.
-- rows:  one at most
-- locks: none
SELECT id
FROM awa.jobs_hot
WHERE callback_id = %(callback_id)s::uuid;
