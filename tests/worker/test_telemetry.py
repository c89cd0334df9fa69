"""Metrics, spans and log lines of a real worker, for each way in which an attempt can end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from opentelemetry import trace
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from awa_django import (
    Cancel,
    RetryAfter,
    Snooze,
    TerminalError,
    Unique,
    WaitForCallback,
    job,
    operations,
    registry,
)
from awa_django import enqueue as enqueuing
from awa_django.conf import QueueConfig, RateLimit
from awa_django.db import connect
from awa_django.jobs import JobInsert
from awa_django.maintenance.cron import evaluate
from tests.inprocess import ended, working
from tests.observed import Observed, Point
from tests.stored import rows
from tests.workers import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

#: What depends on how the worker happened to be scheduled, and the handful that comes with every attempt.
ALWAYS = {
    "awa.job.claimed",
    "awa.job.inserted",
    "awa.completion.flushes",
    "awa.dispatch.wakeups",
    "awa.dispatch.claim_batches",
    "awa.dispatch.unused_permits",
    "awa.dispatch.empty_claims",
    "awa.heartbeat.batches",
}


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.registry.isolated():
        yield


@pytest.fixture
def observed() -> Iterator[Observed]:
    with Observed() as found:
        yield found


def settled(observed: Observed) -> dict[str, dict[Point, int]]:
    """The counters of outcomes, and what else is not counted for every attempt."""
    return {name: points for name, points in observed.sums().items() if name not in ALWAYS}


def about(kind: str, **others: Any) -> Point:
    return frozenset({"awa.job.kind": kind, "awa.job.queue": "default", **others}.items())


def idle(points: dict[str, dict[Point, int]]) -> dict[str, dict[Point, int]]:
    """The same, with nothing running."""
    assert set(points.pop("awa.job.in_flight").values()) == {0}
    return points


def run(observed: Observed, kind: Any, **settings: Any) -> dict[str, dict[Point, int]]:
    """Run one job of a kind and stop; what was counted."""
    kind.enqueue()
    with working(**settings) as worker:
        wait_until(lambda: observed.spans("job.finalize"), what="an outcome that was written down")
        wait_until(lambda: not len(worker.runtime.flights), what="an idle worker")
    return idle(settled(observed))


def only(spans: list[ReadableSpan]) -> ReadableSpan:
    (span,) = spans
    return span


# One job of each outcome ------------------------------------------------------------------------------------


def test_a_success(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    @job
    def fine() -> None: ...

    caplog.set_level(logging.INFO, "awa_django.worker")
    assert run(observed, fine) == {"awa.job.completed": {about("fine"): 1}}
    span = only(observed.spans("job.execute"))
    assert (span.name, span.status.status_code) == ("job.execute fine", StatusCode.OK)
    claim = observed.spans("queue_storage.claim")[0].attributes or {}
    assert claim["queue"] == "default"
    assert UUID(str(claim["instance"]))
    (duration,) = observed.metrics()["awa.job.duration"].points.values()
    assert duration.count == 1
    line = only_line(caplog, "completed in attempt 1")
    assert (line.levelno, line.kind, line.attempt, line.outcome) == (logging.INFO, "fine", 1, "completed")
    assert line.trace_id == f"{span.context.trace_id:032x}"


def only_line(caplog: pytest.LogCaptureFixture, text: str) -> Any:
    (line,) = [record for record in caplog.records if text in record.getMessage()]
    return line


def test_a_failure_that_is_tried_again(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    @job
    def flaky() -> None:
        raise ValueError("not today")

    assert run(observed, flaky) == {"awa.job.retried": {about("flaky"): 1}}
    span = only(observed.spans("job.execute"))
    assert span.status.status_code is StatusCode.UNSET
    (event,) = span.events
    assert (event.attributes or {})["exception.message"] == "not today"
    line = only_line(caplog, "attempt 1 failed")
    assert (line.levelno, line.outcome) == (logging.WARNING, "retryable")
    assert 'raise ValueError("not today")' in line.getMessage()


def test_a_failure_of_the_last_attempt(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    @job(max_attempts=1)
    def last() -> None:
        raise ValueError("no more")

    assert run(observed, last) == {"awa.job.failed": {about("last", **{"awa.job.terminal": True}): 1}}
    span = only(observed.spans("job.execute"))
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: no more")
    line = only_line(caplog, "failed for good in attempt 1 of 1")
    assert (line.levelno, line.outcome) == (logging.ERROR, "failed")
    assert 'raise ValueError("no more")' in line.getMessage()


def test_a_terminal_error_that_goes_to_the_dead_letters(observed: Observed) -> None:
    @job
    def hopeless() -> None:
        raise TerminalError("never")

    assert run(observed, hopeless, dlq_enabled=True) == {
        "awa.job.failed": {about("hopeless", **{"awa.job.terminal": True}): 1},
        "awa.job.dlq_moved": {about("hopeless", **{"awa.dlq.reason": "terminal_error"}): 1},
    }
    assert only(observed.spans("job.execute")).status.status_code is StatusCode.ERROR


def test_retry_after(observed: Observed) -> None:
    @job
    def later() -> RetryAfter:
        return RetryAfter(1000)

    assert run(observed, later) == {"awa.job.retried": {about("later"): 1}}
    assert only(observed.spans("job.execute")).status.status_code is StatusCode.UNSET


def test_a_snooze_counts_as_nothing(observed: Observed) -> None:
    @job
    def sleepy() -> Snooze:
        return Snooze(1000)

    assert run(observed, sleepy) == {}
    assert only(observed.spans("job.execute")).status.status_code is StatusCode.UNSET


def test_a_cancellation_by_the_handler(observed: Observed) -> None:
    @job
    def unwanted() -> Cancel:
        return Cancel("enough")

    assert run(observed, unwanted) == {"awa.job.cancelled": {about("unwanted"): 1}}
    assert only(observed.spans("job.execute")).status.status_code is StatusCode.OK


def test_a_park(observed: Observed) -> None:
    @job
    def waiting(ctx: Any) -> WaitForCallback:
        return WaitForCallback(ctx.register_callback())

    assert run(observed, waiting) == {"awa.job.waiting_external": {about("waiting"): 1}}
    assert only(observed.spans("job.execute")).status.status_code is StatusCode.UNSET


def test_a_park_without_a_callback_is_an_error(observed: Observed) -> None:
    @job
    def forgetful() -> WaitForCallback:
        return WaitForCallback("nothing")

    assert run(observed, forgetful) == {
        "awa.job.failed": {about("forgetful", **{"awa.job.terminal": True}): 1}
    }
    status = only(observed.spans("job.execute")).status
    assert status.status_code is StatusCode.ERROR
    assert "register_callback" in (status.description or "")


def test_what_ends_a_handler_without_being_an_exception_leaves_nothing_running(observed: Observed) -> None:
    @job
    def leaving() -> None:
        raise SystemExit(3)

    assert run(observed, leaving) == {"awa.job.retried": {about("leaving"): 1}}


def test_arguments_that_do_not_fit_end_in_an_error(observed: Observed) -> None:
    @job
    def strict(number: int) -> None: ...

    enqueuing.enqueue(JobInsert("strict", {"other": 1}))
    with working():
        wait_until(lambda: observed.spans("job.finalize"), what="an outcome")
    assert only(observed.spans("job.execute")).status.status_code is StatusCode.ERROR
    assert set(settled(observed)) == {"awa.job.failed", "awa.job.in_flight"}


def test_a_stale_outcome_counts_as_nothing(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    started, go = threading.Event(), threading.Event()

    @job
    def overtaken() -> None:
        started.set()
        go.wait(20)

    found = overtaken.enqueue()
    with working() as worker:
        assert started.wait(20)
        operations.cancel(found.id)
        go.set()
        wait_until(lambda: not len(worker.runtime.flights), what="an outcome that came too late")
    assert idle(settled(observed)) == {}
    line = only_line(caplog, "came too late")
    assert (line.levelno, line.outcome, line.job_id) == (logging.WARNING, "stale", found.id)
    assert len(observed.spans("job.execute")) == 1


# Spans and their relations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "coroutine"])
def test_the_handler_runs_with_its_span(observed: Observed, asynchronous: bool) -> None:
    tracer = observed.tracers.get_tracer("shop")
    inside: dict[int, int] = {}

    def work(number: int) -> None:
        inside[number] = trace.get_current_span().get_span_context().span_id
        with tracer.start_as_current_span(f"inner {number}"):
            pass

    if asynchronous:

        @job(kind="traced")
        async def traced(number: int) -> None:
            await asyncio.sleep(0)
            work(number)
            await asyncio.sleep(0.01)
            assert inside[number] == trace.get_current_span().get_span_context().span_id
    else:

        @job(kind="traced")
        def traced(number: int) -> None:
            work(number)

    traced.enqueue_many([{"number": number} for number in range(8)])
    with working() as worker:
        wait_until(lambda: len(observed.spans("job.finalize")) == 8, what="eight outcomes")
        wait_until(lambda: not len(worker.runtime.flights), what="an idle worker")
    runs = {span.context.span_id for span in observed.spans("job.execute")}
    assert len(runs) == 8
    assert set(inside.values()) == runs
    for span in observed.spans("inner"):
        assert span.parent is not None
        assert span.parent.span_id == inside[int(span.name.split()[1])]
    assert set(observed.sums()["awa.job.completed"].values()) == {8}


def test_a_second_attempt_is_a_trace_of_its_own_that_links_to_the_first_cause(observed: Observed) -> None:
    @job
    def twice(ctx: Any) -> RetryAfter | None:
        return RetryAfter(0) if ctx.attempt == 1 else None

    with override_settings(AWA={"TRACE_CAPTURE": True}):
        with observed.tracers.get_tracer("shop").start_as_current_span("request") as request:
            twice.enqueue()
        with working(lead=True):
            ended("twice")
            wait_until(lambda: len(observed.spans("job.execute")) == 2, what="two attempts")
    sent = only(observed.spans("enqueue twice"))
    first, second = observed.spans("job.execute")
    assert first.parent is not None
    assert first.parent.span_id == sent.context.span_id
    assert first.context.trace_id == request.get_span_context().trace_id
    assert second.parent is None
    assert [link.context.span_id for link in second.links] == [sent.context.span_id]


def test_without_capture_metadata_and_completion_stay_as_they_are(observed: Observed) -> None:
    @job
    def plain() -> None: ...

    with observed.tracers.get_tracer("shop").start_as_current_span("request"):
        assert plain.enqueue().metadata == {}
    with working():
        ended("plain")
    assert rows("SELECT completed_count FROM awa.receipt_completion_batches") == [{"completed_count": 1}]
    assert only(observed.spans("job.execute")).parent is None


def test_the_callers_own_traceparent_wins(observed: Observed) -> None:
    @job
    def chosen() -> None: ...

    own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with override_settings(AWA={"TRACE_CAPTURE": True}):
        assert chosen.using(metadata={"awa:traceparent": own}).enqueue().metadata["awa:traceparent"] == own


def test_no_span_of_an_idle_worker_outlives_a_poll(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "awa_django.worker")
    with working(listen=False, poll_interval=timedelta(milliseconds=50)):
        wait_until(lambda: len(observed.spans("dispatch.poll")) >= 5, what="polls")
    lengths: dict[str, int] = {}
    for span in observed.spans():
        length = (span.end_time or 0) - (span.start_time or 0)
        lengths[span.name] = min(length, lengths.get(span.name, length))
    # The shortest of each name: the machine may hold one up.
    assert max(lengths.values()) < 2 * 10**9
    assert all(span.parent is None for span in observed.spans("dispatch.poll"))
    sums = observed.sums()
    poll = frozenset({("awa.job.queue", "default"), ("awa.dispatch.reason", "poll")})
    assert sums["awa.dispatch.wakeups"][poll] >= 5
    assert sums["awa.dispatch.empty_claims"][poll] >= 4
    assert "awa.job.claimed" not in sums


def test_a_notified_worker_says_so(observed: Observed) -> None:
    @job
    def announced() -> None: ...

    def woken() -> int:
        point = frozenset({("awa.job.queue", "default"), ("awa.dispatch.reason", "notify")})
        return observed.sums().get("awa.dispatch.wakeups", {}).get(point, 0)

    with working() as worker:
        wait_until(lambda: worker.runtime.listener.alive, what="a listener")
        wait_until(lambda: observed.sums().get("awa.dispatch.empty_claims"), what="an idle worker")
        announced.enqueue()
        ended("announced")
        assert woken() >= 1


def test_a_worker_that_was_full_says_that_capacity_woke_it(observed: Observed) -> None:
    @job
    def slow() -> None:
        threading.Event().wait(0.05)

    slow.enqueue_many([{} for _ in range(4)])
    with working({"default": 1}):
        ended("slow", 4)
    reasons = {dict(point)["awa.dispatch.reason"] for point in observed.sums()["awa.dispatch.wakeups"]}
    assert "capacity" in reasons


def test_a_rate_limit_that_holds_back_is_counted(observed: Observed) -> None:
    @job
    def limited() -> None: ...

    limited.enqueue_many([{}, {}])
    queue = QueueConfig("default", rate_limit=RateLimit(0.001, 1))
    with working({"default": 4}, queues={"default": queue}) as worker:
        ended("limited", 1)
        wait_until(lambda: worker.runtime.listener.alive, what="a listener")
        limited.enqueue()  # wakes it, and the next token is a quarter of an hour away
        wait_until(
            lambda: sum(observed.sums().get("awa.dispatch.rate_limited", {}).values()) >= 1, what="the count"
        )


def test_running_handlers_are_seen_while_they_run(observed: Observed) -> None:
    started, go = threading.Barrier(4), threading.Event()

    @job
    def busy() -> None:
        started.wait(20)
        go.wait(20)

    busy.enqueue_many([{} for _ in range(3)])
    with working():
        started.wait(20)
        assert set(observed.sums()["awa.job.in_flight"].values()) == {3}
        go.set()
        ended("busy", 3)
    assert set(observed.sums()["awa.job.in_flight"].values()) == {0}


def test_handlers_that_were_handed_back_leave_nothing_running_and_no_open_span(observed: Observed) -> None:
    started, go = threading.Event(), threading.Event()

    @job
    def stuck() -> None:
        started.set()
        go.wait(60)

    stuck.enqueue()
    try:
        with working(drain_timeout=timedelta(milliseconds=100)):
            assert started.wait(20)
        assert len(observed.spans("job.execute")) == 1
    finally:
        go.set()
    assert settled(observed).keys() <= {"awa.job.in_flight"}


def test_a_heartbeat_counts_its_statements(observed: Observed) -> None:
    started, go = threading.Event(), threading.Event()

    @job
    def long() -> None:
        started.set()
        go.wait(20)

    long.enqueue()
    with working(heartbeat_interval=timedelta(milliseconds=50)):
        assert started.wait(20)
        wait_until(lambda: sum(observed.sums().get("awa.heartbeat.batches", {}).values()) >= 2)
        go.set()


# Producing -----------------------------------------------------------------------------------------------------


def test_jobs_count_as_stored_once_their_transaction_has_committed(observed: Observed) -> None:
    @job
    def counted(number: int) -> None: ...

    with transaction.atomic():
        counted.enqueue(number=1)
        counted.enqueue_many([{"number": 2}, {"number": 3}])
        transaction.set_rollback(True)
    assert observed.sums() == {}
    with transaction.atomic():
        counted.enqueue(number=1)
        counted.enqueue_many([{"number": 2}, {"number": 3}])
        assert observed.sums() == {}
    assert observed.sums() == {"awa.job.inserted": {about("counted"): 3}}
    (size,) = observed.metrics()["awa.enqueue.batch_size"].points.values()
    assert (size.count, size.sum) == (1, 2)
    assert [span.name for span in observed.spans()] == ["enqueue counted", "enqueue"] * 2


def test_fires_of_schedules_and_follow_ups_count_as_stored(observed: Observed) -> None:
    with connect("default", application_name="test") as session:
        session.execute(
            """
            INSERT INTO awa.cron_jobs (name, cron_expr, kind, queue, created_at)
            VALUES ('often', '* * * * *', 'ticking', 'elsewhere', now() - interval '5 minutes')
            """
        )
        assert evaluate(session).fired == 1
    ticking = frozenset({("awa.job.kind", "ticking"), ("awa.job.queue", "elsewhere")})
    assert observed.sums() == {"awa.job.inserted": {ticking: 1}}

    @job
    def cause() -> None: ...

    @job(queue="elsewhere")
    def effect() -> None: ...

    @cause.on_completed
    def then(done: Any) -> Any:
        return effect.request()

    cause.enqueue()
    with working():
        ended("cause")
    effects = frozenset({("awa.job.kind", "effect"), ("awa.job.queue", "elsewhere")})
    assert observed.sums()["awa.job.inserted"] == {ticking: 1, about("cause"): 1, effects: 1}


def test_a_duplicate_is_not_counted_as_stored(observed: Observed) -> None:
    @job(unique=Unique())
    def once() -> None: ...

    assert not once.enqueue().duplicate
    assert once.enqueue().duplicate
    assert observed.sums() == {"awa.job.inserted": {about("once"): 1}}


# Operators ------------------------------------------------------------------------------------------------------


def test_dead_letters_that_are_moved_retried_and_purged_are_counted(observed: Observed) -> None:
    @job(max_attempts=1)
    def doomed() -> None:
        raise ValueError("no")

    doomed.enqueue_many([{}, {}, {}])
    with working():
        ids = [row["job_id"] for row in ended("doomed", 3)]
    operations.dead_letter(ids, "by hand")
    operations.retry_dead(ids[:1])
    operations.purge_dead(ids[1:])
    sums = observed.sums()
    assert sums["awa.job.dlq_moved"] == {about("doomed", **{"awa.dlq.reason": "by hand"}): 3}
    queue = frozenset({("awa.job.queue", "default")})
    assert sums["awa.job.dlq_retried"] == {queue: 1}
    assert sums["awa.job.dlq_purged"] == {queue: 2}


# Snapshots ------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_kinds_queues_and_storage(observed: Observed) -> None:
    @job
    def described() -> None:
        """What it says of itself."""

    with working():
        wait_until(lambda: "awa.storage.state" in observed.metrics(), what="a snapshot")
    kind = frozenset({("awa.job.kind", "described")})
    assert any(kind <= point for point in observed.values("awa.job_kind.info"))
    assert [dict(point)["awa.job.queue"] for point in observed.values("awa.queue.info")] == ["default"]
    (state,) = observed.values("awa.storage.state")
    assert dict(state) == {
        "awa.storage.state": "active",
        "awa.storage.current_engine": "queue_storage",
        "awa.storage.active_engine": "queue_storage",
    }
    assert set(observed.values("awa.storage.transition_ready").values()) == {0}
    assert observed.values("awa.storage.canonical_live_backlog") == {frozenset(): 0}
    capabilities = {
        dict(point)["awa.storage.capability"]: count
        for point, count in observed.values("awa.storage.live_runtime_capability").items()
    }
    assert set(capabilities) == {"canonical", "canonical_drain_only", "queue_storage"}
    assert capabilities["queue_storage"] >= 1


# One trace ------------------------------------------------------------------------------------------------------


@pytest.fixture
def instrumented(observed: Observed) -> Iterator[Observed]:
    """Django and psycopg report to the test's providers."""
    DjangoInstrumentor().instrument(tracer_provider=observed.tracers)
    PsycopgInstrumentor().instrument(tracer_provider=observed.tracers, skip_dep_check=True)
    try:
        yield observed
    finally:
        DjangoInstrumentor().uninstrument()
        PsycopgInstrumentor().uninstrument()


