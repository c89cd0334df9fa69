"""Queues as operators set and see them: paused, drained, how many lanes, how many jobs where.

(contract: api/admin_ops sections 3 and 6, queue-storage/admin sections 7 and 8)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from awa_django.errors import InvalidJob
from awa_django.operations.change import change_on, chunks
from awa_django.operations.desk import Desk, desk
from awa_django.operations.history import BUDGET, ended, tails
from awa_django.operations.reading import waiting_ids
from awa_django.operations.verbs import CANCEL
from awa_django.planes.base import Plane
from awa_django.planes.records import PlaneName
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.validation import checked_queue

__all__ = [
    "Counts",
    "Descriptor",
    "QueueOverview",
    "drain",
    "pause",
    "queue_counts",
    "queue_overview",
    "read_descriptor",
    "resume",
    "set_enqueue_shards",
    "state_counts",
    "waiting_kinds",
]

MAX_SHARDS = 64
_NOT_RUNNING = frozenset(
    {JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE, JobState.WAITING_EXTERNAL}
)


# Setting


def pause(queue: str, by: str | None = "django", *, using: str | None = None) -> None:
    """Have nobody claim from a queue, or make its due jobs available; running jobs go on, producers notice nothing.

    ``by`` is who paused it; None says nobody. Pausing again refreshes time and name; a name nobody knows is accepted.
    """
    if by is not None and (not isinstance(by, str) or "\0" in by):
        raise ValueError(f"by: text is needed, not {by!r}")
    _set(using, "pause", queue=checked_queue(queue), by=by)


def resume(queue: str, *, using: str | None = None) -> bool:
    """Have a paused queue work again; False if it was not paused. Who paused it last stays on record."""
    name = checked_queue(queue)
    with desk(using) as at:
        at.cursor.execute(statement("control/queues", "resume"), {"queue": name})
        resumed = at.cursor.rowcount > 0
        if resumed:
            at.cursor.execute(statement("control/queues", "wake"), {"queue": name})
    return resumed


def drain(queue: str, *, using: str | None = None, plane: PlaneName | None = None) -> int:
    """Cancel every job of a queue that nobody runs, and say how many; a second time there are none.

    Jobs that arrive meanwhile stay: pause nothing, but stop the producers first. However many they are it is one
    transaction, during which nobody claims from the lanes; a batch operation, ``Cancel()``, does it bit by bit.
    """
    name = checked_queue(queue)
    total = 0
    with desk(using, plane) as at:
        for each in at.planes:
            for piece in chunks(waiting_ids(at, each, _NOT_RUNNING, queue=name).ids):
                total += change_on(at, each, CANCEL, piece).count
    return total


def set_enqueue_shards(queue: str, shards: int, *, using: str | None = None) -> None:
    """Give each priority of a queue this many lanes, 1 to 64, so that producers do not wait for each other.

    Only lanes keep an order. Other clients read the number when they start.
    """
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise InvalidJob("shards", f"a whole number from 1 to {MAX_SHARDS} is needed, not {shards!r}")
    _set(using, "set_shards", queue=checked_queue(queue), shards=shards)


def _set(using: str | None, name: str, **values: Any) -> None:
    with desk(using) as at:
        at.cursor.execute(statement("control/queues", name), values)


# Counting

#: Pages of a sort of table that are read to count what is in it, unless figures are to be exact.
_PAGES = 3_000


@dataclass(slots=True)
class Counts:
    """Jobs by state; ``failed`` without the dead letters, which are ``dead``.

    ``pruned_completed`` (cancelled ones among them) and ``pruned_failed`` are what history has forgotten. Where figures
    are not ``exact``, ``available`` may be too high by jobs that were cancelled or are just being claimed,
    ``completed`` includes the cancelled, and very many completed jobs, deferred ones or dead letters are estimated.
    """

    exact: bool = True
    scheduled: int = 0
    available: int = 0
    running: int = 0
    completed: int = 0
    retryable: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting_external: int = 0
    dead: int = 0
    pruned_completed: int = 0
    pruned_failed: int = 0

    @property
    def queued(self) -> int:
        """Jobs that have not finished."""
        return self.scheduled + self.available + self.running + self.retryable + self.waiting_external

    @property
    def by_state(self) -> dict[JobState, int]:
        """As other clients count: dead letters are failed."""
        figures = {state: int(getattr(self, state.value)) for state in JobState}
        figures[JobState.FAILED] += self.dead
        return figures

    def add(self, label: str, total: int) -> None:
        """Count ``total`` more of a state."""
        setattr(self, label, getattr(self, label) + total)


def queue_counts(
    *,
    exact: bool = True,
    queue: str | None = None,
    using: str | None = None,
    plane: PlaneName | None = None,
) -> dict[str, Counts]:
    """Jobs by queue and state, over all planes; queues without any are absent.

    ``exact=False`` reads no table of jobs as a whole; :class:`Counts` says what that costs.
    """
    with desk(using, plane) as at:
        return _counts(at, exact, queue)


def state_counts(*, exact: bool = True, using: str | None = None, plane: PlaneName | None = None) -> Counts:
    """Jobs by state, of all queues together."""
    total = Counts(exact)
    for counts in queue_counts(exact=exact, using=using, plane=plane).values():
        for state in (*(state.value for state in JobState), "dead", "pruned_completed", "pruned_failed"):
            total.add(state, getattr(counts, state))
    return total


def _counts(at: Desk, exact: bool, queue: str | None) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for plane in at.planes:
        _overview(at, plane, "counts", exact=exact, queue=queue, pages=_PAGES)
        for name, label, total in at.cursor.fetchall():
            found.setdefault(name, Counts(exact)).add(label, total or 0)
    return found


def _overview(at: Desk, plane: Plane, name: str, **values: Any) -> None:
    # Unprepared: what is not asked for is not planned either.
    at.cursor.execute(statement(f"{plane.name}/overview", name), values, prepare=False)


# The page of all queues


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What the workers of a queue or kind declare about it.

    ``mismatch`` means that live workers declare different things, ``stale`` that none has for long.
    """

    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    docs_url: str | None = None
    tags: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    last_seen_at: datetime | None = None
    stale: bool = False
    mismatch: bool = False


