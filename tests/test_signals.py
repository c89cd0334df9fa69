"""Lifecycle signals: told after the commit, isolated from each other and from the worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.dispatch import Signal

from awa_django import Cancel, RetryAfter, Snooze, TerminalError, job, registry, signals
from awa_django.conf import QueueConfig
from tests.inprocess import ended, working
from tests.stored import run
from tests.workers import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ALL: dict[str, Signal] = {name: getattr(signals, name) for name in signals.__all__ if name != "send_detached"}


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    # What a worker of an earlier test had to tell may still be on its way, and would be heard here.
    assert signals.outbox.wait_empty(30)
    with registry.registry.isolated():
        yield


class Ear:
    """Hears every signal; what it heard, in order, as (name, values)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def receiver(self, name: str) -> Callable[..., None]:
        def hear(sender: Any, **values: Any) -> None:
            self.heard.append((name, {"sender": sender, **values}))

        return hear

    def names(self) -> list[str]:
        assert signals.outbox.wait_empty(30)
        return [name for name, _ in self.heard]


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    with connected(**{name: ear.receiver(name) for name in ALL}):
        yield ear


@contextmanager
def connected(**receivers: Callable[..., Any]) -> Iterator[None]:
    for name, receiver in receivers.items():
        ALL[name].connect(receiver, weak=False)
    try:
        yield
    finally:
        for name, receiver in receivers.items():
            ALL[name].disconnect(receiver)


def raising(error: Exception) -> Callable[[], Any]:
    def handler() -> Any:
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (lambda: None, ["job_started", "job_completed"]),
        (lambda: RetryAfter(3600), ["job_started", "job_retried"]),
        (lambda: Cancel("enough"), ["job_started", "job_cancelled"]),
        (lambda: Snooze(3600), ["job_started"]),
        (raising(TerminalError("never")), ["job_started", "job_exhausted"]),
        (raising(ValueError("again")), ["job_started", "job_retried"]),
    ],
    ids=["completed", "retry_after", "cancel", "snooze", "terminal", "error"],
)
def test_each_outcome_is_told_once_after_the_start(
    ear: Ear, handler: Callable[[], Any], expected: list[str]
) -> None:
    @job
    def trigger() -> Any:
        return handler()

    with working():
        trigger.enqueue()
        (row,) = ended("trigger")
        wait_until(lambda: ear.names() == expected, what=f"{expected}, heard {ear.heard}")
    for _, values in ear.heard:
        assert values["sender"] is trigger
        assert values["job"].id == row["job_id"]


def test_the_row_of_the_signal_is_the_row_that_was_stored(ear: Ear) -> None:
    @job(tags=["one"])
    def tagged() -> None: ...

    @job
    def plain() -> None: ...

    with working():
        tagged.enqueue()
        plain.enqueue()
        stored = {row["job_id"]: row for kind in ("tagged", "plain") for row in ended(kind)}
        wait_until(lambda: ear.names().count("job_completed") == 2)
    for name, values in ear.heard:
        if name == "job_completed":
            found, row = values["job"], stored[values["job"].id]
            assert (found.state, found.attempt, found.run_lease, found.finalized_at, found.progress) == (
                row["state"], row["attempt"], row["run_lease"], row["finalized_at"], None,
            )  # fmt: skip
            assert values["duration"] >= 0


def test_the_fields_say_what_happened(ear: Ear) -> None:
    @job
    def trigger() -> None:
        raise ValueError("again")

    with working():
        trigger.enqueue()
        (row,) = ended("trigger")
        wait_until(lambda: "job_retried" in ear.names())
    values = dict(ear.heard)["job_retried"]
    assert values["error"].startswith("ValueError: again")
    assert values["attempt"] == 1
    assert values["next_run_at"] == values["job"].run_at
    assert row["state"] == "retryable"


def test_a_receiver_that_fails_keeps_neither_the_next_nor_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = threading.Event()

    @job
    def trigger() -> None: ...

    def bad(**values: Any) -> None:
        raise ValueError("not today")

    def good(**values: Any) -> None:
        heard.set()

    signals.job_completed.connect(bad, weak=False)
    signals.job_completed.connect(good, weak=False)
    try:
        with caplog.at_level(logging.WARNING), working():
            trigger.enqueue()
            assert ended("trigger")[0]["state"] == "completed"
            assert heard.wait(30)
            assert signals.outbox.wait_empty(30)
    finally:
        signals.job_completed.disconnect(bad)
        signals.job_completed.disconnect(good)
    assert "of a job of kind 'trigger' failed: ValueError: not today" in caplog.text


