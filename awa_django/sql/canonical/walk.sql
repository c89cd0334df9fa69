-- Looking through the canonical tables for jobs that an operation means, downward by id and a bounded stretch at a time
-- (contract: api/admin_ops section 5). A stretch is cut out by an index first and filtered then.

-- name: hot
-- Jobs in one of the states that are not deferred; those that ended had done so by then.
-- rows:  one: whether there is more below, the lowest id looked at, and the ids, the highest first
-- locks: none
WITH stretch AS MATERIALIZED (
    SELECT
        id,
        state = ANY (%(states)s::awa.job_state[])
            AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR tags @> ARRAY[%(tag)s::text])
            AND (%(created_from)s::timestamptz IS NULL OR created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR created_at < %(created_before)s::timestamptz)
            AND (state IN ('failed', 'cancelled') AND finalized_at > %(ended_by)s::timestamptz) IS NOT TRUE
            AS meant
    FROM awa.jobs_hot
    WHERE id < %(below)s::bigint
    ORDER BY id DESC
    LIMIT %(scan)s
)
SELECT count(*) >= %(scan)s, min(id), array_agg(id ORDER BY id DESC) FILTER (WHERE meant)
FROM stretch;

-- name: scheduled
-- Jobs that wait for their time.
-- rows:  as of hot
-- locks: none
WITH stretch AS MATERIALIZED (
    SELECT
        id,
        state = ANY (%(states)s::awa.job_state[])
            AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
            AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            AND (%(tag)s::text IS NULL OR tags @> ARRAY[%(tag)s::text])
            AND (%(created_from)s::timestamptz IS NULL OR created_at >= %(created_from)s::timestamptz)
            AND (%(created_before)s::timestamptz IS NULL OR created_at < %(created_before)s::timestamptz)
            AS meant
    FROM awa.scheduled_jobs
    WHERE id < %(below)s::bigint
    ORDER BY id DESC
    LIMIT %(scan)s
)
SELECT count(*) >= %(scan)s, min(id), array_agg(id ORDER BY id DESC) FILTER (WHERE meant)
FROM stretch;
