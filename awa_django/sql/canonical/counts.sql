-- Counting what waits.

-- name: due_within
-- Deferred jobs of some queues that are due now or within a time ahead.
-- rows:  one
-- locks: none
SELECT count(*)
FROM awa.scheduled_jobs
WHERE queue = ANY(%(queues)s::text[])
    AND run_at <= clock_timestamp() + %(ahead)s::interval;