placed: list[Callable[[], Any]] = []


def place_order(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        placed[0]()
    return HttpResponse("thanks")


urlpatterns = [path("orders/", place_order)]


@override_settings(ROOT_URLCONF=__name__, AWA={"TRACE_CAPTURE": True})
def test_one_trace_goes_from_the_request_through_the_job_to_what_follows_it(instrumented: Observed) -> None:
    @job
    def charge() -> None: ...

    @job
    def receipt() -> None: ...

    @charge.on_completed
    def then(done: Any) -> Any:
        return receipt.request()

    placed[:] = [charge.enqueue]
    assert Client().get("/orders/").content == b"thanks"
    with working() as worker:
        ended("receipt")
        wait_until(lambda: len(instrumented.spans("job.finalize")) == 2, what="both outcomes")
        wait_until(lambda: not len(worker.runtime.flights), what="an idle worker")

    request = only([span for span in instrumented.spans() if span.kind is SpanKind.SERVER])
    chain = [
        only(instrumented.spans(name))
        for name in (
            "enqueue charge",
            "job.execute charge",
            "job.finalize charge",
            "job.execute receipt",
            "job.finalize receipt",
        )
    ]
    for cause, effect in zip([request, *chain], chain, strict=False):
        assert effect.parent is not None
        assert effect.parent.span_id == cause.context.span_id, effect.name
    assert {span.context.trace_id for span in chain} == {request.context.trace_id}
    statements = [span for span in instrumented.spans() if "db.statement" in (span.attributes or {})]
    assert any(
        span.parent is not None and span.parent.span_id == chain[0].context.span_id for span in statements
    ), "the insert of the job is below the span of its enqueue"
    # Others without a parent are those of this test, which looks for the rows.
    own = [span for span in statements if "-- name: " in str((span.attributes or {})["db.statement"])]
    assert [span for span in own if span.parent is None] == []


@override_settings(AWA={"TRACE_CAPTURE": True})
def test_a_follow_up_that_fails_is_counted(observed: Observed) -> None:
    @job(max_attempts=1)
    def cause() -> None: ...

    @cause.on_completed
    def then(done: Any) -> Any:
        raise ValueError("cannot decide")

    cause.enqueue()
    with working():
        ended("cause")
    failed = observed.sums()["awa.followup.failed"]
    assert failed == {frozenset({("awa.job.kind", "cause"), ("awa.outcome", "completed")}): 1}
    assert set(observed.sums()["awa.job.failed"].values()) == {1}
