"""Answering a job that waits for somebody outside (contract: api/callbacks, runtime/followups-events section 2).

A handler registers a callback, hands its id to an outside system and waits. Whoever gets the answer calls one of
these functions::

    def payment_webhook(request, callback_id):
        with transaction.atomic():
            order.mark_paid()
            callbacks.complete(callback_id)      # commits or rolls back with the order

Each runs in the caller's transaction on Django's connection, or in one of its own, and does all or nothing: the job's
change, its follow-up jobs, and the signals after the commit. A token that is unknown, used or replaced, or whose job
is in a state that the verb does not accept, raises ``CallbackNotFound``; there is no "already done". ``run_lease``
narrows a verb to one attempt. The token is looked for in queue storage first, then in the canonical tables (DEC-23).

The attempt stays locked until the transaction ends, and its worker's signs of life wait for that: answer late in a
transaction, and keep the rest short.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from asgiref.sync import sync_to_async
from django.db import OperationalError, transaction

from awa_django.cel import Complete, DefaultAction, Expressions, Fail, decide
from awa_django.db import job_cursor, postgres
from awa_django.encoding import encode
from awa_django.enqueue import queue_alias
from awa_django.errors import CallbackNotFound, InvalidJob, said
from awa_django.jobs import Callback, Job, JsonValue, Landed, Landing, Taken
from awa_django.outcomes import CallbackFailed, CallbackRetried, Completed, Outcome
from awa_django.planes.base import Answered, Cursor, Plane
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.unique import conflict
from awa_django.settle import resolve as settle_taken
from awa_django.states import JobState
from awa_django.transitions import RULES

__all__ = [
    "CallbackToken",
    "Resolution",
    "acomplete",
    "afail",
    "aheartbeat",
    "aresolve",
    "aresume",
    "aretry",
    "callback_uuid",
    "complete",
    "expressions_of",
    "fail",
    "heartbeat",
    "resolve",
    "resume",
    "retry",
    "timeout_of",
]

logger = logging.getLogger("awa_django.callbacks")

Answer = TypeVar("Answer")

#: Longer waits are a mistake in units, and the database cannot add much more to its now.
MAX_TIMEOUT = timedelta(days=3652.5)
DEFAULT_TIMEOUT = 3600.0
#: Deadlocks are tried again this often, where no transaction of the caller's is open.
CONFLICT_TRIES = 3

#: In the order in which a token is looked for (DEC-23).
_PLANES: tuple[Plane, ...] = (QueueStoragePlane(), CanonicalPlane())
_EITHER = (JobState.WAITING_EXTERNAL, JobState.RUNNING)
_WAITING = (JobState.WAITING_EXTERNAL,)

#: The spellings of an id that every receiver accepts, in any case.
_HEX = "[0-9a-f]"
_HYPHENATED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_SPELLING = re.compile(
    rf"{_HYPHENATED}|{_HEX}{{32}}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True, slots=True)
class CallbackToken:
    """What a registration returns: the id for the outside system, also as ``str(token)``."""

    id: str

    def __str__(self) -> str:
        return self.id

    @property
    def uuid(self) -> UUID:
        """The id as a UUID."""
        return UUID(self.id)


CallbackId: TypeAlias = CallbackToken | UUID | str


@dataclass(frozen=True, slots=True)
class Resolution:
    """What :func:`resolve` did.

    ``outcome`` is ``completed``, ``failed`` or ``ignored``; ``job`` the job after it. ``payload`` is that of a
    completion: transformed if ``on_complete`` decided, else as it came. It is stored nowhere. ``reason`` says why an
    answer was ignored, or what a failure records.
    """

    outcome: Literal["completed", "failed", "ignored"]
    job: Job
    payload: JsonValue = field(default=None, repr=False)
    reason: str = field(default="", repr=False)

    def is_completed(self) -> bool:
        """Whether the job was completed."""
        return self.outcome == "completed"

    def is_failed(self) -> bool:
        """Whether the job has failed."""
        return self.outcome == "failed"

    def is_ignored(self) -> bool:
        """Whether nothing changed, and the callback is still valid."""
        return self.outcome == "ignored"


# -- checking what is given -----------------------------------------------------------------------------------------


def callback_uuid(value: CallbackId) -> UUID:
    """The id of a callback in any spelling that receivers accept. Raises ``InvalidJob`` for anything else."""
    if isinstance(value, UUID):
        return value
    text = value.id if isinstance(value, CallbackToken) else value
    if not isinstance(text, str) or not _SPELLING.fullmatch(text):
        raise InvalidJob("callback_id", f"a UUID is needed, not {text!r}")
    return UUID(text.lower())


def timeout_of(value: float | timedelta, *, may_be_zero: bool = False) -> timedelta:
    """A callback's time from the database's now, fractions kept.

    Raises ``InvalidJob`` unless it is finite, at most ten years, and positive; 0 is for an answer that is due at once.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidJob("timeout", f"seconds or a timedelta are needed, not {value!r}")
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not math.isfinite(seconds) or seconds > MAX_TIMEOUT.total_seconds():
        raise InvalidJob("timeout", f"a finite time of at most ten years is needed, not {value!r}")
    if seconds < 0 or (seconds == 0 and not may_be_zero):
        needed = "time of 0 or more" if may_be_zero else "positive time"
        raise InvalidJob("timeout", f"a {needed} is needed, not {value!r}")
    return timedelta(seconds=seconds)


