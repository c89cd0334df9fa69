"""The telemetry by itself: names, units and attributes as they leave the process, and silence without opentelemetry."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from awa_django import telemetry
from awa_django.conf import QueueConfig, Settings
from awa_django.jobs import Attempt, JobInsert, Landed, Landing, Taken
from awa_django.maintenance import timetable
from awa_django.outcomes import Cancel, Completed, Failed, Outcome, RetryAfter, Snooze, Terminal
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.transitions import land_one, plan
from awa_django.worker.attendant import Attendant
from awa_django.worker.context import JobContext
from awa_django.worker.dispatcher import Dispatcher
from awa_django.worker.flights import Flight
from tests.observed import Observed

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def attempt(job_id: int = 1, **changes: Any) -> Attempt:
    values: dict[str, Any] = dict.fromkeys(Attempt._fields, 0)
    values |= {
        "job_id": job_id,
        "run_lease": 1,
        "kind": "send_receipt",
        "queue": "mail",
        "args": {},
        "attempt": 1,
        "max_attempts": 3,
        "enqueue_shard": 0,
        "batch_id": 1,
        "run_at": NOW,
        "created_at": NOW,
        "attempted_at": NOW + timedelta(seconds=2),
        "deadline_at": None,
        "unique_key": None,
        "unique_states": None,
        "payload": None,
    }
    return Attempt(**{**values, **changes})


def landed(
    outcome: Outcome, *, dlq_reason: str | None = None, duplicate: bool = False, **changes: Any
) -> Landed:
    values: dict[str, Any] = {
        "job_id": 1,
        "run_lease": 1,
        "kind": "send_receipt",
        "queue": "mail",
        "args": {},
        "state": JobState.RUNNING,
        "priority": 2,
        "attempt": 1,
        "max_attempts": 3,
        "run_at": NOW,
        "attempted_at": NOW,
        "created_at": NOW,
        "unique_key": None,
        "unique_states": None,
        "metadata": {},
        "tags": (),
        "errors": (),
        "progress": None,
        "taken_at": NOW,
    }
    landing: Landing = land_one(Taken(**{**values, **changes}), outcome, dlq_reason=dlq_reason)
    return Landed(landing, NOW, duplicate)


@pytest.fixture
def observed() -> Iterator[Observed]:
    with Observed() as found:
        yield found


MAIL = {"awa.job.queue": "mail"}
RECEIPT = {"awa.job.kind": "send_receipt", **MAIL}


def test_every_metric_leaves_under_its_name_with_its_unit_type_and_attributes(observed: Observed) -> None:
    live = observed.telemetry
    permits = Permits(3)
    job = JobInsert("send_receipt", {}, queue="mail")
    live.enqueued([job], 0.1)
    live.watch("mail", permits)
    live.woken("mail", "poll")
    live.first_round("mail", "poll", permits=3, seconds=0.1)
    live.found_nothing("mail", "poll")
    live.rate_limited("mail", "poll")
    live.permits_unused("mail", 2)
    live.claimed("mail", [attempt()], 0.1)
    done = plan(attempt(), Completed())
    with live.execution(attempt()):
        live.concluded(done)
    with live.flush([done]):
        pass
    live.deadlock_retried()
    others = [
        landed(RetryAfter(1)),
        landed(Cancel("x")),
        landed(Terminal("x"), dlq_reason="terminal_error"),
        waiting(),
    ]
    live.settled([done], [(item, done) for item in others], [])
    live.beat_sent()
    live.dlq_retried(1, queue="mail")
    live.dlq_purged(1, queue="mail")
    with live.duty("promotion"):
        pass
    live.overran("promotion")
    live.rescued("heartbeat", [landed(Failed("x"))])
    live.promoted("scheduled", 3, 0.1)
    live.rotated("queue", slot=1, generation=17)
    live.rotation_skipped("queue", {"queue.ready_rows": 5})
    live.pruned("queue", "skipped_active", "queue.pending_ready", 4)
    live.followup_failed("send_receipt", "completed")
    live.event_dropped("send_receipt", "completed")
    for name, item in telemetry.INSTRUMENTS.items():
        if item.type == "gauge" and not name.startswith("awa.ring"):
            live.show(name, [(dict.fromkeys(item.attributes, "x"), 1)])

    found = observed.metrics()

    assert set(found) == set(telemetry.INSTRUMENTS)
    for name, item in telemetry.INSTRUMENTS.items():
        metric = found[name]
        assert (metric.unit, metric.type) == (item.unit, item.type), name
        for attributes in metric.points:
            assert set(dict(attributes)) == set(item.attributes), name
    assert observed.scopes() == {"awa"}


def waiting() -> Landed:
    moved = landed(Snooze(0))
    return Landed(moved.landing.replace(state=JobState.WAITING_EXTERNAL), NOW)


class Permits:
    """Permits of which so many are taken."""

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight


@pytest.mark.parametrize(
    ("outcome", "name", "extra"),
    [
        (RetryAfter(1), "awa.job.retried", {}),
        (Failed("x"), "awa.job.retried", {}),
        (Terminal("x"), "awa.job.failed", {"awa.job.terminal": True}),
        (Cancel("x"), "awa.job.cancelled", {}),
        (Completed(), "awa.job.completed", {}),
        (Snooze(1), None, {}),
    ],
)
def test_an_outcome_counts_once_and_a_snooze_counts_as_nothing(
    observed: Observed, outcome: Outcome, name: str | None, extra: dict[str, Any]
) -> None:
    observed.telemetry.settled([], [(landed(outcome), plan(attempt(), outcome))], [])
    assert observed.sums() == ({} if name is None else {name: {frozenset({**RECEIPT, **extra}.items()): 1}})


def test_duplicates_and_stale_outcomes_count_as_nothing(observed: Observed) -> None:
    late = plan(attempt(), Completed())
    observed.telemetry.settled([], [(landed(Cancel("x"), duplicate=True), late)], [late])
    assert observed.sums() == {}


def test_a_dead_letter_counts_as_failed_and_as_moved(observed: Observed) -> None:
    dead = landed(Terminal("x"), dlq_reason="terminal_error")
    observed.telemetry.settled([], [(dead, plan(attempt(), Terminal("x")))], [])
    sums = observed.sums()
    assert set(sums) == {"awa.job.failed", "awa.job.dlq_moved"}
    assert sums["awa.job.dlq_moved"] == {
        frozenset({**RECEIPT, "awa.dlq.reason": "terminal_error"}.items()): 1
    }


def test_rescues_count_by_kind_and_duplicates_apart(observed: Observed) -> None:
    moved = [landed(Failed("x")), landed(Failed("x"), job_id=2), landed(Cancel("x"), duplicate=True)]
    observed.telemetry.rescued("deadline", moved)
    assert observed.sums() == {
        "awa.maintenance.rescues": {
            frozenset({("awa.rescue.kind", "deadline")}): 2,
            frozenset({("awa.rescue.kind", "deadline_duplicate_cancelled")}): 1,
        }
    }


def test_the_duration_is_the_handlers_and_that_of_successes_only(observed: Observed) -> None:
    quick, slow = plan(attempt(1), Completed(), duration=0.25), plan(attempt(2), Completed(), duration=1.0)
    failed = plan(attempt(3), Failed("x"), duration=9.0)
    observed.telemetry.settled(
        [quick], [(landed(Completed(), job_id=2), slow), (landed(Failed("x"), job_id=3), failed)], []
    )
    (point,) = observed.metrics()["awa.job.duration"].points.values()
    assert (point.count, point.sum) == (2, 1.25)
    assert observed.sums()["awa.job.completed"] == {frozenset(RECEIPT.items()): 2}


def test_waiting_time_runs_from_creation_to_claim_and_is_never_negative(observed: Observed) -> None:
    early = attempt(2, attempted_at=NOW - timedelta(seconds=1))
    observed.telemetry.claimed("mail", [attempt(), early, attempt(3, enqueue_shard=4)], 0.5)
    wait = observed.metrics()["awa.job.wait_duration"]
    assert [(point.count, point.sum) for point in wait.points.values()] == [(2, 4.0)]
    assert observed.sums()["awa.job.claimed"] == {
        frozenset({**MAIL, "awa.enqueue.shard": 0}.items()): 2,
        frozenset({**MAIL, "awa.enqueue.shard": 4}.items()): 1,
    }


def test_an_empty_claim_is_a_batch_and_no_claimed_job(observed: Observed) -> None:
    observed.telemetry.claimed("mail", [], 0.5)
    assert set(observed.metrics()) == {
        "awa.dispatch.claim_batches",
        "awa.dispatch.claim_batch_size",
        "awa.dispatch.claim_duration",
    }


def test_slow_things_have_buckets_up_to_a_minute(observed: Observed) -> None:
    live = observed.telemetry
    live.claimed("mail", [attempt()], 0.1)
    live.enqueued([JobInsert("x", {})], 0.1)
    with live.duty("promotion"):
        pass
    found = observed.metrics()
    for name in ("awa.job.wait_duration", "awa.enqueue.duration", "awa.maintenance.branch.duration"):
        (point,) = found[name].points.values()
        assert (point.explicit_bounds[0], point.explicit_bounds[-1], len(point.explicit_bounds)) == (
            0.001,
            60.0,
            14,
        )


def test_running_handlers_are_read_when_collected_and_end_at_nothing(observed: Observed) -> None:
    taken = [Permits(2), Permits(1), Permits(0)]
    for queue, permits in zip(("mail", "mail", "default"), taken, strict=True):
        observed.telemetry.watch(queue, permits)
    assert observed.sums()["awa.job.in_flight"] == {
        frozenset(MAIL.items()): 3,
        frozenset({("awa.job.queue", "default")}): 0,
    }
    del permits
    taken.clear()
    assert set(observed.sums()["awa.job.in_flight"].values()) == {0}


def test_a_gauge_shows_the_last_values_only(observed: Observed) -> None:
    live = observed.telemetry
    live.show("awa.queue.lag", [({"awa.job.queue": "a"}, 1.5), ({"awa.job.queue": "b"}, 2.5)])
    live.show("awa.queue.lag", [({"awa.job.queue": "b"}, 3.5)])
    assert observed.values("awa.queue.lag") == {frozenset({("awa.job.queue", "b")}): 3.5}
    live.show("awa.queue.lag", [])
    assert "awa.queue.lag" not in observed.metrics()


def test_each_ring_keeps_its_own_slot_and_generation(observed: Observed) -> None:
    live = observed.telemetry
    live.rotated("queue", slot=1, generation=17)
    live.rotated("claim", slot=2, generation=2)
    live.rotated("queue", slot=2, generation=18)
    assert observed.values("awa.ring.generation") == {
        frozenset({("awa.ring", "queue")}): 18,
        frozenset({("awa.ring", "claim")}): 2,
    }


def test_a_ring_that_cannot_turn_counts_once_for_each_blocker(observed: Observed) -> None:
    observed.telemetry.rotation_skipped("claim", {"claim.rows": 3, "claim.closure_rows": 2})
    observed.telemetry.rotation_skipped("claim", {})
    attempts = observed.sums()["awa.maintenance.rotate.attempts"]
    assert {dict(key)["awa.ring.blocker"]: count for key, count in attempts.items()} == {
        "claim.rows": 1,
        "claim.closure_rows": 1,
        "lost_cas": 1,
    }


# Spans --------------------------------------------------------------------------------------------------


def test_a_first_attempt_is_a_child_of_the_span_that_enqueued_it(observed: Observed) -> None:
    with observed.telemetry.execution(attempt(payload={"metadata": {"awa:traceparent": PARENT}})):
        pass
    (span,) = observed.spans()
    assert span.name == "job.execute send_receipt"
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert span.parent.is_remote
    assert not span.links
    assert dict(span.attributes or {}) == {
        "job.id": 1,
        "job.kind": "send_receipt",
        "job.queue": "mail",
        "job.attempt": 1,
        "messaging.system": "awa",
        "messaging.destination.name": "mail",
        "messaging.operation.type": "process",
        "messaging.message.id": "1",
    }


def test_a_later_attempt_is_a_root_with_a_link(observed: Observed) -> None:
    with observed.telemetry.execution(attempt(attempt=2, payload={"metadata": {"awa:traceparent": PARENT}})):
        pass
    (span,) = observed.spans()
    assert span.parent is None
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"0g-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"{PARENT}\n",
    ],
)
def test_a_malformed_traceparent_starts_a_root(observed: Observed, value: object) -> None:
    with observed.telemetry.execution(attempt(payload={"metadata": {"awa:traceparent": value}})):
        pass
    (span,) = observed.spans()
    assert span.parent is None


def test_a_later_version_of_traceparent_may_say_more() -> None:
    context = telemetry.parse_traceparent(f"cc-{TRACE}-{SPAN}-00-what-comes-later")
    assert context is not None
    assert (f"{context.trace_id:032x}", int(context.trace_flags), context.is_remote) == (TRACE, 0, True)
    assert telemetry.format_traceparent(context) == f"00-{TRACE}-{SPAN}-00"


def test_an_unreadable_payload_is_no_obstacle(observed: Observed) -> None:
    for payload in ("text", [1], {"metadata": None}):
        with observed.telemetry.execution(attempt(payload=payload)):
            pass
    assert len(observed.spans()) == 3


@pytest.mark.parametrize(
    ("outcome", "tries", "status", "text"),
    [
        (Completed(), 1, trace.StatusCode.OK, None),
        (Cancel("enough"), 1, trace.StatusCode.OK, None),
        (RetryAfter(1), 3, trace.StatusCode.UNSET, None),
        (Snooze(1), 1, trace.StatusCode.UNSET, None),
        (Failed("ValueError: no\nTraceback"), 1, trace.StatusCode.UNSET, None),
        (Failed("ValueError: no\nTraceback"), 3, trace.StatusCode.ERROR, "ValueError: no"),
        (Terminal("TerminalError: never"), 1, trace.StatusCode.ERROR, "TerminalError: never"),
    ],
)
def test_the_status_says_how_the_attempt_ended(
    observed: Observed, outcome: Outcome, tries: int, status: trace.StatusCode, text: str | None
) -> None:
    run = attempt(attempt=tries)
    with observed.telemetry.execution(run):
        observed.telemetry.concluded(plan(run, outcome))
    (span,) = observed.spans()
    assert (span.status.status_code, span.status.description) == (status, text)


def test_an_exception_is_an_event_of_the_span(observed: Observed) -> None:
    with observed.telemetry.execution(attempt()):
        observed.telemetry.raised("greet", ValueError("no"))
    (span,) = observed.spans()
    (event,) = span.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.message"] == "no"


def test_the_run_is_the_current_span_inside_and_none_is_after_it(observed: Observed) -> None:
    with observed.telemetry.execution(attempt()) as execution:
        assert trace.get_current_span() is execution.span
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_run_beyond_its_limit_ends_with_its_outcome_and_only_once(observed: Observed) -> None:
    live, late = observed.telemetry, plan(attempt(), Failed("TimeoutError: still running"))
    with live.execution(late.attempt):
        live.concluded(late)
        live.settled([], [(landed(late.outcome), late)], [])
        assert len(observed.spans()) == 1
    assert len(observed.spans()) == 1


def test_the_finalization_is_a_span_of_its_own_below_and_linked_to_the_run(observed: Observed) -> None:
    live, done = observed.telemetry, plan(attempt(), Completed())
    with live.execution(done.attempt):
        live.concluded(done)
    with live.flush([done]):
        pass
    live.settled([done], [], [])
    spans = {span.name: span for span in observed.spans()}
    assert set(spans) == {
        "job.execute send_receipt",
        "completion.flush",
        "queue_storage.complete",
        "job.finalize send_receipt",
    }
    run, last = spans["job.execute send_receipt"], spans["job.finalize send_receipt"]
    assert last.parent is not None
    assert last.parent.span_id == run.context.span_id
    assert [link.context.span_id for link in last.links] == [run.context.span_id]
    assert dict(spans["completion.flush"].attributes or {}) == {"shard": 0, "batch_size": 1}


def test_a_flush_that_fails_counts_and_says_so_in_its_spans(observed: Observed) -> None:
    live, done = observed.telemetry, plan(attempt(), Completed())
    with live.execution(done.attempt):
        live.concluded(done)
    with pytest.raises(OSError, match="away"), live.flush([done]):
        raise OSError("away")
    with live.flush([done]):
        pass
    assert observed.sums()["awa.completion.flushes"] == {frozenset({("awa.completion.shard", 0)}): 2}
    statuses = [span.status.status_code for span in observed.spans() if span.name.startswith("job.finalize")]
    assert statuses == [trace.StatusCode.ERROR, trace.StatusCode.UNSET]


def test_nothing_is_kept_of_attempts_that_are_settled_or_stale(observed: Observed) -> None:
    live = observed.telemetry
    done, late = plan(attempt(1), Completed()), plan(attempt(2), Completed())
    again = plan(attempt(3), RetryAfter(1))
    for item in (done, late, again):
        with live.execution(item.attempt):
            live.concluded(item)
    live.settled([done], [(landed(RetryAfter(1), job_id=3), again)], [late])
    assert [live.context_of((number, 1)) for number in (1, 2, 3)] == [None] * 3


def test_every_span_leaves_under_its_name_with_its_attributes(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    live, done = observed.telemetry, plan(attempt(), Completed())
    caplog.set_level("DEBUG", "awa_django.worker")
    job = JobInsert("send_receipt", {}, queue="mail")
    for jobs in ([job], [job, job]):
        with live.enqueue_span(jobs):
            pass
    with live.execution(done.attempt):
        live.concluded(done)
    for plane in ("queue_storage", "canonical"):
        with live.poll("mail"), live.claim_span(plane, "mail"):
            pass
        with live.flush([done], plane=plane):
            pass
    with live.span("heartbeat.tick", debug=True, interval=1.5), live.span("maintenance.cron_eval"):
        pass
    for name in telemetry.DUTIES:
        with live.duty(name):
            pass
    found = {
        span.name.replace("send_receipt", "<kind>"): tuple(span.attributes or {}) for span in observed.spans()
    }
    assert {name: set(attributes) for name, attributes in found.items()} == {
        name: set(attributes) for name, attributes in telemetry.SPANS.items()
    }


def test_every_duty_of_the_timetable_has_a_branch_and_a_span() -> None:
    settings = Settings(queues={"mail": QueueConfig("mail", dlq_retention=timedelta(days=1))})
    with Observed():
        duties = timetable(settings, [QueueStoragePlane(), CanonicalPlane()]).duties
    known = {names[0] for names in telemetry.DUTIES.values()}
    for duty in duties:
        branch, spans = telemetry.duty_names(duty.name)
        assert branch in known, duty.name
        assert spans, duty.name
        assert "canonical" in duty.name or all(span in telemetry.SPANS for span in spans)


def test_debug_spans_are_roots_and_made_at_debug_only(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    live = observed.telemetry
    with caplog.at_level("INFO", "awa_django.worker"), live.span("dispatch.poll", debug=True, queue="mail"):
        pass
    caplog.set_level("DEBUG", "awa_django.worker")
    with live.span("outer"), live.span("dispatch.poll", debug=True, queue="mail"):
        pass
    poll, _ = observed.spans()
    assert (poll.name, poll.parent, dict(poll.attributes or {})) == ("dispatch.poll", None, {"queue": "mail"})


# Trace context in jobs ------------------------------------------------------------------------------------


def test_a_job_is_stamped_with_the_span_that_enqueues_it_and_the_callers_own_value_wins(
    observed: Observed,
) -> None:
    live = observed.telemetry
    jobs = [JobInsert("a", {}, metadata={"x": 1}), JobInsert("b", {}, metadata={"awa:traceparent": "mine"})]
    with live.enqueue_span(jobs[:1]):
        current = trace.get_current_span().get_span_context()
        first, second = live.stamped(jobs)
    assert first.metadata == {"x": 1, "awa:traceparent": telemetry.format_traceparent(current)}
    assert second.metadata == {"awa:traceparent": "mine"}
    assert jobs[0].metadata == {"x": 1}
    (span,) = observed.spans()
    assert (span.name, span.kind) == ("enqueue a", trace.SpanKind.PRODUCER)


def test_without_a_span_nothing_is_written(observed: Observed) -> None:
    job = JobInsert("a", {})
    assert observed.telemetry.stamped([job])[0] is job


@pytest.mark.parametrize("word", ["off", "false", "0", "OFF"])
def test_the_environment_forbids_stamping(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("AWA_TRACE_CAPTURE", word)
    job = JobInsert("a", {})
    with observed.telemetry.enqueue_span([job]):
        assert observed.telemetry.stamped([job])[0] is job


def test_a_follow_up_carries_the_finalization_of_its_cause(observed: Observed) -> None:
    live, done = observed.telemetry, plan(attempt(), Completed())
    with live.execution(done.attempt):
        live.concluded(done)
    with live.flush([done]):
        (job,) = live.stamped([JobInsert("next", {})], pair=done.pair)
    last = next(span for span in observed.spans() if span.name == "job.finalize send_receipt")
    assert job.metadata["awa:traceparent"] == telemetry.format_traceparent(last.context)


def test_what_is_not_sampled_stays_so_in_follow_ups() -> None:
    with Observed(sampler=ALWAYS_OFF) as observed:
        live, done = observed.telemetry, plan(attempt(), Completed())
        with live.execution(done.attempt) as execution:
            live.concluded(done)
        with live.flush([done]):
            (job,) = live.stamped([JobInsert("next", {})], pair=done.pair)
        assert execution.context is not None
        assert job.metadata["awa:traceparent"] == telemetry.format_traceparent(execution.context)
        assert not execution.context.trace_flags.sampled
        assert observed.spans() == []


# Which telemetry is on --------------------------------------------------------------------------------------


def test_everything_is_silent_until_a_provider_is_configured() -> None:
    assert telemetry.current() is telemetry.SILENT
    silent = telemetry.SILENT
    assert not silent.on
    job = JobInsert("a", {})
    with silent.enqueue_span([job]), silent.span("x"), silent.duty("promotion"), silent.flush([]):
        assert silent.stamped([job])[0] is job
    silent.enqueued([job], 1.0)
    silent.claimed("mail", [attempt()], 1.0)
    done = plan(attempt(), Completed())
    silent.settled([done], [(landed(Terminal("x"), dlq_reason="y"), done)], [])
    silent.rescued("heartbeat", [landed(Failed("x"))])
    silent.show("awa.queue.lag", [({}, 1)])


def run_python(body: str, blocker: str = "", **environment: str) -> None:
    script = SOURCE.replace("@blocker", blocker).replace("@body", textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent.parent,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "as expected", done.stderr


SOURCE = """
import sys
@blocker
import time
from awa_django import telemetry
from awa_django.telemetry.binding import LOOK_AGAIN_SECONDS
from awa_django.jobs import JobInsert
@body
print("as expected")
"""


def test_without_opentelemetry_the_package_works_and_is_silent() -> None:
    run_python(
        """
        import django
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["awa_django"], SECRET_KEY="x")
        django.setup()
        import awa_django.worker.runtime, awa_django.maintenance.metrics
        assert telemetry.current() is telemetry.SILENT
        assert telemetry.parse_traceparent("00-" + "1" * 32 + "-" + "2" * 16 + "-01") is None
        from awa_django.telemetry.otel import trace_fields
        assert trace_fields() == {}
        with telemetry.SILENT.span("x"), telemetry.SILENT.flush([]):
            pass
        assert not [name for name, module in sys.modules.items()
                    if name.startswith("opentelemetry") and module is not None]
        """,
        blocker='sys.modules["opentelemetry"] = None',
    )


def test_providers_that_the_project_configures_late_are_found() -> None:
    run_python(
        """
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.trace import TracerProvider

        assert telemetry.current() is telemetry.SILENT
        trace.set_tracer_provider(TracerProvider())
        until = time.monotonic() + 40 * LOOK_AGAIN_SECONDS
        while not telemetry.current().on:
            assert time.monotonic() < until
        first = telemetry.current()
        assert first.tracing and not first.metering
        metrics.set_meter_provider(MeterProvider())
        while not telemetry.current().metering:
            assert time.monotonic() < until
        assert telemetry.current() is telemetry.current()
        """
    )


def test_no_module_outside_telemetry_imports_opentelemetry() -> None:
    package = Path(telemetry.__file__).parent
    importers = [
        path
        for path in package.parent.rglob("*.py")
        if package not in path.parents and "opentelemetry" in path.read_text(encoding="utf-8")
    ]
    assert importers == []


def test_silence_costs_a_seam_less_than_a_microsecond() -> None:
    """A claim round or a batch makes a handful of calls; one microsecond each is lost in the noise of a round trip."""
    silent, run = telemetry.SILENT, [attempt()]
    rounds = 20_000
    best = min(_seconds(lambda: silent.claimed("mail", run, 0.1), rounds) for _ in range(5))
    assert best / rounds < 1e-6


def _seconds(call: Any, rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    return time.perf_counter() - began


# Log records ------------------------------------------------------------------------------------------------


def test_log_records_carry_the_attempt_and_the_trace(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    run = attempt(7, run_lease=4)
    with caplog.at_level("INFO", "awa_django.job.send_receipt"):
        logger = telemetry.JobLogger(run)
        logger.info("outside")
        with observed.telemetry.execution(run) as execution:
            logger.info("inside %s", "it", extra={"order": 9})
    outside, inside = caplog.records
    assert (outside.name, outside.job_id, outside.queue) == ("awa_django.job.send_receipt", 7, "mail")  # type: ignore[attr-defined]
    assert not hasattr(outside, "trace_id")
    fields = {
        name: getattr(inside, name) for name in ("job_id", "kind", "queue", "attempt", "run_lease", "order")
    }
    assert fields == {
        "job_id": 7,
        "kind": "send_receipt",
        "queue": "mail",
        "attempt": 1,
        "run_lease": 4,
        "order": 9,
    }
    assert execution.context is not None
    assert inside.trace_id == f"{execution.context.trace_id:032x}"  # type: ignore[attr-defined]
    assert inside.span_id == f"{execution.context.span_id:016x}"  # type: ignore[attr-defined]


def test_an_outcome_line_can_name_the_span_of_its_run(observed: Observed) -> None:
    run = attempt()
    with observed.telemetry.execution(run) as execution:
        pass
    fields = telemetry.log_fields(run, "completed", observed.telemetry.context_of((1, 1)))
    assert execution.context is not None
    assert fields["outcome"] == "completed"
    assert fields["span_id"] == f"{execution.context.span_id:016x}"


def test_providers_of_a_test_are_seen_by_every_thread() -> None:
    seen: list[bool] = []
    with telemetry.override(TracerProvider(), MeterProvider([InMemoryMetricReader()])) as live:
        thread = threading.Thread(target=lambda: seen.append(telemetry.current() is live))
        thread.start()
        thread.join(10)
    assert seen == [True]
    assert telemetry.current() is telemetry.SILENT


# The page about all this ---------------------------------------------------------------------------------------


def table(heading: str) -> dict[str, list[str]]:
    """The rows of a table of ``docs/observability.md``, by their first cell."""
    text = (Path(__file__).parent.parent / "docs" / "observability.md").read_text(encoding="utf-8")
    body = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in body.splitlines()
        if line[:3] == "| `"
    ]
    assert rows
    return {row[0].strip("`"): row[1:] for row in rows}


def names(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_the_page_shows_every_metric_as_it_is() -> None:
    shown = {name: (*cells[:2], names(cells[2]), cells[3]) for name, cells in table("Metrics").items()}
    assert shown == {
        name: (item.type, item.unit or "1", item.attributes, item.description)
        for name, item in telemetry.INSTRUMENTS.items()
    }


def test_the_page_shows_every_span_as_it_is() -> None:
    shown = {name: names(cells[0]) for name, cells in table("Spans").items()}
    assert shown == telemetry.SPANS


def test_the_page_shows_every_field_of_a_log_record(observed: Observed) -> None:
    with observed.telemetry.execution(attempt()):
        fields = telemetry.log_fields(attempt(), "completed")
    shown = {name for cell in table("Logs") for name in re.split(r"`, `", cell)}
    assert set(fields) <= shown


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [({"awa:traceparent": "00-a-b-01"}, "00-a-b-01"), ({}, None), ({"awa:traceparent": 7}, None)],
)
def test_a_handler_can_ask_for_the_trace_of_its_job(metadata: dict[str, Any], expected: str | None) -> None:
    flight = Flight(attempt(payload={"metadata": metadata}), cast(Dispatcher, None))
    assert JobContext(flight, cast(Attendant, None)).traceparent == expected
