"""Taking attempts away from workers that died or overran, and from callbacks that never came.

(contract: runtime/maintenance section 3)

``max_attempts`` is not applied to a death or a missed deadline by default: the job gets another attempt even at
the limit, as every other leader of the fleet would give it. ``RESCUE_EXHAUSTS`` changes that (DEC-16). A callback
that never came fails the job in its last attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from awa_django.conf import Settings
from awa_django.jobs import Landing, Taken
from awa_django.maintenance import Context, Duty
from awa_django.maintenance.sweep import Sweeper
from awa_django.outcomes import DeadlineExceeded, Exhausted, Outcome, Rescued
from awa_django.planes.base import Cursor, PastDeadline, Stale
from awa_django.planes.queue_storage.rescue import (
    take_past_deadline,
    take_quiet_leases,
    take_quiet_receipts,
    take_unanswered,
)
from awa_django.states import JobState
from awa_django.transitions import RULES, Event, Rule, land_one

__all__ = ["LEASE_STALE", "RECEIPT_STALE", "UNANSWERED", "Rescue", "duties"]

LEASE_STALE = "heartbeat stale: worker presumed dead"
RECEIPT_STALE = "receipt claim stale: worker presumed dead"
UNANSWERED = "callback timed out"

#: Attempts taken in one pass.
BATCH = 500

Take = Callable[[Cursor, Context, Collection[int]], list[Taken]]

_EXHAUSTED = Rule(JobState.FAILED, Event.RESCUED, "rescued", terminal=True, dlq_reason=Exhausted.dlq_reason)
#: Without an answer in the last attempt the job fails whatever the settings say.
_UNANSWERED = Rule(JobState.FAILED, Event.RESCUED, "rescue", terminal=True, dlq_reason="callback_timeout")


def _land(rescue: Rescue, settings: Settings, taken: Taken) -> Landing:
    """Back to the waiting jobs after the backoff; or failed, if that was the last attempt and failing is the rule."""
    last = taken.attempt >= taken.max_attempts
    if last and (rule := rescue.exhausted or (_EXHAUSTED if settings.rescue_exhausts else None)) is not None:
        reason = rule.dlq_reason if settings.dead_letters(taken.queue) else None
        return land_one(taken, rescue.outcome, rule=rule, dlq_reason=reason)
    return land_one(taken, rescue.outcome, rule=RULES[type(rescue.outcome)])


@dataclass(frozen=True, slots=True)
class Rescue:
    """One source of attempts to take away and what their error says.

    ``exhausted`` is how the last attempt of a job ends; None leaves that to the settings.
    """

    kind: str
    take: Take
    outcome: Outcome
    sweeper: Sweeper
    exhausted: Rule | None = None

    def run(self, context: Context) -> bool:
        """Rescue one batch in one transaction, then tell who wants to know; True if there may be more."""

        def take(cursor: Cursor, passed_over: Collection[int]) -> list[Taken]:
            return self.take(cursor, context, passed_over)

        def land(taken: Taken) -> Landing:
            return _land(self, context.settings, taken)

        landed = self.sweeper.sweep(context, take, land)
        if landed:
            context.rescued(self.kind, landed)
        return len(landed) >= BATCH


def _quiet_leases(cursor: Cursor, context: Context, passed_over: Collection[int]) -> list[Taken]:
    return take_quiet_leases(cursor, Stale(context.settings.stale_after, BATCH), passed_over=passed_over)


def _quiet_receipts(cursor: Cursor, context: Context, passed_over: Collection[int]) -> list[Taken]:
    return take_quiet_receipts(cursor, Stale(context.settings.stale_after, BATCH), passed_over=passed_over)


def _past_deadline(cursor: Cursor, context: Context, passed_over: Collection[int]) -> list[Taken]:
    return take_past_deadline(cursor, PastDeadline(BATCH), passed_over=passed_over)


def _unanswered(cursor: Cursor, context: Context, passed_over: Collection[int]) -> list[Taken]:
    return take_unanswered(cursor, BATCH, passed_over=passed_over)


def duties(settings: Settings) -> list[Duty]:
    """The rescues, as lines of the timetable. Each source has transactions of its own, so none sees what another
    has begun (H-02), and none fails with another."""
    leases = Rescue("heartbeat", _quiet_leases, Rescued(LEASE_STALE), Sweeper("rescue of stale leases"))
    receipts = Rescue(
        "heartbeat", _quiet_receipts, Rescued(RECEIPT_STALE), Sweeper("rescue of stale receipts")
    )
    silent = Rescue(
        "callback_timeout",
        _unanswered,
        Rescued(UNANSWERED),
        Sweeper("rescue of unanswered callbacks"),
        _UNANSWERED,
    )
    late = Rescue("deadline", _past_deadline, DeadlineExceeded(), Sweeper("rescue past deadline"))
    return [
        Duty("rescue of stale leases", settings.rescue_interval, leases.run),
        Duty("rescue of stale receipts", settings.rescue_interval, receipts.run),
        Duty("rescue past deadline", settings.rescue_interval, late.run),
        Duty("rescue of unanswered callbacks", settings.rescue_interval, silent.run),
    ]
