"""Follow-up jobs: stored in the transaction of the outcome that causes them (contract: runtime/followups-events).

::

    @send_receipt.on_completed
    def then_log(job):
        return log_receipt.request(order_id=job.args["order_id"])

The function gets the job as the transition left it, and, if it takes a second argument, the
:class:`~awa_django.transitions.Notice` with the error, the attempt and the next run. It returns a job, several, or
None. It runs in the worker while the outcome is being written, perhaps more than once for one outcome, so it should
do nothing but decide: its jobs are stored exactly when the outcome is, but nothing else it does is undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from django.db import connections

from awa_django import telemetry
from awa_django.enqueue import insert_jobs, stamped
from awa_django.errors import AwaError, ConfigurationError, InvalidJob
from awa_django.jobs import JobInsert
from awa_django.outcomes import Failed
from awa_django.planes.base import Cursor
from awa_django.transitions import Event, Notice, Transition, plan
from awa_django.validation import checked_kind, validated

__all__ = ["FollowUpFailed", "degraded", "exist", "follow_up", "isolated", "requests", "store", "wanted"]

Made = JobInsert | Iterable[JobInsert] | None
F = TypeVar("F", bound=Callable[..., Made])

#: Outcomes of which nothing is left when their follow-up fails: the attempt ends as a failure instead (DEC-11).
_UNDONE = frozenset({Event.COMPLETED, Event.CANCELLED, Event.WAITING_FOR_CALLBACK})


class FollowUpFailed(AwaError):
    """A follow-up could not be made or stored, so the outcome that asked for it was not written either.

    ``notice`` is that outcome, or None when one of several is to blame and it is not known which.
    """

    def __init__(self, notice: Notice | None, reason: str) -> None:
        what = "some outcome" if notice is None else f"{notice.event} of job {notice.job.id}"
        super().__init__(f"follow-up of {what}: {reason}")
        self.notice = notice
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Spec:
    make: Callable[..., Made]
    takes_notice: bool

    def __call__(self, notice: Notice) -> Made:
        return self.make(notice.job, notice) if self.takes_notice else self.make(notice.job)


_specs: dict[tuple[str, Event], list[_Spec]] = {}


def follow_up(kind: str, event: Event | str) -> Callable[[F], F]:
    """Store what the decorated function returns whenever a job of ``kind`` ends in this way.

    For kinds whose handler is elsewhere, as in a Rust worker: their callbacks may be resolved from here. Several
    functions of one outcome run in the order they were declared.
    """
    name, event = checked_kind(kind), Event(event)

    def declare(make: F) -> F:
        _specs.setdefault((name, event), []).append(_Spec(make, _takes_notice(make)))
        return make

    return declare


def _takes_notice(make: Callable[..., Any]) -> bool:
    name = f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', make)}"
    if inspect.iscoroutinefunction(make):
        raise ConfigurationError(f"{name}: a follow-up is decided by a plain function, not by a coroutine")
    signature = inspect.signature(make)
    for given in (1, 2):
        try:
            signature.bind(*[None] * given)
        except TypeError:
            continue
        return given == 2
    raise ConfigurationError(f"{name}: a follow-up takes the job, and perhaps the notice of what happened")


@contextmanager
def isolated() -> Iterator[None]:
    """Forget what is declared inside this block when it ends; for tests."""
    before = {key: list(specs) for key, specs in _specs.items()}
    try:
        yield
    finally:
        _specs.clear()
        _specs.update(before)


def exist() -> bool:
    """Whether any follow-up is declared in this process."""
    return bool(_specs)


def wanted(kind: str, event: Event | None) -> bool:
    """Whether follow-ups are declared for this outcome of a kind."""
    return event is not None and (kind, event) in _specs


def requests(notice: Notice) -> list[JobInsert]:
    """The jobs that follow an outcome. Raises :class:`FollowUpFailed` for whatever goes wrong in a declaration."""
    jobs: list[JobInsert] = []
    try:
        for spec in _specs.get((notice.job.kind, notice.event), ()):
            made = spec(notice)
            if made is not None:
                given = [made] if isinstance(made, JobInsert) else list(made)
                jobs += [validated(_checked(item)) for item in given]
    except Exception as error:
        raise FollowUpFailed(notice, f"{type(error).__name__}: {error}") from error
    return jobs


def _checked(item: object) -> JobInsert:
    if not isinstance(item, JobInsert):
        raise InvalidJob(
            "follow-up", f"a job is needed, such as kind.request(...) makes it, not {type(item).__name__}"
        )
    return item


def store(cursor: Cursor, notices: Sequence[Notice]) -> list[JobInsert]:
    """Store the follow-ups of outcomes in the transaction that writes them, and return them.

    They go where the transition state sends new jobs, whatever plane their cause is on. A unique key that is held
    counts as a failure. Raises :class:`FollowUpFailed`, after which the transaction is to be rolled back; the
    driver's errors that are about the database's state, and not about the jobs, pass unchanged.
    """
    live = telemetry.current()
    owned = [(notice, job) for notice in notices for job in stamped(live, requests(notice), pair=notice.pair)]
    if not owned:
        return []
    # Keys ascending and then lanes ascending, as all who take several take them.
    owned.sort(key=lambda pair: (pair[1].unique_key or b"", pair[1].queue, pair[1].priority))
    try:
        insert_jobs(cursor, [job for _, job in owned])
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        causes = {id(notice): notice for notice, _ in owned}
        only = next(iter(causes.values())) if len(causes) == 1 else None
        raise FollowUpFailed(only, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    return [job for _, job in owned]


def leave_connections() -> None:
    """Close Django connections that declarations opened in a thread of ours, unless they are within a transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def degraded(transition: Transition, failure: FollowUpFailed) -> Transition:
    """How an attempt ends whose outcome could not be written for a follow-up's sake (DEC-11).

    A success, a cancellation and a wait become a failure, with the ordinary rule for the last attempt and the
    follow-ups of that; a retry is the same without follow-ups; a final failure also says what went wrong with them.
    """
    notice = failure.notice
    assert notice is not None
    text = f"follow-up enqueue failed ({notice.event}): {failure.reason}"
    if notice.event in _UNDONE:
        failed = plan(
            transition.attempt,
            Failed(text),
            progress=transition.progress,
            dead_letters=transition.dead_letters,
            left_state=True,
        )
        return failed._replace(muted=notice.event, duration=transition.duration)
    notes = (text,) if notice.event is Event.EXHAUSTED else ()
    return transition._replace(muted=notice.event, notes=(*transition.notes, *notes))
