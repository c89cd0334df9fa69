"""Who leads the fleet, read off the lock that leading is (contract: queue-storage/maintenance section 1)."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = ["LEADER_KEY", "LeaderSession", "leader_session"]

#: The advisory lock of the leader, whatever client it belongs to: 0x4157415f4d41494e, "AWA_MAIN".
LEADER_KEY = 4708303813012965710


class LeaderSession(NamedTuple):
    """The session that holds the lock; all but the process id may be hidden from this role."""

    pid: int
    application: str | None
    address: str | None
    state: str | None
    since: datetime | None


def leader_session(cursor: Cursor) -> LeaderSession | None:
    """The session that leads, None if none does. Takes no locks."""
    cursor.execute(statement("control/diagnosis", "leader"), {"key": LEADER_KEY})
    row = cursor.fetchone()
    return None if row is None else LeaderSession(*row)
