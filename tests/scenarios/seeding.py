"""A queue with a history, made by SQL within seconds and valid to the last row.

What a million jobs leave behind: ready rows in twelve old slots of the ring and the current one, finished jobs as
compact batches and as rows, lanes whose cursors have passed them, jobs that wait behind the cursors, failed ones with
large arguments. The few that run, wait for a callback or are reported by workers are made by the product's own
functions. The contract's invariants hold (``tests/invariants.py``), so anything may work on it afterwards.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any

import psycopg

from awa_django.conf import QueueConfig, RateLimit, get_settings
from awa_django.jobs import Attempt, Callback
from awa_django.outcomes import WaitForCallback
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.transitions import plan
from awa_django.worker.descriptors import Descriptor
from awa_django.worker.instance import Instance, Numbers
from tests.planes.world import World, job
from tests.scenarios.crowding import Crowd, crowd_the_control_plane, park

__all__ = ["FULL", "TENTH", "Seeded", "Size", "millions", "seed"]

#: Slots of the queue ring that hold history, besides the current one; the rest is free for the ring to turn into.
OLD_SLOTS = 12
#: Jobs that one claim of the past handed out, at the most.
CLAIMED = 512
#: Claims of a lane in one slot, at the least, as far as there are jobs.
CLAIMS = 24
#: Waiting jobs that were enqueued at one time.
ENQUEUED = 500
#: Characters of an argument of a failed job, as pieces of 32.
PIECES = 320


NO_CROWD = Crowd()


@dataclass(frozen=True, slots=True)
class Size:
    """How many jobs there are of each sort."""

    finished: int
    waiting: int
    failed: int
    dead: int
    scheduled: int
    retryable: int
    callbacks: int = 6
    running: int = 8
    crowd: Crowd = NO_CROWD


#: What the scenario asks for, and a tenth of it.
FULL = Size(finished=1_000_000, waiting=200_000, failed=5_000, dead=2_000, scheduled=2_000, retryable=1_000)
TENTH = Size(finished=100_000, waiting=20_000, failed=500, dead=200, scheduled=200, retryable=100)


def millions(number: int) -> Size:
    """So many million finished jobs with all else in proportion, nine tenths of it on one queue of fifty."""
    return Size(
        finished=number * 1_000_000,
        waiting=number * 100_000,
        failed=number * 2_000,
        dead=number * 5_000,
        scheduled=number * 10_000,
        retryable=number * 5_000,
        crowd=Crowd(
            queues=45,
            kinds=188,
            parked=number * 20_000,
            runtimes=number * 500,
            schedules=number * 50,
            operations=number * 200,
        ),
    )


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue and priority with the kinds of jobs that go through it."""

    queue: str
    priority: int
    kinds: tuple[str, ...]
    #: Its share of the jobs, among those of the others.
    weight: int = 1
    #: The most jobs that one claim handed out, where producers and workers keep pace.
    claimed: int | None = None


LANES = (
    Lane("mail", 1, ("send_receipt", "send_password_reset")),
    Lane("mail", 2, ("send_receipt", "send_invoice")),
    Lane("mail", 4, ("send_newsletter",)),
    Lane("media", 2, ("resize_image", "transcode_video")),
    Lane("media", 3, ("resize_image",)),
    Lane("reports", 3, ("build_report", "export_orders")),
    Lane("search", 2, ("index_page", "drop_page")),
    Lane("payments", 1, ("capture_payment",)),
)
#: Where nothing but the few jobs of their sort goes.
EXPORTS, WEBHOOKS, PAYPAL = "exports", "webhooks", "paypal"


