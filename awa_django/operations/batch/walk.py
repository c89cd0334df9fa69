"""Looking through all places where jobs may be that an operation means, a bounded piece at a time.

Within a place the way goes downward, by job id or by the position in a lane, so that a job which is put back where it
came from, or comes anew, is never met again; and up to the ids that were handed out when the walk began. One that ended
after that is not meant either: it may be one that the operation itself had run again. Every look is
one statement over an index range, however much has finished; nothing is locked. Whoever takes the jobs asks again.

Jobs move from waiting to running to an end, so the places are looked through in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, Self, cast

from awa_django.operations.batch.changes import BatchChange, verb_of
from awa_django.operations.batch.filters import eligible_states
from awa_django.operations.desk import Desk
from awa_django.operations.reading import HIGHEST_ID, JobFilter, load
from awa_django.planes.base import Plane
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.records import PlaneName
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = ["Found", "Walk"]

#: Rows that one look goes through in an index.
SCAN = 20_000
#: Jobs that one look puts together, where a place does not tell enough of them.
LOAD = 2_000
#: Failed jobs up to which they are taken from the index of failures; more are found among all that ended.
FEW_FAILURES = 50_000

_DEFERRED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})
_HELD = frozenset({JobState.RUNNING, JobState.WAITING_EXTERNAL})
_ENDED = frozenset({JobState.FAILED, JobState.CANCELLED})
_PLANES: Mapping[PlaneName, Plane] = {"queue_storage": QueueStoragePlane(), "canonical": CanonicalPlane()}

Lane = tuple[str, int, int]


class Found(NamedTuple):
    """A job that may be meant; ``key`` is where it was found, for going on below it."""

    key: int
    id: int


@dataclass(frozen=True, slots=True)
class Walk:
    """Where to look next. ``bounds`` are the highest ids of each plane that count, ``ended_by`` the latest end.

    ``below`` is the key under which to go on, None for the beginning of a place; in lanes it is that of ``lane``, and
    None is the beginning of the lane after it.
    """

    change: BatchChange
    filter: JobFilter
    bounds: Mapping[PlaneName, int]
    ended_by: datetime | None
    plane: PlaneName
    place: str
    below: int | None = None
    lane: Lane | None = None

    @classmethod
    def begin(cls, at: Desk, change: BatchChange, filter: JobFilter) -> Self | None:
        """A walk through everything that is there now; None if there is nowhere to look."""
        at.cursor.execute(statement("control/bulk", "bounds"), {})
        row = at.cursor.fetchone()
        assert row is not None
        highest: dict[PlaneName, int] = {"queue_storage": row[0], "canonical": row[1]}
        here = {plane.name for plane in at.planes}
        bounds = {name: job_id for name, job_id in highest.items() if name in here}
        for plane, place in _places(change, filter, bounds):
            return cls(change, filter, bounds, row[2], plane, place)
        return None

    @classmethod
    def restore(cls, change: BatchChange, filter: JobFilter, mark: Mapping[str, Any]) -> Self:
        """A walk that was stored as a :attr:`mark`; raises ``ValueError`` for one that names no place."""
        bounds = cast(Mapping[PlaneName, int], mark["max_job_ids"])
        plane, place, lane = mark["plane"], mark["place"], mark["lane"]
        known = _places(change, filter, bounds)
        if (plane, _proper(place)) not in [(each, _proper(name)) for each, name in known]:
            raise ValueError(f"cursor: place {place!r} of {plane!r} is none that this operation looks at")
        # Operations that an earlier release began know no latest end.
        ended_by = None if (text := mark.get("ended_by")) is None else datetime.fromisoformat(text)
        return cls(
            change,
            filter,
            bounds,
            ended_by,
            plane,
            place,
            mark["below"],
            None if lane is None else tuple(lane),
        )

    @property
    def mark(self) -> dict[str, Any]:
        """Where it is, in JSON."""
        return {
            "max_job_ids": dict(self.bounds),
            "ended_by": None if self.ended_by is None else self.ended_by.isoformat(),
            "plane": self.plane,
            "place": self.place,
            "below": self.below,
            "lane": None if self.lane is None else list(self.lane),
        }

    @property
    def on(self) -> Plane:
        """The plane that is looked at."""
        return _PLANES[self.plane]

    def again(self) -> Self | None:
        """The same walk from its beginning, with the same bounds."""
        for plane, place in _places(self.change, self.filter, self.bounds):
            return replace(self, plane=plane, place=place, below=None, lane=None)
        return None

    def after(self, job: Found) -> Self:
        """To go on below a job that the last look found."""
        return replace(self, below=job.key)

    def look(self, at: Desk) -> tuple[list[Found], Self | None]:
        """One look: what it found, highest key first, and where to go on; None at the end of all places.

        What is found is still at ``self``'s place, so its :meth:`after` goes on in the middle of it.
        """
        match self.place:
            case "lanes":
                return self._look_at_lanes(at)
            case "ids":
                return self._look_for_ids(at)
            case "open":
                return self._look_at_open(at)
            case "failed":
                return self._look_at_failures(at)
        return self._look_at_window(at)

    # -- places ----------------------------------------------------------------------------------------

    def _look_at_window(self, at: Desk) -> tuple[list[Found], Self | None]:
        """A stretch of a table, by job id."""
        incomplete = self.place == "done" and self._wants_body
        more, lowest, ids = self._ask(at, self.place, scan=LOAD if incomplete else SCAN)
        meant = self._load(at, ids or []) if incomplete else ids or []
        following = replace(self, below=lowest) if more else self._next_place()
        return [Found(job_id, job_id) for job_id in meant], following

    def _look_at_failures(self, at: Desk) -> tuple[list[Found], Self | None]:
        """All that failed, where they are few; else they are looked for among what ended."""
        count, ids = self._ask(at, "failures", scan=FEW_FAILURES)
        if count >= FEW_FAILURES:
            return [], replace(self, place="done")
        meant, following = ids or [], self._next_place()
        if self._wants_body:
            if len(meant) > LOAD:
                meant = meant[:LOAD]
                following = replace(self, below=meant[-1])
            meant = self._load(at, meant)
        return [Found(job_id, job_id) for job_id in meant], following

    def _look_at_open(self, at: Desk) -> tuple[list[Found], Self | None]:
        """Attempts that go on; of what is done with them a place says no more than that."""
        states = eligible_states(self.change, self.filter)
        told = not self._wants_body and self.filter.kind is None and states >= _HELD
        size = SCAN if told else LOAD
        at.cursor.execute(
            statement("queue_storage/newest", "newest_open"),
            {"before": self._below, "queue": self.filter.queue, "size": size},
            prepare=False,
        )
        row = at.cursor.fetchone()
        ids: list[int] = [] if row is None else row[1]
        meant = ids if told else self._load(at, ids)
        following = replace(self, below=ids[-1]) if len(ids) == size else self._next_place()
        return [Found(job_id, job_id) for job_id in meant], following

    def _look_for_ids(self, at: Desk) -> tuple[list[Found], Self | None]:
        """Jobs that the filter names."""
        named = sorted(
            (job_id for job_id in set(self.filter.ids or ()) if job_id < self._below), reverse=True
        )
        piece = named[:LOAD]
        following = replace(self, below=piece[-1]) if len(named) > LOAD else self._next_place()
        return [Found(job_id, job_id) for job_id in self._load(at, piece)], following

    def _look_at_lanes(self, at: Desk) -> tuple[list[Found], Self | None]:
        """What waits in a lane, from its end to the position that is claimed next."""
        if self.below is None:
            found_lane = self._next_lane(at)
            if found_lane is None:
                return [], self._next_place()
            *lane, end = found_lane
            return [], replace(self, lane=cast(Lane, tuple(lane)), below=end)
        assert self.lane is not None
        queue, priority, shard = self.lane
        more, lowest, keys, ids = self._ask(
            at, "lane", scan=SCAN, lane_queue=queue, priority=priority, shard=shard
        )
        found = [Found(key, job_id) for key, job_id in zip(keys or (), ids or (), strict=True)]
        return found, replace(self, below=lowest if more else None)

    def _next_lane(self, at: Desk) -> Sequence[Any] | None:
        """The next lane that something may wait in, and its end."""
        queue, priority, shard = self.lane or (None, None, None)
        at.cursor.execute(
            statement("queue_storage/walk", "next_lane"),
            {"only": self.filter.queue, "queue": queue, "priority": priority, "shard": shard},
        )
        row: Sequence[Any] | None = at.cursor.fetchone()
        return row

    # -- parts -----------------------------------------------------------------------------------------

    @property
    def _below(self) -> int:
        return min(HIGHEST_ID if self.below is None else self.below, self.bounds[self.plane] + 1)

    @property
    def _wants_body(self) -> bool:
        """Whether the filter asks for what some places do not hold."""
        chosen = self.filter
        return not (chosen.tag is None and chosen.created_from is None and chosen.created_before is None)

    def _ask(self, at: Desk, name: str, *, scan: int, **values: Any) -> Sequence[Any]:
        chosen, verb = self.filter, verb_of(self.change)
        states = verb.states & chosen.wanted
        at.cursor.execute(
            statement(f"{self.plane}/walk", name),
            {
                "below": self.below if name == "lane" else self._below,
                "until": self.bounds[self.plane],
                "ended_by": self.ended_by,
                "scan": scan,
                "states": sorted(state.value for state in states),
                "kind": chosen.kind,
                "queue": chosen.queue,
                "tag": chosen.tag,
                "created_from": chosen.created_from,
                "created_before": chosen.created_before,
                **values,
            },
        )
        row: Sequence[Any] | None = at.cursor.fetchone()
        assert row is not None
        return row

    def _load(self, at: Desk, job_ids: Sequence[int]) -> list[int]:
        """Those of the jobs that are meant, highest id first, by all that is stored of them."""
        verb = verb_of(self.change)
        return [
            record.job.id
            for record in load(at.cursor, self.on, job_ids)
            if verb.fits(record)
            and self.filter.passes(record.job)
            and self.ended_in_time(record.job.state, record.job.finalized_at)
        ]

    def ended_in_time(self, state: JobState, finalized_at: datetime | None) -> bool:
        """Whether a job of this state counts: it goes on, or had ended when the walk began."""
        if not state.is_terminal or finalized_at is None or self.ended_by is None:
            return True
        return finalized_at <= self.ended_by

    def _next_place(self) -> Self | None:
        """The beginning of the place after this one."""
        places = _places(self.change, self.filter, self.bounds)
        index = [(plane, _proper(place)) for plane, place in places].index((self.plane, _proper(self.place)))
        if index + 1 == len(places):
            return None
        plane, place = places[index + 1]
        return replace(self, plane=plane, place=place, below=None, lane=None)


def _proper(place: str) -> str:
    """The table of a place."""
    return "done" if place == "failed" else place


def _places(
    change: BatchChange, filter: JobFilter, bounds: Mapping[PlaneName, int]
) -> list[tuple[PlaneName, str]]:
    """Where jobs may be that the change can be made to, in the order in which jobs pass through."""
    verb = verb_of(change)
    states = verb.states & filter.wanted
    dead = verb.dead and JobState.FAILED in filter.wanted
    places: list[tuple[PlaneName, str]] = []
    # In an order of their own: JSON that was stored in the database has its members in another.
    for plane in _PLANES:
        if plane not in bounds:
            continue
        if filter.ids is not None:
            wanted = {"ids": True}
        elif plane == "queue_storage":
            wanted = {
                "deferred": bool(states & _DEFERRED),
                "lanes": JobState.AVAILABLE in states,
                "open": bool(states & _HELD),
                "failed": states & _ENDED == {JobState.FAILED},
                "done": JobState.CANCELLED in states,
                "dead": dead,
            }
        else:
            wanted = {
                "scheduled": bool(states & _DEFERRED),
                "hot": bool(states - _DEFERRED),
            }
        if plane == "canonical" and (verb.to_dead_letters or not verb.states):
            continue
        places += [(plane, place) for place, is_wanted in wanted.items() if is_wanted]
    return places
