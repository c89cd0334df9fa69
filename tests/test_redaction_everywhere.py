"""What a job was given is not in logs, traces and reprs; whoever runs it gets it whole.

(contract: api/security section 5)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings

from awa_django import (
    JobContext,
    RetryAfter,
    Snooze,
    WaitForCallback,
    callbacks,
    job,
    operations,
    periodic,
    signals,
)
from awa_django.enqueue import enqueue
from awa_django.errors import InvalidJob, said, without_details
from awa_django.jobs import Attempt, Callback, Job, JobInsert, Landed, Landing, Taken
from awa_django.outcomes import CallbackFailed, Completed, Exhausted, Failed, Postponed, Terminal
from awa_django.planes.base import Beat
from awa_django.redaction import MASK
from awa_django.registry import registry
from awa_django.states import JobState
from awa_django.transitions import Event, Notice, Standing, plan
from tests.inprocess import ended, working
from tests.observed import Observed
from tests.workers import wait_until

ARGS: dict[str, Any] = {"user": {"Password": "x-secret"}, "items": [{"api_key": "y-secret"}]}
SECRETS = ("x-secret", "y-secret")
QUICK = {"promote_interval": timedelta(seconds=0.1), "leader_election_interval": timedelta(seconds=0.2)}


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.isolated(), periodic.declared.isolated():
        yield


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Everything that any handler could print of the records."""
    form = logging.Formatter()
    return "\n".join(f"{form.format(record)} {vars(record)}" for record in caplog.records)


def traced(observed: Observed) -> str:
    return "\n".join(span.to_json() for span in observed.spans())


class Ran(NamedTuple):
    """What came of the jobs of one run of a worker."""

    got: list[Any]
    log: str
    spans: str


# A worker's whole life ------------------------------------------------------------------------------------


def run(caplog: pytest.LogCaptureFixture, error: str) -> Ran:
    """Jobs that end in every way, with the log at DEBUG and everything traced; ``error`` is what handlers raise."""
    got: list[Any] = []
    tokens: list[Any] = []
    told: list[str] = []

    def hear(**values: Any) -> None:
        # An error's text is given as it is: a receiver is the project's own code.
        told.append(repr({name: value for name, value in values.items() if name != "error"}))

    @job
    def succeed(ctx: JobContext, **args: Any) -> Any:
        got.append(args)
        ctx.set_progress(50, "half")
        ctx.update_metadata({"token": "x-secret"})
        ctx.flush_progress()
        return args

    @job(keep_result=True)
    def keep(ctx: JobContext, **args: Any) -> Any:
        got.append(args)
        return args

    @job
    async def fail_once(ctx: JobContext, **args: Any) -> None:
        got.append(args)
        if ctx.attempt == 1:
            raise ValueError(error)

    @job
    def again(ctx: JobContext, **args: Any) -> RetryAfter | Snooze | None:
        got.append(args)
        return RetryAfter(0) if ctx.attempt == 1 else None

    @job(max_attempts=1)
    def die(ctx: JobContext, **args: Any) -> None:
        got.append(args)
        raise ValueError(error)

    @job
    def wait(ctx: JobContext, **args: Any) -> WaitForCallback:
        got.append(args)
        tokens.append(ctx.register_callback(timeout=60, on_complete='payload.api_key == "y-secret"'))
        return WaitForCallback(tokens[-1])

    @job
    def misfit(number: datetime, **args: Any) -> None:
        raise AssertionError("its arguments do not fit")

    @job
    def after(ctx: JobContext, **args: Any) -> None:
        got.append(args)

    @succeed.on_completed
    def then(done: Job) -> JobInsert:
        return after.request(**done.args)  # type: ignore[arg-type]

    receivers = [signals.job_started, signals.job_completed, signals.job_retried, signals.job_exhausted]
    for signal in receivers:
        signal.connect(hear)
    try:
        with caplog.at_level(logging.DEBUG), Observed() as observed:
            logging.getLogger("django.db.backends").setLevel(logging.INFO)  # Django's own, with DEBUG only
            for kind in (succeed, keep, fail_once, again, die, wait):
                kind.using(metadata={"token": "y-secret"}).enqueue(**ARGS)
            enqueue(JobInsert(kind="misfit", args={"number": "x-secret", **ARGS}))
            enqueue(JobInsert(kind="misfit", args=[ARGS]))
            with transaction.atomic():
                operations.cancel(again.using(run_at=timedelta(hours=1)).enqueue(**ARGS).id)
            with working({"default": 4}, lead=True, dlq_enabled=True, **QUICK):
                wait_until(lambda: tokens and operations.waiting_callbacks().items, what="a parked job")
                callbacks.resolve(tokens[0], {"api_key": "y-secret"})
                for kind in ("succeed", "keep", "fail_once", "again", "die", "wait", "misfit", "after"):
                    ended(kind)
                wait_until(lambda: len(got) == 9, what=f"every attempt; there were {len(got)}")
                assert signals.outbox.wait_empty(30)
    finally:
        for signal in receivers:
            signal.disconnect(hear)
    assert len(told) >= 10
    return Ran(got, f"{logged(caplog)}\n" + "\n".join(told), traced(observed))