def test_a_slow_receiver_delays_neither_jobs_nor_shutdown() -> None:
    begun, release = threading.Event(), threading.Event()

    @job
    def trigger(number: int) -> None: ...

    def slow(**values: Any) -> None:
        begun.set()
        release.wait(60)

    try:
        with connected(job_completed=slow):
            with working({"default": 1}):
                trigger.enqueue_many([{"number": number} for number in range(5)])
                ended("trigger", 5)
                assert begun.wait(30)
                before = time.monotonic()
            assert time.monotonic() - before < 30, "the receiver keeps its thread for a minute"
    finally:
        release.set()
        assert signals.outbox.wait_empty(30)


def test_a_sender_narrows_what_is_heard() -> None:
    @job
    def one() -> None: ...

    @job
    def other() -> None: ...

    heard: list[str] = []

    def hear(job: Any, **values: Any) -> None:
        heard.append(job.kind)

    signals.job_completed.connect(hear, sender=one, weak=False)
    try:
        with working():
            one.enqueue()
            other.enqueue()
            ended("one")
            ended("other")
            wait_until(lambda: heard)
            assert signals.outbox.wait_empty(30)
    finally:
        signals.job_completed.disconnect(hear, sender=one)
    assert heard == ["one"]


def test_an_unknown_kind_ends_without_having_started(ear: Ear) -> None:
    @job
    def trigger() -> None: ...

    request = trigger.request()
    with registry.registry.isolated():
        registry.registry._kinds.pop("trigger")
        with working(unknown_kind="fail"):
            trigger.enqueue()
            ended("trigger")
            wait_until(lambda: ear.names() == ["job_exhausted"])
    assert ear.heard[0][1]["sender"] is None
    assert ear.heard[0][1]["job"].args == request.args


def test_a_rescue_is_told_with_its_reason(ear: Ear) -> None:
    begun = threading.Event()

    @job(queue="dated")
    def trigger(ctx: Any) -> None:
        begun.set()
        while not ctx.is_cancelled():
            time.sleep(0.01)

    queues = {"dated": QueueConfig("dated", deadline=timedelta(hours=1))}
    quick = {"rescue_interval": timedelta(seconds=0.3), "leader_election_interval": timedelta(seconds=0.3)}
    # Nobody starts it again while we listen.
    once = {"promote_interval": timedelta(hours=1)}
    with working({"dated": 1}, lead=True, queues=queues, **quick, **once):
        trigger.enqueue()
        assert begun.wait(30)
        # Its deadline is over now, and not before it began, however long that took.
        run("UPDATE awa.lease_claims SET deadline_at = now()")
        ended("trigger")
        wait_until(lambda: "job_rescued" in ear.names())
    assert ear.names() == ["job_started", "job_rescued"]
    values = dict(ear.heard)["job_rescued"]
    assert values["reason"] == "deadline_exceeded"
    assert values["job"].state == "retryable"


def test_too_many_waiting_signals_lose_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    release, first = threading.Event(), threading.Event()
    heard: list[int] = []
    lost: list[str] = []

    def slow(number: int, **values: Any) -> None:
        heard.append(number)
        first.set()
        release.wait(30)

    signal = Signal()
    signal.connect(slow)
    count = signals.outbox.dropped
    signals.outbox.dropped = lambda kind, event: lost.append(kind)
    try:
        signals.send_detached(signal, None, "kind", number=0)
        assert first.wait(30)
        with caplog.at_level(logging.WARNING):
            for number in range(1, signals.MOST_WAITING + 3):
                signals.send_detached(signal, None, "kind", number=number)
    finally:
        release.set()
        signals.outbox.dropped = count
    assert signals.outbox.wait_empty(30)
    assert lost == ["kind", "kind"]
    assert heard == [0, *range(3, signals.MOST_WAITING + 3)]
    assert "receivers are too slow" in caplog.text


def test_receivers_have_live_connections(ear: Ear) -> None:
    answers: list[Any] = []

    @job
    def trigger() -> None: ...

    def ask(**values: Any) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 41 + 1")
            answers.append(cursor.fetchone())
        connections.close_all()

    with connected(job_completed=ask), working():
        trigger.enqueue()
        ended("trigger")
        wait_until(lambda: answers)
    assert answers == [(42,)]
