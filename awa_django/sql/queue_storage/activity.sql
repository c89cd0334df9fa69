-- What happened lately, found by where rows lie: the tables of the ring are appended to and emptied whole, so the
-- pages of each are in the order of time, near enough, and no index on time is needed. From where in a table the
-- wanted time begins its pages are read, or one of every so many where there are many: which one is decided by a hash,
-- for what is done in turns would show in every so manyth page.

-- name: tails
-- For each time asked for, and each table of the history, how many pages the table has and from which on its rows
-- are of that time: done rows, completion batches, emissions, dead letters. A page is judged by its first row.
-- Failures that were carried on from an older slot are old rows among newer ones, and are passed over.
-- rows:  for each time one without a table, and one for each table that is not empty: the time, where it begins, the
--        number of the minute that is now, and the pages
-- locks: none
WITH RECURSIVE part AS MATERIALIZED (
    SELECT
        asked.name,
        -- Whole minutes; without a number of them all that there is.
        coalesce(to_timestamp((clock.minute - asked.minutes + 1) * 60), '-infinity') AS since,
        clock.minute AS this_minute
    FROM (SELECT floor(extract(epoch FROM statement_timestamp()) / 60)::bigint) AS clock (minute),
        unnest(%(parts)s::text[], %(minutes)s::bigint[]) AS asked (name, minutes)
),
search AS (
    SELECT part.name, part.since, child.family, child.slot, size.pages, 0 AS low, size.pages AS high
    FROM part,
        (
            SELECT family, slot, format('awa.%%s_%%s', family, slot)::regclass AS relation
            FROM awa.queue_ring_slots,
                unnest(ARRAY['done_entries', 'receipt_completion_batches', 'ready_entries']) AS family
            UNION ALL
            SELECT 'dlq_entries', -1, 'awa.dlq_entries'::regclass
        ) AS child,
        LATERAL (
            SELECT (pg_relation_size(child.relation) / current_setting('block_size')::integer)::integer
        ) AS size (pages)
    WHERE size.pages > 0
    UNION ALL
    SELECT
        search.name, search.since, search.family, search.slot, search.pages,
        CASE WHEN probe.is_old THEN probe.middle + 1 ELSE search.low END,
        CASE WHEN probe.is_old THEN search.high ELSE probe.middle END
    FROM search
    CROSS JOIN LATERAL (
        SELECT
            half.middle,
            coalesce(
                CASE search.family
                    WHEN 'done_entries' THEN (
                        SELECT finalized_at
                        FROM awa.done_entries
                        WHERE ready_slot = search.slot
                            AND ctid >= format('(%%s,0)', half.middle)::tid
                            AND (state <> 'failed' OR created_at IS NULL)
                        LIMIT 1
                    )
                    WHEN 'receipt_completion_batches' THEN (
                        SELECT finalized_at
                        FROM awa.receipt_completion_batches
                        WHERE ready_slot = search.slot AND ctid >= format('(%%s,0)', half.middle)::tid
                        LIMIT 1
                    )
                    WHEN 'ready_entries' THEN (
                        -- A promoted or retried job was created long before, and due when it came here.
                        SELECT greatest(created_at, run_at)
                        FROM awa.ready_entries
                        WHERE ready_slot = search.slot AND ctid >= format('(%%s,0)', half.middle)::tid
                        LIMIT 1
                    )
                    ELSE (
                        SELECT dlq_at
                        FROM awa.dlq_entries
                        WHERE ctid >= format('(%%s,0)', half.middle)::tid
                        LIMIT 1
                    )
                END < search.since - interval '1 minute',
                false
            ) AS is_old
        FROM (SELECT (search.low + search.high) / 2) AS half (middle)
    ) AS probe
    WHERE search.low < search.high AND isfinite(search.since)
)
SELECT name, since, this_minute, NULL AS family, NULL AS slot, NULL AS first_page, NULL AS pages
FROM part
UNION ALL
SELECT name, since, NULL, family, slot, low, pages
FROM search
WHERE low = high OR NOT isfinite(since);

