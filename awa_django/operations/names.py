"""Names of queues and kinds, to choose from or to suggest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from awa_django.operations.desk import Desk, desk
from awa_django.sql import statement

__all__ = ["Names", "canonical_names", "known_kinds", "known_names", "known_queues"]

#: Newest jobs of a place in which names are looked for that no statistics have.
_NEWEST = 200


class Names(NamedTuple):
    """Kinds and queues that are known, each by name."""

    kinds: list[str]
    queues: list[str]


def known_names(*, using: str | None = None) -> Names:
    """Kinds and queues, as :func:`known_kinds` and :func:`known_queues` find them, by one look."""
    with desk(using) as at:
        at.cursor.execute(statement("control/names", "names"), {})
        rows = at.cursor.fetchall()
        for plane in at.planes:
            rows += _rows(at, plane.name)
    return _sorted(rows)


def canonical_names(at: Desk) -> Names:
    """Every kind and queue of a canonical job. Within one look they are asked for once."""
    key = "canonical names"
    if key not in at.known:
        at.known[key] = _sorted(_rows(at, "canonical"))
    return cast("Names", at.known[key])


def _rows(at: Desk, plane: str) -> list[tuple[str, str]]:
    at.cursor.execute(statement(f"{plane}/names", "names"), {"newest": _NEWEST}, prepare=False)
    return at.cursor.fetchall()


def _sorted(rows: Iterable[tuple[str, str]]) -> Names:
    found: dict[str, set[str]] = {"kind": set(), "queue": set()}
    for thing, name in rows:
        found[thing].add(name)
    return Names(sorted(found["kind"]), sorted(found["queue"]))


def known_queues(*, using: str | None = None) -> list[str]:
    """Queues that have lanes, settings, a description, a schedule, a worker or jobs, by name.

    Of a queue with nothing but deferred jobs the name may be missing while the planner's statistics do not know it.
    """
    return known_names(using=using).queues


def known_kinds(*, using: str | None = None) -> list[str]:
    """Kinds that have a description, a schedule, a worker or jobs, by name.

    Of a kind that nothing declares and that few jobs have the name may be missing: it is found among the newest jobs,
    and in the planner's statistics.
    """
    return known_names(using=using).kinds
