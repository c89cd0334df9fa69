"""Exit codes of the worker (contract: runtime/shutdown-health section 2)."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit"]


class Exit(IntEnum):
    """What the process answers when it ends."""

    #: Stopped on request; everything drained or handed back.
    OK = 0
    #: The runtime broke down.
    ERROR = 1
    #: Wrong options or settings, or a schema that this release does not run on.
    USAGE = 2
    #: Attempts were left behind; they will be rescued.
    LEFT_BEHIND = 3
    #: The database could not be reached at start.
    UNREACHABLE = 4