-- name: ended
-- What ended, on some pages of done rows and completion batches, by minute or else by kind; and how long a part of
-- it waited and ran.
-- rows:  for each minute, or kind, and state how many, of completion batches without a kind; then for each of the part:
--        minute, state, how many it stands for, kind, seconds it ran and seconds it had waited. All with the name of
--        the time they were asked for
-- locks: none
WITH ended AS MATERIALIZED (
    SELECT tail.part, tail.weight, done.*
    FROM unnest(
            %(done_entries_parts)s::text[], %(done_entries_slots)s::integer[], %(done_entries_first_pages)s::integer[],
            %(done_entries_pages)s::integer[], %(done_entries_strides)s::integer[],
            %(done_entries_weights)s::double precision[], %(done_entries_since)s::timestamptz[]
        ) AS tail (part, slot, first_page, pages, stride, weight, since),
        generate_series(tail.first_page, tail.pages - 1, tail.stride) AS stretch,
        LATERAL (
            SELECT least(stretch + (hashint4(stretch) & 2147483647) %% tail.stride, tail.pages - 1)
        ) AS chosen (page),
        LATERAL (
            SELECT
                ready_slot, ready_generation, job_id, kind, state, queue, priority, enqueue_shard, lane_seq, run_at,
                attempted_at, finalized_at,
                floor(extract(epoch FROM finalized_at) / 60)::bigint AS minute
            FROM awa.done_entries
            WHERE ready_slot = tail.slot
                AND ctid >= format('(%%s,0)', chosen.page)::tid
                AND ctid < format('(%%s,0)', chosen.page + 1)::tid
                AND finalized_at >= tail.since
                AND isfinite(finalized_at)
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            OFFSET 0 -- so that a page is read by its number
        ) AS done
),
ended_step AS MATERIALIZED (
    SELECT greatest(count(*) / %(samples)s::bigint, 1) AS size
    FROM ended
    WHERE NOT %(by_kind)s::boolean
),
batches AS MATERIALIZED (
    SELECT
        tail.part, tail.weight, batch.*,
        row_number() OVER (PARTITION BY tail.part) AS number, count(*) OVER (PARTITION BY tail.part) AS total
    FROM unnest(
            %(receipt_completion_batches_parts)s::text[], %(receipt_completion_batches_slots)s::integer[],
            %(receipt_completion_batches_first_pages)s::integer[], %(receipt_completion_batches_pages)s::integer[],
            %(receipt_completion_batches_strides)s::integer[],
            %(receipt_completion_batches_weights)s::double precision[],
            %(receipt_completion_batches_since)s::timestamptz[]
        ) AS tail (part, slot, first_page, pages, stride, weight, since),
        generate_series(tail.first_page, tail.pages - 1, tail.stride) AS stretch,
        LATERAL (
            SELECT least(stretch + (hashint4(stretch) & 2147483647) %% tail.stride, tail.pages - 1)
        ) AS chosen (page),
        LATERAL (
            SELECT
                ready_slot, ready_generation, batch_id, queue, enqueue_shard, completed_count, finalized_at,
                floor(extract(epoch FROM finalized_at) / 60)::bigint AS minute
            FROM awa.receipt_completion_batches
            WHERE ready_slot = tail.slot
                AND ctid >= format('(%%s,0)', chosen.page)::tid
                AND ctid < format('(%%s,0)', chosen.page + 1)::tid
                AND finalized_at >= tail.since
                AND isfinite(finalized_at)
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            OFFSET 0 -- so that a page is read by its number
        ) AS batch
),
chosen AS MATERIALIZED (
    SELECT
        batches.part, batches.minute, batches.ready_slot, batches.ready_generation, batches.batch_id, batches.queue,
        batches.enqueue_shard, batches.finalized_at, batches.completed_count, items.count AS items,
        step.size * batches.weight * batches.completed_count / items.count AS stands_for
    FROM batches,
        -- Of few batches several jobs, of many batches one job of every so manyth.
        LATERAL (SELECT greatest(ceil(batches.total::numeric / %(samples)s::bigint), 1)::bigint) AS step (size),
        LATERAL (
            SELECT least(greatest(%(samples)s::bigint / batches.total, 1), batches.completed_count)::integer
        ) AS items (count)
    WHERE batches.number %% step.size = (hashint8(batches.number / step.size) & 2147483647) %% step.size
)
SELECT
    false AS is_sample, ended.part, grouped.minute, ended.state::text AS state, sum(ended.weight) AS jobs,
    grouped.kind, grouped.queue, NULL::double precision AS ran, NULL::double precision AS waited
FROM ended,
    LATERAL (
        SELECT
            CASE WHEN NOT %(by_kind)s::boolean THEN ended.minute END AS minute,
            CASE WHEN %(by_kind)s::boolean THEN ended.kind END AS kind,
            CASE WHEN %(by_kind)s::boolean THEN ended.queue END AS queue
    ) AS grouped
GROUP BY ended.part, grouped.minute, grouped.kind, grouped.queue, ended.state
UNION ALL
SELECT
    false, batches.part, grouped.minute, 'completed', sum(batches.completed_count * batches.weight), NULL,
    grouped.queue, NULL, NULL
FROM batches,
    LATERAL (
        SELECT
            CASE WHEN NOT %(by_kind)s::boolean THEN batches.minute END AS minute,
            CASE WHEN %(by_kind)s::boolean THEN batches.queue END AS queue
    ) AS grouped
