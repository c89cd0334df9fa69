"""The one transaction that ends attempts, what is stored with it, and what is told after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import psycopg
from django.db import transaction
from django.dispatch import Signal

from awa_django import followups, signals, telemetry
from awa_django.errors import said
from awa_django.jobs import Job, Landed, Taken
from awa_django.outcomes import Outcome
from awa_django.planes.base import Cursor, Plane, Settlement
from awa_django.registry import registry
from awa_django.transitions import (
    RULES,
    Event,
    Notice,
    Transition,
    land_one,
    notice_of,
    success_notice,
)

__all__ = [
    "announce",
    "announce_start",
    "follow_rescues",
    "listening",
    "notices",
    "pipelined",
    "rescue_notices",
    "resolve",
    "settle",
]

logger = logging.getLogger("awa_django.settle")

_SIGNALS: dict[Event, tuple[Signal, tuple[str, ...]]] = {
    Event.COMPLETED: (signals.job_completed, ("duration",)),
    Event.RETRIED: (signals.job_retried, ("error", "attempt", "next_run_at")),
    Event.EXHAUSTED: (signals.job_exhausted, ("error", "attempt")),
    Event.CANCELLED: (signals.job_cancelled, ("reason",)),
    Event.WAITING_FOR_CALLBACK: (signals.job_waiting, ()),
    Event.RESCUED: (signals.job_rescued, ("reason",)),
}

#: What a rescue is called towards follow-ups and listeners.
RESCUE_REASONS = {
    "heartbeat": "stale_heartbeat",
    "deadline": "deadline_exceeded",
    "callback_timeout": "expired_callback",
}


def _count_dropped(kind: str, event: str) -> None:
    telemetry.current().event_dropped(kind, event)


signals.outbox.dropped = _count_dropped


def pipelined(connection: psycopg.Connection[Any]) -> AbstractContextManager[Any]:
    """Pipeline mode where libpq has it: statements go out without waiting for each other's results."""
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


def settle(
    connection: psycopg.Connection[Any], plane: Plane, transitions: Sequence[Transition]
) -> Settlement:
    """Commit transitions and their follow-ups as one.

    An attempt whose lease has moved on comes back as stale and leaves no trace: stale is an answer,
    not an error. Any other failure undoes the whole batch and raises the driver's error, or
    :class:`~awa_django.followups.FollowUpFailed`; since the guards make it idempotent, the same batch may be sent
    again, whole or one by one. Locks attempts in key order (ADR-004), then what the follow-ups insert.
    """
    if not followups.exist():
        with pipelined(connection), connection.transaction(), psycopg.Cursor(connection) as cursor:
            return plane.settle(cursor, transitions)
    with connection.transaction(), psycopg.Cursor(connection) as cursor:
        with pipelined(connection):
            settlement = plane.settle(cursor, transitions)
        # Outside the pipeline, so that an error here is known to be a follow-up's.
        stored = followups.store(cursor, list(notices(settlement, _has_follow_ups)))
    telemetry.current().enqueued(stored)
    return settlement


def _has_follow_ups(transition: Transition) -> bool:
    rule = transition.rule
    return rule.event is not transition.muted and followups.wanted(transition.attempt.kind, rule.event)


def _has_listeners(transition: Transition) -> bool:
    event = transition.rule.event
    return event is not None and _listened(transition.attempt.kind, event)


def _listened(kind: str, event: Event) -> bool:
    signal = _SIGNALS[event][0]
    return bool(signal.receivers) and signal.has_listeners(registry.get(kind))


def notices(
    settlement: Settlement, wanted: Callable[[Transition], bool] = _has_listeners
) -> Iterable[Notice]:
    """What there is to tell of a settlement, of those transitions that somebody wants to hear of."""
    for item in settlement.completed:
        if wanted(item):
            yield success_notice(item, settlement.finalized_at)
    for landed, item in zip(settlement.landed, settlement.transitions, strict=True):
        if wanted(item):
            notice = notice_of(landed, item.outcome, item.rule.event, duration=item.duration)
            if notice is not None:
                yield notice


def listening() -> bool:
    """Whether any receiver of an outcome's signal is connected."""
    return any(signal.receivers for signal, _ in _SIGNALS.values())


def announce(told: Iterable[Notice]) -> None:
    """Send the signals of outcomes that have been committed."""
    for notice in told:
        if _listened(notice.job.kind, notice.event):
            signal, names = _SIGNALS[notice.event]
            values = {name: getattr(notice, name) for name in names}
            kind = notice.job.kind
            signals.send_detached(signal, registry.get(kind), kind, job=notice.job, **values)


def announce_start(job: Job) -> None:
    """Send ``job_started``; the caller has seen that somebody listens."""
    signals.send_detached(signals.job_started, registry.get(job.kind), job.kind, job=job)


def resolve(
    cursor: Cursor, plane: Plane, taken: Sequence[Taken], outcome: Outcome, *, using: str
) -> list[Landed]:
    """End taken jobs by one outcome on behalf of a client: place them, store their follow-ups, and tell after commit.

    In the caller's transaction on Django's connection ``using``, which a failing follow-up undoes: it raises
    :class:`~awa_django.followups.FollowUpFailed`, and the caller may come again. (contract: runtime/followups-events
    section 2)
    """
    rule = RULES[type(outcome)]
    landed = plane.place(cursor, [land_one(job, outcome) for job in taken])
    told = [notice for item in landed if (notice := notice_of(item, outcome, rule.event)) is not None]
    stored = followups.store(cursor, told)
    if stored:
        transaction.on_commit(partial(telemetry.current().enqueued, stored), using=using)
    if told:
        transaction.on_commit(partial(announce, told), using=using)
    return landed


def rescue_notices(kind: str, landed: Collection[Landed]) -> list[Notice]:
    """What there is to tell of rescued attempts; one that lost its unique key was cancelled."""
    told = []
    for item in landed:
        job, taken = item.job, item.landing.taken
        if item.duplicate:
            last = str(job.errors[-1].get("error") or "") if job.errors else ""
            told.append(Notice(Event.CANCELLED, job, taken.attempt, taken.pair, reason=last))
        else:
            told.append(Notice(Event.RESCUED, job, taken.attempt, taken.pair, reason=RESCUE_REASONS[kind]))
    return told


def follow_rescues(connection: psycopg.Connection[Any], told: Sequence[Notice]) -> None:
    """Store the follow-ups of rescues that have been committed, each job's in a transaction of its own; best effort.

    What fails is logged, and the rescue stands. Raises only when the connection is lost.
    """
    for notice in told:
        if notice.event is not Event.RESCUED or not followups.wanted(notice.job.kind, notice.event):
            continue
        try:
            with connection.transaction(), psycopg.Cursor(connection) as cursor:
                stored = followups.store(cursor, [notice])
            telemetry.current().enqueued(stored)
        except Exception as error:
            if connection.closed or connection.broken:
                raise
            logger.error(
                "job %s was rescued, but its follow-up was not stored: %s", notice.job.id, said(error)
            )
            telemetry.current().followup_failed(notice.job.kind, notice.event.value)
