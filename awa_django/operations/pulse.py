"""How the queue does at a glance, for the frame of every page. One statement over small tables."""

from __future__ import annotations

from typing import NamedTuple

from awa_django.operations.desk import desk
from awa_django.sql import statement

__all__ = ["MANY_DEAD", "Pulse", "pulse"]

#: Dead letters are counted up to this many.
MANY_DEAD = 1000


class Pulse(NamedTuple):
    """Live workers, those that lead or are unwell among them, the storage engine, and dead letters up to a limit."""

    workers: int
    leaders: int
    unwell: int
    engine: str
    storage_state: str
    dead_letters: int

    @property
    def has_more_dead_letters(self) -> bool:
        """Whether there are more dead letters than were counted."""
        return self.dead_letters > MANY_DEAD


def pulse(*, using: str | None = None) -> Pulse:
    """How the queue does now. Takes no locks."""
    with desk(using) as at:
        at.cursor.execute(statement("control/desk", "pulse"), {"limit": MANY_DEAD + 1})
        row = at.cursor.fetchone()
    assert row is not None, "the state of the storage transition is a row that is never deleted"
    return Pulse(*row)
