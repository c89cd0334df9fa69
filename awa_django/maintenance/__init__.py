"""The leader's timetable: what is done to the database as a whole, how often, and by which function.

One process of the fleet leads, whatever it is written in, and does all of it; see
:mod:`awa_django.worker.leader` for how it is chosen. Duties run one at a time on the leader's own
connection. Each opens its own transactions. A duty that fails is logged and comes round
again; only the loss of the connection ends the round, because it ends the leadership too.
(contract: runtime/maintenance, queue-storage/maintenance)

**An idle leader must be cheap.** Ten transactions a second, as four timers of their own would make, are too many.
So duties come in two sorts. *Timed* ones run at their interval: cleanup, roll-up, sweeps. *Watchful* ones,
promotion, rescue and the rings, are asked what they make of one look at the database (one statement, no
scan, about 1 ms), which is taken about once a second; their interval is only the least time between two runs.
The look also says when the next deferred job is due, so the leader sleeps until that instant and promotes then,
rather than at the next tick of a clock: as long as something is due or falls due within the second, promotion
is as prompt as its interval of 250 ms, and usually prompter. The one case that can wait longer, by up to the
second between two looks, is a job put off for less than that by another process;
:meth:`Timetable.expect` closes it for this one. A ring turns only when its current slot was written to, and a slot
is emptied only when it holds something, so an idle database sees one read-only statement a second.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.conf import Settings
from awa_django.errors import without_details
from awa_django.jobs import Landed
from awa_django.planes.base import Plane
from awa_django.planes.queue_storage.rings import Look, look

__all__ = ["Context", "Duty", "Governor", "Timetable", "timetable"]

logger = logging.getLogger("awa_django.maintenance")

#: Seconds between two looks when nothing is known to fall due earlier.
LOOK_INTERVAL = 1.0
#: Attempts at a duty whose transaction was chosen as a deadlock's victim.
DEADLOCK_ATTEMPTS = 4
#: A look that grows slow, say because a paused queue has very many due jobs, takes at most this part of the time.
LOOK_SHARE = 0.05


def _tell_nobody(kind: str, landed: Sequence[Landed]) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a duty works with.

    ``connection`` is a session of the leader's own, in autocommit. ``rescued`` is told, after the commit,
    of attempts that were taken away, with the kind of rescue (``heartbeat``, ``deadline``, ``callback_timeout``):
    to set the cancel flag of a local attempt, to count, and to write follow-ups.
    """

    connection: psycopg.Connection[Any]
    settings: Settings
    rescued: Callable[[str, Sequence[Landed]], None] = _tell_nobody
    stopping: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Duty:
    """One line of the timetable.

    ``run`` does the work and answers whether there is more to do at once. With ``when`` the duty is watchful: it
    is asked after every look in how many seconds the duty is worth running, None for "nothing in sight",
    and ``interval`` is the least time between two runs. ``skippable`` duties are thinned out while
    they overrun. ``at_once`` runs the duty on election, not an interval later.
    """

    name: str
    interval: timedelta
    run: Callable[[Context], bool | None]
    when: Callable[[Look], float | None] | None = None
    skippable: bool = True
    at_once: bool = False


@dataclass(slots=True)
class Governor:
    """Thins out a duty that takes longer than its interval (contract: runtime/maintenance section 2).

    Three runs in a row longer than 1.5 intervals make it delayed: from then on ticks are skipped in
    proportion to the last duration, at most 120. Three runs in a row shorter than 0.7 intervals end that.
    """

    interval: float
    delayed: bool = False
    _late: int = 0
    _early: int = 0

    def record(self, duration: float) -> int:
        """Take note of a run; returns how many ticks to skip before the next."""
        if duration > 1.5 * self.interval:
            self._late, self._early = self._late + 1, 0
        elif duration < 0.7 * self.interval:
            self._late, self._early = 0, self._early + 1
        else:
            self._late = self._early = 0
        if not self.delayed and self._late >= 3:
            self.delayed = True
        elif self.delayed and self._early >= 3:
            self.delayed = False
        return min(120, 2 * math.ceil(duration / self.interval)) if self.delayed else 0


@dataclass(slots=True)
class _Line:
    """A duty and where it stands: the earliest time it may run, and for a watchful one when it is wanted."""

    duty: Duty
    governor: Governor
    not_before: float
    wanted_at: float | None = None
    ran_at: float = -math.inf

    def due_at(self) -> float | None:
        if self.duty.when is None:
            return self.not_before
        return None if self.wanted_at is None else max(self.wanted_at, self.not_before)


