"""What the seams call: a method for each thing that happens, which says where it is to be called."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from awa_django.jobs import Attempt, JobInsert, Landed
from awa_django.states import JobState
from awa_django.telemetry import otel
from awa_django.telemetry.execution import Execution
from awa_django.telemetry.instruments import (
    BLOCKER,
    BRANCH,
    DLQ_REASON,
    ENQUEUE_SHARD,
    INSTRUMENTS,
    KIND,
    OUTCOME,
    QUEUE,
    REASON,
    RESCUE,
    RING,
    RING_OUTCOME,
    RING_REASON,
    SHARD,
    STATE,
    TERMINAL,
    Instrument,
    duty_names,
)
from awa_django.transitions import Transition

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider, Observation
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

__all__ = ["Busy", "Telemetry"]

#: Name of the meter and of the tracer.
SCOPE = "awa"
#: Time for what was recorded to be sent when a worker ends.
DELIVER_SECONDS = 3.0

logger = logging.getLogger("awa_django.worker")

Pair = tuple[int, int]
Attributes = Mapping[str, str | int | bool]

#: What an attempt counts as by the state that it left its job in; a snooze counts as nothing.
_COUNTED: Mapping[JobState, str] = {
    JobState.COMPLETED: "awa.job.completed",
    JobState.RETRYABLE: "awa.job.retried",
    JobState.FAILED: "awa.job.failed",
    JobState.CANCELLED: "awa.job.cancelled",
    JobState.WAITING_EXTERNAL: "awa.job.waiting_external",
}
_NOTHING: AbstractContextManager[Any] = nullcontext()


class Busy(Protocol):
    """What knows how many handlers of a queue run: its permits."""

    @property
    def in_flight(self) -> int:
        """Attempts whose handler has not returned."""


class Stored(Protocol):
    """A job that was stored, as far as it is counted."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def queue(self) -> str:
        """Its queue."""


