"""Answering callbacks from application code: what is given, transactions, follow-ups, signals and planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from awa_django import (
    CallbackNotFound,
    InvalidJob,
    Job,
    UniqueConflict,
    callbacks,
    job,
    signals,
)
from awa_django.callbacks import CallbackToken, Resolution, callback_uuid, timeout_of
from awa_django.followups import FollowUpFailed
from awa_django.jobs import JobInsert
from awa_django.outcomes import Completed, Failed, WaitForCallback
from awa_django.planes.base import Cursor, Unanswered
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.transitions import Notice
from tests.answering import (
    HOUR,
    NONE,
    Declined,
    declared,
    parked,
    registered,
    session,
    state_of,
    undone,
    world,
)
from tests.planes.world import World, use_canonical_tables

__all__ = ["declared", "world"]

pytestmark = pytest.mark.django_db(transaction=True)


# The verbs -------------------------------------------------------------------------------------------------


def test_each_verb_answers_with_the_job_as_it_is_now(world: World) -> None:
    attempt, token = parked(world)
    extended = callbacks.heartbeat(token, 7200)
    assert (extended.id, extended.state, extended.callback_id) == (
        attempt.job_id,
        JobState.WAITING_EXTERNAL,
        token,
    )
    completed = callbacks.complete(token, {"any": "payload"})
    assert (completed.id, completed.state) == (attempt.job_id, JobState.COMPLETED)
    assert completed.finalized_at is not None

    attempt, token = parked(world)
    failed = callbacks.fail(token, "declined")
    assert failed.state is JobState.FAILED
    assert [entry["error"] for entry in failed.errors] == ["declined"]

    attempt, token = parked(world)
    assert callbacks.retry(token).state is JobState.AVAILABLE
    assert [again.job_id for again in world.claim()] == [attempt.job_id]

    attempt, token = parked(world)
    resumed = callbacks.resume(token, [1, None, "x"])
    assert (resumed.id, resumed.state, resumed.callback_id) == (attempt.job_id, JobState.RUNNING, None)
    standing = world.within(lambda cursor: world.plane.consume_result(cursor, attempt))
    assert standing is not None
    assert standing.result == [1, None, "x"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda token: callbacks.complete(token),
        lambda token: callbacks.fail(token, "x"),
        lambda token: callbacks.retry(token),
        lambda token: callbacks.resume(token),
        lambda token: callbacks.heartbeat(token),
        lambda token: callbacks.resolve(token),
    ],
    ids=["complete", "fail", "retry", "resume", "heartbeat", "resolve"],
)
def test_nobody_is_found_by_an_unknown_or_used_token_and_the_transaction_goes_on(
    world: World, verb: Callable[[UUID], object]
) -> None:
    attempt, token = parked(world)
    with transaction.atomic():
        with pytest.raises(CallbackNotFound, match="callback not found"):
            verb(uuid4())
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    callbacks.complete(token)
    with pytest.raises(CallbackNotFound):
        verb(token)
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


@pytest.mark.parametrize(
    "verb",
    [
        lambda token, lease: callbacks.complete(token, run_lease=lease),
        lambda token, lease: callbacks.fail(token, "x", run_lease=lease),
        lambda token, lease: callbacks.retry(token, run_lease=lease),
        lambda token, lease: callbacks.resume(token, run_lease=lease),
        lambda token, lease: callbacks.heartbeat(token, run_lease=lease),
        lambda token, lease: callbacks.resolve(token, default="complete", run_lease=lease),
    ],
    ids=["complete", "fail", "retry", "resume", "heartbeat", "resolve"],
)
def test_a_run_lease_narrows_a_verb_to_its_attempt(world: World, verb: Callable[[UUID, int], object]) -> None:
    attempt, token = parked(world)
    with pytest.raises(CallbackNotFound, match="of run lease 2"):
        verb(token, 2)
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    verb(token, 1)


def test_a_running_job_can_be_completed_failed_and_resumed_but_not_retried_or_given_time(
    world: World,
) -> None:
    _, token = registered(world)
    for refused in (callbacks.retry, callbacks.heartbeat):
        with pytest.raises(CallbackNotFound):
            refused(token)
    assert callbacks.complete(token).state is JobState.COMPLETED
    assert callbacks.fail(registered(world)[1], "x").state is JobState.FAILED
    assert callbacks.resume(registered(world)[1]).state is JobState.RUNNING


def test_an_answer_while_the_handler_runs_makes_its_own_result_stale(world: World) -> None:
    attempt, token = registered(world)
    callbacks.complete(token)
    for outcome in (Completed(), Failed("late"), WaitForCallback(token)):
        assert world.end([attempt], outcome).stale
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_no_time_left_lets_the_next_rescue_retry_the_job(world: World) -> None:
    attempt, token = parked(world)
    callbacks.heartbeat(token, 0)
    taken = world.within(lambda cursor: world.plane.take(cursor, Unanswered()))
    assert [item.job_id for item in taken] == [attempt.job_id]


def test_an_error_text_that_postgres_cannot_hold_does_not_lose_the_answer(world: World) -> None:
    _, token = parked(world)
    (entry,) = callbacks.fail(token, "a\0b").errors
    assert "\0" not in entry["error"]


# What is given ---------------------------------------------------------------------------------------------


def test_every_spelling_of_an_id_that_receivers_accept_is_accepted() -> None:
    token = uuid4()
    text = str(token)
    for spelling in (
        token,
        text,
        text.upper(),
        token.hex,
        f"{{{text}}}",
        f"urn:uuid:{text}",
        CallbackToken(text),
    ):
        assert callback_uuid(spelling) == token
    assert callback_uuid(f"URN:UUID:{text.upper()}") == token
    assert str(CallbackToken(text)) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        " 3fa85f6457174562b3fc2c963f66afa6",
        "3fa85f64-57174562-b3fc-2c963f66afa6",
        "{3fa85f6457174562b3fc2c963f66afa6}",
        "3fa85f6457174562b3fc2c963f66afa6\n",
        None,
        7,
    ],
)
def test_what_is_no_id_is_refused_before_any_sql(value: Any) -> None:
    with pytest.raises(InvalidJob, match=r"^callback_id: a UUID is needed"):
        callbacks.complete(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 10 * 366 * 86400, "60", None, True])
def test_a_time_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(InvalidJob, match=r"^timeout: "):
        callbacks.heartbeat(uuid4(), value)
    with pytest.raises(InvalidJob, match=r"^timeout: "):
        timeout_of(value)


def test_zero_is_a_time_for_a_heartbeat_and_none_for_a_registration() -> None:
    assert timeout_of(0, may_be_zero=True) == timedelta(0)
    with pytest.raises(InvalidJob, match="a positive time is needed"):
        timeout_of(0)
    assert timeout_of(0.5) == timedelta(seconds=0.5)
    assert timeout_of(timedelta(days=3652)) == timedelta(days=3652)


def test_a_payload_that_is_no_json_is_refused_by_its_path(world: World) -> None:
    attempt, token = parked(world)
    for verb in (callbacks.resume, callbacks.resolve):
        with pytest.raises(InvalidJob, match=r"^payload\.when"):
            verb(token, {"when": object()})
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


# Transactions ----------------------------------------------------------------------------------------------


def test_an_answer_is_undone_with_the_callers_transaction_and_can_be_given_again(world: World) -> None:
    attempt, token = parked(world)
    for verb in (callbacks.complete, callbacks.resume, callbacks.retry):
        with undone():
            verb(token)
        assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    assert callbacks.complete(token).state is JobState.COMPLETED


def test_an_answer_is_seen_by_others_with_the_callers_commit(world: World) -> None:
    attempt, token = parked(world)
    with transaction.atomic():
        callbacks.complete(token)
        assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    assert state_of(world, attempt.job_id) is JobState.COMPLETED


def test_coroutines_have_the_same_verbs(world: World) -> None:
    tokens = [parked(world)[1] for _ in range(6)]

    async def answer() -> list[Any]:
        return [
            (await callbacks.aheartbeat(tokens[0])).state,
            (await callbacks.acomplete(tokens[0])).state,
            (await callbacks.afail(tokens[1], "x")).state,
            (await callbacks.aretry(tokens[2])).state,
            (await callbacks.aresume(tokens[3])).state,
            (await callbacks.aresolve(tokens[4], default="fail")).outcome,
        ]

    assert async_to_sync(answer)() == [
        "waiting_external",
        "completed",
        "failed",
        "available",
        "running",
        "failed",
    ]


# Follow-ups and signals ------------------------------------------------------------------------------------


class Ear:
    """The signals of callbacks, as (name, values), once whoever sends them is done."""

    def __init__(self) -> None:
        self._heard: list[tuple[str, dict[str, Any]]] = []

    def hears(self, name: str) -> Callable[..., None]:
        def hear(sender: Any, **values: Any) -> None:
            self._heard.append((name, values))

        return hear

    def heard(self) -> list[tuple[str, dict[str, Any]]]:
        assert signals.outbox.wait_empty(30)
        return self._heard


@pytest.fixture
def ear() -> Iterator[Ear]:
    assert signals.outbox.wait_empty(30), "what the test before this one has sent is not for it"
    ear = Ear()
    named = {name: getattr(signals, name) for name in signals.__all__ if name.startswith("job_")}
    receivers = {name: ear.hears(name) for name in named}
    for name, receiver in receivers.items():
        named[name].connect(receiver, weak=False)
    yield ear
    for name, receiver in receivers.items():
        named[name].disconnect(receiver)


def ready_kinds(world: World) -> list[str]:
    table = "jobs_hot" if world.plane.name == "canonical" else "ready_entries"
    rows = world.rows(f"SELECT kind FROM awa.{table} WHERE kind LIKE 'after%%'")
    return [row["kind"] for row in rows]


def test_follow_ups_are_stored_with_the_answer_and_signals_sent_after_the_commit(
    world: World, ear: Ear
) -> None:
    @job
    def after_it(job_id: int) -> None: ...

    @job
    def pay() -> None: ...

    @pay.on_completed
    def then(done: Job) -> JobInsert:
        return after_it.request(job_id=done.id)

    attempt, token = parked(world, "pay")
    with transaction.atomic():
        callbacks.complete(token)
        assert ready_kinds(world) == []
        assert ear.heard() == []
    assert ready_kinds(world) == ["after_it"]
    ((name, values),) = ear.heard()
    assert name == "job_completed"
    assert (values["job"].id, values["job"].state, values["duration"]) == (
        attempt.job_id,
        JobState.COMPLETED,
        0.0,
    )


def test_nothing_is_told_of_an_answer_that_was_undone(world: World, ear: Ear) -> None:
    _, token = parked(world)
    with undone():
        callbacks.fail(token, "x")
    assert ear.heard() == []
    callbacks.fail(token, "declined")
    ((name, values),) = ear.heard()
    assert (name, values["error"], values["attempt"]) == ("job_exhausted", "declined", 1)


def test_a_follow_up_that_fails_leaves_the_callback_pending_and_the_next_call_succeeds(
    world: World, ear: Ear
) -> None:
    @job
    def after_it() -> None: ...

    @job
    def pay() -> None: ...

    broken = True

    @pay.on_completed
    def first(done: Job) -> JobInsert:
        return after_it.request()

    @pay.on_completed
    def second(done: Job) -> None:
        if broken:
            raise Declined("not now")

    attempt, token = parked(world, "pay")
    with transaction.atomic():
        with pytest.raises(FollowUpFailed, match="not now"):
            callbacks.complete(token)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    assert ready_kinds(world) == []
    broken = False
    assert callbacks.complete(token).state is JobState.COMPLETED
    assert ready_kinds(world) == ["after_it"]
    assert [name for name, _ in ear.heard()] == ["job_completed"]


def test_a_retry_tells_the_attempt_that_ended_and_stores_none(world: World, ear: Ear) -> None:
    told: list[Notice] = []

    @job
    def pay() -> None: ...

    @pay.on_retried
    def note(retried: Job, notice: Notice) -> None:
        told.append(notice)

    world.enqueue(JobInsert(kind="pay", args={}, queue="q"))
    for number in (1, 2):
        (attempt,) = world.claim()
        assert attempt.attempt == number
        world.end([attempt], Failed(f"failure {number}"))
        make_due(world)
    (attempt,) = world.claim()
    token = uuid4()
    world.within(lambda cursor: world.plane.register_callback(cursor, attempt, token, HOUR, NONE))
    world.end([attempt], WaitForCallback(token))
    again = callbacks.retry(token)
    assert (again.attempt, again.state) == (0, JobState.AVAILABLE)
    (notice,) = told
    assert (notice.attempt, notice.error, notice.next_run_at) == (3, "failure 2", again.run_at)
    ((name, values),) = ear.heard()
    assert (name, values["attempt"], values["error"]) == ("job_retried", 3, "failure 2")
    (next_one,) = world.claim()
    assert (next_one.attempt, next_one.run_lease) == (1, attempt.run_lease + 1)


def make_due(world: World) -> None:
    """Have the only deferred job run now."""
    from awa_django.planes.base import Due
    from awa_django.transitions import promote

    table = "scheduled_jobs" if world.plane.name == "canonical" else "deferred_jobs"
    world.run(f"UPDATE awa.{table} SET run_at = now() - interval '1 second'")

    def work(cursor: Cursor) -> None:
        taken = world.plane.take(cursor, Due(JobState.RETRYABLE))
        world.plane.place(cursor, [promote(item) for item in taken])

    world.within(work)


def test_resuming_and_giving_time_are_silent(world: World, ear: Ear) -> None:
    _, token = parked(world)
    callbacks.heartbeat(token)
    callbacks.resume(token)
    assert ear.heard() == []


def test_resolving_tells_and_follows_as_completing_does(world: World, ear: Ear) -> None:
    @job
    def after_it() -> None: ...

    @job
    def pay() -> None: ...

    @pay.on_exhausted
    def then(failed: Job) -> JobInsert:
        return after_it.request()

    _, token = parked(world, "pay")
    callbacks.resolve(token, None, default="fail")
    assert ready_kinds(world) == ["after_it"]
    assert [name for name, _ in ear.heard()] == ["job_exhausted"]


# Unique keys -----------------------------------------------------------------------------------------------


def test_an_answer_that_a_newer_job_with_the_same_key_keeps_out_changes_nothing(world: World) -> None:
    key, mask = b"k" * 16, "11110000"  # held until completed and for ever, but not while it waits
    attempt, token = parked(world, unique_key=key, unique_states=mask)
    world.enqueue(JobInsert(kind="k", args={}, queue="q", unique_key=key, unique_states=mask))
    newer = world.one("SELECT job_id FROM awa.job_unique_claims")
    for verb in (callbacks.complete, callbacks.retry, callbacks.resume):
        with pytest.raises(UniqueConflict) as raised:
            verb(token)
        assert raised.value.holder_id == newer != attempt.job_id
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    assert callbacks.fail(token, "x").state is JobState.FAILED


# Two planes ------------------------------------------------------------------------------------------------


def test_a_canonical_callback_is_answered_after_new_jobs_go_to_queue_storage() -> None:
    with session() as opened:
        use_canonical_tables(opened)
        world = World(opened, CanonicalPlane())
        attempt, token = parked(world)
        opened.execute(
            "UPDATE awa.storage_transition_state SET current_engine = 'queue_storage', state = 'active'"
        )
        newer = World(opened, QueueStoragePlane())
        other, second = parked(newer)
        assert callbacks.complete(token).id == attempt.job_id
        assert state_of(world, attempt.job_id) is JobState.COMPLETED
        assert callbacks.complete(second).id == other.job_id


def test_an_answer_that_is_printed_shows_neither_its_payload_nor_its_reason() -> None:
    resolution = Resolution("failed", None, {"card": "4242"}, "the card 4242 was declined")  # type: ignore[arg-type]
    assert (resolution.is_failed(), "failed" in repr(resolution)) == (True, True)
    assert "4242" not in repr(resolution)
