"""What lies in the history of queue storage from some time on, found without reading the rest.

The tables of the ring are appended to and emptied whole: their pages are in the order of time, near enough. This is
for the other reads of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

from awa_django.operations.desk import Desk
from awa_django.planes.arrays import ints
from awa_django.sql import statement

__all__ = ["BUDGET", "Ended", "Tails", "ended", "tails"]

#: Pages of one sort of table that are enough for the figures of an hour.
BUDGET = 250

#: Pages with less on them than others are cheaper to read.
_MORE = {"receipt_completion_batches": 4}
_FAMILIES = ("done_entries", "receipt_completion_batches", "ready_entries", "dlq_entries")


class Ended(NamedTuple):
    """Some ends in the time ``part``: so many jobs of one minute, or kind and queue, and state; or a sample of one job.

    A sample stands for ``jobs`` like it, and says how long it ``ran`` and had ``waited``, in seconds. What is no sample
    has no kind if it comes from completion batches.
    """

    is_sample: bool
    part: str
    minute: int | None
    state: str
    jobs: float
    kind: str | None
    queue: str | None
    ran: float | None
    waited: float | None


@dataclass(frozen=True, slots=True)
class Tails:
    """The pages that hold rows of the times asked for.

    ``parameters`` go into the statements that read them. ``since`` is where each time begins, ``this_minute`` the
    number of the minute that is now. ``exact`` says that all pages there are will be read.
    """

    parameters: Mapping[str, Any]
    since: Mapping[str, datetime]
    this_minute: int
    exact: bool


class _Tail(NamedTuple):
    part: str
    slot: int
    first_page: int
    pages: int
    stride: int
    #: How many pages each page that is read stands for.
    weight: float
    since: datetime


def tails(at: Desk, minutes: Mapping[str, int | None], budget: int) -> Tails:
    """The pages of done rows, completion batches, emissions and dead letters of the last ``minutes``.

    Each time has a name; None minutes mean all that history holds. Of a sort of table that has more pages of a time
    than ``budget`` every so manyth will be read. Within one look the same are looked for once.
    """
    key = ("tails", *minutes.items(), budget)
    if key not in at.known:
        at.known[key] = _tails(at, minutes, budget)
    return cast("Tails", at.known[key])


def _tails(at: Desk, minutes: Mapping[str, int | None], budget: int) -> Tails:
    at.cursor.execute(
        statement("queue_storage/activity", "tails"),
        {"parts": list(minutes), "minutes": ints(minutes.values())},
        prepare=False,
    )
    since: dict[str, datetime] = {}
    this_minute = 0
    places: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for part, begins, now, family, slot, first_page, pages in at.cursor.fetchall():
        if family is None:
            since[part], this_minute = begins, now
        else:
            places.setdefault((family, part), []).append((slot, first_page, pages))
    exact = True
    by_family: dict[str, list[_Tail]] = {family: [] for family in _FAMILIES}
    for (family, part), found in places.items():
        most = budget * _MORE.get(family, 1)
        if sum(pages for _, _, pages in found) <= most:
            found = [(slot, 0, pages) for slot, _, pages in found]
        else:
            exact = False
            found = [tail for tail in found if tail[1] < tail[2]]
        total = sum(pages - first for _, first, pages in found)
        stride = max(1, -(-total // most))
        read = sum(-(-(pages - first) // stride) for _, first, pages in found)
        by_family[family] += [
            _Tail(part, slot, first, pages, stride, total / read, since[part]) for slot, first, pages in found
        ]
    parameters = {
        name: value for family, found in by_family.items() for name, value in _parameters(family, found)
    }
    return Tails(parameters, since, this_minute, exact)


def _parameters(family: str, found: list[_Tail]) -> Iterator[tuple[str, Any]]:
    yield f"{family}_parts", [tail.part for tail in found]
    yield f"{family}_slots", ints(tail.slot for tail in found)
    yield f"{family}_first_pages", ints(tail.first_page for tail in found)
    yield f"{family}_pages", ints(tail.pages for tail in found)
    yield f"{family}_strides", ints(tail.stride for tail in found)
    yield f"{family}_weights", [tail.weight for tail in found]
    yield f"{family}_since", [tail.since for tail in found]


def ended(
    at: Desk, places: Tails, *, samples: int, queue: str | None = None, by_kind: bool = False
) -> Iterator[Ended]:
    """What ended on those pages, counted by minute or by kind, and about ``samples`` of it one by one.

    By kind there are samples of completion batches alone, whose rows name no kinds.
    """
    at.cursor.execute(
        statement("queue_storage/activity", "ended"),
        {**places.parameters, "samples": samples, "queue": queue, "by_kind": by_kind},
        prepare=False,
    )
    yield from map(Ended._make, at.cursor.fetchall())
