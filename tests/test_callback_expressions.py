"""Answers that expressions judge (contract: api/cel section 1)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from awa_django import (
    InvalidJob,
    callbacks,
    cel,
)
from awa_django.callbacks import Resolution
from awa_django.errors import CelNotInstalled
from awa_django.jobs import Attempt, Callback, JobInsert
from awa_django.outcomes import WaitForCallback
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from tests import vectors
from tests.answering import (
    HOUR,
    NONE,
    declared,
    parked,
    session,
    state_of,
    world,
)
from tests.planes.world import World

__all__ = ["declared", "world"]

pytestmark = pytest.mark.django_db(transaction=True)


# Expressions -----------------------------------------------------------------------------------------------


def test_each_recorded_resolve_comes_out_as_the_real_client_decides_it() -> None:
    cases = vectors.load("cel")["flow"]
    with session() as opened:
        world = World(opened, QueueStoragePlane())
        attempts = world.running(*[JobInsert(kind="k", args={}, queue="q")] * len(cases))
        for case, attempt in zip(cases, attempts, strict=True):
            assert resolved(world, case, attempt) == case["result"], case


def resolved(world: World, case: dict[str, Any], attempt: Attempt) -> dict[str, Any]:
    """What comes of one recorded case, as the vectors write it."""
    judges = Callback(None, None, *(case["config"].get(name) for name in Callback._fields[2:]))
    try:
        cel.check(callbacks.expressions_of(judges))
    except InvalidJob:
        return {"registration": "rejected"}
    token = uuid4()
    assert world.within(lambda cursor: world.plane.register_callback(cursor, attempt, token, HOUR, judges))
    assert world.end([attempt], WaitForCallback(token)).landed
    given = (case["payload"],) if case["payload_given"] else ()
    default = {} if case["default_action"] is None else {"default": case["default_action"]}
    try:
        resolution = callbacks.resolve(token, *given, **default)
    except InvalidJob as error:
        assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
        return {"error_type": "ValueError", "message": error.reason}
    assert state_of(world, attempt.job_id) is resolution.job.state
    return recorded(resolution)


def recorded(resolution: Resolution) -> dict[str, Any]:
    """A resolution as the vectors write it."""
    shown: dict[str, Any] = {"outcome": resolution.outcome, "job_state": resolution.job.state.value}
    if resolution.is_completed():
        shown["payload"] = resolution.payload
    elif resolution.is_failed():
        (entry,) = resolution.job.errors
        shown["error_entry"] = {key: value for key, value in entry.items() if key != "at"}
    else:
        assert resolution.is_ignored()
        shown["reason"] = resolution.reason
    return shown


def test_an_ignored_answer_leaves_the_token_for_a_following_one(world: World) -> None:
    judges = NONE._replace(filter="payload.kind == 'final'", on_complete="payload.ok", transform="payload.id")
    attempt, token = parked(world, judges=judges)
    ignored = callbacks.resolve(token, {"kind": "ping"}, default="complete")
    assert (ignored.outcome, ignored.job.id, ignored.job.callback_id) == ("ignored", attempt.job_id, token)
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
    completed = callbacks.resolve(token, {"kind": "final", "ok": True, "id": "tx-7"})
    assert (completed.outcome, completed.payload, completed.job.state) == (
        "completed",
        "tx-7",
        JobState.COMPLETED,
    )


def test_a_failing_expression_is_recorded_with_the_failure(world: World) -> None:
    judges = NONE._replace(on_fail="payload.status == 'declined'", on_complete="true")
    _, token = parked(world, judges=judges)
    failed = callbacks.resolve(token, {"status": "declined"})
    (entry,) = failed.job.errors
    assert (failed.outcome, failed.reason) == ("failed", "callback failed: on_fail expression matched")
    assert (entry["error"], entry["expression"]) == (failed.reason, "payload.status == 'declined'")


def test_without_the_engine_a_job_whose_expression_needs_it_is_left_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, token = parked(world, judges=NONE._replace(on_complete="payload.matches('a+')"))

    def missing(*_: object, **__: object) -> None:
        raise CelNotInstalled("matches")

    monkeypatch.setattr("awa_django.callbacks.decide", missing)
    with pytest.raises(CelNotInstalled):
        callbacks.resolve(token, "aaa", default="complete")
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL


def test_an_unknown_default_is_refused(world: World) -> None:
    attempt, token = parked(world)
    with pytest.raises(InvalidJob, match="default_action"):
        callbacks.resolve(token, default="maybe")  # type: ignore[arg-type]
    assert state_of(world, attempt.job_id) is JobState.WAITING_EXTERNAL
