"""What both storage engines promise.

A job moves by two verbs: *take* it from where it is, if the guard still holds; *place* it
where it goes. Who asks chooses the guard. Methods run in the caller's transaction, through
the cursor they are given, and never commit. Isolation is READ COMMITTED: several
rules need a fresh snapshot after a lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, LiteralString, NamedTuple
from uuid import UUID

import psycopg

from awa_django.jobs import Attempt, Callback, JobInsert, JsonValue, Landed, Landing, Taken
from awa_django.outcomes import WaitForCallback
from awa_django.states import JobState
from awa_django.transitions import Standing, Transition, missed_park

__all__ = [
    "Answered",
    "Beat",
    "Claimed",
    "Cursor",
    "Due",
    "Guard",
    "Ids",
    "Leases",
    "PastDeadline",
    "Plane",
    "Settlement",
    "Stale",
    "Unanswered",
    "send",
]

Cursor = psycopg.Cursor[Any]


def send(cursor: Cursor, query: LiteralString, parameters: Mapping[str, Any]) -> None:
    """Execute a statement whose rows nobody wants, without waiting for it where the session is in pipeline mode.

    It has a cursor of its own, so that its result cannot be taken for that of the next statement.
    """
    psycopg.Cursor(cursor.connection).execute(query, parameters)


@dataclass(frozen=True, slots=True)
class Leases:
    """Attempts that their worker gives back: open, and still under the run lease they were claimed with.

    ``labels`` says for each attempt how its receipt is closed. A success also ends an attempt that
    waits for a callback.
    """

    attempts: Sequence[Attempt]
    labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class Stale:
    """Running attempts without a sign of life for longer than ``silence``, longest first, at most ``limit``.

    ``receipts`` chooses those that hold nothing but a receipt, else those that hold a lease or a canonical row: the
    two say different things in their errors. Here and below, jobs in ``passed_over`` are left alone.
    """

    silence: timedelta
    limit: int = 500
    receipts: bool = False
    passed_over: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class PastDeadline:
    """Running attempts that outlived their deadline, earliest first, at most ``limit``."""

    limit: int = 500
    passed_over: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Parked attempts whose callback did not come in time, earliest first, at most ``limit``."""

    limit: int = 500
    passed_over: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """Deferred jobs in ``state`` whose time has come, at most ``limit``."""

    state: JobState
    limit: int = 4096
    passed_over: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """The attempt that waits for this callback, or is still running while it may be answered.

    ``run_lease`` narrows it to one attempt, ``states`` to where the attempt must be. ``closes`` is the label that its
    receipt is closed with. Waits for whoever holds the attempt.
    """

    callback_id: UUID
    run_lease: int | None = None
    states: Collection[JobState] = (JobState.WAITING_EXTERNAL, JobState.RUNNING)
    closes: str = "rescue"


@dataclass(frozen=True, slots=True)
class Ids:
    """Jobs that an operator names, each if it is in one of ``states``; of a finished job its last end.

    ``dead`` means the dead-letter table, else everything but it. ``closes`` is the label that the receipt of a running
    attempt is closed with.
    """

    job_ids: Collection[int]
    states: Collection[JobState]
    dead: bool = False
    closes: str = "cancelled"


Guard = Leases | Stale | PastDeadline | Unanswered | Due | Answered | Ids


class Claimed(NamedTuple):
    """What a claim handed out, and what it took but refuses because a newer job holds the unique key."""

    attempts: list[Attempt]
    refused: list[Attempt]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came of a batch of transitions.

    ``completed`` are successes written without reading the job back, all at ``finalized_at``; ``landed`` are
    the others, ``transitions`` what they were decided from, in the same order. ``stale`` had moved on and left no
    trace; among them may be an attempt that wanted to wait and was answered before it could.
    """

    completed: Sequence[Transition] = ()
    finalized_at: datetime | None = None
    landed: Sequence[Landed] = ()
    transitions: Sequence[Transition] = ()
    stale: Sequence[Transition] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of one attempt; ``progress`` only if it changed since the last one."""

    attempt: Attempt
    progress: JsonValue = field(default=None, repr=False)


