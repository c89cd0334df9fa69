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
from awa_django.maintenance.sweep import Sweeper, name_on
from awa_django.outcomes import DeadlineExceeded, Exhausted, Outcome, Rescued
from awa_django.planes.base import Cursor, Guard, PastDeadline, Plane, Stale, Unanswered
from awa_django.planes.queue_storage.rings import Look
from awa_django.states import JobState
from awa_django.transitions import RULES, Event, Rule, land_one

__all__ = ["LEASE_STALE", "RECEIPT_STALE", "UNANSWERED", "Rescue", "duties"]

LEASE_STALE = "heartbeat stale: worker presumed dead"
RECEIPT_STALE = "receipt claim stale: worker presumed dead"
UNANSWERED = "callback timed out"

#: Attempts taken in one pass.
BATCH = 500

#: What a look tells of whether there may be attempts to take.
Watch = Callable[[Look], bool]
#: Which attempts to take, given the settings and the jobs to leave alone.
Choose = Callable[[Settings, Collection[int]], Guard]

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
    choose: Choose
    outcome: Outcome
    sweeper: Sweeper
    exhausted: Rule | None = None

    def run(self, context: Context) -> bool:
        """Rescue one batch in one transaction, then tell who wants to know; True if there may be more."""

        def take(cursor: Cursor, passed_over: Collection[int]) -> list[Taken]:
            return self.sweeper.plane.take(cursor, self.choose(context.settings, passed_over))

        def land(taken: Taken) -> Landing:
            return _land(self, context.settings, taken)

        landed = self.sweeper.sweep(context, take, land)
        if landed:
            context.rescued(self.kind, landed)
        return len(landed) >= BATCH


def _quiet_leases(settings: Settings, passed_over: Collection[int]) -> Guard:
    return Stale(settings.stale_after, BATCH, passed_over=passed_over)


def _quiet_receipts(settings: Settings, passed_over: Collection[int]) -> Guard:
    return Stale(settings.stale_after, BATCH, receipts=True, passed_over=passed_over)


def _past_deadline(settings: Settings, passed_over: Collection[int]) -> Guard:
    return PastDeadline(BATCH, passed_over)


def _unanswered(settings: Settings, passed_over: Collection[int]) -> Guard:
    return Unanswered(BATCH, passed_over)


def _any_lease(seen: Look) -> bool:
    return any(seen.lease.sizes)


def _any_receipt(seen: Look) -> bool:
    return any(seen.claim.sizes)


def _any_attempt(seen: Look) -> bool:
    return _any_lease(seen) or _any_receipt(seen)


def _any_row(seen: Look) -> bool:
    return seen.canonical


def duties(settings: Settings, plane: Plane) -> list[Duty]:
    """The rescues on one plane, as lines of the timetable. Each source has transactions of its own, so none sees what
    another has begun (H-02), and none fails with another. Where nothing was written nobody looks for the dead."""
    is_canonical = plane.name == "canonical"

    def line(
        name: str, kind: str, choose: Choose, outcome: Outcome, watch: Watch, exhausted: Rule | None = None
    ) -> Duty:
        name = name_on(plane, name)
        rescue = Rescue(kind, choose, outcome, Sweeper(name, plane), exhausted)
        sees = _any_row if is_canonical else watch
        return Duty(name, settings.rescue_interval, rescue.run, lambda seen: 0.0 if sees(seen) else None)

    receipts = line(
        "rescue of stale receipts", "heartbeat", _quiet_receipts, Rescued(RECEIPT_STALE), _any_receipt
    )
    return [
        line("rescue of stale leases", "heartbeat", _quiet_leases, Rescued(LEASE_STALE), _any_lease),
        *([] if is_canonical else [receipts]),
        line("rescue past deadline", "deadline", _past_deadline, DeadlineExceeded(), _any_attempt),
        line(
            "rescue of unanswered callbacks",
            "callback_timeout",
            _unanswered,
            Rescued(UNANSWERED),
            _any_lease,
            _UNANSWERED,
        ),
    ]
