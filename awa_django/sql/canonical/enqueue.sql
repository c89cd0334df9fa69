-- Many jobs at once, straight into the job tables (contract: schema section 4.1).

-- name: reserve_ids
-- Ids for new jobs, ascending.
-- rows:  one for each
-- locks: none
SELECT nextval('awa.jobs_id_seq')
FROM generate_series(1, %(total)s);

-- name: copy_hot
-- Jobs that may run at once. Without a time of their own they are due when the transaction began, which is what the
-- trigger that wakes workers looks for.
-- rows:  none
-- locks: unique-claim rows
COPY awa.jobs_hot (
    id, kind, queue, args, priority, max_attempts, metadata, tags, unique_key, unique_states
) FROM STDIN;

-- name: copy_scheduled
-- Jobs that wait for their time.
-- rows:  none
-- locks: unique-claim rows
COPY awa.scheduled_jobs (
    id, kind, queue, args, priority, max_attempts, metadata, tags, unique_key, unique_states, run_at
) FROM STDIN;