def lanes_of(crowd: Crowd) -> tuple[Lane, ...]:
    """The lanes of an installation: with many queues, those of one queue have nine tenths of the jobs."""
    if not crowd.queues:
        return LANES
    kinds = [f"sync_{number:03}" for number in range(crowd.kinds)]
    many = [
        Lane(
            f"tenant_{number:02}",
            1 + number % 4,
            tuple(kinds[number * len(kinds) // crowd.queues : (number + 1) * len(kinds) // crowd.queues]),
            claimed=2,
        )
        for number in range(crowd.queues)
    ]
    few = [lane for lane in LANES if lane.queue != "mail"]
    mail = [lane for lane in LANES if lane.queue == "mail"]
    share = 9 * (len(many) + len(few)) // len(mail)
    return (*(replace(lane, weight=share) for lane in mail), *few, *many)


@dataclass(slots=True)
class Seeded:
    """Ids of jobs of each sort: some of the many, all of the few."""

    completed: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    scheduled: list[int] = field(default_factory=list)
    retryable: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    instances: list[uuid.UUID] = field(default_factory=list)
    batches: list[uuid.UUID] = field(default_factory=list)

    @property
    def one_of_each(self) -> dict[str, int]:
        """A job of each sort."""
        return {
            name: ids[len(ids) // 2]
            for name in (
                "completed",
                "failed",
                "waiting",
                "dead",
                "scheduled",
                "retryable",
                "running",
                "parked",
            )
            if (ids := getattr(self, name))
        }


# Jobs of the past ---------------------------------------------------------------------------------------------

#: What became of job ``n`` of a block. The failed and cancelled ones lie evenly among the others.
STATE = """CASE
    WHEN n %% %(stride)s::bigint = 0 AND n / %(stride)s::bigint < %(failed)s::bigint THEN 'failed'
    WHEN n %% 97 = 5 THEN 'cancelled'
    WHEN n %% 10 = 3 THEN 'completed'
    ELSE 'compact'
END"""
ARGS = (
    """jsonb_build_object('order_id', job_id %% 99991, 'to', 'user-' || job_id %% 5003 || '@example.com')"""
)
PAYLOAD = """CASE WHEN n %% 10 = 3 THEN jsonb_build_object(
    'tags', jsonb_build_array('tenant-' || n %% 40, CASE WHEN n %% 20 = 3 THEN 'eu' ELSE 'us' END),
    'metadata', jsonb_build_object('tenant', n %% 40)
) END"""
BODY = f"""(
    SELECT string_agg(md5(block.job_id::text || '/' || piece::text), '')
    FROM generate_series(1, {PIECES}) AS piece
)"""
LARGE = f"{ARGS} || CASE WHEN %(large)s::boolean THEN jsonb_build_object('body', {BODY}) ELSE '{{}}' END"
KIND = "(%(kinds)s::text[])[1 + n %% cardinality(%(kinds)s::text[])]"

BLOCK = f"""
    WITH block AS MATERIALIZED (
        SELECT
            n, %(first_id)s::bigint + n AS job_id, %(first_seq)s::bigint + n AS lane_seq, {KIND} AS kind,
            {STATE} AS state, %(began)s::timestamptz + n * %(step)s::interval AS at
        FROM generate_series(0, %(count)s::bigint - 1) AS n
    )
"""
#: The failed ones are at their third attempt, so their last emission says two.
READY = f"""{BLOCK}
    INSERT INTO awa.ready_entries (
        ready_slot, ready_generation, job_id, kind, queue, args, priority, attempt, run_lease, max_attempts,
        lane_seq, enqueue_shard, run_at, attempted_at, created_at, payload
    )
    SELECT
        %(slot)s, %(slot)s, job_id, kind, %(queue)s,
        CASE WHEN state = 'failed' THEN {ARGS} || jsonb_build_object('body', {BODY}) ELSE {ARGS} END,
        %(priority)s, CASE WHEN state = 'failed' THEN 2 ELSE 0 END, CASE WHEN state = 'failed' THEN 2 ELSE 0 END,
        CASE WHEN state = 'failed' THEN 3 ELSE 25 END, lane_seq, 0, at,
        CASE WHEN state = 'failed' THEN at - interval '1 minute' END, at - interval '2 seconds', {PAYLOAD}
    FROM block
"""
SEGMENT = """
    INSERT INTO awa.ready_segments (
        ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq, next_lane_seq,
        first_run_at, created_at
    )
    VALUES (
        %(slot)s, %(slot)s, %(queue)s, %(priority)s, 0, %(first_seq)s::bigint,
        %(first_seq)s::bigint + %(count)s, %(began)s, %(began)s
    )
"""
LEDGER = """
    INSERT INTO awa.ready_claim_attempt_batches (
        ready_slot, ready_generation, queue, priority, enqueue_shard, claim_slot, first_lane_seq, next_lane_seq,
        claimed_count, lane_ranges, claimed_at
    )
    SELECT
        %(slot)s, %(slot)s, %(queue)s, %(priority)s, 0, 0, claim.first, claim.next, claim.next - claim.first,
        int8multirange(int8range(claim.first, claim.next)), %(began)s::timestamptz + n * %(step)s::interval
    FROM generate_series(0, %(count)s::bigint - 1, %(claimed)s::bigint) AS n
    CROSS JOIN LATERAL (
        SELECT %(first_seq)s::bigint + n, %(first_seq)s::bigint + least(n + %(claimed)s::bigint, %(count)s::bigint)
    ) AS claim (first, next)
"""
COMPACT = f"""{BLOCK}
    INSERT INTO awa.receipt_completion_batches (
        ready_slot, ready_generation, claim_slot, queue, priority, enqueue_shard, completed_count, job_ids, run_leases,
        lane_seqs, attempts, attempted_ats, finalized_at
    )
    SELECT
        %(slot)s, %(slot)s, 0, %(queue)s, %(priority)s, 0, count(*), array_agg(job_id ORDER BY n),
        array_agg(1::bigint), array_agg(lane_seq ORDER BY n), array_agg(1::smallint),
        array_agg(at + interval '5 milliseconds' ORDER BY n), max(at) + interval '300 milliseconds'
    FROM block
    WHERE state = 'compact'
    GROUP BY n / %(claimed)s::bigint
"""
DONE = f"""{BLOCK},
    ended AS (
        INSERT INTO awa.done_entries (
            ready_slot, ready_generation, job_id, kind, queue, state, priority, attempt, run_lease, lane_seq,
            enqueue_shard, attempted_at, finalized_at, payload
        )
        SELECT
            %(slot)s, %(slot)s, job_id, kind, %(queue)s, state::awa.job_state, %(priority)s,
            CASE WHEN state = 'failed' THEN 3 ELSE 1 END, CASE WHEN state = 'failed' THEN 3 ELSE 1 END, lane_seq, 0,
            at + interval '5 milliseconds', at + interval '400 milliseconds',
            CASE WHEN state = 'failed' THEN coalesce({PAYLOAD}, '{{}}') || jsonb_build_object(
                'errors', (
                    SELECT jsonb_agg(jsonb_build_object(
                        'error', 'ConnectionError: the mail server refused message ' || job_id,
                        'attempt', attempt,
                        'at', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '+00:00'
                    ))
                    FROM generate_series(1, 3) AS attempt
                )
            ) END
        FROM block
        WHERE state <> 'compact'
        RETURNING job_id, state
    ),
    counted AS (
        SELECT (job_id & 255)::smallint AS bucket, count(*) AS number
        FROM ended
        GROUP BY 1
    )
"""
#: A slot that turned away has its counts folded; those of the current one lie about.
FOLDED = f"""{DONE}
    INSERT INTO awa.queue_terminal_live_counts (
        ready_slot, queue, priority, enqueue_shard, counter_bucket, live_terminal_count
    )
    SELECT %(slot)s, %(queue)s, %(priority)s, 0, bucket, number
    FROM counted
    ON CONFLICT (ready_slot, queue, priority, enqueue_shard, counter_bucket) DO UPDATE
    SET live_terminal_count = queue_terminal_live_counts.live_terminal_count + excluded.live_terminal_count
"""
LOOSE = f"""{DONE}
    INSERT INTO awa.queue_terminal_count_deltas (
        ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
    )
    SELECT %(slot)s, %(slot)s, %(queue)s, %(priority)s, 0, bucket, number
    FROM counted
"""

# Jobs to come -------------------------------------------------------------------------------------------------

WAITING_SEGMENTS = f"""
    INSERT INTO awa.ready_segments (
        ready_slot, ready_generation, queue, priority, enqueue_shard, first_lane_seq, next_lane_seq,
        first_run_at, created_at
    )
    SELECT
        %(slot)s, %(slot)s, %(queue)s, %(priority)s, 0, %(first_seq)s::bigint + n,
        %(first_seq)s::bigint + least(n + {ENQUEUED}, %(count)s::bigint), began, began
    FROM generate_series(0, %(count)s::bigint - 1, {ENQUEUED}) AS n
    CROSS JOIN LATERAL (SELECT %(began)s::timestamptz + n * %(step)s::interval) AS enqueue (began)
"""
WAITING = f"""{BLOCK}
    INSERT INTO awa.ready_entries (
        ready_slot, ready_generation, job_id, kind, queue, args, priority, lane_seq, enqueue_shard, run_at, created_at,
        payload
    )
    SELECT %(slot)s, %(slot)s, job_id, kind, %(queue)s, {ARGS}, %(priority)s, lane_seq, 0, began, began, {PAYLOAD}
    FROM block
    CROSS JOIN LATERAL (
        SELECT %(began)s::timestamptz + n / {ENQUEUED} * {ENQUEUED} * %(step)s::interval
    ) AS enqueue (began)
"""
DEFERRED = f"""
    WITH block AS MATERIALIZED (
        SELECT n, %(first_id)s::bigint + n AS job_id, {KIND} AS kind
        FROM generate_series(0, %(count)s::bigint - 1) AS n
    )
    INSERT INTO awa.deferred_jobs (
        job_id, kind, queue, args, state, priority, attempt, run_lease, run_at, attempted_at, finalized_at,
        created_at, payload
    )
    SELECT
        job_id, kind, %(queue)s, {ARGS}, %(state)s::awa.job_state, %(priority)s, again, again,
        now() + interval '1 hour' + n * interval '1 second',
        CASE WHEN again = 1 THEN now() - interval '5 minutes' END,
        CASE WHEN again = 1 THEN now() - interval '4 minutes' END, now() - interval '1 hour',
        CASE WHEN again = 1 THEN jsonb_build_object('errors', jsonb_build_array(jsonb_build_object(
            'error', 'TimeoutError: no answer within 10 s', 'attempt', 1,
            'at', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '+00:00'
        ))) END
    FROM block
    CROSS JOIN LATERAL (SELECT CASE %(state)s::text WHEN 'retryable' THEN 1 ELSE 0 END) AS attempts (again)
"""
DEAD = f"""
    WITH block AS MATERIALIZED (
        SELECT n, %(first_id)s::bigint + n AS job_id, {KIND} AS kind
        FROM generate_series(0, %(count)s::bigint - 1) AS n
    )
    INSERT INTO awa.dlq_entries (
        job_id, kind, queue, args, priority, attempt, run_lease, max_attempts, run_at, attempted_at, finalized_at,
        created_at, payload, dlq_reason, dlq_at, original_run_lease
    )
    SELECT
        job_id, kind, %(queue)s, {LARGE}, %(priority)s, 5, 5, 5, at, at, at, at - interval '1 hour',
        jsonb_build_object('errors', jsonb_build_array(jsonb_build_object(
            'error', 'ValueError: order ' || job_id || ' has no address', 'attempt', 5,
            'at', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '+00:00', 'terminal', true
        ))),
        CASE WHEN n %% 2 = 0 THEN 'terminal_error' ELSE 'max_attempts_exhausted' END, at, 5
    FROM block
    CROSS JOIN LATERAL (SELECT now() - (n + 1) * interval '20 hours' / %(count)s::bigint) AS ended (at)
"""


def seed(url: str, size: Size = TENTH) -> Seeded:
    """Fill a database that ``migrate`` made and nobody has used; it is analysed afterwards."""
    with psycopg.connect(url, autocommit=True) as connection:
        seeded = Seeded()
        with connection.transaction():
            _Past(connection, size, seeded).write()
        _write_the_few(World(connection, QueueStoragePlane()), size, seeded)
        with connection.transaction():
            _write_the_control_plane(connection, seeded)
            crowd_the_control_plane(connection, size.crowd)
        connection.execute("VACUUM (ANALYZE)")
    return seeded


def _shares(total: int, weights: Sequence[int]) -> list[int]:
    """A number as parts in proportion to their weights, as nearly as whole numbers can be."""
    ends = [0, *accumulate(weights)]
    return [total * high // ends[-1] - total * low // ends[-1] for low, high in pairwise(ends)]


class _Past:
    """The many: history, what waits, what is put off, dead letters."""

    def __init__(self, connection: psycopg.Connection[Any], size: Size, seeded: Seeded) -> None:
        self.connection = connection
        self.size = size
        self.seeded = seeded
        self.next_id = 1
        self.lanes = lanes_of(size.crowd)
        self.weights = [lane.weight for lane in self.lanes]
        self.next_seq = dict.fromkeys(self.lanes, 1)

    def write(self) -> None:
        self._turn_the_ring()
        self._register_lanes()
        # Of few jobs as many in each slot, of many as a day has them: some slots hold thrice as much as others.
        slots = [1 if not self.size.crowd.queues else 1 + slot % 3 for slot in range(OLD_SLOTS + 1)]
        blocks = [slot * weight for slot in slots for weight in self.weights]
        finished, failed = iter(_shares(self.size.finished, blocks)), iter(_shares(self.size.failed, blocks))
        # In turns, since rows of a table lie in the order of time; a small history needs none.
        rounds = 6 if self.size.finished >= FULL.finished else 1
        for slot in range(OLD_SLOTS + 1):
            shares = [
                zip(_shares(next(finished), [1] * rounds), _shares(next(failed), [1] * rounds), strict=True)
                for _ in self.lanes
            ]
            for number in range(rounds):
                for lane, share in zip(self.lanes, shares, strict=True):
                    good, bad = next(share)
                    self._write_finished(slot, lane, good + bad, bad, part=(number, rounds))
        for lane in self.lanes:
            self._run(
                "SELECT awa.set_sequence_next(seq_name, %(next)s) FROM awa.queue_claim_heads "
                "WHERE queue = %(queue)s AND priority = %(priority)s",
                next=self.next_seq[lane],
                queue=lane.queue,
                priority=lane.priority,
            )
        for lane, count in zip(self.lanes, _shares(self.size.waiting, self.weights), strict=True):
            self._write_waiting(lane, count)
        for lane in self.lanes:
            self._run(
                "SELECT awa.set_sequence_next(seq_name, %(next)s) FROM awa.queue_enqueue_heads "
                "WHERE queue = %(queue)s AND priority = %(priority)s",
                next=self.next_seq[lane],
                queue=lane.queue,
                priority=lane.priority,
            )
        for state in ("scheduled", "retryable"):
            for lane, count in zip(self.lanes, _shares(getattr(self.size, state), self.weights), strict=True):
                getattr(self.seeded, state).extend(self._write_outside(DEFERRED, lane, count, state=state))
        for lane, count in zip(self.lanes, _shares(self.size.dead, self.weights), strict=True):
            self.seeded.dead.extend(
                self._write_outside(DEAD, lane, count, large=bool(self.size.crowd.queues))
            )
        if self.size.crowd.parked:
            park(
                self.connection,
                slot=OLD_SLOTS,
                queue=PAYPAL,
                first_id=self.next_id,
                count=self.size.crowd.parked,
            )
            self.next_id += self.size.crowd.parked
        self._run("SELECT setval('awa.job_id_seq', %(last)s)", last=self.next_id)

    def _run(self, query: str, **values: Any) -> None:
        self.connection.execute(query.encode(), values)

    def _turn_the_ring(self) -> None:
        for slot in range(1, OLD_SLOTS + 1):
            self._run(
                "UPDATE awa.queue_ring_state SET current_slot = %(slot)s, generation = %(slot)s", slot=slot
            )
            self._run(
                "UPDATE awa.queue_ring_slots SET generation = %(slot)s WHERE slot = %(slot)s", slot=slot
            )

    def _register_lanes(self) -> None:
        for lane in self.lanes:
            for table in ("queue_lanes", "queue_enqueue_heads", "queue_claim_heads"):
                self._run(
                    f"INSERT INTO awa.{table} (queue, priority) VALUES (%(queue)s, %(priority)s)",
                    queue=lane.queue,
                    priority=lane.priority,
                )

    def _block(self, slot: int, lane: Lane, count: int, failed: int = 0, **times: Any) -> dict[str, Any]:
        """The parameters of a run of jobs of one lane."""
        block = {
            "slot": slot,
            "queue": lane.queue,
            "priority": lane.priority,
            "kinds": list(lane.kinds),
            "first_id": self.next_id,
            "first_seq": self.next_seq[lane],
            "count": count,
            "failed": failed,
            "stride": max(1, count // failed) if failed else 1,
            "claimed": lane.claimed or max(1, min(CLAIMED, count // CLAIMS)),
            **times,
        }
        self.next_id += count
        self.next_seq[lane] += count
        return block

    def _write_finished(
        self, slot: int, lane: Lane, count: int, failed: int, *, part: tuple[int, int]
    ) -> None:
        """A slot of the past took two hours; the current one goes on since an hour ago."""
        if not count:
            return
        hours = 1 if slot == OLD_SLOTS else 1 + 2 * (OLD_SLOTS - slot)
        number, rounds = part
        span = (timedelta(minutes=58) if slot == OLD_SLOTS else timedelta(hours=2)) / rounds
        block = self._block(
            slot, lane, count, failed, began=self._ago(hours) + number * span, step=span / count
        )
        for query in (READY, SEGMENT, LEDGER, COMPACT, LOOSE if slot == OLD_SLOTS else FOLDED):
            self._run(query, **block)
        if number == rounds - 1:
            self.seeded.completed.append(block["first_id"] + count - 1)
        if failed:
            self.seeded.failed.append(block["first_id"])

    def _write_waiting(self, lane: Lane, count: int) -> None:
        if not count:
            return
        block = self._block(OLD_SLOTS, lane, count, began=self._ago(0.4), step=timedelta(minutes=20) / count)
        self._run(WAITING, **block)
        self._run(WAITING_SEGMENTS, **block)
        self.seeded.waiting += range(block["first_id"], block["first_id"] + min(count, 100))

    def _write_outside(self, query: str, lane: Lane, count: int, **values: Any) -> range:
        if not count:
            return range(0)
        ids = range(self.next_id, self.next_id + count)
        self._run(
            query,
            queue=lane.queue,
            priority=lane.priority,
            kinds=list(lane.kinds),
            first_id=self.next_id,
            count=count,
            **values,
        )
        self.next_id += count
        return ids

    def _ago(self, hours: float) -> Any:
        row = self.connection.execute("SELECT now() - %s * interval '1 hour'", [hours]).fetchone()
        assert row is not None
        return row[0]


# The few ------------------------------------------------------------------------------------------------------


def _write_the_few(world: World, size: Size, seeded: Seeded) -> None:
    """Attempts that go on, and those that wait for a callback, as a worker leaves them."""
    attempts = _claimed(world, size.running, kind="export_orders", queue=EXPORTS, tags=["nightly"])
    for number, attempt in enumerate(attempts):
        if number % 2:
            # The rest hold nothing but a receipt.
            world.beat(attempt, {"percent": 10 * number, "message": f"{number} of {size.running} files"})
    seeded.running += [attempt.job_id for attempt in attempts]
    for number, attempt in enumerate(
        _claimed(world, size.callbacks, kind="capture_payment", queue=WEBHOOKS, args={"order_id": 7})
    ):
        token = uuid.uuid4()
        timeout = timedelta(minutes=30 * (number + 1))
        judges = Callback(
            None, None, "payload.order == 7", "payload.paid", "payload.refused", "payload.receipt"
        )
        world.within(
            lambda cursor, to=attempt, by=token, within=timeout, judged=judges: world.plane.register_callback(
                cursor, to, by, within, judged
            )
        )
        parking = plan(attempt, WaitForCallback(token))._replace(has_lease=True)
        world.within(lambda cursor, parking=parking: world.plane.settle(cursor, [parking]))
        seeded.parked.append(attempt.job_id)


def _claimed(world: World, count: int, **fields: Any) -> list[Attempt]:
    return world.running(*(job(**fields) for _ in range(count))) if count else []


CRON = """
    INSERT INTO awa.cron_jobs (
        name, cron_expr, timezone, kind, queue, args, priority, tags, last_enqueued_at, paused_at, paused_by
    )
    VALUES
        (
            'nightly_report', '0 3 * * *', 'Pacific/Auckland', 'build_report', 'reports', '{"days": 1}', 3,
            '{nightly}', date_trunc('day', now()), NULL, NULL
        ),
        (
            'sweep_carts', '*/5 * * * *', 'UTC', 'drop_page', 'search', '{}', 2, '{}', now() - interval '3 days',
            now() - interval '3 days', 'maria'
        )
"""
BATCH = """
    INSERT INTO awa.batch_operations (
        id, op_kind, filter, spec, state, submitted_by, submitted_at, started_at, finalized_at, total_matched,
        processed, skipped, errored, last_error, retention_until
    )
    VALUES (
        %(id)s, %(op)s, %(filter)s::jsonb, %(spec)s::jsonb, %(state)s, 'maria', now() - interval '3 hours',
        now() - interval '3 hours', now() - interval '170 minutes', %(total)s, %(processed)s, %(skipped)s, %(errored)s,
        %(error)s, now() + interval '7 days'
    )
"""


def _write_the_control_plane(connection: psycopg.Connection[Any], seeded: Seeded) -> None:
    """Queues and kinds with descriptions, workers live and gone, schedules, operations that have ended."""
    with connection.cursor() as cursor:
        for instance, numbers, silent in _instances():
            instance.report(cursor, numbers)
            instance.describe(cursor)
            cursor.execute(
                "UPDATE awa.runtime_instances SET last_seen_at = last_seen_at - %s WHERE instance_id = %s",
                [silent, instance.instance_id],
            )
            seeded.instances.append(instance.instance_id)
        cursor.execute(CRON)
        cursor.execute(
            "INSERT INTO awa.queue_meta (queue, paused, paused_at, paused_by) "
            "VALUES ('reports', true, now() - interval '20 minutes', 'maria')"
        )
        wanted = {"kind": None, "queue": "mail", "ids": None, "tag": None, "state": None}
        filter = wanted | {"created_at_gte": None, "created_at_lt": None}
        for op, spec, state, *counts, error in (
            ("set_priority", {"op_kind": "set_priority", "priority": 1}, "completed", 800, 790, 10, 0, None),
            (
                "move_queue",
                {"op_kind": "move_queue", "queue": "bulk", "priority": None},
                "failed",
                40,
                20,
                0,
                20,
                "job 17: its unique key is held by job 3",
            ),
        ):
            values = dict(zip(("total", "processed", "skipped", "errored"), counts, strict=True))
            seeded.batches.append(uuid.uuid4())
            cursor.execute(
                BATCH,
                {
                    "id": seeded.batches[-1],
                    "op": op,
                    "filter": json.dumps(filter),
                    "spec": json.dumps(spec),
                    "state": state,
                    "error": error,
                    **values,
                },
            )


def _instances() -> Iterator[tuple[Instance, Numbers, timedelta]]:
    """A live leader, and a worker that was killed half an hour ago; how long each has been silent."""
    queues = (
        QueueConfig("mail", max_workers=20, rate_limit=RateLimit(50.0)),
        QueueConfig("media", max_workers=4),
        QueueConfig("payments", max_workers=4),
        QueueConfig("search", max_workers=8),
        QueueConfig(EXPORTS, max_workers=8),
    )
    kinds = {kind: Descriptor() for lane in LANES for kind in lane.kinds} | {
        "send_receipt": Descriptor(
            "Send receipt",
            "Mails the receipt of an order.",
            "shop",
            "https://example.com/receipts",
            ("mail",),
        )
    }
    described = {
        "mail": Descriptor("Mail", "Everything that goes out by mail.", "shop", None, ("customers",))
    }
    settings = replace(get_settings(), queues={queue.name: queue for queue in queues})
    live = Numbers(
        in_flight={EXPORTS: 8},
        poll_loop_alive=True,
        heartbeat_alive=True,
        maintenance_alive=True,
        leader=True,
    )
    yield Instance(settings, queues, kinds, described, hostname="worker-1"), live, timedelta()
    gone = replace(live, leader=False, in_flight={})
    yield Instance(settings, queues[:1], kinds, described, hostname="worker-2"), gone, timedelta(minutes=30)
