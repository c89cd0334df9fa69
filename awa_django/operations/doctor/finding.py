"""What a check is given, and what it answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from awa_django.operations.desk import Desk
from awa_django.operations.queues import QueueOverview, queue_overview
from awa_django.operations.runtimes import Runtime, RuntimeOverview, runtime_overview
from awa_django.sql import statement

__all__ = ["Check", "Finding", "Level", "Patient", "Said"]


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    #: Works, and may stop doing so.
    WARNING = "warning"
    #: Jobs do not run that should.
    ERROR = "error"
    #: Nobody could look.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: how bad it is, a sentence, and what to do about it."""

    check: str
    level: Level
    sentence: str
    hint: str = ""


class Said(NamedTuple):
    """A finding of a check that knows its own name."""

    level: Level
    sentence: str
    hint: str = ""


@dataclass
class Patient:
    """The installation that is examined. What several checks look at is read once."""

    alias: str
    timeout: timedelta
    at: Desk = field(init=False)

    @cached_property
    def runtimes(self) -> RuntimeOverview:
        """Every worker process that reports, or did lately."""
        return runtime_overview(using=self.alias)

    @property
    def working(self) -> list[Runtime]:
        """Worker processes that are live and take no leave."""
        return [each for each in self.runtimes.instances if each.live and not each.shutting_down]

    @cached_property
    def queues(self) -> list[QueueOverview]:
        """Every queue, with quick figures."""
        return queue_overview(exact=False, using=self.alias)

    def rows(self, name: str, **values: Any) -> list[Sequence[Any]]:
        """The rows of a statement of ``control/doctor``."""
        self.at.cursor.execute(statement("control/doctor", name), values)
        return self.at.cursor.fetchall()

    def row(self, name: str, **values: Any) -> Sequence[Any]:
        """The only row of one."""
        (found,) = self.rows(name, **values)
        return found


Check = Callable[[Patient], Iterator[Said]]
