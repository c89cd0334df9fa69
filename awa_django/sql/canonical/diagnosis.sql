-- Why a job of the canonical tables is not running (operations.why).

-- name: ahead
-- Jobs of the same queue that are claimed before this one. Waiting raises the stored priority, so ``aging`` is not
-- needed here.
-- rows:  one, at most count_up_to
-- locks: none
SELECT count(*)
FROM (
    SELECT
    FROM awa.jobs_hot AS own
    JOIN awa.jobs_hot AS other USING (queue)
    WHERE own.id = %(job_id)s::bigint
        AND other.state = 'available'
        AND (other.priority, other.run_at, other.id) < (own.priority, own.run_at, own.id)
        AND %(aging)s::double precision IS NOT NULL
    LIMIT %(count_up_to)s
) AS earlier;
