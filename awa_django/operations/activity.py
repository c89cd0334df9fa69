"""What happened lately: jobs enqueued and ended minute by minute, how long they waited and ran, the latest failures.

(contract: api/admin_ops section 6, api/web_ui section 2)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from awa_django.operations.desk import Desk, desk
from awa_django.operations.dumps import timeline
from awa_django.operations.history import BUDGET, ended, tails
from awa_django.operations.names import canonical_names
from awa_django.operations.reading import load
from awa_django.planes.base import Plane
from awa_django.planes.records import JobRecord
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = ["Activity", "Minute", "activity", "recent_failures"]

#: As far back as one answer reaches.
MOST_MINUTES = 24 * 60
#: Finished attempts of one sort whose times are looked at.
SAMPLES = 400
#: Newest deferred jobs among which those just created are looked for.
NEWEST_DEFERRED = 5_000
#: Canonical jobs of one minute and sort that are counted; a minute with more shows this many.
CANONICAL_PER_MINUTE = 2_000
#: Rows of one sort that are looked at where no index has the wanted order.
MOST = 5_000
#: Pages at the end of a table in which the latest failures are looked for; of each slot of the ring a fourth of them.
LAST_PAGES = 160

_SORTS = ("enqueued", "completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in the minute that begins at ``at``.

    ``enqueued`` counts jobs created, whenever they are due, ``failed`` those that failed for good. Of the attempts that
    ended in this minute ``pickup_p50`` is the median of the seconds between due and started, ``run_p50`` of those they
    ran; None if nothing is known of any.
    """

    at: datetime
    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    pickup_p50: float | None = None
    run_p50: float | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """Minutes, oldest first, one for each; the last one is not over.

    Where figures are ``exact``, all of history was read. Else they come from the part of it that is of this time,
    judged by where it lies, and where that is much, from every so manyth page of it. Medians are of some hundred
    attempts.
    """

    minutes: tuple[Minute, ...]
    exact: bool


def activity(minutes: int = 60, *, queue: str | None = None, using: str | None = None) -> Activity:
    """What happened in each of the last ``minutes`` (up to 1440), as far as history holds it; takes no locks.

    What history has forgotten is missing: where another client leads that may be all but the last seconds.
    """
    if isinstance(minutes, bool) or not isinstance(minutes, int) or not 1 <= minutes <= MOST_MINUTES:
        raise ValueError(f"minutes: a whole number from 1 to {MOST_MINUTES} is needed, not {minutes!r}")
    counted = _Counted()
    with desk(using) as at:
        for plane in at.planes:
            if plane.name == "queue_storage":
                _queue_storage(at, counted, minutes, queue)
            else:
                _canonical(at, counted, minutes, queue)
    last = counted.last_minute
    return Activity(
        tuple(counted.minute(number) for number in range(last - minutes + 1, last + 1)), counted.exact
    )


class _Counted:
    """What was found, by the number of the minute."""

    def __init__(self) -> None:
        self.exact = True
        self.last_minute = 0
        self._counts: dict[str, Counter[int]] = {sort: Counter() for sort in _SORTS}
        self._waited: dict[int, list[float]] = defaultdict(list)
        self._ran: dict[int, list[float]] = defaultdict(list)

    def add(self, sort: str, minute: int, jobs: int) -> None:
        if sort in self._counts:
            self._counts[sort][minute] += jobs

    def took(self, minute: int, ran: float | None, waited: float | None) -> None:
        # Clocks of different moments: an attempt that was due a little after it began waited no time.
        if ran is not None:
            self._ran[minute].append(max(ran, 0.0))
        if waited is not None:
            self._waited[minute].append(max(waited, 0.0))

    def minute(self, number: int) -> Minute:
        waited, ran = self._waited.get(number), self._ran.get(number)
        return Minute(
            datetime.fromtimestamp(number * 60, UTC),
            **{sort: counts[number] for sort, counts in self._counts.items()},
            pickup_p50=median(waited) if waited else None,
            run_p50=median(ran) if ran else None,
        )


def _queue_storage(at: Desk, counted: _Counted, minutes: int, queue: str | None) -> None:
    places = tails(at, {"": minutes}, BUDGET)
    counted.exact = counted.exact and places.exact
    counted.last_minute = places.this_minute
    for item in ended(at, places, samples=SAMPLES, queue=queue):
        assert item.minute is not None, "counted by minute"
        if item.is_sample:
            counted.took(item.minute, item.ran, item.waited)
        else:
            counted.add(item.state, item.minute, round(item.jobs))
    at.cursor.execute(
        statement("queue_storage/activity", "entered"),
        {**places.parameters, "queue": queue, "since": places.since[""], "newest": NEWEST_DEFERRED},
        prepare=False,
    )
    for row in at.cursor.fetchall():
        counted.add(*row)


def _canonical(at: Desk, counted: _Counted, minutes: int, queue: str | None) -> None:
    values = {
        "minutes": minutes,
        "queue": queue,
        "queues": canonical_names(at).queues,
        "most": MOST,
        "most_of_minute": CANONICAL_PER_MINUTE,
        "samples": SAMPLES,
    }
    at.cursor.execute(statement("canonical/activity", "happened"), values, prepare=False)
    for sort, minute, jobs, ran, waited in at.cursor.fetchall():
        if sort == "now":
            counted.last_minute = minute
        elif sort == "took":
            counted.took(minute, ran, waited)
        else:
            counted.exact = counted.exact and jobs < CANONICAL_PER_MINUTE
            counted.add(sort, minute, jobs)


# The latest failures


def recent_failures(limit: int = 10, *, using: str | None = None) -> list[JobRecord]:
    """The latest failures over all planes, the latest first: failed jobs, dead letters, and jobs to be tried again.

    Each job once, by its last error, with all its error entries; jobs without any are left out. At most 100. Takes no
    locks. Among very many failures one of the latest may be missing.
    """
    size = max(0, min(limit, 100))
    if not size:
        return []
    records: list[JobRecord] = []
    with desk(using) as at:
        for plane in at.planes:
            records += _failures(at, plane, size)
    records = [record for record in records if record.job.errors]
    records.sort(key=_failed_at, reverse=True)
    return records[:size]


def _failures(at: Desk, plane: Plane, size: int) -> list[JobRecord]:
    values: dict[str, object] = {"most": MOST, "last_pages": LAST_PAGES, "limit": 2 * size}
    if plane.name == "canonical":
        values["queues"] = canonical_names(at).queues
    at.cursor.execute(statement(f"{plane.name}/activity", "failures"), values, prepare=False)
    ids = [row[0] for row in at.cursor.fetchall()]
    states = (JobState.FAILED, JobState.RETRYABLE)
    return [record for record in load(at.cursor, plane, ids) if record.job.state in states]


def _failed_at(record: JobRecord) -> tuple[datetime, int]:
    last = max(entry.timestamp for entry in timeline(record) if entry.is_error)
    return last, record.job.id
