"""Many jobs at once, straight into the ready and deferred tables (contract: queue-storage/enqueue).

Positions are reserved lane by lane, in lane order, after every unique claim has been taken in key order and
before the ring is read; the reservations are held until the transaction ends, so rows become visible in
the order of their positions. New jobs are written by COPY, jobs that come back by one INSERT.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from awa_django.encoding import dump_json
from awa_django.errors import UniqueConflict
from awa_django.jobs import JobInsert, Landing, claims, join_payload
from awa_django.partitions import shard_of
from awa_django.planes.arrays import ints, jsons
from awa_django.planes.base import Cursor
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.validation import warn_of_size

__all__ = ["Copied", "Lane", "copy_jobs", "enqueue", "insert_ready", "register_lanes", "reserve_ids"]

#: Rows that go to the driver in one piece.
_CHUNK = 500
#: How often a key may change hands between two looks before the batch gives up.
_CLAIM_ROUNDS = 10


class Lane(NamedTuple):
    """One sequence of positions; sorts as lanes are locked."""

    queue: str
    priority: int
    shard: int


@dataclass(slots=True)
class Copied:
    """What came of a batch, by index: the id of each job stored, and the holder's id of each that was not."""

    ids: dict[int, int] = field(default_factory=dict)
    duplicates: dict[int, int] = field(default_factory=dict)


class _Survey(NamedTuple):
    now: datetime
    can_reserve_at_once: bool
    shards: dict[str, int]


class _Place(NamedTuple):
    """Where reserved rows go: the first position of each lane, and one slot and generation for all."""

    firsts: dict[Lane, int]
    slot: int
    generation: int


def enqueue(cursor: Cursor, jobs: Sequence[JobInsert]) -> int:
    """Store all of these jobs or, with ``UniqueConflict``, none; returns how many.

    Runs in the caller's transaction and leaves undoing a refused batch to it.
    """
    copied = copy_jobs(cursor, jobs)
    for index, holder_id in copied.duplicates.items():
        job = jobs[index]
        assert job.unique_key is not None
        raise UniqueConflict(job.unique_key, holder_id, job.kind)
    return len(copied.ids)


def copy_jobs(cursor: Cursor, jobs: Sequence[JobInsert], *, ids: Sequence[int] | None = None) -> Copied:
    """Store those of these jobs whose unique keys are free, in the caller's transaction.

    ``ids`` gives every job its id; without it ids are consecutive where possible: ready jobs first, lane by lane,
    then deferred ones, each in the order given. All share one ``created_at``, the database's clock, which is
    also the ``run_at`` of ready ones. The connection must not be in pipeline mode.
    """
    copied = Copied()
    if not jobs:
        return copied
    ready = [index for index, job in enumerate(jobs) if job.run_at is None]
    deferred = [index for index, job in enumerate(jobs) if job.run_at is not None]
    survey = _survey(cursor, {jobs[index].queue for index in ready})
    lanes = _lanes(((jobs[index], index) for index in ready), survey.shards)
    order = [index for lane in sorted(lanes) for index in lanes[lane]] + deferred
    if ids is None:
        copied.ids = dict(zip(order, reserve_ids(cursor, len(order)), strict=True))
    else:
        copied.ids = {index: ids[index] for index in order}
    _claim_keys(cursor, jobs, copied)
    if copied.duplicates:
        lanes = {
            lane: kept
            for lane, members in lanes.items()
            if (kept := [index for index in members if index in copied.ids])
        }
        deferred = [index for index in deferred if index in copied.ids]
    if lanes:
        counts = {lane: len(members) for lane, members in sorted(lanes.items())}
        place = _reserve(cursor, counts, at_once=survey.can_reserve_at_once)
        _copy(cursor, "copy_ready", _ready_lines(jobs, copied.ids, lanes, place, survey.now))
        _insert_segments(cursor, counts, place, [survey.now] * len(counts))
    if deferred:
        _copy(cursor, "copy_deferred", _deferred_lines(jobs, copied.ids, deferred, survey.now))
    return copied


