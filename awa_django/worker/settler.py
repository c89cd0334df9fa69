"""Making outcomes durable (contract: runtime/completion-heartbeat section 1, runtime/outcomes section 7)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

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

Connect = Callable[[], psycopg.Connection[Any]]


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
        self._connection: psycopg.Connection[Any] | None = None
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
                batch = self._gather()
                if batch:
                    self._write(batch)
                elif self.stopping.is_set():
                    return
        finally:
            self._disconnect()

    def _gather(self) -> list[Transition]:
        outcomes = self._outcomes
        if not outcomes:
            self._asleep = True
            if not outcomes and not self.stopping.is_set():
                self._wake.wait()
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

    def _write(self, batch: Sequence[Transition]) -> None:
        """Write a batch, whatever it takes.

        A batch that is refused for what is in it is written one by one; one outcome that is refused twice becomes
        a failure that says so.
        """
        tries = conflicts = 0
        while True:
            try:
                self._settled(self._settle(batch))
                return
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                conflicts += 1
                if conflicts <= CONFLICT_TRIES:
                    continue
                reason: Exception = error
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

    def _settle(self, batch: Sequence[Transition]) -> Settlement:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        if left := self._flights.settle(_pairs(batch)):
            batch = [
                item._replace(left_state=True)
                if (item.attempt.job_id, item.attempt.run_lease) in left
                else item
                for item in batch
            ]
        return settle(self._connection, self._plane, batch)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _pairs(batch: Sequence[Transition]) -> list[tuple[int, int]]:
    return [(item.attempt.job_id, item.attempt.run_lease) for item in batch]


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"


def _is_about_content(error: Exception) -> bool:
    """Whether the values to be stored are to blame, and not the database's state or the way to it.

    The driver calls all of SQLSTATE class 42 a programming error, a missing grant included: that passes.
    """
    if isinstance(error, psycopg.ProgrammingError):
        return not (error.sqlstate or "").startswith("42")
    if isinstance(error, psycopg.Error):
        return isinstance(error, psycopg.DataError | psycopg.IntegrityError)
    return not isinstance(error, OSError)  # what no JSON and no parameter holds is refused on this side


def _without_extras(item: Transition, error: Exception) -> Transition:
    """A failure that says that the outcome could not be stored."""
    logger.error("the outcome of job %s cannot be stored: %s", item.attempt.job_id, _text(error))
    outcome = Failed(f"{type(error).__name__}: the outcome could not be stored: {str(error).strip()}")
    return plan(item.attempt, outcome, dead_letters=item.dead_letter)
