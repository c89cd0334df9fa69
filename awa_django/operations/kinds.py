"""Kinds of jobs as operators see them: what waits, what finished, who handles them.

(contract: api/admin_ops section 6)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from awa_django.operations.desk import Desk, desk
from awa_django.operations.history import Ended, ended, tails
from awa_django.operations.names import canonical_names
from awa_django.operations.queues import Descriptor, read_descriptor
from awa_django.sql import statement

__all__ = ["KindOverview", "kind_overview"]

#: Positions of a lane up to which all its jobs are looked at; of longer lanes stretches of so many positions, so many
#: of all lanes together.
SHORT_LANE, WIDTH, STRETCHES = 1_000, 10, 600
#: Pages read for one figure.
BUDGET = 150
#: Jobs of completion batches whose kinds are looked at for one figure.
SAMPLES = 500
#: Rows counted for one figure where there is nothing better, and canonical jobs counted of one state of all kinds.
MOST, CANONICAL = 20_000, 150_000

#: Attempts that go on whose kinds are looked at, the newest.
NEWEST = 500

#: A time that was asked for, and a queue.
Place = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class KindOverview:
    """One kind of jobs, over all planes.

    ``waiting`` jobs have not started (available, scheduled, retryable); too high by those just claimed or cancelled.
    ``finished`` are those that history holds, dead letters among them, ``failed`` those of them that failed;
    ``completed_last_hour`` is a lower bound, for history may be short. ``queues`` are those that its waiting jobs are
    on. ``handled_by`` counts live workers that declare the kind.

    Unless ``exact``, figures that are large are estimated from a part of the rows: right to a few percent for common
    kinds, rough for rare ones. ``finished`` is None for a kind so rare that the part has none of it. Of canonical jobs
    so many of each kind and state are counted, and there may be more.
    """

    kind: str
    descriptor: Descriptor | None = None
    waiting: int = 0
    finished: int | None = 0
    failed: int = 0
    queues: tuple[str, ...] = ()
    completed_last_hour: int = 0
    handled_by: int = 0
    exact: bool = True


@dataclass(slots=True)
class _Figures:
    """What was found, by kind."""

    exact: bool = True
    has_all_failed: bool = True
    waiting: Counter[str] = field(default_factory=Counter)
    queues: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    finished: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: Failed jobs by the part of history that was read, for when there were too many to count.
    failed_about: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    #: Kinds of attempts that go on, which may have no other jobs.
    held: set[str] = field(default_factory=set)
    #: Done rows by queue, as they are counted when they are written.
    counted_rows: dict[str, int] = field(default_factory=dict)
    completed_last_hour: Counter[str] = field(default_factory=Counter)

    def wait(self, kind: str, queue: str, jobs: int) -> None:
        self.waiting[kind] += jobs
        self.queues[kind].add(queue)


def kind_overview(*, using: str | None = None) -> list[KindOverview]:
    """Every kind that has jobs, a description or a live worker, by name; takes no locks."""
    found = _Figures()
    with desk(using) as at:
        at.cursor.execute(statement("control/kinds", "declared"), {})
        declared = {row[0]: row[1:] for row in at.cursor.fetchall()}
        for plane in at.planes:
            if plane.name == "queue_storage":
                _lanes(at, found)
                _elsewhere(at, found)
                _history(at, found)
            else:
                _canonical(at, found)
    kinds = (
        declared.keys()
        | found.waiting.keys()
        | found.finished.keys()
        | found.failed.keys()
        | found.dead.keys()
        | found.held
    )
    return [_overview(kind, declared.get(kind), found) for kind in sorted(kinds)]


def _overview(kind: str, declared: Sequence[Any] | None, found: _Figures) -> KindOverview:
    descriptor, workers = None, 0
    if declared is not None:
        *described, workers = declared
        descriptor = read_descriptor(described)
    failed = found.failed[kind] if found.has_all_failed else max(found.failed[kind], found.failed_about[kind])
    finished: int | None = max(found.finished[kind], failed) + found.dead[kind]
    if not finished and not found.exact:
        finished = None
    return KindOverview(
        kind,
        descriptor,
        found.waiting[kind],
        finished,
        failed + found.dead[kind],
        tuple(sorted(found.queues[kind])),
        found.completed_last_hour[kind],
        workers,
        found.exact,
    )


def _lanes(at: Desk, found: _Figures) -> None:
    values = {"short": SHORT_LANE, "stretches": STRETCHES, "width": WIDTH}
    at.cursor.execute(statement("queue_storage/kinds", "waiting"), values, prepare=False)
    for queue, kind, is_short, jobs in at.cursor.fetchall():
        found.exact = found.exact and is_short
        # Positions that a rolled-back producer left empty are none the less counted: an upper bound.
        found.wait(kind, queue, jobs)


def _elsewhere(at: Desk, found: _Figures) -> None:
    at.cursor.execute(
        statement("queue_storage/kinds", "elsewhere"), {"most": MOST, "newest": NEWEST}, prepare=False
    )
    for sort, kind, queue, jobs, exact in at.cursor.fetchall():
        found.exact = found.exact and exact
        match sort:
            case "deferred":
                found.wait(kind, queue, jobs)
            case "dead":
                found.dead[kind] += jobs
            case "failed":
                found.failed[kind] += jobs
                found.has_all_failed = exact
            case "held":
                found.held.add(kind)
            case "counted":
                found.counted_rows[queue] = jobs


def _history(at: Desk, found: _Figures) -> None:
    places = tails(at, {"ever": None, "hour": 60}, BUDGET)
    is_whole = places.exact
    if not is_whole:
        # Too much to read: what lanes have handed out says more of each kind than some pages of what ended.
        values = {"stretches": STRETCHES, "width": WIDTH}
        at.cursor.execute(statement("queue_storage/kinds", "finished"), values, prepare=False)
        found.finished.update(dict(at.cursor.fetchall()))
        if found.has_all_failed:
            places = tails(at, {"hour": 60}, BUDGET)
    rows: list[Ended] = []
    batches: defaultdict[Place, float] = defaultdict(float)
    samples: list[Ended] = []
    for item in ended(at, places, samples=SAMPLES, by_kind=True):
        if item.is_sample:
            samples.append(item)
        elif item.kind is None:
            batches[item.part, item.queue] += item.jobs
        else:
            rows.append(item)
    found.exact = found.exact and is_whole and len(samples) == sum(batches.values())
    # How many rows each queue has is known without reading them, unless another client never counted.
    counted: dict[Place, float] = {}
    if not is_whole:
        counted = {("ever", queue): total for queue, total in found.counted_rows.items() if total > 0}
    for item, jobs in [*_scaled(rows, counted), *_scaled(samples, batches)]:
        kind, figure = str(item.kind), max(1, round(jobs))
        if item.part == "ever":
            if is_whole:
                found.finished[kind] += figure
            if item.state == "failed":
                found.failed_about[kind] += figure
        elif item.state == "completed":
            found.completed_last_hour[kind] += figure


def _scaled(items: Sequence[Ended], known: Mapping[Place, float]) -> list[tuple[Ended, float]]:
    """Each kind, queue and state once, and for how many jobs it stands: together for what is known of their queue."""
    seen: defaultdict[Place, float] = defaultdict(float)
    together: dict[tuple[Any, ...], tuple[Ended, float]] = {}
    for item in items:
        seen[item.part, item.queue] += item.jobs
        key = item.part, item.state, item.kind, item.queue
        together[key] = item, item.jobs + together.get(key, (item, 0.0))[1]
    return [
        (
            item,
            jobs
            * known.get((item.part, item.queue), seen[item.part, item.queue])
            / seen[item.part, item.queue],
        )
        for item, jobs in together.values()
    ]


def _canonical(at: Desk, found: _Figures) -> None:
    kinds = canonical_names(at).kinds
    most = min(MOST, max(200, CANONICAL // max(1, len(kinds))))
    at.cursor.execute(statement("canonical/kinds", "counts"), {"kinds": kinds, "most": most}, prepare=False)
    for kind, queue, state, jobs in at.cursor.fetchall():
        found.exact = found.exact and jobs < most
        match state:
            case "available" | "scheduled" | "retryable":
                found.waiting[kind] += jobs
                if queue is not None:
                    found.queues[kind].add(queue)
            case "last_hour":
                found.completed_last_hour[kind] += jobs
            case "completed" | "failed" | "cancelled":
                found.finished[kind] += jobs
                if state == "failed":
                    found.failed[kind] += jobs
