"""Making outcomes durable (contract: runtime/completion-heartbeat section 1, runtime/outcomes section 7)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg

from awa_django import telemetry
from awa_django.errors import said
from awa_django.followups import FollowUpFailed, degraded, leave_connections
from awa_django.outcomes import Failed
from awa_django.planes.base import Plane, Settlement
from awa_django.settle import settle
from awa_django.transitions import Transition, plan
from awa_django.worker.flights import Flights
from awa_django.worker.service import Service

__all__ = ["Settler"]

logger = logging.getLogger("awa_django.worker")

#: While more outcomes are expected a batch waits this long for them, in steps of the second.
GATHER_SECONDS = 0.005
GATHER_STEP_SECONDS = 0.001
#: Pauses between tries while the database does not answer; the last one repeats (DEC-10).
RETRY_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
#: Deadlocks and serialization failures are tried again at once, this often.
CONFLICT_TRIES = 3

#: Some client may hold an attempt for as long as its own transaction takes, say one that answers a callback. A batch
#: waits this long, then goes out in halves without the held one, which is tried again after these pauses.
LOCK_TIMEOUT = "SET lock_timeout = '500ms'"
HELD_PAUSES = (1.0, 2.0, 5.0, 10.0)

Connect = Callable[[], psycopg.Connection[Any]]


class _Held(NamedTuple):
    """An outcome whose attempt another client holds: when it is tried again, and how often it was."""

    due_at: float
    tries: int
    item: Transition


class Settler(Service):
    """Writes outcomes in batches and retries until they are durable or stale.

    While a batch is being written the next one gathers.
    """

    def __init__(
        self,
        outcomes: deque[Transition],
        *,
        plane: Plane,
        flights: Flights,
        connect: Connect,
        batch_size: int,
        settled: Callable[[Settlement], None],
        more_expected: Callable[[], bool],
    ) -> None:
        super().__init__("settler")
        self._outcomes = outcomes
        self._plane = plane
        self._flights = flights
        self._connect = connect
        self._batch_size = batch_size
        self._settled = settled
        self._more_expected = more_expected
        self._telemetry = telemetry.current()
        self._connection: psycopg.Connection[Any] | None = None
        self._held: list[_Held] = []
        self._wake = threading.Event()
        self._asleep = False
        #: No more retries: what cannot be written now is left to rescue.
        self.abandon = threading.Event()

    def notify(self) -> None:
        """Say that an outcome was put on the queue. Cheap while the settler is busy."""
        if self._asleep:
            self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    def run(self) -> None:
        self.alive = True
        try:
            while True:
                self._write_held()
                batch = self._gather()
                if batch:
                    self._write(batch)
                elif self.stopping.is_set() and (not self._held or self.abandon.wait(GATHER_STEP_SECONDS)):
                    return
        finally:
            self._disconnect()

    def _gather(self) -> list[Transition]:
        outcomes = self._outcomes
        if not outcomes:
            self._asleep = True
            if not outcomes and not self.stopping.is_set():
                self._wake.wait(self._seconds_to_held())
            self._wake.clear()
            self._asleep = False
        until = time.monotonic() + GATHER_SECONDS
        while (
            len(outcomes) < self._batch_size
            and self._more_expected()
            and not self.stopping.is_set()
            and time.monotonic() < until
        ):
            time.sleep(GATHER_STEP_SECONDS)
        batch: list[Transition] = []
        try:
            while len(batch) < self._batch_size:
                batch.append(outcomes.popleft())
        except IndexError:
            pass
        return batch

    def _write(self, batch: Sequence[Transition], *, held: int = 0) -> None:
        """Write a batch, whatever it takes.

        A batch that is refused for what is in it is written one by one; one outcome that is refused twice becomes
        a failure that says so. An outcome whose follow-up fails is written without it (DEC-11), the others as they
        were. An outcome whose attempt another client holds is tried again later; ``held`` says how often it was.
        """
        tries = conflicts = 0
        while True:
            try:
                self._settled(self._settle(batch))
                return
            except psycopg.errors.LockNotAvailable as error:
                self._put_aside(batch, error, held)
                return
            except FollowUpFailed as failure:
                if failure.notice is not None:
                    batch = _with_degraded(batch, failure)
                    continue
                reason: Exception = failure
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                conflicts += 1
                if conflicts <= CONFLICT_TRIES:
                    self._telemetry.deadlock_retried()
                    continue
                reason = error
            except Exception as error:
                reason = error
            self._flights.resume(_pairs(batch))
            self._disconnect()
            if _is_about_content(reason):
                if len(batch) > 1:
                    logger.warning("writing %d outcomes one by one after: %s", len(batch), _text(reason))
                    for item in batch:
                        self._write([item])
                    return
                if tries:
                    batch = [_without_extras(batch[0], reason)]
            pause = RETRY_PAUSES[min(tries, len(RETRY_PAUSES) - 1)]
            tries += 1
            logger.warning("%d outcomes not stored, again in %.1f s: %s", len(batch), pause, _text(reason))
            if self.abandon.wait(pause):
                logger.error("gave up on %d outcomes; their jobs will be rescued", len(batch))
                return

    def _put_aside(self, batch: Sequence[Transition], error: Exception, held: int) -> None:
        """Write what can be written of a batch that waited for somebody, and remember the rest for later."""
        self._flights.resume(_pairs(batch))
        if len(batch) > 1:
            middle = len(batch) // 2
            self._write(batch[:middle])
            self._write(batch[middle:])
            return
        pause = HELD_PAUSES[min(held, len(HELD_PAUSES) - 1)]
        logger.warning(
            "the outcome of job %s is not stored, since another client holds the job; again in %.0f s: %s",
            batch[0].attempt.job_id,
            pause,
            _text(error),
        )
        self._held.append(_Held(time.monotonic() + pause, held + 1, batch[0]))

    def _write_held(self) -> None:
        """Try those again whose time has come, one by one; all of them when the worker stops."""
        now = time.monotonic()
        due = [item for item in self._held if item.due_at <= now or self.stopping.is_set()]
        if not due:
            return
        self._held = [item for item in self._held if item not in due]
        for item in due:
            self._write([item.item], held=item.tries)

    def _seconds_to_held(self) -> float | None:
        """Until the next of those is to be tried; None without any."""
        if not self._held:
            return None
        return max(min(item.due_at for item in self._held) - time.monotonic(), 0.0)

    def _settle(self, batch: Sequence[Transition]) -> Settlement:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
            self._connection.execute(LOCK_TIMEOUT)
        if left := self._flights.settle(_pairs(batch)):
            batch = [
                item._replace(left_state=True, has_lease=self._flights.has_lease(item.pair))
                if item.pair in left
                else item
                for item in batch
            ]
        try:
            with self._telemetry.flush(batch, plane=self._plane.name):
                return settle(self._connection, self._plane, batch)
        finally:
            leave_connections()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _with_degraded(batch: Sequence[Transition], failure: FollowUpFailed) -> list[Transition]:
    """The same batch with one outcome written differently, because its follow-up failed."""
    assert failure.notice is not None
    job = failure.notice.job
    logger.error("job %s (%s): %s", job.id, job.kind, failure)
    telemetry.current().followup_failed(job.kind, failure.notice.event.value)
    return [degraded(item, failure) if item.pair == failure.notice.pair else item for item in batch]


def _pairs(batch: Sequence[Transition]) -> list[tuple[int, int]]:
    return [(item.attempt.job_id, item.attempt.run_lease) for item in batch]


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {said(error)}"


def _is_about_content(error: Exception) -> bool:
    """Whether the values to be stored are to blame, and not the database's state or the way to it.

    The driver calls all of SQLSTATE class 42 a programming error, a missing grant included: that passes.
    """
    if isinstance(error, FollowUpFailed):
        return True
    if isinstance(error, psycopg.ProgrammingError):
        return not (error.sqlstate or "").startswith("42")
    if isinstance(error, psycopg.Error):
        return isinstance(error, psycopg.DataError | psycopg.IntegrityError)
    return not isinstance(error, OSError)  # what no JSON and no parameter holds is refused on this side


def _without_extras(item: Transition, error: Exception) -> Transition:
    """A failure that says that the outcome could not be stored."""
    logger.error("the outcome of job %s cannot be stored: %s", item.attempt.job_id, _text(error))
    outcome = Failed(f"{type(error).__name__}: the outcome could not be stored: {said(error)}")
    return plan(item.attempt, outcome, dead_letters=item.dead_letters)