def insert_ready(cursor: Cursor, landings: Sequence[Landing]) -> dict[int, datetime]:
    """Put jobs that were taken elsewhere at new positions of their lanes, earliest due first.

    A landing without ``run_at`` gets the time all were taken. A lane's positions form one segment whatever they are
    due (H-15). Their unique claims are the caller's, taken before. Returns the ``run_at`` by job id.
    """
    if not landings:
        return {}
    now = max(landing.taken.taken_at for landing in landings)
    survey = _survey(cursor, {landing.taken.queue for landing in landings})
    in_order = sorted(landings, key=lambda landing: (landing.taken.run_at, landing.taken.job_id))
    groups: dict[Lane, list[Landing]] = defaultdict(list)
    picks: dict[tuple[str, int], int] = {}
    for landing in in_order:
        taken = landing.taken
        groups[_keyless_lane(taken.queue, taken.priority, survey.shards, picks)].append(landing)
    counts = {lane: len(members) for lane, members in sorted(groups.items())}
    place = _reserve(cursor, counts, at_once=survey.can_reserve_at_once)
    rows = [
        (landing, lane.shard, place.firsts[lane] + offset)
        for lane in counts
        for offset, landing in enumerate(groups[lane])
    ]
    jobs = [landing.taken for landing, _, _ in rows]
    run_at = [landing.run_at or now for landing, _, _ in rows]
    cursor.execute(
        statement("queue_storage/enqueue", "insert_ready"),
        {
            "slot": place.slot,
            "generation": place.generation,
            "run_at": run_at,
            "job_ids": ints(job.job_id for job in jobs),
            "kinds": [job.kind for job in jobs],
            "queues": [job.queue for job in jobs],
            # JSON null is a value here: the column takes no NULL.
            "args": [text or "null" for text in jsons(job.args for job in jobs)],
            "priorities": ints(job.priority for job in jobs),
            "attempts": ints(landing.attempt for landing, _, _ in rows),
            "run_leases": ints(job.run_lease for job in jobs),
            "max_attempts": ints(job.max_attempts for job in jobs),
            "lane_seqs": ints(lane_seq for _, _, lane_seq in rows),
            "shards": ints(shard for _, shard, _ in rows),
            "attempted_at": [job.attempted_at for job in jobs],
            "created_at": [job.created_at for job in jobs],
            "unique_keys": [job.unique_key for job in jobs],
            "unique_states": [job.unique_states for job in jobs],
            "payloads": jsons(
                join_payload(landing.metadata, job.tags, landing.errors, landing.progress)
                for landing, job in _pairs(rows)
            ),
        },
    )
    _insert_segments(cursor, counts, place, [groups[lane][0].run_at or now for lane in counts])
    return {job.job_id: due for job, due in zip(jobs, run_at, strict=True)}


def _pairs(rows: Sequence[tuple[Landing, int, int]]) -> Iterator[tuple[Landing, Any]]:
    return ((landing, landing.taken) for landing, _, _ in rows)


# Lanes

#: Turns with every group of jobs without a key, so that each shard of a queue is used. One for the process.
_turn = itertools.count()


def _keyless_lane(
    queue: str, priority: int, shards: dict[str, int], picks: dict[tuple[str, int], int]
) -> Lane:
    """The lane of jobs without an ordering key: the same for a whole (queue, priority) group of one call."""
    total = shards.get(queue, 1)
    if total == 1:
        return Lane(queue, priority, 0)
    pick = picks.get((queue, priority))
    if pick is None:
        pick = picks[queue, priority] = next(_turn)
    return Lane(queue, priority, pick % total)


def _lanes(jobs: Iterator[tuple[JobInsert, int]], shards: dict[str, int]) -> dict[Lane, list[int]]:
    """The indexes of jobs by lane, each in the order given."""
    lanes: dict[Lane, list[int]] = defaultdict(list)
    picks: dict[tuple[str, int], int] = {}
    known: dict[tuple[str, int], list[int]] = {}
    for job, index in jobs:
        group = (job.queue, job.priority)
        if group in known:
            known[group].append(index)
            continue
        total = shards.get(job.queue, 1)
        if job.ordering_key is not None and total > 1:
            lane = Lane(job.queue, job.priority, shard_of(job.ordering_key, total))
        else:
            lane = _keyless_lane(job.queue, job.priority, shards, picks)
        members = lanes[lane]
        members.append(index)
        if total == 1:
            known[group] = members
    return lanes


