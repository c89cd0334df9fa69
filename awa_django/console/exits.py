"""Exit codes of ``manage.py awa``."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["EXIT_CODES", "Exit"]


class Exit(IntEnum):
    """What the process answers when it ends."""

    #: What was asked for is done, or is so already.
    DONE = 0
    #: It broke; or ``doctor`` found an error, or ``kinds`` a kind that this release does not know.
    FAILED = 1
    #: Wrong options or settings, ``--yes`` is missing, or the setting ``READ_ONLY`` forbids it.
    USAGE = 2
    #: Something that was named does not exist or is in no state for it; everything else was done.
    NOT_CHANGED = 3
    #: The database cannot be reached.
    UNREACHABLE = 4


EXIT_CODES = """\
Exit codes:
  0  what was asked for is done, or is so already
  1  it broke, or `doctor` found an error, or `kinds` one that is not registered
  2  wrong options or settings, --yes is missing, or AWA["READ_ONLY"] forbids it
  3  something that was named does not exist or is in no state for it; the rest
     was done
  4  the database cannot be reached
"""
