"""One worker process: its services, how they start and how they stop (contract: runtime/shutdown-health)."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.conf import QueueConfig, Settings
from awa_django.db import connect
from awa_django.encoding import encode
from awa_django.errors import InvalidJob, said
from awa_django.jobs import RESULT_KEY, UNKNOWN_KIND_KEY
from awa_django.outcomes import Completed, Outcome, Postponed, Snooze, Terminal
from awa_django.planes.base import Plane, Settlement
from awa_django.redaction import shown_text
from awa_django.registry import registry
from awa_django.settle import announce, listening, notices
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import Transition, plan
from awa_django.worker.attendant import Attendant
from awa_django.worker.claimers import Claimer
from awa_django.worker.dispatcher import Dispatcher, TokenBucket
from awa_django.worker.executor import Executor
from awa_django.worker.flights import Flight, Flights, describe
from awa_django.worker.heartbeat import Heartbeat
from awa_django.worker.listener import Listener
from awa_django.worker.outcome_log import log_settlement
from awa_django.worker.permits import capacity, permits_for
from awa_django.worker.settler import Settler

__all__ = ["Runtime", "Stopped"]

logger = logging.getLogger("awa_django.worker")

#: A kept result above this is dropped; the job has succeeded all the same.
MAX_RESULT_BYTES = 64 * 1024
#: A job of an unknown kind is put off for this long, doubling up to the second.
UNKNOWN_FIRST_SECONDS = 30
UNKNOWN_LONGEST_SECONDS = 600
#: Time for handing attempts back and for the services to end, after the grace time.
HAND_BACK_SECONDS = 1.0
SERVICES_SECONDS = 2.0
#: Between two looks at whether a draining worker is done.
IDLE_LOOK_SECONDS = 0.1
#: A draining worker gives up when claiming fails this often in a row for no reason of the database.
MOST_CRASHES = 3


def session_opener(
    settings: Settings, purpose: str, *, repeatable: bool = False
) -> Callable[[], psycopg.Connection[Any]]:
    """What opens a session of the worker for one purpose, which the server shows as its application name.

    Without ``LISTEN`` there may be a pooler that hands out a session per transaction, so nothing is prepared.
    ``repeatable`` as in :func:`~awa_django.db.connect`.
    """
    name = f"awa_worker {purpose}".encode()[:63].decode("utf-8", "ignore")
    return partial(
        connect, settings.database, application_name=name, prepare=settings.listen, repeatable=repeatable
    )


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a worker stopped: attempts handed back, and attempts left to rescue."""

    handed_back: int = 0
    left_behind: int = 0


