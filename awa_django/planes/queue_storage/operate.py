"""Jobs that an operator names, lifted from wherever they are (contract: queue-storage/admin).

A job waits in a lane or for its time, runs on a receipt or a lease, or has ended; it may move on while it is looked
for. Each place is asked in the lock order of the contract, under the locks that everybody who moves jobs takes,
and a second time for those not found, since a job may have gone where was asked before. Only that second round can
meet others in another order; the server then ends one of the two, and the caller's transaction is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from awa_django.jobs import Taken
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Ids
from awa_django.planes.queue_storage.take import (
    coordinates,
    lock_attempts,
    take_leases,
    take_receipts,
    taken_row,
)
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = ["pass_all_tombstones", "pass_tombstones", "take_ids"]

_DEFERRED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})
_ENDED = frozenset({JobState.FAILED, JobState.CANCELLED})
_HELD = frozenset({JobState.RUNNING, JobState.WAITING_EXTERNAL})
#: Columns of every row here that :func:`taken_row` reads; after them comes finalized_at.
_WIDTH = 21
_ROUNDS = 2


class _Position(NamedTuple):
    """Where a job waits in its lane."""

    ready_slot: int
    ready_generation: int
    queue: str
    priority: int
    enqueue_shard: int
    lane_seq: int
    job_id: int


class _Found(NamedTuple):
    """An attempt that seems to go on; ``claim_slot`` None if it has no open receipt, ``lease`` if it has no lease."""

    job_id: int
    run_lease: int
    claim_slot: int | None
    receipt_id: int | None
    batch_id: int | None
    lease: str | None


class _Ended(NamedTuple):
    """A finished row that is held."""

    ready_slot: int
    job_id: int
    run_lease: int
    lane_seq: int
    state: str
    finalized_at: datetime


def take_ids(cursor: Cursor, guard: Ids) -> list[Taken]:
    """Lift these jobs, each if it is in one of the states, in id order.

    Waits for whoever holds one of them; a completed job stays where it is. Locks source rows, claim heads, attempt
    keys, claim evidence and leases, in that order.
    """
    wanted = set(guard.job_ids)
    taken: dict[int, Taken] = {}
    if guard.dead:
        _note(taken, _lift(cursor, "take_dead", job_ids=ints(sorted(wanted))))
        return _together(taken)
    states = frozenset(guard.states)
    for _ in range(_ROUNDS):
        if not (missing := wanted - taken.keys()):
            break
        if here := states & _DEFERRED:
            _note(taken, _lift(cursor, "take_deferred", job_ids=ints(sorted(missing)), states=_names(here)))
            missing -= taken.keys()
        if missing and (here := states & _ENDED):
            _note(taken, _take_ended(cursor, missing, here))
            missing -= taken.keys()
        if missing and JobState.AVAILABLE in states:
            _note(taken, _take_available(cursor, missing))
            missing -= taken.keys()
        if missing and (here := states & _HELD):
            _note(taken, _take_attempts(cursor, missing, here, guard.closes))
    return _together(taken)


def pass_tombstones(cursor: Cursor, taken: Iterable[Taken]) -> None:
    """Move cursors past these jobs, which were lifted off their lanes by a transaction that has committed."""
    spent = [job for job in taken if job.state is JobState.AVAILABLE and job.lane_seq is not None]
    if spent:
        _execute(
            cursor,
            "pass_tombstones",
            queues=[job.queue for job in spent],
            priorities=ints(job.priority for job in spent),
            shards=ints(job.enqueue_shard for job in spent),
            lane_seqs=ints(job.lane_seq for job in spent),
        )


def pass_all_tombstones(cursor: Cursor) -> None:
    """Move every cursor that stands on a tombstone past those that follow it without a gap.

    For after a change that went through its lanes in pieces; nobody need claim from a lane for its figures to be right.
    """
    _execute(cursor, "pass_all_tombstones")


def _note(taken: dict[int, Taken], jobs: Iterable[Taken]) -> None:
    taken.update((job.job_id, job) for job in jobs)


def _together(taken: dict[int, Taken]) -> list[Taken]:
    """The jobs in id order, all taken at one instant."""
    if not taken:
        return []
    now = max(job.taken_at for job in taken.values())
    return [
        # Mostly one statement took them all, and a copy of a job costs about as much as reading it.
        job if job.taken_at == now else replace(job, taken_at=now)
        for _, job in sorted(taken.items())
    ]


def _names(states: Collection[JobState]) -> list[str]:
    return sorted(state.value for state in states)


def _execute(cursor: Cursor, name: str, **values: Any) -> None:
    cursor.execute(statement("queue_storage/operate", name), values)


def _lift(cursor: Cursor, name: str, **values: Any) -> list[Taken]:
    _execute(cursor, name, **values)
    return [_lifted(row) for row in cursor.fetchall()]


def _lifted(row: Sequence[Any]) -> Taken:
    job, finalized_at = taken_row(row[:_WIDTH]), row[_WIDTH]
    return job if finalized_at is None else replace(job, finalized_at=finalized_at)


def _take_ended(cursor: Cursor, job_ids: Collection[int], states: Collection[JobState]) -> list[Taken]:
    """Lift finished jobs; a receipt that lost its closure is closed, for with the row goes the evidence."""
    _execute(cursor, "hold_ended", job_ids=ints(sorted(job_ids)))
    last: dict[int, _Ended] = {}
    for row in cursor.fetchall():
        ended = _Ended(*row)
        if ended.job_id not in last or last[ended.job_id].finalized_at < ended.finalized_at:
            last[ended.job_id] = ended
    names = _names(states)
    held = [ended for ended in last.values() if ended.state in names]
    if not held:
        return []
    pairs = {(ended.job_id, ended.run_lease) for ended in held}
    left_open = [
        found
        for found in _find_attempts(cursor, {job_id for job_id, _ in pairs})
        if (found.job_id, found.run_lease) in pairs
    ]
    _hold_evidence(cursor, left_open)
    taken = _lift(
        cursor,
        "take_ended",
        ready_slots=ints(ended.ready_slot for ended in held),
        job_ids=ints(ended.job_id for ended in held),
        run_leases=ints(ended.run_lease for ended in held),
        lane_seqs=ints(ended.lane_seq for ended in held),
    )
    _close(cursor, left_open, "terminal_removed")
    return taken


def _take_available(cursor: Cursor, job_ids: Collection[int]) -> list[Taken]:
    """Lift jobs off their lanes, where they leave tombstones."""
    _execute(cursor, "find_available", job_ids=ints(sorted(job_ids)))
    found = [_Position(*row) for row in cursor.fetchall()]
    if not found:
        return []
    positions = {
        "ready_slots": ints(position.ready_slot for position in found),
        "queues": [position.queue for position in found],
        "priorities": ints(position.priority for position in found),
        "shards": ints(position.enqueue_shard for position in found),
        "lane_seqs": ints(position.lane_seq for position in found),
    }
    _execute(cursor, "hold_available", **positions)
    return _lift(cursor, "take_available", **positions)


def _take_attempts(
    cursor: Cursor, job_ids: Collection[int], states: Collection[JobState], label: str
) -> list[Taken]:
    """Take running and waiting attempts away from their workers; their progress comes along (H-19)."""
    found = _find_attempts(cursor, job_ids)
    if not found:
        return []
    _hold_evidence(cursor, found)
    taken = _close(cursor, found, label) if JobState.RUNNING in states else []
    had = {job.pair for job in taken}
    # Also attempts that got a lease after they were found.
    rest = [item for item in found if (item.job_id, item.run_lease) not in had]
    if not rest:
        return taken
    _execute(
        cursor,
        "hold_leases",
        job_ids=ints(item.job_id for item in rest),
        run_leases=ints(item.run_lease for item in rest),
        states=_names(states),
    )
    held = set(cursor.fetchall())
    leases = [item for item in rest if (item.job_id, item.run_lease) in held]
    if leases:
        # As every client closes what was held by a lease, but for a success.
        labels = ["rescue"] * len(leases)
        taken += take_leases(cursor, leases, labels)
    return taken


def _find_attempts(cursor: Cursor, job_ids: Collection[int]) -> list[_Found]:
    _execute(cursor, "find_attempts", job_ids=ints(sorted(job_ids)))
    return [_Found(*row) for row in cursor.fetchall()]


def _hold_evidence(cursor: Cursor, found: Sequence[_Found]) -> None:
    """Take the keys of attempts and lock their claims, waiting for whoever has them (H-06, H-11)."""
    if found:
        lock_attempts(cursor, [(item.job_id, item.run_lease) for item in found])
        cursor.execute(statement("queue_storage/settle", "lock_receipts"), coordinates(found))


def _close(cursor: Cursor, found: Sequence[_Found], label: str) -> list[Taken]:
    """Close those of the receipts that are open and have no lease."""
    receipts = [item for item in found if item.claim_slot is not None]
    return take_receipts(cursor, receipts, [label] * len(receipts)) if receipts else []
