"""Jobs put together from whatever is stored under their ids (contract: queue-storage/admin section 6).

Of the facts about a job the newest counts. A ready row is one only while nobody has claimed, cancelled or moved the job
(H-17), which the lane's cursor, the tombstones and the emission ledger tell; a claimed position leads on to the
attempt, or to the completion batch that holds it. Takes no locks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from awa_django.jobs import CALLBACK_RESULT_KEY, Callback, Job, payload_parts
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor
from awa_django.planes.records import DeadLetter, JobRecord
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.unreadable import Unreadable

__all__ = ["read_jobs"]

Pair = tuple[int, int]


class _Fact(NamedTuple):
    """One thing that is stored of a job; of leases and finished rows parts of the body lie in the ready row."""

    place: str
    job_id: int
    run_lease: int
    kind: str
    queue: str
    args: Any
    state: str
    priority: int
    attempt: int
    max_attempts: int | None
    run_at: datetime | None
    attempted_at: datetime | None
    created_at: datetime | None
    unique_key: bytes | None
    unique_states: str | None
    payload: Any
    finalized_at: datetime | None
    deadline_at: datetime | None
    heartbeat_at: datetime | None
    callback_id: UUID | None
    callback_timeout_at: datetime | None
    ready_slot: int | None
    ready_generation: int | None
    enqueue_shard: int
    lane_seq: int | None
    dlq_reason: str | None
    dlq_at: datetime | None
    original_run_lease: int | None
    #: When the lane says that it was handed out; of what completed compactly, which says no more itself.
    claimed_at: datetime | None = None

    @property
    def pair(self) -> Pair:
        return self.job_id, self.run_lease

    @property
    def position(self) -> tuple[Any, ...]:
        """Where the ready row lies, but for the priority: other clients store an aged one (H-01)."""
        return (
            self.job_id, self.ready_slot, self.ready_generation, self.queue, self.enqueue_shard, self.lane_seq,
        )  # fmt: skip

    @property
    def age(self) -> tuple[int, float, int]:
        """The greatest is the newest."""
        moment = (
            self.finalized_at or self.heartbeat_at or self.deadline_at or self.attempted_at or self.run_at
        )
        return self.run_lease, moment.timestamp() if moment else 0.0, _RANKS.get(self.state, 1)


_RANKS = {"running": 4, "waiting_external": 4, "scheduled": 3, "retryable": 3, "available": 2}


def read_jobs(cursor: Cursor, job_ids: Iterable[int]) -> list[JobRecord]:
    """The jobs with these ids, highest first; those that do not exist are absent.

    Statements are sent unprepared, since the best plan depends on how many ids there are.
    """
    _execute(cursor, "facts", job_ids=ints(sorted(set(job_ids))))
    ready: list[_Fact] = []
    newest: dict[int, _Fact] = {}
    settled: set[Pair] = set()
    rows = [_Fact(*row) for row in cursor.fetchall()]
    for fact in rows:
        if fact.place == "ready":
            ready.append(fact)
        else:
            settled.add(fact.pair)
            _offer(newest, fact)
    bodies: dict[tuple[Any, ...], list[_Fact]] = defaultdict(list)
    for fact in ready:
        bodies[fact.position].append(fact)
    # An emission that something newer came of says nothing about the job any more.
    last = [
        fact
        for fact in ready
        if (other := newest.get(fact.job_id)) is None or fact.run_lease >= other.run_lease
    ]
    for fact in _of_positions(cursor, last, settled):
        _offer(newest, fact)
    chosen = [_whole(fact, bodies.get(fact.position, ())) for fact in newest.values()]
    states = _attempt_states(
        cursor, [fact for fact in chosen if fact.state in ("running", "waiting_external")]
    )
    chosen.sort(key=lambda fact: fact.job_id, reverse=True)
    return [_record(fact, states.get(fact.pair)) for fact in chosen]


def _execute(cursor: Cursor, name: str, **values: Any) -> None:
    cursor.execute(statement("queue_storage/listing", name), values, prepare=False)


def _offer(newest: dict[int, _Fact], fact: _Fact) -> None:
    held = newest.get(fact.job_id)
    if held is None or held.age < fact.age:
        newest[fact.job_id] = fact


def _of_positions(cursor: Cursor, ready: Sequence[_Fact], settled: set[Pair]) -> list[_Fact]:
    """What became of emissions: jobs that are available still, that completed compactly, or that run."""
    found: list[_Fact] = []
    emitted: list[_Fact] = []
    if not ready:
        return found
    _execute(
        cursor,
        "positions",
        job_ids=ints(fact.job_id for fact in ready),
        slots=ints(fact.ready_slot for fact in ready),
        generations=ints(fact.ready_generation for fact in ready),
        queues=[fact.queue for fact in ready],
        priorities=ints(fact.priority for fact in ready),
        shards=ints(fact.enqueue_shard for fact in ready),
        lane_seqs=ints(fact.lane_seq for fact in ready),
    )
    for fact, row in zip(ready, cursor.fetchall(), strict=True):
        is_emitted, is_tombstoned, run_lease, attempt, attempted_at, finalized_at, claimed_at = row
        if finalized_at is not None:
            found.append(
                fact._replace(
                    state="completed",
                    run_lease=run_lease,
                    attempt=attempt,
                    attempted_at=attempted_at,
                    finalized_at=finalized_at,
                    claimed_at=claimed_at,
                )
            )
        elif is_emitted:
            # A cursor has passed a position that was spent by a move; the attempt, if any, came of the other one.
            emitted.insert(len(emitted) if is_tombstoned else 0, fact)
        elif not is_tombstoned:
            found.append(fact)
    return found + _running(cursor, emitted, settled)


def _running(cursor: Cursor, emitted: Sequence[_Fact], settled: set[Pair]) -> list[_Fact]:
    """Attempts that hold nothing but an open receipt; one that ended and lost its closure is settled all the same."""
    by_pair: dict[Pair, list[_Fact]] = defaultdict(list)
    for fact in emitted:
        pair = fact.job_id, fact.run_lease + 1
        if pair not in settled:
            by_pair[pair].append(fact)
    if not by_pair:
        return []
    places = {(fact.ready_slot, fact.ready_generation) for facts in by_pair.values() for fact in facts}
    _execute(
        cursor,
        "open_attempts",
        job_ids=ints(sorted({job_id for job_id, _ in by_pair})),
        slots=ints(slot for slot, _ in places),
        generations=ints(generation for _, generation in places),
    )
    return [
        by_pair[job_id, run_lease][0]._replace(
            state="running",
            run_lease=run_lease,
            attempt=attempt,
            max_attempts=max_attempts,
            attempted_at=claimed_at,
            deadline_at=deadline_at,
        )
        for job_id, run_lease, attempt, max_attempts, claimed_at, deadline_at in cursor.fetchall()
        if (job_id, run_lease) in by_pair
    ]


def _whole(fact: _Fact, emissions: Sequence[_Fact]) -> _Fact:
    """A lease or a finished row with what it borrows from its ready row.

    Of a job that was moved to the same position of another priority, that is the row of its own priority.
    """
    if fact.place == "ready":
        return fact
    body = next((ready for ready in emissions if ready.priority == fact.priority), None)
    if body is None:
        body = emissions[0] if emissions else None
    if body is None:
        return fact
    return fact._replace(
        kind=fact.kind or body.kind,
        args=body.args if fact.args is None else fact.args,
        priority=body.priority,
        max_attempts=body.max_attempts if fact.max_attempts is None else fact.max_attempts,
        run_at=fact.run_at or body.run_at,
        created_at=fact.created_at or body.created_at,
        unique_key=body.unique_key if fact.unique_key is None else fact.unique_key,
        unique_states=fact.unique_states or body.unique_states,
        payload=body.payload if fact.payload is None else fact.payload,
    )


def _attempt_states(cursor: Cursor, facts: Sequence[_Fact]) -> dict[Pair, Sequence[Any]]:
    if not facts:
        return {}
    _execute(
        cursor,
        "attempt_states",
        job_ids=ints(fact.job_id for fact in facts),
        run_leases=ints(fact.run_lease for fact in facts),
    )
    return {(row[0], row[1]): row[2:] for row in cursor.fetchall()}


_NO_STATE = (None, None, None, None, None, None, False, None)


def _record(fact: _Fact, state: Sequence[Any] | None) -> JobRecord:
    heartbeat_at, progress, filter_, on_complete, on_fail, transform, resumed, result = state or _NO_STATE
    metadata, tags, errors, stored_progress = payload_parts(fact.payload)
    if resumed:
        metadata = {**metadata, CALLBACK_RESULT_KEY: result}
    moment = fact.run_at or fact.finalized_at or fact.attempted_at
    assert moment is not None, f"job {fact.job_id}: a fact without any time"
    callback = None
    if fact.callback_id is not None:
        callback = Callback(
            fact.callback_id, fact.callback_timeout_at, filter_, on_complete, on_fail, transform
        )
    dead = None
    if fact.dlq_at is not None:
        dead = DeadLetter(fact.dlq_reason, fact.dlq_at, fact.original_run_lease or fact.run_lease)
    job = Job(
        id=fact.job_id,
        kind=fact.kind or "",
        queue=fact.queue,
        args={} if fact.args is None else fact.args,
        state=JobState(fact.state),
        priority=fact.priority,
        attempt=fact.attempt,
        max_attempts=25 if fact.max_attempts is None else fact.max_attempts,
        run_at=moment,
        created_at=fact.created_at or moment,
        attempted_at=fact.attempted_at,
        finalized_at=fact.finalized_at,
        deadline_at=fact.deadline_at,
        metadata=metadata,
        tags=tags,
        errors=errors,
        progress=stored_progress if progress is None else progress,
        run_lease=fact.run_lease,
        unique_key=fact.unique_key,
        callback_id=fact.callback_id,
        callback_timeout_at=fact.callback_timeout_at,
    )
    return JobRecord(
        job,
        "queue_storage",
        heartbeat_at or fact.heartbeat_at,
        fact.unique_states,
        callback,
        dead,
        isinstance(fact.payload, Unreadable),
        fact.claimed_at,
    )
