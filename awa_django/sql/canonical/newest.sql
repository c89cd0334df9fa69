-- Where the newest jobs are that people look for: ids of each table, found by its index and within a limit. What they are
-- is in listing.sql.

-- name: newest
-- The newest ids of each table in which a wanted state may be found, as far as kind, queue, tag and
-- time of creation match.
-- rows:  one for each table: ids, at most size, highest first, and if they are fewer the id down to which rows were
--        walked, NULL for all there are
-- locks: none
WITH hot AS MATERIALIZED (
    SELECT
        'hot' AS place,
        ARRAY(
            SELECT walked.id
            FROM (
                SELECT id, kind, queue, tags, created_at
                FROM awa.jobs_hot
                WHERE id < %(before)s::bigint AND state = ANY (%(hot)s::awa.job_state[])
                ORDER BY id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.tags @> ARRAY[%(tag)s::text])
                AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
                AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
            LIMIT %(size)s
        ) AS job_ids
),
later AS MATERIALIZED (
    SELECT
        'later' AS place,
        ARRAY(
            SELECT walked.id
            FROM (
                SELECT id, kind, queue, tags, created_at
                FROM awa.scheduled_jobs
                WHERE id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
                ORDER BY id DESC
                LIMIT %(walk)s
            ) AS walked
            WHERE (%(kind)s::text IS NULL OR walked.kind = %(kind)s::text)
                AND (%(queue)s::text IS NULL OR walked.queue = %(queue)s::text)
                AND (%(tag)s::text IS NULL OR walked.tags @> ARRAY[%(tag)s::text])
                AND (%(created_from)s::timestamptz IS NULL OR walked.created_at >= %(created_from)s::timestamptz)
                AND (%(created_before)s::timestamptz IS NULL OR walked.created_at < %(created_before)s::timestamptz)
            LIMIT %(size)s
        ) AS job_ids
)
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT id
        FROM awa.jobs_hot
        WHERE id < %(before)s::bigint AND state = ANY (%(hot)s::awa.job_state[])
        ORDER BY id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM hot
UNION ALL
SELECT
    place, job_ids,
    CASE WHEN cardinality(job_ids) < %(size)s THEN (
        SELECT id
        FROM awa.scheduled_jobs
        WHERE id < %(before)s::bigint AND state = ANY (%(deferred)s::awa.job_state[])
        ORDER BY id DESC
        OFFSET %(walk)s - 1
        LIMIT 1
    ) END AS lowest
FROM later;

-- name: ids_created
-- Between which ids the jobs lie that were created in a time. Ids are dealt in the order of time, but for what slack
-- allows, so both ends are found by halving. Each step looks at the jobs of the next few ids, for one may say
-- something odd of itself; the end is past those.
-- rows:  one: the first id that may be of this time, and the first that is later; NULL where no such time is given
-- locks: none
WITH RECURSIVE search AS (
    SELECT asked.name, asked.at, 1::bigint AS low, highest.job_id + 1 AS high, highest.job_id + 1 AS past
    FROM (
            VALUES
                ('from', %(created_from)s::timestamptz - %(slack)s::interval),
                ('before', %(created_before)s::timestamptz + %(slack)s::interval)
        ) AS asked (name, at),
        (
            SELECT coalesce(
                greatest(
                    (SELECT max(id) FROM awa.jobs_hot),
                    (SELECT max(id) FROM awa.scheduled_jobs)
                ),
                0
            )
        ) AS highest (job_id)
    WHERE asked.at IS NOT NULL
    UNION ALL
    SELECT
        search.name, search.at,
        CASE WHEN near.is_early THEN near.job_id + 1 ELSE search.low END,
        CASE WHEN near.is_early THEN search.high ELSE half.middle END,
        CASE WHEN near.is_early THEN search.past ELSE near.last_id + 1 END
    FROM search
    CROSS JOIN LATERAL (SELECT search.low + (search.high - search.low) / 2) AS half (middle)
    CROSS JOIN LATERAL (
        SELECT
            coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY next.created_at) < search.at, false) AS is_early,
            coalesce(min(next.job_id), half.middle) AS job_id, coalesce(max(next.job_id), half.middle) AS last_id
        FROM (
            (
                SELECT id AS job_id, created_at
                FROM awa.jobs_hot
                WHERE id >= half.middle AND id < search.high
                ORDER BY id
                LIMIT 5
            )
            UNION ALL
            (
                SELECT id AS job_id, created_at
                FROM awa.scheduled_jobs
                WHERE id >= half.middle AND id < search.high
                ORDER BY id
                LIMIT 5
            )
            ORDER BY job_id
            LIMIT 5
        ) AS next
    ) AS near
    WHERE search.low < search.high
)
SELECT
    (SELECT low FROM search WHERE name = 'from' AND low >= high) AS first_id,
    (SELECT past FROM search WHERE name = 'before' AND low >= high) AS later_id;