def expressions_of(callback: Callback) -> Expressions:
    """The expressions that judge the answer to a callback."""
    return Expressions(callback.filter, callback.on_complete, callback.on_fail, callback.transform)


# -- the verbs ------------------------------------------------------------------------------------------------------


def complete(
    callback_id: CallbackId,
    payload: object = None,
    *,
    run_lease: int | None = None,
    using: str | None = None,
) -> Job:
    """Complete the job that waits for this callback, or still runs; returns it as it is now.

    The payload is **not stored**: what the application needs of it, it stores in the same transaction. A handler that
    still runs has lost its attempt, and whatever it returns is dropped. Raises ``CallbackNotFound``;
    ``UniqueConflict`` if the completed state claims the job's unique key and a newer job took it meanwhile.
    """
    return _end(callback_id, Completed(), run_lease, using, _EITHER)


def fail(
    callback_id: CallbackId,
    error: str,
    *,
    run_lease: int | None = None,
    using: str | None = None,
) -> Job:
    """Fail the job that waits for this callback, or still runs, whatever attempts are left.

    Never goes to the dead letters. Raises as :func:`complete`.
    """
    if not isinstance(error, str):
        raise InvalidJob("error", f"text is needed, not {error!r}")
    return _end(callback_id, CallbackFailed(error), run_lease, using, _EITHER)


def retry(callback_id: CallbackId, *, run_lease: int | None = None, using: str | None = None) -> Job:
    """Have the job that waits for this callback run again from the start, at once and with all its attempts.

    Progress stays. Raises as :func:`complete`, and ``CallbackNotFound`` for a job that still runs.
    """
    return _end(callback_id, CallbackRetried(), run_lease, using, _WAITING)


def resume(
    callback_id: CallbackId,
    payload: object = None,
    *,
    run_lease: int | None = None,
    using: str | None = None,
) -> Job:
    """Hand ``payload`` to the handler that waits in ``wait_for_callback``, or is about to, and have the job run on.

    For waits inside a handler only: a job whose handler returned ``WaitForCallback`` would run with nobody working on
    it, until it is rescued for its silence. Raises ``InvalidJob`` for a payload that is no JSON, else as
    :func:`complete`.
    """
    answer = encode(payload, "payload")

    def work(cursor: Cursor) -> Job:
        plane, pending = _found(cursor, callback_id, run_lease, _EITHER)
        plane.resume(cursor, pending, answer)
        return _as_it_lies(pending, JobState.RUNNING)

    return _in_transaction(work, using)


def heartbeat(
    callback_id: CallbackId,
    timeout: float | timedelta = DEFAULT_TIMEOUT,
    *,
    run_lease: int | None = None,
    using: str | None = None,
) -> Job:
    """Give a job that waits for this callback ``timeout`` (seconds, or a timedelta) from now; 0 makes it due at once.

    Raises ``CallbackNotFound``, also for a job that still runs: its time is not looked at until it waits.
    """
    time = timeout_of(timeout, may_be_zero=True)

    def work(cursor: Cursor) -> Job:
        plane, pending = _found(cursor, callback_id, run_lease, _WAITING)
        plane.extend_callback(cursor, pending, time)
        return _as_it_lies(pending, JobState.WAITING_EXTERNAL)

    return _in_transaction(work, using)