def read_descriptor(columns: Sequence[Any]) -> Descriptor | None:
    """What a row says of a queue or kind, in the order of the members; None if nobody ever declared it."""
    display_name, description, owner, docs_url, tags, extra, last_seen_at, stale, mismatch = columns
    if last_seen_at is None:
        return None
    return Descriptor(
        display_name,
        description,
        owner,
        docs_url,
        tuple(tags or ()),
        extra if isinstance(extra, dict) else {},
        last_seen_at,
        bool(stale),
        bool(mismatch),
    )


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue. ``lag_seconds`` is how long the longest waiting job has been due, None if none waits.

    ``completed_last_hour`` counts what history still holds: it is a lower bound, for history may be pruned within
    seconds where another client leads.
    """

    queue: str
    counts: Counts
    completed_last_hour: int = 0
    lag_seconds: float | None = None
    paused: bool = False
    paused_at: datetime | None = None
    paused_by: str | None = None
    enqueue_shards: int = 1
    served: bool = False
    descriptor: Descriptor | None = None


def queue_overview(
    *, exact: bool = False, using: str | None = None, plane: PlaneName | None = None
) -> list[QueueOverview]:
    """Every queue that has jobs, a description, a setting or a live worker, by name."""
    with desk(using, plane) as at:
        counts = _counts(at, exact, None)
        hour = _last_hour(at, exact)
        lag: dict[str, float] = {}
        for each in at.planes:
            _overview(at, each, "lag")
            for name, seconds in at.cursor.fetchall():
                lag[name] = max(seconds, lag.get(name, seconds))
        at.cursor.execute(statement("control/queues", "settings"))
        settings = {row[0]: row[1:] for row in at.cursor.fetchall()}
    return [
        _queue(name, counts.get(name, Counts(exact)), hour.get(name, 0), lag.get(name), settings.get(name))
        for name in sorted(_shown(counts) | hour.keys() | lag.keys() | settings.keys())
    ]


def _last_hour(at: Desk, exact: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for plane in at.planes:
        if plane.name == "canonical":
            _overview(at, plane, "last_hour")
            found.update(dict(at.cursor.fetchall()))
            continue
        # Of the minutes that the chart of activity shows, so that a page which has both looks for them once.
        places = tails(at, {"": 60}, sys.maxsize if exact else BUDGET)
        for item in ended(at, places, samples=1, by_kind=True):
            if item.state == JobState.COMPLETED and not item.is_sample:
                found[str(item.queue)] += round(item.jobs)
    return found


def _shown(counts: Mapping[str, Counts]) -> Collection[str]:
    """Queues that hold jobs, not merely lanes."""
    return {name for name, figures in counts.items() if figures.dead or any(figures.by_state.values())}


def waiting_kinds(*, using: str | None = None, plane: PlaneName | None = None) -> dict[str, int]:
    """How many jobs of each kind have not started, most first. Reads all that wait.

    For comparing with the kinds that a release registers, before it is rolled out.
    """
    with desk(using, plane) as at:
        found = _totals(at, "kinds")
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _totals(at: Desk, name: str, **values: Any) -> dict[str, int]:
    """The figures of a statement that counts by one name, over all planes."""
    found: dict[str, int] = {}
    for each in at.planes:
        _overview(at, each, name, **values)
        for key, total in at.cursor.fetchall():
            found[key] = found.get(key, 0) + total
    return found


def _queue(
    name: str, counts: Counts, hour: int, lag: float | None, settings: Sequence[Any] | None
) -> QueueOverview:
    if settings is None:
        return QueueOverview(name, counts, hour, lag)
    paused, paused_at, paused_by, shards, served, *described = settings
    return QueueOverview(
        name,
        counts,
        hour,
        lag,
        bool(paused),
        paused_at,
        paused_by,
        shards or 1,
        served,
        read_descriptor(described),
    )
