"""Which tests run in one process, one after another.

Those of a file with fixtures of its own for the whole file, which would be set up in every process otherwise, and those
of files that name one group (``pytest.mark.xdist_group``). pytest-xdist hands groups to its scheduler within the ids of
tests, which pytest 9.2 does not let it change any more; so the scheduler looks into the files itself.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

__all__ = ["Scheduling", "group"]

ROOT = Path(__file__).resolve().parent.parent
_GROUP = re.compile(r"xdist_group\([\"'](\w+)[\"']\)")
_SHARES = re.compile(r"scope=[\"'](?:module|package)[\"']")


@cache
def group(file: str) -> str | None:
    """The group that all tests of a file belong to; None if each may run wherever there is room."""
    path = ROOT / file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if named := _GROUP.search(text):
        return named[1]
    return file if _SHARES.search(text) else None


class Scheduling(LoadScopeScheduling):
    """Groups go to one process each, the largest first; then single tests fill up."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid.partition("::")[0]) or nodeid