def _survey(cursor: Cursor, queues: set[str]) -> _Survey:
    cursor.execute(statement("queue_storage/enqueue", "survey"), {"queues": sorted(queues)})
    rows = cursor.fetchall()
    shards = {queue: total for _, _, queue, total in rows if queue is not None}
    return _Survey(rows[0][0], rows[0][1], shards)


def _lane_parameters(counts: dict[Lane, int]) -> dict[str, Any]:
    return {
        "queues": [lane.queue for lane in counts],
        "priorities": ints(lane.priority for lane in counts),
        "shards": ints(lane.shard for lane in counts),
        "counts": ints(counts.values()),
    }


def _reserve(cursor: Cursor, counts: dict[Lane, int], *, at_once: bool) -> _Place:
    """Reserve positions, then read the ring. ``at_once`` where the schema has a function for all of it."""
    if at_once:
        cursor.execute(statement("queue_storage/enqueue", "reserve_lanes"), _lane_parameters(counts))
        rows = cursor.fetchall()
        firsts = {Lane(queue, priority, shard): first for queue, priority, shard, first, _, _ in rows}
        return _Place(firsts, rows[0][4], rows[0][5])

    register_lanes(cursor, counts)
    cursor.execute(statement("queue_storage/enqueue", "reserve_registered_lanes"), _lane_parameters(counts))
    firsts = {Lane(queue, priority, shard): first for queue, priority, shard, first in cursor.fetchall()}
    cursor.execute(statement("queue_storage/enqueue", "read_ring"))
    ring = cursor.fetchone()
    assert ring is not None, "awa.queue_ring_state has no row"
    return _Place(firsts, *ring)


def register_lanes(cursor: Cursor, lanes: Iterable[Lane]) -> None:
    """Make those of these lanes that nobody has used yet; holds their registration keys until the transaction ends."""
    counts = dict.fromkeys(lanes, 0)
    cursor.execute(statement("queue_storage/enqueue", "lock_missing_lanes"), _lane_parameters(counts))
    missing = {Lane(queue, priority, shard): 0 for queue, priority, shard, _ in cursor.fetchall()}
    if missing:
        cursor.execute(statement("queue_storage/enqueue", "register_lanes"), _lane_parameters(missing))


def _insert_segments(
    cursor: Cursor, counts: dict[Lane, int], place: _Place, run_at: Sequence[datetime]
) -> None:
    cursor.execute(
        statement("queue_storage/enqueue", "insert_segments"),
        {
            **_lane_parameters(counts),
            "firsts": ints(place.firsts[lane] for lane in counts),
            "slot": place.slot,
            "generation": place.generation,
            "run_at": run_at,
        },
    )


# Ids and unique keys


def reserve_ids(cursor: Cursor, total: int) -> Sequence[int]:
    """So many new ids of queue storage, ascending."""
    cursor.execute(statement("queue_storage/enqueue", "reserve_ids"), {"total": total})
    row = cursor.fetchone()
    assert row is not None
    first, scattered = row
    return scattered if scattered is not None else range(first, first + total)


def _claim_keys(cursor: Cursor, jobs: Sequence[JobInsert], copied: Copied) -> None:
    """Take the unique keys of new jobs; those that did not get theirs move to ``duplicates``.

    The first of several jobs with one key gets it.
    """
    wanted: dict[bytes, int] = {}
    repeats: list[tuple[int, bytes]] = []
    for index, job in enumerate(jobs):
        key = job.unique_key
        if key is None or not claims(key, job.unique_states, job.state):
            continue
        if key in wanted:
            repeats.append((index, key))
        else:
            wanted[key] = index
    if not wanted:
        return
    held, contested = _take_keys(cursor, {key: copied.ids[index] for key, index in wanted.items()})
    for key in contested:
        raise UniqueConflict(key, None, jobs[wanted[key]].kind)
    for key, holder_id in held.items():
        index = wanted[key]
        del copied.ids[index]
        copied.duplicates[index] = holder_id
    for index, key in repeats:
        del copied.ids[index]
        copied.duplicates[index] = held[key] if key in held else copied.ids[wanted[key]]


