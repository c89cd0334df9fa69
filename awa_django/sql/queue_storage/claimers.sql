-- How many loops of the fleet claim from a queue at once (contract: queue-storage/claim section 8,
-- runtime/dispatcher section 5). Nothing but other claimers reads what is written here.

-- name: ask
-- Take or renew a claimer slot of a queue, if there is something to claim or something has just been claimed. The number
-- of slots follows the backlog, and changes every half second at most. A slot can be taken when it was given up, has
-- expired, or saw no claim for half a second; of those this loop's own comes first, then by probe.
-- rows:  one: positions that nobody is known to have claimed, none while the queue is paused; slot and epoch, or NULLs
-- locks: one queue_claimer_leases row, passing over those another claimer locks; the queue_claimer_state row when
--        the number of slots changes
WITH look AS MATERIALIZED (
    SELECT
        clock_timestamp() AS at,
        coalesce(state.target_claimers, 1) AS present,
        coalesce(state.updated_at, '-infinity') <= clock_timestamp() - interval '500 milliseconds' AS changeable,
        CASE
            WHEN NOT EXISTS (
                SELECT FROM awa.queue_meta AS meta
                WHERE meta.queue = asked.queue AND meta.paused
            )
                THEN (
                    SELECT coalesce(sum(greatest(
                        0,
                        coalesce(
                            pg_sequence_last_value(('awa.' || enqueue_head.seq_name)::regclass) + 1,
                            awa.sequence_next_value(enqueue_head.seq_name)
                        ) - coalesce(
                            pg_sequence_last_value(('awa.' || claim_head.seq_name)::regclass) + 1,
                            awa.sequence_next_value(claim_head.seq_name)
                        )
                    )), 0)::bigint
                    FROM awa.queue_claim_heads AS claim_head
                    JOIN awa.queue_enqueue_heads AS enqueue_head USING (queue, priority, enqueue_shard)
                    WHERE claim_head.queue = asked.queue
                )
            ELSE 0
        END AS backlog
    FROM (VALUES (%(queue)s::text)) AS asked (queue)
    LEFT JOIN awa.queue_claimer_state AS state ON state.queue = asked.queue
),
aim AS MATERIALIZED (
    SELECT
        at,
        backlog,
        present,
        changeable,
        backlog > 0 OR %(claimed)s::boolean AS busy,
        least(
            %(most)s::smallint,
            CASE
                WHEN NOT changeable THEN present
                WHEN backlog >= CASE WHEN present >= 4 THEN 16 WHEN present >= 2 THEN 64 ELSE 32 END THEN 4
                WHEN backlog >= CASE WHEN present BETWEEN 2 AND 3 THEN 2 ELSE 4 END THEN 2
                ELSE 1
            END
        )::smallint AS target
    FROM look
),
changed AS (
    INSERT INTO awa.queue_claimer_state AS state (queue, target_claimers, updated_at)
    SELECT %(queue)s::text, target, at
    FROM aim
    WHERE busy AND changeable AND target <> present
    ON CONFLICT (queue) DO UPDATE
    SET target_claimers = excluded.target_claimers,
        updated_at = excluded.updated_at
    WHERE state.updated_at <= excluded.updated_at - interval '500 milliseconds'
),
found AS MATERIALIZED (
    SELECT lease.claimer_slot, lease.owner_instance_id = %(owner)s::uuid AS own
    FROM aim
    JOIN awa.queue_claimer_leases AS lease ON lease.claimer_slot < aim.target
    WHERE aim.busy
        AND lease.queue = %(queue)s::text
        AND (
            lease.owner_instance_id = %(owner)s::uuid
            OR lease.expires_at <= aim.at
            OR lease.last_claimed_at <= aim.at - interval '500 milliseconds'
        )
    ORDER BY own DESC, mod(lease.claimer_slot + %(probe)s::integer, aim.target)
    LIMIT 1
    FOR UPDATE OF lease SKIP LOCKED
),
renewed AS (
    UPDATE awa.queue_claimer_leases AS lease
    SET owner_instance_id = %(owner)s::uuid,
        lease_epoch = lease.lease_epoch + (NOT found.own)::integer,
        leased_at = CASE WHEN found.own AND %(claimed)s::boolean THEN lease.leased_at ELSE aim.at END,
        last_claimed_at = aim.at,
        expires_at = aim.at + interval '3 seconds'
    FROM found, aim
    WHERE lease.queue = %(queue)s::text AND lease.claimer_slot = found.claimer_slot
    RETURNING lease.claimer_slot, lease.lease_epoch
),
opened AS (
    INSERT INTO awa.queue_claimer_leases (
        queue, claimer_slot, owner_instance_id, lease_epoch, leased_at, last_claimed_at, expires_at
    )
    SELECT
        %(queue)s::text, free.claimer_slot, %(owner)s::uuid, 0, aim.at, aim.at, aim.at + interval '3 seconds'
    FROM aim
    CROSS JOIN generate_series(0, aim.target - 1) AS free (claimer_slot)
    WHERE aim.busy
        AND NOT EXISTS (SELECT FROM found)
        AND NOT EXISTS (
            SELECT FROM awa.queue_claimer_leases AS lease
            WHERE lease.queue = %(queue)s::text AND lease.claimer_slot = free.claimer_slot
        )
    ORDER BY mod(free.claimer_slot + %(probe)s::integer, aim.target)
    LIMIT 1
    ON CONFLICT (queue, claimer_slot) DO NOTHING
    RETURNING claimer_slot, lease_epoch
)
SELECT aim.backlog, slot.claimer_slot, slot.lease_epoch
FROM aim
LEFT JOIN (
    SELECT claimer_slot, lease_epoch FROM renewed
    UNION ALL
    SELECT claimer_slot, lease_epoch FROM opened
) AS slot ON true;

-- name: leave
-- Give a claimer slot up, unless somebody else has taken it.
-- rows:  none
-- locks: the slot's queue_claimer_leases row
UPDATE awa.queue_claimer_leases
SET expires_at = clock_timestamp()
WHERE queue = %(queue)s::text
    AND claimer_slot = %(slot)s::smallint
    AND owner_instance_id = %(owner)s::uuid
    AND lease_epoch = %(epoch)s::bigint;
