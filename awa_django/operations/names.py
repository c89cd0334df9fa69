"""Names of queues and kinds, to choose from or to suggest."""

from __future__ import annotations

from awa_django.operations.desk import desk
from awa_django.sql import statement

__all__ = ["known_kinds", "known_queues"]

#: Newest jobs of a place in which names are looked for that no statistics have.
_NEWEST = 200


def known_queues(*, using: str | None = None) -> list[str]:
    """Queues that have lanes, settings, a description, a schedule, a worker or jobs, by name.

    Of a queue with nothing but deferred jobs the name may be missing while the planner's statistics do not know it.
    """
    return _names("queues", using)


def known_kinds(*, using: str | None = None) -> list[str]:
    """Kinds that have a description, a schedule, a worker or jobs, by name.

    Of a kind that nothing declares and that few jobs have the name may be missing: it is found among the newest jobs,
    and in the planner's statistics.
    """
    return _names("kinds", using)


def _names(subject: str, using: str | None) -> list[str]:
    with desk(using) as at:
        at.cursor.execute(statement("control/names", subject), {})
        found = {row[0] for row in at.cursor.fetchall()}
        for plane in at.planes:
            at.cursor.execute(statement(f"{plane.name}/names", subject), {"newest": _NEWEST}, prepare=False)
            found.update(row[0] for row in at.cursor.fetchall())
    return sorted(found)