@dataclass(slots=True)
class Timetable:
    """Runs duties one at a time until told to stop. Not to be shared between threads, save where it says so."""

    duties: Sequence[Duty]
    look: Callable[[psycopg.Cursor[Any]], Look] = look
    clock: Callable[[], float] = time.monotonic
    #: Set by another thread to end a pause early.
    wake: threading.Event = field(default_factory=threading.Event)
    _lines: list[_Line] = field(default_factory=list)
    _look_at: float = 0.0
    _expected: list[float] = field(default_factory=list)
    _expected_lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, seconds: float) -> None:
        """Tell the leader, from any thread, that this process put off a job for so many seconds.

        Only worth it for less than a second; the next look finds the others in time.
        """
        if seconds < LOOK_INTERVAL:
            with self._expected_lock:
                self._expected.append(self.clock() + seconds)
            self.wake.set()

    def run(self, context: Context, stop: threading.Event) -> None:
        """Work until ``stop`` is set (and ``wake``, to notice at once) or the connection is lost.

        Raises ``psycopg.OperationalError`` when the connection is gone; the leadership is gone with it.
        """
        self.begin()
        while not stop.is_set():
            pause = self.step(context)
            if pause > 0:
                self.wake.wait(pause)
                self.wake.clear()

    def begin(self) -> None:
        """Start over, as on election: first runs are one interval away, the first look is now."""
        now = self.clock()
        self._lines = [
            _Line(
                duty,
                Governor(duty.interval.total_seconds()),
                now if duty.at_once else now + duty.interval.total_seconds(),
            )
            for duty in self.duties
        ]
        self._look_at = now

    def step(self, context: Context) -> float:
        """Look if it is time, run the duty that is due longest, and return the seconds until the next step."""
        self._take_expected()
        if self._is_watchful() and self.clock() >= self._look_at:
            self._take_look(context)
        now = self.clock()
        line, due_at = self._next()
        if line is None:
            return max(self._look_at - now, 0.0) if self._is_watchful() else LOOK_INTERVAL
        if due_at <= now and not context.stopping():
            self._run_line(line, context)
            line, due_at = self._next()
        pause = min(due_at, self._look_at) if self._is_watchful() else due_at
        return max(pause - self.clock(), 0.0)

    def _is_watchful(self) -> bool:
        return any(line.duty.when for line in self._lines)

    def _next(self) -> tuple[_Line | None, float]:
        """The line that is due first, and when; of several the one that has waited longest."""
        due = [(due_at, line.ran_at, line) for line in self._lines if (due_at := line.due_at()) is not None]
        if not due:
            return None, math.inf
        due_at, _, line = min(due, key=lambda entry: entry[:2])
        return line, due_at

    def _take_expected(self) -> None:
        with self._expected_lock:
            expected, self._expected = self._expected, []
        for at in expected:
            self._look_at = min(self._look_at, at)

    def _take_look(self, context: Context) -> None:
        """Ask the watchful duties what they make of the database as it is now."""
        began = self.clock()
        try:
            with context.connection.cursor() as cursor:
                seen = self.look(cursor)
        except psycopg.Error as error:
            if _is_lost(context):
                raise
            if _is_broken_off(error, context):
                return
            without_details(error)
            logger.exception("the leader could not look at the queue; it tries again in %g s", LOOK_INTERVAL)
            self._look_at = self.clock() + LOOK_INTERVAL
            return
        now = self.clock()
        for line in self._lines:
            if line.duty.when is not None:
                seconds = line.duty.when(seen)
                line.wanted_at = None if seconds is None else now + max(seconds, 0.0)
        self._look_at = now + max(LOOK_INTERVAL, (now - began) / LOOK_SHARE)

    def _run_line(self, line: _Line, context: Context) -> None:
        duty, interval = line.duty, line.duty.interval.total_seconds()
        planned, began = line.not_before, self.clock()
        more = self._perform(duty, context)
        ended = line.ran_at = self.clock()
        if duty.when is not None:
            # What it was wanted for is done; the next look says what else there is.
            line.wanted_at = None
            line.not_before = began + interval
            self._look_at = min(self._look_at, max(line.not_before, ended))
        else:
            # Ticks keep their rhythm; a late run stands for all that were missed.
            line.not_before = planned + interval * max(1, math.ceil((ended - planned) / interval))
        if more:
            line.not_before = ended
            if duty.when is not None:
                line.wanted_at = ended
            return
        if duty.skippable:
            was_delayed = line.governor.delayed
            skipped = line.governor.record(ended - began)
            line.not_before += skipped * interval
            if line.governor.delayed and not was_delayed:
                telemetry.current().overran(duty.name)
                logger.warning(
                    "%s took %.2f s and is due every %g s; skipping ticks until it is faster again",
                    duty.name, ended - began, interval,
                )  # fmt: skip
            elif was_delayed and not line.governor.delayed:
                logger.info("%s keeps to its interval of %g s again", duty.name, interval)

    def _perform(self, duty: Duty, context: Context) -> bool:
        """Run a duty; a deadlock's victim tries again, any other error is logged and left to the next time."""
        for attempt in range(1, DEADLOCK_ATTEMPTS + 1):
            try:
                with telemetry.current().duty(duty.name):
                    return bool(duty.run(context))
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                if attempt == DEADLOCK_ATTEMPTS:
                    logger.exception("%s met a deadlock %d times in a row", duty.name, attempt)
                else:
                    logger.info("%s met a deadlock and tries again", duty.name)
            except Exception as error:
                if _is_lost(context):
                    raise
                if _is_broken_off(error, context):
                    return False
                without_details(error)
                logger.exception("%s failed; it is due again in %s", duty.name, duty.interval)
                return False
        return False


def _is_lost(context: Context) -> bool:
    return context.connection.closed or context.connection.broken


def _is_broken_off(error: Exception, context: Context) -> bool:
    """Whether a shutdown that could not wait had the server cancel the statement."""
    return isinstance(error, psycopg.errors.QueryCanceled) and context.stopping()


def timetable(settings: Settings, planes: Sequence[Plane], *, extra: Sequence[Duty] = ()) -> Timetable:
    """The timetable of a leader of these planes; ``extra`` are duties of other modules, such as schedules.

    A leader looks after both planes, whichever it works on: the other's jobs may have no leader of their own.
    """
    from awa_django.maintenance import batch, canonical, metrics, promote, rescue, retention, rings

    return Timetable(
        [
            *(duty for plane in planes for duty in promote.duties(settings, plane)),
            *rings.duties(settings),
            *(duty for plane in planes for duty in rescue.duties(settings, plane)),
            *canonical.duties(settings),
            *retention.duties(settings),
            *batch.duties(settings),
            *metrics.duties(settings),
            *extra,
        ]
    )
