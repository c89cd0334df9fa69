"""The queue-storage engine: append-only rings of partitions (contract: queue-storage)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import assert_never
from uuid import UUID

from awa_django.jobs import Attempt, Callback, JobInsert, JsonValue, Landed, Landing, Taken
from awa_django.planes.base import (
    Answered,
    Beat,
    Claimed,
    Cursor,
    Due,
    Guard,
    Ids,
    Leases,
    PastDeadline,
    Plane,
    Settlement,
    Stale,
    Unanswered,
)
from awa_django.planes.queue_storage import callbacks, operate
from awa_django.planes.queue_storage.claim import advance, claim, has_backlog, moves_cursors, refuse
from awa_django.planes.queue_storage.heartbeat import heartbeat
from awa_django.planes.queue_storage.place import drop, place
from awa_django.planes.queue_storage.promote import take_due
from awa_django.planes.queue_storage.rescue import take_past_deadline, take_stale, take_unanswered
from awa_django.planes.queue_storage.settle import finish
from awa_django.planes.queue_storage.take import take_attempts
from awa_django.states import JobState
from awa_django.transitions import Standing, Transition

__all__ = ["QueueStoragePlane"]


class QueueStoragePlane(Plane):
    """Jobs in append-only rings; see :class:`~awa_django.planes.base.Plane` for what each method promises."""

    name = "queue_storage"
    claims_may_miss = True

    def enqueue(self, cursor: Cursor, jobs: Sequence[JobInsert]) -> int:
        from awa_django.planes.queue_storage.enqueue import enqueue

        return enqueue(cursor, jobs)

    def claim(
        self, cursor: Cursor, queue: str, limit: int, *, deadline: timedelta, aging: timedelta
    ) -> Claimed:
        return claim(cursor, queue, limit, deadline=deadline, aging=aging)

    def refuse(self, cursor: Cursor, attempts: Sequence[Attempt]) -> None:
        refuse(cursor, attempts)

    def advance(self, cursor: Cursor, attempts: Sequence[Attempt]) -> None:
        advance(cursor, attempts)

    def moves_cursors(self, cursor: Cursor) -> bool:
        return moves_cursors(cursor)

    def has_backlog(self, cursor: Cursor, queue: str) -> bool:
        return has_backlog(cursor, queue)

    def take(self, cursor: Cursor, guard: Guard) -> list[Taken]:
        match guard:
            case Leases():
                return take_attempts(cursor, guard)
            case Stale():
                return take_stale(cursor, guard)
            case PastDeadline():
                return take_past_deadline(cursor, guard)
            case Unanswered():
                return take_unanswered(cursor, guard)
            case Due():
                return take_due(cursor, guard)
            case Answered():
                return callbacks.take_answered(cursor, guard)
            case Ids():
                return operate.take_ids(cursor, guard)
        assert_never(guard)

    def place(self, cursor: Cursor, landings: Sequence[Landing]) -> list[Landed]:
        return place(cursor, landings)

    def drop(self, cursor: Cursor, taken: Sequence[Taken]) -> None:
        drop(cursor, taken)

    def finish(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        return finish(cursor, transitions)

    def park(self, cursor: Cursor, transitions: Sequence[Transition]) -> list[Landed]:
        return callbacks.park(cursor, transitions)

    def standings(self, cursor: Cursor, job_ids: Sequence[int]) -> dict[int, Standing]:
        return callbacks.standings(cursor, job_ids)

    def register_callback(
        self, cursor: Cursor, attempt: Attempt, callback_id: UUID, timeout: timedelta, expressions: Callback
    ) -> bool:
        return callbacks.register(cursor, attempt, callback_id, timeout, expressions)

    def withdraw_callback(self, cursor: Cursor, attempt: Attempt) -> bool:
        return callbacks.withdraw(cursor, attempt)

    def begin_wait(self, cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
        return callbacks.begin_wait(cursor, attempt, callback_id)

    def end_wait(self, cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
        return callbacks.end_wait(cursor, attempt, callback_id)

    def consume_result(self, cursor: Cursor, attempt: Attempt) -> Standing | None:
        return callbacks.consume_result(cursor, attempt)

    def find_callback(
        self, cursor: Cursor, callback_id: UUID, run_lease: int | None, states: Collection[JobState]
    ) -> Taken | None:
        return callbacks.find(cursor, callback_id, run_lease, states)

    def resume(self, cursor: Cursor, pending: Taken, payload: JsonValue) -> None:
        callbacks.resume(cursor, pending, payload)

    def extend_callback(self, cursor: Cursor, pending: Taken, timeout: timedelta) -> None:
        callbacks.extend(cursor, pending, timeout)

    def heartbeat(self, cursor: Cursor, beats: Sequence[Beat]) -> set[tuple[int, int]]:
        return heartbeat(cursor, beats)