class Plane(ABC):
    """One storage engine. Methods run in the caller's transaction and never commit."""

    #: What operators call it: ``canonical`` or ``queue_storage``.
    name: ClassVar[str]
    #: Whether a claim may find nothing although there is something, because another claimer held it just then.
    claims_may_miss: ClassVar[bool] = False

    @abstractmethod
    def enqueue(self, cursor: Cursor, jobs: Sequence[JobInsert]) -> int:
        """Store many jobs by COPY and return how many (contract: queue-storage/enqueue section 10)."""

    @abstractmethod
    def claim(
        self, cursor: Cursor, queue: str, limit: int, *, deadline: timedelta, aging: timedelta
    ) -> Claimed:
        """Hand out at most ``limit`` jobs of a queue, in one statement.

        Holds the claim head of each lane it takes from until commit. A handler may start only after that.
        """

    @abstractmethod
    def refuse(self, cursor: Cursor, attempts: Sequence[Attempt]) -> None:
        """End attempts that a claim refused, after its commit, as duplicates of the holders of their keys."""

    @abstractmethod
    def advance(self, cursor: Cursor, attempts: Sequence[Attempt]) -> None:
        """Move the lanes' cursors past attempts whose claim has committed. Idempotent."""

    @abstractmethod
    def moves_cursors(self, cursor: Cursor) -> bool:
        """Whether the next claim does by itself what :meth:`advance` does."""

    @abstractmethod
    def has_backlog(self, cursor: Cursor, queue: str) -> bool:
        """Whether a queue may hold jobs although a claim found none: another claimer may have held its lanes."""

    @abstractmethod
    def take(self, cursor: Cursor, guard: Guard) -> list[Taken]:
        """Lift jobs off their place. A job whose guard no longer holds is absent: stale is an answer."""

    @abstractmethod
    def place(self, cursor: Cursor, landings: Sequence[Landing]) -> list[Landed]:
        """Put taken jobs where they go; unique claims follow, and a conflict ends a job as a cancelled duplicate."""

    @abstractmethod
    def drop(self, cursor: Cursor, taken: Sequence[Taken]) -> None:
        """Forget taken jobs for good: nothing of them is placed anywhere, and their unique keys are free."""

    def settle(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        """Write the ends of attempts. Every transition is in exactly one part of the answer, in any order."""
        parks = [item for item in transitions if type(item.outcome) is WaitForCallback]
        if not parks:
            return self.finish(cursor, transitions)
        rest = [item for item in transitions if type(item.outcome) is not WaitForCallback]
        parked = self.park(cursor, parks)
        waiting = {item.landing.taken.pair for item in parked}
        missed = [item for item in parks if item.pair not in waiting]
        stale: list[Transition] = []
        if missed:
            now = self.standings(cursor, [item.attempt.job_id for item in missed])
            for item in missed:
                instead = missed_park(item, now.get(item.attempt.job_id))
                (stale if instead is None else rest).append(item if instead is None else instead)
        finished = self.finish(cursor, rest) if rest else Settlement()
        by_pair = {item.pair: item for item in parks}
        return replace(
            finished,
            landed=[*finished.landed, *parked],
            transitions=[*finished.transitions, *(by_pair[item.landing.taken.pair] for item in parked)],
            stale=[*finished.stale, *stale],
        )

    @abstractmethod
    def finish(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        """:meth:`settle` for attempts that do not want to wait."""

    # -- callbacks (contract: runtime/attempt section 5, queue-storage/attempts section 6) ----------------

    @abstractmethod
    def park(self, cursor: Cursor, transitions: Sequence[Transition]) -> list[Landed]:
        """Have running attempts wait for whichever callback they registered last, with their progress stored.

        An attempt that is not running any more, or registered nothing, is absent.
        """

    @abstractmethod
    def standings(self, cursor: Cursor, job_ids: Sequence[int]) -> dict[int, Standing]:
        """Where these jobs are now, by their last trace; a job without any is absent.

        Of a job that was dropped a trace may be left, so whoever acts on the answer asks a guard as well.
        """

    @abstractmethod
    def register_callback(
        self, cursor: Cursor, attempt: Attempt, callback_id: UUID, timeout: timedelta, expressions: Callback
    ) -> bool:
        """Give a running attempt a token, instead of any that it had; False if it is not running any more.

        Of ``expressions`` only those count: ``timeout`` is from the database's now.
        """

    @abstractmethod
    def withdraw_callback(self, cursor: Cursor, attempt: Attempt) -> bool:
        """Forget the token of a running attempt; False if there was none."""

    @abstractmethod
    def begin_wait(self, cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
        """Have a running attempt wait for exactly this token while its handler stays; False if it could not be."""

    @abstractmethod
    def end_wait(self, cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
        """Have it run again without an answer, its token kept, with a fresh heartbeat (DEC-20); False if it was not
        waiting for this token."""

    @abstractmethod
    def consume_result(self, cursor: Cursor, attempt: Attempt) -> Standing | None:
        """Where the attempt's job is now, and if a payload lies ready for a running attempt, take it away."""

    @abstractmethod
    def find_callback(
        self, cursor: Cursor, callback_id: UUID, run_lease: int | None, states: Collection[JobState]
    ) -> Taken | None:
        """The job of the attempt that this token may answer, with its callback; None if there is none.

        Nothing is taken from its place; it is locked to the end of the transaction.
        """

    @abstractmethod
    def resume(self, cursor: Cursor, pending: Taken, payload: JsonValue) -> None:
        """Have a found attempt run on with this payload; its heartbeat is renewed and its token dead."""

    @abstractmethod
    def extend_callback(self, cursor: Cursor, pending: Taken, timeout: timedelta) -> None:
        """Give a found, waiting attempt this much time from now."""

    @abstractmethod
    def heartbeat(self, cursor: Cursor, beats: Sequence[Beat]) -> set[tuple[int, int]]:
        """Record signs of life; returns the ``(job_id, run_lease)`` pairs that are still open."""