@pytest.mark.django_db(transaction=True)
def test_a_run_of_a_worker_leaves_secrets_in_no_log_and_no_span(caplog: pytest.LogCaptureFixture) -> None:
    ran = run(caplog, error="no")
    assert ran.got == [ARGS] * len(ran.got), "the handler gets it whole"
    assert "failed for good in attempt 1 of 1: ValueError: no" in ran.log
    assert "is not kept" in ran.log
    assert "job.execute die" in ran.spans
    for secret in SECRETS:
        assert secret not in ran.log
        assert secret not in ran.spans


def redact(kind: str, part: str, value: Any) -> Any:
    """A project's own, for texts."""
    if not isinstance(value, str):
        return value
    for secret in SECRETS:
        value = value.replace(secret, MASK)
    return value


@pytest.mark.django_db(transaction=True)
@override_settings(AWA={"REDACT": redact})
def test_the_project_decides_what_of_an_error_is_in_logs_and_spans(caplog: pytest.LogCaptureFixture) -> None:
    ran = run(caplog, error="wrong password x-secret")
    assert f"ValueError: wrong password {MASK}" in ran.log
    assert r"wrong password \u2022" in ran.spans
    # The source line of the handler says what it raised; its value is nowhere.
    assert "x-secret" not in ran.log
    assert "x-secret" not in ran.spans
    stored = "".join(str(row["payload"]) for row in ended("die"))
    assert "wrong password x-secret" in stored, "what is stored is whole"


# Errors of the database ------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_error_of_the_database_is_told_without_the_row(caplog: pytest.LogCaptureFixture) -> None:
    insert = """
        INSERT INTO awa.jobs_hot (kind, queue, args, priority) VALUES ('k', 'q', '{"password": "x-secret"}', 99)
    """
    with pytest.raises(IntegrityError) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(insert)
    error = caught.value
    assert "x-secret" in str(error)
    assert said(error) == str(error).partition("\n")[0]
    assert said(error.__cause__ or error) == said(error)
    with Observed() as observed, pytest.raises(IntegrityError), observed.telemetry.span("work"):
        raise error
    assert "violates check constraint" in traced(observed)
    assert "x-secret" not in traced(observed)
    try:
        raise without_details(error)
    except IntegrityError:
        logging.getLogger("awa_django").exception("it failed")
    assert said(error) in logged(caplog)
    assert "x-secret" not in logged(caplog)


def test_other_errors_are_told_as_they_are() -> None:
    assert said(ValueError(" no ")) == "no"
    assert said(KeyError()) == "KeyError"
    assert said(psycopg.OperationalError("connection refused")) == "connection refused"
    error = ValueError("no")
    assert without_details(error) is error
    assert str(error) == "no"


