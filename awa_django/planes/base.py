"""What both storage engines promise.

A job moves by two verbs: *take* it from where it is, if the guard still holds; *place* it
where it goes. Who asks chooses the guard. Methods run in the caller's transaction, through
the cursor they are given, and never commit. Isolation is READ COMMITTED: several
rules need a fresh snapshot after a lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString, NamedTuple

import psycopg

from awa_django.jobs import Attempt, JobInsert, JsonValue, Landed, Landing, Taken
from awa_django.states import JobState
from awa_django.transitions import Transition

__all__ = [
    "Beat",
    "Claimed",
    "Cursor",
    "Due",
    "Guard",
    "Leases",
    "PastDeadline",
    "Plane",
    "Settlement",
    "Stale",
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
    """Running attempts without a sign of life for longer than ``silence``, longest first, at most ``limit``."""

    silence: timedelta
    limit: int = 500


@dataclass(frozen=True, slots=True)
class PastDeadline:
    """Running attempts that outlived their deadline, earliest first, at most ``limit``."""

    limit: int = 500


@dataclass(frozen=True, slots=True)
class Due:
    """Deferred jobs in ``state`` whose time has come, on queues that are not paused, at most ``limit``."""

    state: JobState
    limit: int = 4096


Guard = Leases | Stale | PastDeadline | Due


class Claimed(NamedTuple):
    """What a claim handed out, and what it took but refuses because a newer job holds the unique key."""

    attempts: list[Attempt]
    refused: list[Attempt]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came of a batch of transitions.

    ``completed`` are successes written without reading the job back, all at ``finalized_at``; ``landed`` are
    the others. ``stale`` had moved on and left no trace.
    """

    completed: Sequence[Transition] = ()
    finalized_at: datetime | None = None
    landed: Sequence[Landed] = ()
    stale: Sequence[Transition] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of one attempt; ``progress`` only if it changed since the last one."""

    attempt: Attempt
    progress: JsonValue = None


class Plane(ABC):
    """One storage engine. Methods run in the caller's transaction and never commit."""

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
    def settle(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        """Write the ends of attempts. Every transition is in exactly one part of the answer, in any order."""

    @abstractmethod
    def heartbeat(self, cursor: Cursor, beats: Sequence[Beat]) -> set[tuple[int, int]]:
        """Record signs of life; returns the ``(job_id, run_lease)`` pairs that are still open."""