def _take_keys(cursor: Cursor, wanted: dict[bytes, int]) -> tuple[dict[bytes, int], Collection[bytes]]:
    """Insert claims; returns the holders of keys that were not free, and keys that never stayed the same."""
    holders: dict[bytes, int] = {}
    pending = dict(wanted)
    for _ in range(_CLAIM_ROUNDS):
        cursor.execute(
            statement("queue_storage/enqueue", "claim_keys"),
            {"unique_keys": list(pending), "job_ids": ints(pending.values())},
        )
        claimed = {job_id for (job_id,) in cursor.fetchall()}
        pending = {key: job_id for key, job_id in pending.items() if job_id not in claimed}
        if pending:
            cursor.execute(statement("control/enqueue", "holders"), {"unique_keys": list(pending)})
            holders.update((bytes(key), holder_id) for key, holder_id in cursor.fetchall())
            # The others were let go between the two statements.
            pending = {key: job_id for key, job_id in pending.items() if key not in holders}
        if not pending:
            break
    return holders, pending.keys()


# COPY, in text format: one line a row, made without the driver's help for each value

_NULL = "\\N"
_PLAIN_TAIL = f"{_NULL}\t{_NULL}\t{_NULL}\n"


def _copy(cursor: Cursor, name: str, lines: Iterator[str]) -> None:
    with cursor.copy(statement("queue_storage/enqueue", name)) as copy:
        while chunk := list(itertools.islice(lines, _CHUNK)):
            copy.write("".join(chunk))


@lru_cache(1024)  # kinds and queues, mostly
def _escape(text: str) -> str:
    """A text as a field of COPY."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _json(value: Any) -> str:
    # JSON text holds no raw control characters.
    return dump_json(value).replace("\\", "\\\\")


def _args(job: JobInsert) -> str:
    text = dump_json(job.args)
    warn_of_size(job.kind, text)
    return text.replace("\\", "\\\\")


def _tail(job: JobInsert) -> str:
    """Key, mask and payload, the fields that most jobs leave empty."""
    if job.unique_key is None and not job.metadata and not job.tags:
        return _PLAIN_TAIL
    key = _NULL if job.unique_key is None else f"\\\\x{job.unique_key.hex()}"
    payload = join_payload(job.metadata, job.tags, (), None)
    return f"{key}\t{job.unique_states or _NULL}\t{_NULL if payload is None else _json(payload)}\n"


def _ready_lines(
    jobs: Sequence[JobInsert], ids: dict[int, int], lanes: dict[Lane, list[int]], place: _Place, now: datetime
) -> Iterator[str]:
    for lane, members in lanes.items():
        lead = (
            f"{place.slot}\t{place.generation}\t{_escape(lane.queue)}\t{lane.priority}\t{lane.shard}\t"
            f"{now.isoformat()}\t{now.isoformat()}\t"
        )
        for lane_seq, index in enumerate(members, place.firsts[lane]):
            job = jobs[index]
            yield (
                f"{lead}{ids[index]}\t{lane_seq}\t{_escape(job.kind)}\t{_args(job)}\t{job.max_attempts}\t"
                f"{_tail(job)}"
            )


def _deferred_lines(
    jobs: Sequence[JobInsert], ids: dict[int, int], members: Sequence[int], now: datetime
) -> Iterator[str]:
    for index in members:
        job = jobs[index]
        assert job.run_at is not None
        yield (
            f"{ids[index]}\t{_escape(job.kind)}\t{_escape(job.queue)}\t{_args(job)}\t"
            f"{JobState.SCHEDULED.value}\t{job.priority}\t{job.max_attempts}\t{job.run_at.isoformat()}\t"
            f"{now.isoformat()}\t{_tail(job)}"
        )
