"""Bounded claimers: a loop's claimer slot (contract: runtime/dispatcher section 5, queue-storage/claim section 8).

The slots of a queue bound how many loops of the whole fleet claim from it at once, and thereby how often they find its
lanes locked. While little waits one loop claims for all; with the backlog come two and four. Nothing depends on
a slot but courtesy: a claim is right without one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage.claim import has_backlog
from awa_django.sql import statement

__all__ = ["FRESH_SECONDS", "Claimer"]

#: Others may take a slot that saw no claim for this long.
FRESH_SECONDS = 0.5
#: While jobs are found the slot is renewed this often.
RENEW_SECONDS = FRESH_SECONDS / 2


class Claimer:
    """One loop's part in the claimer slots of its queue. Used by that loop's thread, with its session in autocommit.

    ``owner`` identifies the loop among all of the fleet. At most ``most`` slots are looked at.
    """

    def __init__(
        self, queue: str, owner: uuid.UUID, *, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.owner = owner
        #: Positions waiting when the database was last asked; more than 0 also where they were just claimed.
        self.backlog = 0
        self._queue = queue
        self._most = most
        self._clock = clock
        self._held: tuple[int, int] | None = None
        self._renewed_at = 0.0

    @property
    def slot(self) -> int | None:
        """The slot that nobody else may have taken yet; None if there is none."""
        if self._held is None or self._clock() - self._renewed_at >= FRESH_SECONDS:
            return None
        return self._held[0]

    def may_claim(self, cursor: Cursor) -> bool:
        """Whether to claim now. Asks for a slot unless a fresh one is held; writes nothing while nothing waits."""
        if self.slot is not None:
            return True
        if cursor.connection.prepare_threshold is None and not has_backlog(cursor, self._queue):
            # Behind a pooler, where nothing stays prepared, planning the question costs ten times what this does.
            self.backlog = 0
            return False
        return self._ask(cursor, claimed=False)

    def claimed(self, cursor: Cursor) -> None:
        """Renew the slot after jobs were found, when half of its time has passed."""
        if self._held is not None and self._clock() - self._renewed_at >= RENEW_SECONDS:
            self._ask(cursor, claimed=True)

    def leave(self, cursor: Cursor) -> None:
        """Give the slot to whoever wants it, if one is held."""
        if self.slot is not None and self._held is not None:
            slot, epoch = self._held
            cursor.execute(
                statement("queue_storage/claimers", "leave"),
                {"queue": self._queue, "owner": self.owner, "slot": slot, "epoch": epoch},
            )
        self._held = None

    def _ask(self, cursor: Cursor, *, claimed: bool) -> bool:
        asked_at = self._clock()
        self._held = None
        cursor.execute(
            statement("queue_storage/claimers", "ask"),
            {
                "queue": self._queue,
                "owner": self.owner,
                "most": self._most,
                # The largest of an owner's numbers that fits with a slot into an integer.
                "probe": self.owner.int % 2**30,
                "claimed": claimed,
            },
        )
        row = cursor.fetchone()
        if row is None:
            return False
        self.backlog, slot, epoch = row
        if slot is None:
            return False
        # Time has passed in the database since we asked, never before: others see the slot as fresh for longer.
        self._held, self._renewed_at = (slot, epoch), asked_at
        return True
