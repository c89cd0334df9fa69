"""What pages read once and show for some seconds: figures that cost much and change little.

Many operators may have a page open, and each asks for it anew every five seconds. It is kept by process and database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from django.db import connections

from awa_django.enqueue import queue_alias

__all__ = ["Kept", "forget"]

T = TypeVar("T")


class Kept(Generic[T]):
    """What ``read`` answers, asked again when it is older than ``span``. Two threads may both ask: it does no harm."""

    def __init__(self, span: timedelta, read: Callable[[], T]) -> None:
        self._span = span.total_seconds()
        self._read = read
        self._found: dict[tuple[str, str], tuple[float, T]] = {}
        _all.add(self)

    def __call__(self) -> T:
        """The value, at most ``span`` old."""
        alias = queue_alias()
        # Whoever points an alias at another database, as tests do, is told of that one.
        where = alias, str(connections[alias].settings_dict["NAME"])
        found = self._found.get(where)
        if found is None or time.monotonic() - found[0] > self._span:
            self._found[where] = found = (time.monotonic(), self._read())
        return found[1]

    def forget(self) -> None:
        """Have it read anew."""
        self._found.clear()


_all: WeakSet[Kept[Any]] = WeakSet()


def forget() -> None:
    """Have everything read anew; for tests."""
    for each in _all:
        each.forget()