# Reprs -----------------------------------------------------------------------------------------------------


NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAYLOAD: dict[str, Any] = {"metadata": ARGS, "errors": [ARGS], "progress": ARGS}
INSERT = JobInsert(kind="k", args=ARGS, metadata=ARGS)
ATTEMPT = Attempt(
    1, 1, "k", "q", ARGS, 1, 25, 2, 2, 0, 0, 1, 0, 0, 1, None, None, NOW, None, NOW, NOW, None, None, PAYLOAD
)  # fmt: skip
CALLBACK = Callback(None, NOW, "x-secret", "x-secret", "x-secret", "x-secret")
TAKEN = Taken(
    1, 1, "k", "q", ARGS, JobState.RUNNING, 2, 1, 25, NOW, NOW, NOW, None, None, ARGS, (), (ARGS,), ARGS, NOW,
    stored_payload=PAYLOAD, callback=CALLBACK,
)  # fmt: skip
LANDED = Landed(Landing(TAKEN, JobState.FAILED, 1, (ARGS,), ARGS, ARGS), NOW)
VALUES: list[Any] = [
    INSERT,
    ATTEMPT,
    ATTEMPT.job,
    CALLBACK,
    TAKEN,
    LANDED,
    plan(ATTEMPT, Completed(ARGS), progress=ARGS, metadata=ARGS),
    plan(ATTEMPT, Failed("x-secret")),
    Exhausted("x-secret"),
    Terminal("x-secret"),
    Postponed(0.0, ARGS),
    CallbackFailed("x-secret", "x-secret"),
    Notice(Event.EXHAUSTED, LANDED.job, 1, (1, 1), error="x-secret"),
    Standing(1, 1, JobState.RUNNING, result=ARGS),
    Beat(ATTEMPT, ARGS),
    operations.JobRecord(LANDED.job, "canonical", callback=CALLBACK),
    callbacks.Resolution("failed", LANDED.job, ARGS, "x-secret"),
    operations.TimelineEntry(NOW, "failed", detail="x-secret"),
    signals._Message(signals.job_exhausted, None, "k", {"job": LANDED.job, "error": "x-secret"}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_repr_shows_which_job_and_nothing_of_its_values(value: Any) -> None:
    shown = repr(value)
    assert not any(secret in shown for secret in SECRETS)
    assert type(value).__name__ in shown


def test_options_and_schedules_are_shown_without_values() -> None:
    @job
    def greet(**args: Any) -> None:
        """Is not run."""

    schedule = periodic.cron("nightly", "0 3 * * *", greet.using(metadata=ARGS), args=ARGS)
    for value in (greet.using(metadata=ARGS), schedule):
        assert not any(secret in repr(value) for secret in SECRETS)


# Messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [[ARGS], "x-secret", [["x-secret"]]])
def test_arguments_that_do_not_fit_are_not_quoted(args: Any) -> None:
    @job
    def greet(number: int) -> None:
        """Is not run."""

    with pytest.raises(InvalidJob) as caught:
        registry["greet"].decode(args)
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_a_model_says_what_does_not_fit_without_the_value() -> None:
    class Fault(ValueError):
        """As pydantic has it."""

        def errors(self, *, include_input: bool, include_context: bool, include_url: bool) -> list[Any]:
            assert (include_input, include_context, include_url) == (False, False, False)
            return [{"loc": ("user", 0), "msg": "Input should be a number"}]

        def __str__(self) -> str:
            return "input_value='x-secret'"

    class Model:
        """As pydantic has it."""

        @classmethod
        def model_validate(cls, value: Any) -> Any:
            raise Fault

        def model_dump(self, **options: Any) -> Any:
            return {}

    @job(args=Model, kind="greet")
    def greet(ctx: JobContext, args: Model) -> None:
        """Is not run."""

    with pytest.raises(InvalidJob, match=r"does not fit Model: user\.0: Input should be a number"):
        registry["greet"].decode(ARGS)