GROUP BY batches.part, grouped.minute, grouped.queue
UNION ALL
SELECT
    true, job.part, job.minute, job.state, job.stands_for, job.kind, job.queue,
    extract(epoch FROM job.finalized_at - began.at)::double precision,
    CASE WHEN isfinite(job.run_at) THEN extract(epoch FROM began.at - job.run_at)::double precision END
FROM (
    SELECT
        ended.part, ended.minute, ended.state::text AS state, ended_step.size * ended.weight AS stands_for, ended.kind,
        ended.ready_slot, ended.ready_generation, ended.queue, ended.enqueue_shard, ended.lane_seq,
        coalesce(ready.priority, ended.priority) AS priority, coalesce(ended.run_at, ready.run_at) AS run_at,
        ended.attempted_at, ended.finalized_at
    FROM ended_step
    JOIN ended
        ON NOT %(by_kind)s::boolean
        AND (hashint8(ended.job_id) & 2147483647) %% ended_step.size = 0
    LEFT JOIN LATERAL (
        SELECT emission.priority, emission.run_at
        FROM awa.ready_entries AS emission
        WHERE emission.ready_slot = ended.ready_slot
            AND emission.ready_generation = ended.ready_generation
            AND emission.job_id = ended.job_id
            AND emission.lane_seq = ended.lane_seq
        LIMIT 1
    ) AS ready ON true
    UNION ALL
    SELECT
        chosen.part, chosen.minute, 'completed', chosen.stands_for, ready.kind, chosen.ready_slot,
        chosen.ready_generation, chosen.queue, chosen.enqueue_shard, item.lane_seq, ready.priority, ready.run_at,
        item.attempted_at, chosen.finalized_at
    FROM chosen
    CROSS JOIN LATERAL (
        SELECT job_ids, lane_seqs, attempted_ats
        FROM awa.receipt_completion_batches AS batch
        WHERE batch.ready_slot = chosen.ready_slot AND batch.batch_id = chosen.batch_id
        OFFSET 0 -- so that the arrays are read once
    ) AS arrays
    CROSS JOIN LATERAL (
        SELECT
            arrays.job_ids[place.index] AS job_id, arrays.lane_seqs[place.index] AS lane_seq,
            arrays.attempted_ats[place.index] AS attempted_at
        FROM generate_series(0, chosen.items - 1) AS number,
            LATERAL (SELECT 1 + number * chosen.completed_count / chosen.items) AS place (index)
    ) AS item
    CROSS JOIN LATERAL (
        SELECT emission.kind, emission.priority, emission.run_at
        FROM awa.ready_entries AS emission
        WHERE emission.ready_slot = chosen.ready_slot
            AND emission.ready_generation = chosen.ready_generation
            AND emission.job_id = item.job_id
            AND emission.lane_seq = item.lane_seq
        LIMIT 1
    ) AS ready
) AS job
-- A claim without a deadline leaves the time of its attempts in the emission ledger alone.
LEFT JOIN LATERAL (
    SELECT nearest.claimed_at
    FROM (
        SELECT claimed_at, lane_ranges
        FROM awa.ready_claim_attempt_batches AS ledger
        WHERE ledger.ready_slot = job.ready_slot
            AND ledger.ready_generation = job.ready_generation
            AND ledger.queue = job.queue
            AND ledger.priority = job.priority
            AND ledger.enqueue_shard = job.enqueue_shard
            AND ledger.next_lane_seq > job.lane_seq
        ORDER BY ledger.next_lane_seq
        LIMIT 4 -- claims at once may have gone through one piece of a lane
    ) AS nearest
    WHERE nearest.lane_ranges @> job.lane_seq
    LIMIT 1
) AS claim ON job.attempted_at IS NULL AND NOT %(by_kind)s::boolean
CROSS JOIN LATERAL (SELECT coalesce(job.attempted_at, claim.claimed_at) AS at) AS began
WHERE isfinite(began.at) IS NOT FALSE;

