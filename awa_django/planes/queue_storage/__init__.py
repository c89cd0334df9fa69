"""The queue-storage engine: append-only rings of partitions (contract: queue-storage)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_never

from awa_django.jobs import Attempt, JobInsert, Landed, Landing, Taken
from awa_django.planes.base import (
    Beat,
    Claimed,
    Cursor,
    Due,
    Guard,
    Leases,
    PastDeadline,
    Plane,
    Settlement,
    Stale,
)
from awa_django.planes.queue_storage.claim import advance, claim, has_backlog, moves_cursors, refuse
from awa_django.planes.queue_storage.heartbeat import heartbeat
from awa_django.planes.queue_storage.place import place
from awa_django.planes.queue_storage.promote import take_due
from awa_django.planes.queue_storage.rescue import take_past_deadline, take_stale
from awa_django.planes.queue_storage.settle import settle
from awa_django.planes.queue_storage.take import take_attempts
from awa_django.transitions import Transition

__all__ = ["QueueStoragePlane"]


class QueueStoragePlane(Plane):
    """Jobs in append-only rings; see :class:`~awa_django.planes.base.Plane` for what each method promises."""

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
            case Due():
                return take_due(cursor, guard)
        assert_never(guard)

    def place(self, cursor: Cursor, landings: Sequence[Landing]) -> list[Landed]:
        return place(cursor, landings)

    def settle(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        return settle(cursor, transitions)

    def heartbeat(self, cursor: Cursor, beats: Sequence[Beat]) -> set[tuple[int, int]]:
        return heartbeat(cursor, beats)
