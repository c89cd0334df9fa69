"""The canonical engine: every job is one mutable row (contract: schema section 4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import assert_never
from uuid import UUID

from awa_django.jobs import Attempt, Callback, JobInsert, JsonValue, Landed, Landing, Taken
from awa_django.outcomes import WaitForCallback
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
from awa_django.planes.canonical import callbacks, take
from awa_django.planes.canonical.claim import claim, has_backlog, refuse
from awa_django.planes.canonical.heartbeat import heartbeat
from awa_django.planes.canonical.place import drop, place
from awa_django.planes.canonical.settle import finish
from awa_django.states import JobState
from awa_django.transitions import Standing, Transition

__all__ = ["CanonicalPlane"]


class CanonicalPlane(Plane):
    """Jobs in mutable tables; see :class:`~awa_django.planes.base.Plane` for what each method promises."""

    name = "canonical"

    def enqueue(self, cursor: Cursor, jobs: Sequence[JobInsert]) -> int:
        from awa_django.planes.canonical.enqueue import enqueue

        return enqueue(cursor, jobs)

    def claim(
        self, cursor: Cursor, queue: str, limit: int, *, deadline: timedelta, aging: timedelta
    ) -> Claimed:
        # Aging is the leader's work here: it changes the rows.
        return claim(cursor, queue, limit, deadline=deadline)

    def refuse(self, cursor: Cursor, attempts: Sequence[Attempt]) -> None:
        refuse(cursor, attempts)

    def advance(self, cursor: Cursor, attempts: Sequence[Attempt]) -> None:
        """Nothing: there are no lanes, so a claimed row is passed by its state alone."""

    def moves_cursors(self, cursor: Cursor) -> bool:
        return True

    def has_backlog(self, cursor: Cursor, queue: str) -> bool:
        return has_backlog(cursor, queue)

    def take(self, cursor: Cursor, guard: Guard) -> list[Taken]:
        match guard:
            case Leases():
                return take.take_attempts(cursor, guard)
            case Stale():
                return take.take_stale(cursor, guard)
            case PastDeadline():
                return take.take_past_deadline(cursor, guard)
            case Unanswered():
                return take.take_unanswered(cursor, guard)
            case Due():
                return take.take_due(cursor, guard)
            case Answered():
                return callbacks.take_answered(cursor, guard)
            case Ids():
                return take.take_ids(cursor, guard)
        assert_never(guard)

    def place(self, cursor: Cursor, landings: Sequence[Landing]) -> list[Landed]:
        return place(cursor, landings)

    def drop(self, cursor: Cursor, taken: Sequence[Taken]) -> None:
        drop(cursor, taken)

    def settle(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        waiting = sum(type(item.outcome) is WaitForCallback for item in transitions)
        if 0 < waiting < len(transitions):
            # One ascending run over all rows before parks and ends change theirs: heartbeats lock in that order too.
            take.hold_attempts(cursor, [item.attempt for item in transitions])
        return super().settle(cursor, transitions)

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