-- name: entered
-- Jobs created lately, by the first emissions on some pages and among the newest deferred ones; and dead letters on
-- some pages by the minute they failed in.
-- rows:  one for each minute and sort: how many
-- locks: none
SELECT sort, floor(extract(epoch FROM at) / 60)::bigint AS minute, round(sum(jobs))::bigint AS jobs
FROM (
    -- A job that was moved to another lane has an emission in each.
    SELECT DISTINCT 'enqueued' AS sort, ready.created_at AS at, tail.weight AS jobs, ready.job_id
    FROM unnest(
            %(ready_entries_slots)s::integer[], %(ready_entries_first_pages)s::integer[],
            %(ready_entries_pages)s::integer[], %(ready_entries_strides)s::integer[],
            %(ready_entries_weights)s::double precision[], %(ready_entries_since)s::timestamptz[]
        ) AS tail (slot, first_page, pages, stride, weight, since),
        generate_series(tail.first_page, tail.pages - 1, tail.stride) AS stretch,
        LATERAL (
            SELECT least(stretch + (hashint4(stretch) & 2147483647) %% tail.stride, tail.pages - 1)
        ) AS chosen (page),
        LATERAL (
            SELECT created_at, job_id
            FROM awa.ready_entries
            WHERE ready_slot = tail.slot
                AND ctid >= format('(%%s,0)', chosen.page)::tid
                AND ctid < format('(%%s,0)', chosen.page + 1)::tid
                AND run_lease = 0
                AND created_at >= tail.since
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            OFFSET 0 -- so that a page is read by its number
        ) AS ready
    UNION ALL
    SELECT 'enqueued', deferred.created_at, 1, NULL
    FROM (
        SELECT created_at, queue, run_lease
        FROM awa.deferred_jobs
        ORDER BY job_id DESC
        LIMIT %(newest)s::bigint
    ) AS deferred
    WHERE deferred.run_lease = 0
        AND deferred.created_at >= %(since)s::timestamptz
        AND (%(queue)s::text IS NULL OR deferred.queue = %(queue)s::text)
    UNION ALL
    SELECT 'failed', dead.finalized_at, tail.weight, NULL
    FROM unnest(
            %(dlq_entries_first_pages)s::integer[], %(dlq_entries_pages)s::integer[],
            %(dlq_entries_strides)s::integer[], %(dlq_entries_weights)s::double precision[],
            %(dlq_entries_since)s::timestamptz[]
        ) AS tail (first_page, pages, stride, weight, since),
        generate_series(tail.first_page, tail.pages - 1, tail.stride) AS stretch,
        LATERAL (
            SELECT least(stretch + (hashint4(stretch) & 2147483647) %% tail.stride, tail.pages - 1)
        ) AS chosen (page),
        LATERAL (
            SELECT finalized_at
            FROM awa.dlq_entries
            WHERE ctid >= format('(%%s,0)', chosen.page)::tid
                AND ctid < format('(%%s,0)', chosen.page + 1)::tid
                AND finalized_at >= tail.since
                AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
            OFFSET 0 -- so that a page is read by its number
        ) AS dead
) AS found
WHERE isfinite(at)
GROUP BY sort, minute;

-- name: failures
-- The latest failures: jobs that failed for good, dead letters, and jobs that will be tried again. Failed rows have an
-- index of their own in each partition; where it names more than are looked at, and for the others, the last pages are
-- looked through, where the latest rows lie.
-- rows:  one for each, at most limit, latest first: the job and when it failed
-- locks: none
WITH failed AS MATERIALIZED (
    SELECT job_id, finalized_at
    FROM awa.done_entries
    WHERE state = 'failed'
    LIMIT %(most)s::bigint
),
size AS MATERIALIZED (
    SELECT
        relation,
        greatest(
            pg_relation_size(relation) / current_setting('block_size')::integer - %(last_pages)s::bigint, 0
        ) AS first_page
    FROM unnest(ARRAY['awa.dlq_entries', 'awa.deferred_jobs']::regclass[]) AS relation
)
SELECT found.job_id, max(found.failed_at) AS failed_at
FROM (
    SELECT job_id, finalized_at AS failed_at
    FROM failed
    UNION ALL
    SELECT done.job_id, done.finalized_at
    FROM awa.queue_ring_slots AS slot,
        LATERAL (
            SELECT pg_relation_size(format('awa.done_entries_%%s', slot.slot)::regclass)
                / current_setting('block_size')::integer
        ) AS child (pages),
        LATERAL (
            SELECT job_id, state, finalized_at
            FROM awa.done_entries
            WHERE ready_slot = slot.slot
                AND ctid >= format('(%%s,0)', greatest(child.pages - %(last_pages)s::bigint / 4, 0))::tid
            OFFSET 0 -- so that the last pages are read and no more
        ) AS done
    WHERE done.state = 'failed' AND (SELECT count(*) FROM failed) >= %(most)s::bigint
    UNION ALL
    SELECT job_id, finalized_at
    FROM awa.dlq_entries
    WHERE ctid >= (
        SELECT format('(%%s,0)', first_page)::tid
        FROM size
        WHERE relation = 'awa.dlq_entries'::regclass
    )
    UNION ALL
    SELECT job_id, coalesce(finalized_at, attempted_at, created_at)
    FROM awa.deferred_jobs
    WHERE state = 'retryable'
        AND ctid >= (
            SELECT format('(%%s,0)', first_page)::tid
            FROM size
            WHERE relation = 'awa.deferred_jobs'::regclass
        )
) AS found
GROUP BY found.job_id
ORDER BY failed_at DESC, found.job_id DESC
LIMIT %(limit)s::bigint;
