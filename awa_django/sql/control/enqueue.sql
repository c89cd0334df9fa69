-- Storing new jobs where the transition state sends them (contract: queue-storage/enqueue section 9).
--
-- The last column of each insert wakes the workers of the queue. Our own insert function does that by itself, and the
-- second notice of a transaction costs nothing; that of an adopted schema does not when it stores canonical jobs.

-- name: insert_job
-- One job, on whichever engine takes new jobs.
-- rows:  its id and times
-- locks: the lane's allocation key until the transaction ends; a unique claim
SELECT
    job.id, job.run_at, job.created_at,
    CASE WHEN job.state = 'available' THEN pg_notify('awa:' || job.queue, '')::text END AS woken
FROM awa.insert_job_compat(
    p_kind => %(kind)s::text,
    p_queue => %(queue)s::text,
    p_args => %(args)s::jsonb,
    p_state => %(state)s::awa.job_state,
    p_priority => %(priority)s::smallint,
    p_max_attempts => %(max_attempts)s::smallint,
    p_run_at => %(run_at)s::timestamptz,
    p_metadata => %(metadata)s::jsonb,
    p_tags => %(tags)s::text[],
    p_unique_key => %(unique_key)s::bytea,
    p_unique_states => %(unique_states)s::bit(8),
    p_ordering_key => %(ordering_key)s::bytea
) AS job;

-- name: insert_unique_job
-- One job, unless its key is held. A holder that commits while this waits for it raises 23505 on
-- idx_awa_jobs_unique; one that is seen is an answer and spares the server's log that error.
-- rows:  id and times of the job stored and NULL, or NULLs and the holder
-- locks: as insert_job
WITH holder AS MATERIALIZED (
    SELECT claim.job_id
    FROM awa.job_unique_claims AS claim
    WHERE claim.unique_key = %(unique_key)s::bytea
),
free AS MATERIALIZED (
    SELECT %(kind)s::text AS kind
    WHERE NOT EXISTS (SELECT FROM holder)
)
SELECT
    job.id, job.run_at, job.created_at, NULL::bigint AS holder_id,
    CASE WHEN job.state = 'available' THEN pg_notify('awa:' || job.queue, '')::text END AS woken
FROM free
CROSS JOIN LATERAL awa.insert_job_compat(
    p_kind => free.kind,
    p_queue => %(queue)s::text,
    p_args => %(args)s::jsonb,
    p_state => %(state)s::awa.job_state,
    p_priority => %(priority)s::smallint,
    p_max_attempts => %(max_attempts)s::smallint,
    p_run_at => %(run_at)s::timestamptz,
    p_metadata => %(metadata)s::jsonb,
    p_tags => %(tags)s::text[],
    p_unique_key => %(unique_key)s::bytea,
    p_unique_states => %(unique_states)s::bit(8),
    p_ordering_key => %(ordering_key)s::bytea
) AS job
UNION ALL
SELECT NULL, NULL, NULL, holder.job_id, NULL
FROM holder;

-- name: holders
-- Who holds these unique keys.
-- rows:  one for each key that is held
-- locks: none
SELECT claim.unique_key, claim.job_id
FROM awa.job_unique_claims AS claim
WHERE claim.unique_key = ANY (%(unique_keys)s::bytea[]);

-- name: route
-- The schema that takes new jobs; NULL stands for the canonical tables.
-- rows:  one
-- locks: none
SELECT awa.active_queue_storage_schema();

-- name: insert_jobs
-- Many jobs through the insert function, in the order given.
-- rows:  for each its place in the order, from 1, and its id
-- locks: as insert_job, for each
SELECT
    given.place, job.id,
    CASE WHEN job.state = 'available' THEN pg_notify('awa:' || job.queue, '')::text END AS woken
FROM unnest(
    %(kinds)s::text[], %(queues)s::text[], %(args)s::jsonb[], %(states)s::awa.job_state[],
    %(priorities)s::smallint[], %(max_attempts)s::smallint[], %(run_at)s::timestamptz[], %(metadata)s::jsonb[],
    %(tags)s::jsonb[], %(unique_keys)s::bytea[], %(unique_states)s::text[], %(ordering_keys)s::bytea[]
) WITH ORDINALITY AS given (
    kind, queue, args, state, priority, max_attempts, run_at, metadata, tags, unique_key, unique_states,
    ordering_key, place
)
CROSS JOIN LATERAL awa.insert_job_compat(
    p_kind => given.kind,
    p_queue => given.queue,
    p_args => given.args,
    p_state => given.state,
    p_priority => given.priority,
    p_max_attempts => given.max_attempts,
    p_run_at => given.run_at,
    p_metadata => given.metadata,
    p_tags => ARRAY(SELECT jsonb_array_elements_text(given.tags)),
    p_unique_key => given.unique_key,
    p_unique_states => given.unique_states::bit(8),
    p_ordering_key => given.ordering_key
) AS job;

-- name: hand_out_ids
-- Ids for jobs that are stored later, from the sequence of the engine that takes new jobs now.
-- rows:  one for each id, with the schema that takes them; NULL stands for the canonical tables
-- locks: none
WITH route AS MATERIALIZED (
    SELECT awa.active_queue_storage_schema() AS schema
)
SELECT
    nextval(CASE WHEN route.schema IS NULL THEN 'awa.jobs_id_seq' ELSE 'awa.job_id_seq' END),
    route.schema
FROM route
CROSS JOIN generate_series(1, %(total)s);