class Runtime:
    """Claims, runs and settles the jobs of some queues in this process.

    ``start`` returns when the worker claims; ``stop`` drains and returns what became of the rest. ``plane`` is what
    the worker serves until it ends, ``instance_id`` what other processes know this one by. ``shares_ids`` says that an
    attempt of the other storage may go by the same numbers as one of this. ``notices`` are channels that other parts
    of the process want to hear from.
    """

    def __init__(
        self,
        settings: Settings,
        queues: Sequence[QueueConfig],
        *,
        plane: Plane,
        instance_id: uuid.UUID | None = None,
        shares_ids: bool = False,
        notices: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self.settings = settings
        #: What is measured and traced, decided here for as long as the worker runs.
        self.telemetry = telemetry.current()
        self._traced = self.telemetry.tracing
        if instance_id is not None:
            self.telemetry.instance = str(instance_id)
        self.telemetry.shown_text = shown_text
        self._shares_ids = shares_ids
        self.queues = {queue.name: queue for queue in queues}
        self.plane = plane
        self.flights = Flights()
        self.permits = permits_for(queues, settings.global_max_workers)
        for name, permits in self.permits.items():
            self.telemetry.watch(name, permits)
        #: Jobs that this process runs at once.
        self.capacity = capacity(queues, settings.global_max_workers)
        self._most_finalizing = max(4096, 4 * self.capacity)
        self._holding_back = False
        self._outcomes: deque[Transition] = deque()
        self.settler = Settler(
            self._outcomes,
            plane=self.plane,
            flights=self.flights,
            connect=session_opener(settings, "settle"),
            batch_size=settings.settle_batch_size,
            settled=self._settled,
            more_expected=self._more_expected,
        )
        self.heartbeat = Heartbeat(
            self.flights,
            plane=self.plane,
            connect=session_opener(settings, "heartbeat", repeatable=True),
            interval=settings.heartbeat_interval.total_seconds(),
        )
        self.attendant = Attendant(
            plane=self.plane, connect=session_opener(settings, "attend"), flush=self.heartbeat.flush
        )
        self.executor = Executor(
            registry.get,
            finish=self.finish,
            unknown=self._unknown_kind,
            attendant=self.attendant,
            threads=self.capacity,
        )
        #: By queue and number of the claimer.
        self.dispatchers = {
            (queue.name, number): self._dispatcher(queue, number, bucket, instance_id or uuid.uuid4())
            for queue in queues
            for bucket in [TokenBucket.of(queue.rate_limit)]
            for number in range(1, queue.claimers + 1)
        }
        self.listener = Listener(
            {queue.name: partial(self._wake, queue) for queue in queues},
            cancel=self._told_to_cancel,
            connect=session_opener(settings, "listen"),
            notices=notices,
        )
        self.claiming_stopped = threading.Event()
        #: Told in how many seconds a job that ended here is due again, for a leader in this process.
        self.put_off: Callable[[float], None] = lambda seconds: None

    # -- life ------------------------------------------------------------------------------------------

    @property
    def is_canonical(self) -> bool:
        """Whether it serves the canonical tables, whose ids mean other jobs in queue storage."""
        return self.plane.name == "canonical"

    def start(self) -> None:
        """Start the services in the contract's order; listening begins before the first claim."""
        self.settler.start()
        if self.settings.listen:
            self.listener.start()
        self.heartbeat.start()
        for dispatcher in self.dispatchers.values():
            dispatcher.start()

    def stop_claiming(self) -> None:
        """Start no more rounds, and ask the handlers to stop."""
        for dispatcher in self.dispatchers.values():
            dispatcher.stop()
        self.claiming_stopped.set()
        for dispatcher in self.dispatchers.values():
            dispatcher.join(5.0)
        self.flights.cancel_all()

    def drained(self, timeout: float) -> bool:
        """Wait until every attempt's outcome is durable; whether that came to pass."""
        return self.flights.wait_empty(timeout)

    def stop(self, hurry: threading.Event | None = None) -> Stopped:
        """Stop claiming, let attempts finish within the grace time, hand the rest back, end the services.

        ``hurry`` set cuts the grace time short.
        """
        self.stop_claiming()
        until = time.monotonic() + self.settings.drain_timeout.total_seconds()
        while not (hurry is not None and hurry.is_set()):
            remaining = until - time.monotonic()
            if remaining <= 0 or self.drained(min(remaining, 0.05)):
                break
        handed_back = self._hand_back()
        stopped = Stopped(handed_back, self._end_services())
        if stopped.left_behind:
            logger.warning("left %d attempts behind: %s", stopped.left_behind, describe(self.flights.all()))
        return stopped

    def _hand_back(self) -> int:
        """Give attempts whose handler still runs back to the queue, due at once and not charged."""
        running = [flight for flight in self.flights.all() if self.flights.finish(flight)]
        if running:
            logger.warning("handing back %d running attempts: %s", len(running), describe(running))
            for flight in running:
                self._put(flight, plan(flight.attempt, Snooze(0), progress=flight.progress))
        return len(running)

    def _end_services(self) -> int:
        if not self.drained(HAND_BACK_SECONDS):
            self.settler.abandon.set()
        self.executor.close()
        services = [self.settler, self.heartbeat, *([self.listener] if self.settings.listen else [])]
        for service in services:
            service.stop()
        until = time.monotonic() + SERVICES_SECONDS
        for service in services:
            service.join(max(0.0, until - time.monotonic()))
        self.attendant.close()
        return len(self.flights)

    # -- claiming ---------------------------------------------------------------------------------------

    def _dispatcher(
        self, queue: QueueConfig, number: int, bucket: TokenBucket | None, instance_id: uuid.UUID
    ) -> Dispatcher:
        """One claimer of a queue. Others know the first by this process's id, further ones by ids of their own."""
        settings = self.settings
        claimer = None
        if settings.max_claimers_per_queue and not self.is_canonical:
            claimer = Claimer(
                queue.name,
                instance_id if number == 1 else uuid.uuid4(),
                most=max(settings.max_claimers_per_queue, queue.claimers),
            )
        return Dispatcher(
            queue,
            number=number,
            permits=self.permits[queue.name],
            bucket=bucket,
            claimer=claimer,
            plane=self.plane,
            connect=session_opener(settings, f"claim {queue.name}", repeatable=True),
            start_flights=self._start_flights,
            poll_seconds=self._poll_seconds,
            held_back=self._held_back,
            nudge=self.executor.nudge,
        )

    def _wake(self, queue: QueueConfig) -> None:
        for number in range(1, queue.claimers + 1):
            self.dispatchers[queue.name, number].wake()

    # -- what the services ask --------------------------------------------------------------------------

    def _start_flights(self, flights: Sequence[Flight]) -> None:
        self.flights.add(flights)
        if self.claiming_stopped.is_set():
            # A claim that was on its way when the worker was told to stop: its jobs run, asked to be brief.
            for flight in flights:
                flight.cancelled = True
        self.executor.submit(flights)

    def _poll_seconds(self) -> float:
        settings = self.settings
        # Other clients' inserts into the canonical tables notify nobody.
        told = self.listener.alive and not self.is_canonical
        interval = settings.listen_poll_interval if told else settings.poll_interval
        return interval.total_seconds()

    def _more_expected(self) -> bool:
        """Whether outcomes are about to come: handlers run, or claims still find jobs."""
        return self.flights.executing > 0 or not all(
            item.empty.is_set() for item in self.dispatchers.values()
        )

    def _held_back(self) -> bool:
        waiting = len(self._outcomes)
        if self._holding_back:
            self._holding_back = waiting > self._most_finalizing // 2
        elif waiting > self._most_finalizing:
            logger.warning("claiming stops until %d outcomes are stored", waiting)
            self._holding_back = True
        return self._holding_back

    def _told_to_cancel(self, job_id: int, run_lease: int) -> None:
        """Some client says that it cancelled an attempt; where that may mean one of the other storage, ask the row."""
        if not self._shares_ids:
            self.cancel(job_id, run_lease)
        elif (flight := self.flights.get(job_id, run_lease)) is not None:
            try:
                self.heartbeat.flush(flight)
            except (psycopg.Error, OSError) as error:
                # The next heartbeat finds out as well.
                logger.warning("whether job %d is cancelled is not known yet: %s", job_id, said(error))

    def cancel(self, job_id: int, run_lease: int) -> None:
        """Raise the flag of an attempt, if this process holds it."""
        flight = self.flights.get(job_id, run_lease)
        if flight is not None:
            flight.cancelled = True

    def finish(self, flight: Flight, outcome: Outcome, *, returned: bool = True) -> None:
        """Take the outcome of an attempt: free its permit, and have the outcome stored."""
        if returned:
            flight.dispatcher.release()
        if not self.flights.finish(flight):
            return
        metadata: Mapping[str, Any] | None = None
        if isinstance(outcome, Completed):
            if outcome.result is not None:
                metadata = _kept_result(flight, outcome.result)
        elif isinstance(outcome, Postponed):
            metadata = outcome.metadata
        settings = self.settings
        transition = plan(
            flight.attempt,
            outcome,
            progress=flight.progress,
            metadata=metadata,
            dead_letters=settings.dead_letters(flight.attempt.queue),
            retry_after_exhausts=settings.retry_after_exhausts,
            left_state=flight.left_state,
            duration=0.0 if flight.started is None else time.monotonic() - flight.started,
        )
        if self._traced:
            self.telemetry.concluded(transition._replace(has_lease=flight.has_lease))
        self._put(flight, transition)

    def _put(self, flight: Flight, transition: Transition) -> None:
        self._outcomes.append(transition)
        self.settler.notify()

    def _settled(self, settlement: Settlement) -> None:
        """Everything that follows a commit of outcomes."""
        log_settlement(settlement, self.telemetry)
        self.telemetry.settled(
            settlement.completed,
            list(zip(settlement.landed, settlement.transitions, strict=True)),
            settlement.stale,
        )
        for landed in settlement.landed:
            if landed.landing.state in (JobState.SCHEDULED, JobState.RETRYABLE):
                self.put_off((landed.run_at - landed.landing.taken.taken_at).total_seconds())
        self.flights.forget(
            [
                *((item.attempt.job_id, item.attempt.run_lease) for item in settlement.completed),
                *((item.attempt.job_id, item.attempt.run_lease) for item in settlement.stale),
                *((item.landing.taken.job_id, item.landing.taken.run_lease) for item in settlement.landed),
            ]
        )
        if listening():
            announce(notices(settlement))

    def _unknown_kind(self, flight: Flight) -> Outcome:
        """What becomes of a job that no code here knows (ADR-006)."""
        attempt, settings = flight.attempt, self.settings
        message = f"unknown job kind: {attempt.kind}"
        now = datetime.now(UTC)
        mark = attempt.metadata.get(UNKNOWN_KIND_KEY)
        since, times = _read_mark(mark, now)
        if settings.unknown_kind == "fail" or now - since >= settings.unknown_kind_grace:
            logger.error("job %s: %s", attempt.job_id, message)
            return Terminal(message)
        seconds = min(UNKNOWN_FIRST_SECONDS * 2 ** min(times, 10), UNKNOWN_LONGEST_SECONDS)
        logger.warning(
            "job %s is of kind %r, which this worker does not know; handed back for %d s",
            attempt.job_id,
            attempt.kind,
            seconds,
        )
        return Postponed(float(seconds), {UNKNOWN_KIND_KEY: {"since": since.isoformat(), "times": times + 1}})

    # -- draining ---------------------------------------------------------------------------------------

    def wait_idle(self, ahead: timedelta, stop: threading.Event) -> bool:
        """Wait until the served queues have nothing to claim, nothing runs here, and nothing is due within ``ahead``.

        False if ``stop`` was set first. Raises ``RuntimeError`` when claiming keeps failing for another reason than
        the database: nothing would ever become empty.
        """
        while not stop.is_set():
            seen = self.flights.seen
            if not self._wait_claimed_out(stop) or self.flights.seen != seen:
                continue  # what has run since may have left a retry or a follow-up
            if self._due_within(ahead):
                stop.wait(IDLE_LOOK_SECONDS)
                continue
            # Something may have been promoted between the two looks: look once more.
            for dispatcher in self.dispatchers.values():
                dispatcher.ask_whether_empty()
            if self._wait_claimed_out(stop) and self.flights.seen == seen:
                return True
        return False

    def _wait_claimed_out(self, stop: threading.Event) -> bool:
        """Wait until the last claims found nothing and every outcome is durable; False if ``stop`` was set."""
        while not stop.is_set():
            for dispatcher in self.dispatchers.values():
                if dispatcher.crashes >= MOST_CRASHES:
                    raise RuntimeError(
                        f"{dispatcher.name} cannot be drained: claiming failed {MOST_CRASHES} times"
                    )
            if self.drained(IDLE_LOOK_SECONDS) and all(
                item.empty.wait(0) for item in self.dispatchers.values()
            ):
                return not len(self.flights)
            stop.wait(IDLE_LOOK_SECONDS / 10)
        return False

    def _due_within(self, ahead: timedelta) -> bool:
        with connect(
            self.settings.database, application_name="awa_worker drain", prepare=False
        ) as connection:
            row = connection.execute(
                statement(f"{self.plane.name}/counts", "due_within"),
                {"queues": list(self.queues), "ahead": ahead},
            ).fetchone()
        assert row is not None
        return bool(row[0])


def _read_mark(mark: Any, now: datetime) -> tuple[datetime, int]:
    """When a job was first found unknown, and how often; a mark that nobody can read counts as none."""
    try:
        since = datetime.fromisoformat(mark["since"])
        return (since if since.tzinfo else since.replace(tzinfo=UTC)), max(int(mark["times"]), 0)
    except (TypeError, KeyError, ValueError):
        return now, 0


def _kept_result(flight: Flight, result: Any) -> Mapping[str, Any] | None:
    """A result as metadata, or None where it cannot be kept; never a reason to run the job again."""
    attempt = flight.attempt
    try:
        value = encode(result, "result")
    except InvalidJob as error:
        logger.warning("job %s (%s): its result is not kept: %s", attempt.job_id, attempt.kind, error)
        return None
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > MAX_RESULT_BYTES:
        logger.warning(
            "job %s (%s): its result is not kept: %d bytes, at most %d",
            attempt.job_id,
            attempt.kind,
            size,
            MAX_RESULT_BYTES,
        )
        return None
    return {RESULT_KEY: value}