class Telemetry:
    """What the seams call, from any thread; next to free where ``on`` is False."""

    def __init__(self, tracers: TracerProvider | None = None, meters: MeterProvider | None = None) -> None:
        self._tracer: Tracer | None = None if tracers is None else tracers.get_tracer(SCOPE)
        self.tracing = tracers is not None
        self.metering = meters is not None
        self.on = self.tracing or self.metering
        self._providers = tracers, meters
        #: Which worker this is, an attribute of the spans of storage; its process sets it when it starts.
        self.instance = ""
        #: What may be shown of the text of an error of this kind of job; set likewise.
        self.shown_text: Callable[[str, str], str] = lambda kind, text: text
        self._executions: dict[Pair, Execution] = {}
        self._finalizing: dict[Pair, Span] = {}
        self._busy: list[tuple[str, ref[Busy]]] = []
        self._gauges: dict[str, list[tuple[Attributes, float]]] = {}
        self._record: dict[str, Callable[..., None]] = {}
        if meters is not None:
            meter = meters.get_meter(SCOPE)
            for item in INSTRUMENTS.values():
                self._create(meter, item)

    # -- producing -------------------------------------------------------------------------------------

    def enqueue_span(self, jobs: Sequence[JobInsert]) -> AbstractContextManager[Any]:
        """A producer span around the statements of one enqueue, single or bulk. Call in ``enqueue.store`` and
        ``store_many``."""
        if self._tracer is None or not jobs:
            return _NOTHING
        attributes: dict[str, Any] = {"messaging.system": SCOPE, "messaging.operation.type": "send"}
        name = "enqueue"
        if len(jobs) == 1:
            job = jobs[0]
            name = f"enqueue {job.kind}"
            attributes |= {"job.kind": job.kind, "job.queue": job.queue}
            attributes["messaging.destination.name"] = job.queue
        else:
            attributes |= {"job.count": len(jobs), "messaging.batch.message_count": len(jobs)}
        return otel.current_span(self._tracer, name, kind=otel.trace.SpanKind.PRODUCER, attributes=attributes)

    def stamped(self, jobs: Sequence[JobInsert], *, pair: Pair | None = None) -> Sequence[JobInsert]:
        """The jobs with the current span in their metadata, unless they carry one. Call inside :meth:`enqueue_span`,
        and with the ``pair`` of an attempt for its follow-ups, which come from its finalization.

        Only for projects that switched capturing on: metadata makes jobs dearer to complete.
        """
        if not self.tracing or otel.capture_is_off():
            return jobs
        context = self._context_after(pair)
        if not context.is_valid:
            return jobs
        value = otel.format_traceparent(context)
        return [
            job
            if otel.TRACEPARENT_KEY in job.metadata
            else replace(job, metadata={**job.metadata, otel.TRACEPARENT_KEY: value})
            for job in jobs
        ]

    def _context_after(self, pair: Pair | None) -> SpanContext:
        """What follows an attempt: its finalization, or its run where that is not recorded; else the current span."""
        if pair is not None and (span := self._finalizing.get(pair)) is not None:
            return span.get_span_context()
        if pair is not None and (run := self._executions.get(pair)) is not None:
            return run.context
        return otel.trace.get_current_span().get_span_context()

    def enqueued(self, jobs: Iterable[Stored], seconds: float | None = None) -> None:
        """Count jobs that were stored; ``seconds`` is the duration of a bulk enqueue. Call after the commit where the
        caller has a transaction, as ``enqueue`` does by ``on_commit``."""
        if not self.metering:
            return
        queues: Counter[str] = Counter()
        for (kind, queue), count in Counter((job.kind, job.queue) for job in jobs).items():
            self._record["awa.job.inserted"](count, {KIND: kind, QUEUE: queue})
            queues[queue] += count
        if seconds is not None:
            for queue, count in queues.items():
                self._record["awa.enqueue.batch_size"](count, {QUEUE: queue})
                self._record["awa.enqueue.duration"](seconds, {QUEUE: queue})

    # -- claiming --------------------------------------------------------------------------------------

    def watch(self, queue: str, busy: Busy) -> None:
        """Show a queue's running handlers as ``awa.job.in_flight``; 0 once the worker is gone.

        Call once for the permits of each queue. It costs nothing until somebody collects.
        """
        if self.metering:
            self._busy.append((queue, ref(busy)))

    def woken(self, queue: str, reason: str) -> None:
        """A claim loop woke up: ``notify``, ``capacity`` or ``poll``. Call once for each wake-up."""
        if self.metering:
            self._record["awa.dispatch.wakeups"](1, {QUEUE: queue, REASON: reason})

    def first_round(self, queue: str, reason: str, *, permits: int, seconds: float) -> None:
        """The first claim of a wake-up that has permits, so many of them and so long after it woke."""
        if self.metering:
            attributes = {QUEUE: queue, REASON: reason}
            self._record["awa.dispatch.wake_to_claim_duration"](seconds, attributes)
            self._record["awa.dispatch.capacity_available"](permits, attributes)

    def found_nothing(self, queue: str, reason: str) -> None:
        """The first claim of a wake-up found no job."""
        if self.metering:
            self._record["awa.dispatch.empty_claims"](1, {QUEUE: queue, REASON: reason})

    def rate_limited(self, queue: str, reason: str) -> None:
        """The first claim of a wake-up had no token."""
        if self.metering:
            self._record["awa.dispatch.rate_limited"](1, {QUEUE: queue, REASON: reason})

    def permits_unused(self, queue: str, permits: int) -> None:
        """Permits that a round gives back, because there were fewer jobs or fewer tokens."""
        if self.metering and permits:
            self._record["awa.dispatch.unused_permits"](permits, {QUEUE: queue})

    def poll(self, queue: str) -> AbstractContextManager[Any]:
        """A span around serving one wake-up, at DEBUG only."""
        return self.span("dispatch.poll", debug=True, queue=queue)

    def claim_span(self, plane: str, queue: str) -> AbstractContextManager[Any]:
        """A span around the statement of one claim round; ``plane`` is the storage's name."""
        return self.span(f"{plane}.claim", queue=queue, instance=self.instance)

    def claimed(self, queue: str, attempts: Sequence[Attempt], seconds: float) -> None:
        """One claim round that the database answered, also with nothing. Call after its commit."""
        if not self.metering:
            return
        attributes = {QUEUE: queue}
        self._record["awa.dispatch.claim_batches"](1, attributes)
        self._record["awa.dispatch.claim_batch_size"](len(attempts), attributes)
        self._record["awa.dispatch.claim_duration"](seconds, attributes)
        if not attempts:
            return
        now, wait = time.time(), self._record["awa.job.wait_duration"]
        for attempt in attempts:
            started = now if attempt.attempted_at is None else attempt.attempted_at.timestamp()
            if (waited := started - attempt.created_at.timestamp()) >= 0:
                wait(waited, attributes)
        for (shard, canonical), count in Counter(
            (attempt.enqueue_shard, attempt.is_canonical) for attempt in attempts
        ).items():
            self._record["awa.job.claimed"](
                count, attributes if canonical else {**attributes, ENQUEUE_SHARD: shard}
            )

    # -- executing -------------------------------------------------------------------------------------

    def execution(self, attempt: Attempt) -> Execution:
        """Around one run of a handler, in its thread or task. Call only where ``tracing``; ``with`` it."""
        assert self._tracer is not None
        parent: Context = otel.context.Context()
        links = []
        stored = attempt.metadata.get(otel.TRACEPARENT_KEY) if isinstance(attempt.payload, Mapping) else None
        if (context := otel.parse_traceparent(stored)) is not None:
            if attempt.attempt <= 1:
                parent = otel.trace.set_span_in_context(otel.trace.NonRecordingSpan(context), parent)
            else:
                links.append(otel.trace.Link(context))
        span = self._tracer.start_span(
            f"job.execute {attempt.kind}",
            context=parent,
            kind=otel.trace.SpanKind.CONSUMER,
            links=links,
            attributes={
                "job.id": attempt.job_id,
                "job.kind": attempt.kind,
                "job.queue": attempt.queue,
                "job.attempt": attempt.attempt,
                "messaging.system": SCOPE,
                "messaging.destination.name": attempt.queue,
                "messaging.operation.type": "process",
                "messaging.message.id": str(attempt.job_id),
            },
        )
        found = self._executions[attempt.job_id, attempt.run_lease] = Execution(span, self.shown_text)
        return found

    def raised(self, kind: str, error: BaseException) -> None:
        """What a handler raised becomes an event of its span, as far as it may be shown. Call where it is caught,
        inside :meth:`execution`."""
        if self.tracing:
            trace = "".join(traceback.format_exception(error))
            otel.record(
                otel.trace.get_current_span(),
                error,
                self.shown_text(kind, str(error)),
                self.shown_text(kind, trace),
            )

    def concluded(self, transition: Transition) -> None:
        """The outcome of an attempt is known and planned; from any thread, before it is handed to the settler.

        Call in ``Runtime.finish`` where ``tracing``, with ``has_lease`` of the flight.
        """
        if (found := self._executions.get(transition.pair)) is not None:
            found.conclude(transition)

    # -- settling --------------------------------------------------------------------------------------

    @contextmanager
    def flush(
        self, batch: Sequence[Transition], *, plane: str = "queue_storage", shard: int = 0
    ) -> Iterator[None]:
        """Around one try to write a batch of outcomes; a failed one counts as well. Call in the settler.

        Each attempt whose run was recorded gets a span of its own for this, below and linked to that of the run.
        """
        if not self.on:
            yield
            return
        began = time.perf_counter()
        with (
            self.span("completion.flush", shard=shard, batch_size=len(batch)),
            self.span(f"{plane}.complete", instance=self.instance),
        ):
            opened = self._begin_finalizing(batch)
            try:
                yield
            except BaseException as error:
                for span in opened.values():
                    otel.fail(span, error)
                raise
            finally:
                for pair, span in opened.items():
                    span.end()
                    self._finalizing.pop(pair, None)
                if self.metering:
                    attributes = {SHARD: shard}
                    self._record["awa.completion.flushes"](1, attributes)
                    self._record["awa.completion.flush_batch_size"](len(batch), attributes)
                    self._record["awa.completion.flush_duration"](time.perf_counter() - began, attributes)

    def _begin_finalizing(self, batch: Sequence[Transition]) -> dict[Pair, Span]:
        opened: dict[Pair, Span] = {}
        if self._tracer is None:
            return opened
        for item in batch:
            pair = item.pair
            execution = self._executions.get(pair)
            if execution is None or (run := execution.recorded) is None:
                continue
            opened[pair] = self._tracer.start_span(
                f"job.finalize {item.attempt.kind}",
                context=otel.trace.set_span_in_context(run, otel.context.Context()),
                links=[otel.trace.Link(run.get_span_context())],
                attributes={
                    "job.id": item.attempt.job_id,
                    "job.kind": item.attempt.kind,
                    "job.queue": item.attempt.queue,
                    "job.attempt": item.attempt.attempt,
                    "job.state": item.rule.state.value,
                },
            )
        self._finalizing.update(opened)
        return opened

    def deadlock_retried(self) -> None:
        """A batch of outcomes is tried again at once after a deadlock or a serialization failure."""
        if self.metering:
            self._record["awa.completion.deadlock_retry"](1)

    def settled(
        self,
        completed: Sequence[Transition],
        landed: Sequence[tuple[Landed, Transition]],
        stale: Sequence[Transition],
    ) -> None:
        """Outcomes are durable; after the commit and before lifecycle events. Call in ``Runtime._settled``.

        Stale ones, snoozes and jobs that ended as duplicates count as nothing.
        """
        if self.tracing:
            for item in (*completed, *(item for _, item in landed), *stale):
                self._forget(item.pair)
        if not self.metering:
            return
        counts: Counter[tuple[str, str, str]] = Counter()
        successes = list(completed)
        for moved, item in landed:
            state = moved.landing.state
            if moved.duplicate or (name := _COUNTED.get(state)) is None:
                continue
            if state is JobState.COMPLETED:
                successes.append(item)
            else:
                counts[name, item.attempt.kind, item.attempt.queue] += 1
            if moved.landing.dlq_reason is not None:
                self.dlq_moved(1, moved.landing.dlq_reason, kind=item.attempt.kind, queue=item.attempt.queue)
        durations = self._record["awa.job.duration"]
        for item in successes:
            kind, queue = item.attempt.kind, item.attempt.queue
            counts["awa.job.completed", kind, queue] += 1
            durations(item.duration, {KIND: kind, QUEUE: queue})
        for (name, kind, queue), count in counts.items():
            attributes: dict[str, Any] = {KIND: kind, QUEUE: queue}
            if name == "awa.job.failed":
                attributes[TERMINAL] = True
            self._record[name](count, attributes)

    def _forget(self, pair: Pair) -> None:
        if (found := self._executions.pop(pair, None)) is not None:
            # A handler beyond its time limit may still run, or one that was handed back: its attempt is over.
            found.end()

    def context_of(self, pair: Pair) -> SpanContext | None:
        """The span of an attempt's run, until its outcome is settled; for log lines about it."""
        found = self._executions.get(pair)
        return None if found is None else found.context

    def followup_failed(self, kind: str, outcome: str) -> None:
        """The follow-ups of an outcome of this kind could not be stored. Call once for each attempt concerned."""
        if self.metering:
            self._record["awa.followup.failed"](1, {KIND: kind, OUTCOME: outcome})

    def event_dropped(self, kind: str, outcome: str) -> None:
        """A lifecycle event was dropped because its handlers are behind."""
        if self.metering:
            self._record["awa.event.dropped"](1, {KIND: kind, OUTCOME: outcome})

    # -- heartbeats ------------------------------------------------------------------------------------

    def beat_sent(self) -> None:
        """One statement of heartbeats has committed."""
        if self.metering:
            self._record["awa.heartbeat.batches"](1)

    # -- dead letters ----------------------------------------------------------------------------------

    def dlq_moved(self, jobs: int, reason: str, *, kind: str | None = None, queue: str | None = None) -> None:
        """Jobs went to the dead letters; after the commit. A bulk move gives the filters that it was given."""
        if self.metering and jobs:
            self._record["awa.job.dlq_moved"](jobs, _present({KIND: kind, QUEUE: queue, DLQ_REASON: reason}))

    def dlq_retried(self, jobs: int, *, queue: str | None = None) -> None:
        """Dead letters were put back to work; after the commit, with the queue if there is just one."""
        if self.metering and jobs:
            self._record["awa.job.dlq_retried"](jobs, _present({QUEUE: queue}))

    def dlq_purged(self, jobs: int, *, queue: str | None = None) -> None:
        """Dead letters were deleted, by somebody or for their age; after the commit."""
        if self.metering and jobs:
            self._record["awa.job.dlq_purged"](jobs, _present({QUEUE: queue}))

    # -- maintenance -----------------------------------------------------------------------------------

    @contextmanager
    def duty(self, name: str) -> Iterator[None]:
        """Around one run of a duty of the timetable, by its name there. Call in ``Timetable._perform``."""
        if not self.on:
            yield
            return
        branch, spans = duty_names(name)
        began = time.perf_counter()
        try:
            with ExitStack() as stack:
                for span in spans:
                    stack.enter_context(self.span(span, instance=self.instance))
                yield
        finally:
            if self.metering:
                self._record["awa.maintenance.branch.duration"](time.perf_counter() - began, {BRANCH: branch})

    def overran(self, name: str) -> None:
        """A duty became too slow for its interval, and ticks of it are skipped from now on."""
        if self.metering:
            self._record["awa.maintenance.branch.overrun"](1, {BRANCH: duty_names(name)[0]})

    def rescued(self, kind: str, landed: Sequence[Landed]) -> None:
        """Attempts were taken away: ``heartbeat``, ``deadline`` or ``callback_timeout``; after the commit."""
        if not self.metering:
            return
        for duplicate, count in Counter(item.duplicate for item in landed).items():
            suffix = "_duplicate_cancelled" if duplicate else ""
            self._record["awa.maintenance.rescues"](count, {RESCUE: f"{kind}{suffix}"})
        for item in landed:
            if item.landing.dlq_reason is not None and not item.duplicate:
                taken = item.landing.taken
                self.dlq_moved(1, item.landing.dlq_reason, kind=taken.kind, queue=taken.queue)

    def promoted(self, state: str, jobs: int, seconds: float) -> None:
        """One statement promoted due jobs that were in ``state``; after the commit."""
        if self.metering:
            attributes = {STATE: state}
            self._record["awa.maintenance.promote_batches"](1, attributes)
            self._record["awa.maintenance.promote_batch_size"](jobs, attributes)
            self._record["awa.maintenance.promote_duration"](seconds, attributes)

    def rotated(self, ring: str, *, slot: int, generation: int) -> None:
        """A ring (``queue``, ``lease``, ``claim``) turned."""
        if self.metering:
            attributes = {RING: ring, RING_OUTCOME: "rotated", BLOCKER: "none"}
            self._record["awa.maintenance.rotate.attempts"](1, attributes)
            for name, value in (("awa.ring.current_slot", slot), ("awa.ring.generation", generation)):
                kept = [item for item in self._gauges.get(name, []) if item[0][RING] != ring]
                self._gauges[name] = [*kept, ({RING: ring}, value)]

    def rotation_skipped(self, ring: str, blockers: Mapping[str, int]) -> None:
        """A ring could not turn; ``blockers`` are the rows in the way by what they are, nothing if there are none."""
        if self.metering:
            for blocker in blockers or ("lost_cas",):
                attributes = {RING: ring, RING_OUTCOME: "skipped_busy", BLOCKER: blocker}
                self._record["awa.maintenance.rotate.attempts"](1, attributes)
                if blocker in blockers:
                    self._record["awa.maintenance.rotate.skipped_rows"](blockers[blocker], attributes)

    def pruned(self, ring: str, outcome: str, reason: str = "none", rows: int | None = None) -> None:
        """A slot was tried to be emptied: ``noop``, ``pruned``, ``blocked`` or ``skipped_active``, the last with the
        reason and how many rows are in the way."""
        if self.metering:
            attributes = {RING: ring, RING_OUTCOME: outcome, RING_REASON: reason}
            self._record["awa.maintenance.prune.attempts"](1, attributes)
            if rows is not None:
                self._record["awa.maintenance.prune.skipped_rows"](rows, attributes)

    # -- what is read when the project collects ----------------------------------------------------------

    def show(self, name: str, values: Iterable[tuple[Attributes, float]]) -> None:
        """Set a gauge to these values until the next call; what is not among them is shown no longer.

        With nothing the gauge goes away, as it has to where somebody else leads from now on.
        """
        if self.metering:
            self._gauges[name] = list(values)

    def _observe(self, name: str, options: object) -> Iterable[Observation]:
        return [
            otel.metrics.Observation(value, attributes) for attributes, value in self._gauges.get(name, ())
        ]

    def _observe_busy(self, options: object) -> Iterable[Observation]:
        running: dict[str, int] = {}
        for queue, found in list(self._busy):
            busy = found()
            running[queue] = running.get(queue, 0) + (0 if busy is None else busy.in_flight)
        return [otel.metrics.Observation(count, {QUEUE: queue}) for queue, count in sorted(running.items())]

    # -- spans -----------------------------------------------------------------------------------------

    def span(
        self, name: str, *, debug: bool = False, **attributes: str | float
    ) -> AbstractContextManager[Any]:
        """A span around a block, below the current one; an exception makes it an error.

        ``debug`` ones are roots, and made only where the logger ``awa_django.worker`` is at DEBUG.
        """
        if self._tracer is None or (debug and not logger.isEnabledFor(logging.DEBUG)):
            return _NOTHING
        context = otel.context.Context() if debug else None
        return otel.current_span(self._tracer, name, context=context, attributes=attributes)

    def deliver(self, seconds: float = DELIVER_SECONDS) -> None:
        """Have what was recorded sent now. Call where the process is about to end without its ``atexit`` functions."""
        for provider in self._providers:
            flush: Callable[[int], object] | None = getattr(provider, "force_flush", None)
            if flush is not None:
                flush(round(seconds * 1000))

    # -- instruments -----------------------------------------------------------------------------------

    def _create(self, meter: Meter, item: Instrument) -> None:
        match item.type:
            case "counter":
                self._record[item.name] = meter.create_counter(item.name, item.unit, item.description).add
            case "histogram":
                self._record[item.name] = meter.create_histogram(
                    item.name, item.unit, item.description, explicit_bucket_boundaries_advisory=item.buckets
                ).record
            case "up-down counter":
                meter.create_observable_up_down_counter(
                    item.name, [self._observe_busy], item.unit, item.description
                )
            case _:
                meter.create_observable_gauge(
                    item.name, [partial(self._observe, item.name)], item.unit, item.description
                )


def _present(attributes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value is not None}