def resolve(
    callback_id: CallbackId,
    payload: object = None,
    *,
    default: DefaultAction = "ignore",
    run_lease: int | None = None,
    using: str | None = None,
) -> Resolution:
    """Let the expressions that the callback was registered with judge an answer, and do what they say.

    ``default`` is done where they do not decide, or there are none: ``complete``, ``fail`` or ``ignore``. Raises
    ``CelNotInstalled`` for an expression that needs the extra ``cel`` where that is missing, and leaves the job
    waiting; else as :func:`complete`.
    """
    answer = encode(payload, "payload")

    def work(cursor: Cursor) -> Resolution:
        plane, pending = _found(cursor, callback_id, run_lease, _EITHER)
        assert pending.callback is not None  # it was found by it
        decision = decide(expressions_of(pending.callback), answer, default, job_id=pending.job_id)
        match decision:
            case Complete(result):
                job = _land(cursor, plane, pending, Completed(), using)
                return Resolution("completed", job, result)
            case Fail(error, expression):
                job = _land(cursor, plane, pending, CallbackFailed(error, expression), using)
                return Resolution("failed", job, reason=error)
        return Resolution("ignored", _as_it_lies(pending, pending.state), reason=decision.reason)

    return _in_transaction(work, using)


acomplete = sync_to_async(complete, thread_sensitive=True)
afail = sync_to_async(fail, thread_sensitive=True)
aretry = sync_to_async(retry, thread_sensitive=True)
aresume = sync_to_async(resume, thread_sensitive=True)
aheartbeat = sync_to_async(heartbeat, thread_sensitive=True)
aresolve = sync_to_async(resolve, thread_sensitive=True)


# -- how they do it -------------------------------------------------------------------------------------------------


def _end(
    callback_id: CallbackId,
    outcome: Outcome,
    run_lease: int | None,
    using: str | None,
    states: Collection[JobState],
) -> Job:
    def work(cursor: Cursor) -> Job:
        plane, pending = _found(cursor, callback_id, run_lease, states)
        return _land(cursor, plane, pending, outcome, using)

    return _in_transaction(work, using)


def _found(
    cursor: Cursor,
    callback_id: CallbackId,
    run_lease: int | None,
    states: Collection[JobState],
) -> tuple[Plane, Taken]:
    """The attempt that a token may answer, locked, and the plane it is on; raises ``CallbackNotFound``."""
    token = callback_uuid(callback_id)
    for plane in _PLANES:
        pending = plane.find_callback(cursor, token, run_lease, states)
        if pending is not None:
            return plane, pending
    attempt = "" if run_lease is None else f" of run lease {run_lease}"
    raise CallbackNotFound(
        f"callback not found: {token}{attempt}; it was never registered, is used or replaced, or its job "
        f"is not {' or '.join(states)}"
    )


def _land(cursor: Cursor, plane: Plane, pending: Taken, outcome: Outcome, using: str | None) -> Job:
    """End a found attempt, with its follow-ups, and tell after the commit."""
    assert pending.callback is not None
    token = pending.callback.id
    assert token is not None
    guard = Answered(token, pending.run_lease, closes=RULES[type(outcome)].closes)
    taken = plane.take(cursor, guard)
    landed = settle_taken(cursor, plane, taken, outcome, using=queue_alias(using))
    if not landed:  # it was locked since it was found, so only a job without its body comes here
        raise CallbackNotFound(f"callback not found: {token}")
    for item in landed:
        if item.duplicate:
            raise conflict(cursor, item.landing.taken)
    return landed[0].job


def _as_it_lies(taken: Taken, state: JobState) -> Job:
    """The job of a found attempt that stays where it is, in this state now."""
    landing = Landing(taken, state, taken.attempt, taken.errors, taken.metadata, taken.progress)
    return Landed(landing, taken.run_at).job


def _in_transaction(work: Callable[[Cursor], Answer], using: str | None) -> Answer:
    """Do something in a savepoint of the caller's transaction, or in one of its own, which a deadlock repeats."""
    alias = queue_alias(using)
    connection = postgres(alias)
    tries = 1 if connection.in_atomic_block or not connection.get_autocommit() else CONFLICT_TRIES
    while True:
        tries -= 1
        try:
            with (
                transaction.atomic(using=alias),
                connection.wrap_database_errors,
                job_cursor(alias) as cursor,
            ):
                return work(cursor)
        except OperationalError as error:
            if tries <= 0 or not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
            logger.info("answering a callback met a deadlock, again: %s", said(error))
