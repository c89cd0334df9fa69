"""Figures and moments in people's words, for sentences that operators read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from awa_django.jobs import Job
from awa_django.redaction import shown

__all__ = ["count", "error_text", "last_error", "listed", "moment", "span", "word"]


def span(time: timedelta | float) -> str:
    """A duration, or a number of seconds, in its greatest unit, such as ``3 min``."""
    seconds = abs(time.total_seconds() if isinstance(time, timedelta) else time)
    if 0 < seconds < 1:
        return f"{max(seconds * 1000, 1):.0f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit and not (unit == 60 and 3600 <= seconds < 3660):
            return f"{seconds // unit:.0f} {name}"
    return f"{seconds // 86_400:,.0f} days"


def moment(at: datetime | None) -> str:
    """An instant to the second, in UTC."""
    return "an unknown time" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def count(number: int, thing: str, things: str | None = None) -> str:
    """A number of things, such as ``1,240 jobs``."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def word(name: str) -> str:
    """A name as one word of a command line that people copy: who enqueues a job says what its queue is called."""
    return shlex.quote(name)


def listed(names: Sequence[object], most: int = 3) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def error_text(entry: Any) -> str | None:
    """What an error entry says, whatever its shape; what may not be shown is masked before."""
    text = entry.get("error") if isinstance(entry, Mapping) else entry
    return None if text is None else str(text)


def last_error(job: Job) -> str | None:
    """The text of a job's last error, as far as it may be shown."""
    return error_text(shown(job.kind, "errors", job.errors[-1])) if job.errors else None
