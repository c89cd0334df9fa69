"""What a page shows of a job's values: nothing without the permission, and else what redaction leaves.

(contract: api/security sections 4 and 5)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from awa_django.admin.actions import Text
from awa_django.admin.pages import may
from awa_django.planes.records import JobRecord
from awa_django.redaction import MASK, Part, shown
from awa_django.templatetags.awa import first_line, plain_text

__all__ = ["ErrorEntry", "Expression", "Values", "error_line", "may_see", "value_shown"]


def may_see(request: HttpRequest) -> bool:
    """Whether whoever asks may see arguments, metadata, errors, progress and expressions."""
    return may(request, "view_job_payload")


def value_shown(kind: str, part: Part, value: Any) -> Any:
    """What redaction leaves of one value of a kind of jobs; of one nested too deep to be looked through, nothing."""
    try:
        return shown(kind, part, value)
    except RecursionError:
        return MASK


def error_line(request: HttpRequest, record: JobRecord) -> str | None:
    """The line of the latest error that says most; None where it may not be seen or there is none."""
    if not record.job.errors or not may_see(request):
        return None
    return first_line(_entry(value_shown(record.job.kind, "errors", record.job.errors[-1])).text)


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One error of a job. ``attempt`` and ``at`` are None where the entry does not say them."""

    attempt: int | None
    at: datetime | None
    text: str
    terminal: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """One of the four expressions of a callback."""

    name: Text
    text: str | None


class Values:
    """The values of one job, each as it may be shown. Only for those who may see them."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record

    @property
    def args(self) -> Any:
        """The arguments."""
        return self._show("args", self._record.job.args)

    @property
    def metadata(self) -> Any:
        """The metadata."""
        return self._show("metadata", dict(self._record.job.metadata))

    @property
    def progress(self) -> Any:
        """Percent, message and metadata of the progress, as the handler told them."""
        return self._show("progress", self._record.job.progress)

    @property
    def percent(self) -> int | None:
        """How far the handler says it is, 0 to 100; None if it does not say."""
        progress = self.progress
        value = progress.get("percent") if isinstance(progress, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return None
        return round(max(0, min(100, value)))

    @property
    def message(self) -> str:
        """What the handler says about how far it is."""
        progress = self.progress
        value = progress.get("message") if isinstance(progress, Mapping) else None
        return "" if value is None else str(value)

    @property
    def progress_rest(self) -> Any:
        """What else the handler said with its progress, None if nothing."""
        progress = self.progress
        if not isinstance(progress, Mapping):
            return progress
        rest = {
            key: value
            for key, value in progress.items()
            if key not in ("percent", "message") and value not in (None, {}, [])
        }
        # What handlers note beside is under this name; other clients may write more.
        return rest.get("metadata") if rest.keys() == {"metadata"} else rest or None

    @property
    def errors(self) -> Sequence[ErrorEntry]:
        """The errors, newest first."""
        return [_entry(self._show("errors", entry)) for entry in reversed(self._record.job.errors)]

    @property
    def expressions(self) -> Sequence[Expression]:
        """The four expressions of the callback; none without one."""
        callback = self._record.callback
        if callback is None:
            return []
        named = (
            (_("filter"), callback.filter),
            (_("on complete"), callback.on_complete),
            (_("on fail"), callback.on_fail),
            (_("transform"), callback.transform),
        )
        return [
            Expression(name, None if text is None else plain_text(self._show("expression", text)))
            for name, text in named
        ]

    def part(self, name: str) -> str:
        """One part in full, as text. Raises ``LookupError`` for a name that no part has."""
        match name:
            case "args" | "metadata" | "progress":
                return plain_text(getattr(self, name))
            case "errors":
                return "\n\n".join(_written(entry) for entry in self.errors)
        raise LookupError(f"a job has no part {name!r}")

    def _show(self, part: Part, value: Any) -> Any:
        return value_shown(self._record.job.kind, part, value)


def _entry(entry: Any) -> ErrorEntry:
    if not isinstance(entry, Mapping):
        return ErrorEntry(None, None, plain_text(entry), False)
    attempt, at, text = entry.get("attempt"), entry.get("at"), entry.get("error")
    return ErrorEntry(
        attempt if isinstance(attempt, int) and not isinstance(attempt, bool) else None,
        _time(at),
        plain_text(entry if text is None else text),
        entry.get("terminal") is True,
    )


def _time(text: Any) -> datetime | None:
    try:
        found = parse_datetime(text) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
    # Years at either end leave no room for a time zone.
    return found if found is not None and 1 < found.year < 9999 else None


def _written(entry: ErrorEntry) -> str:
    head = [
        _("Attempt %d") % entry.attempt if entry.attempt is not None else _("Error"),
        entry.at.isoformat() if entry.at else "",
        _("terminal") if entry.terminal else "",
    ]
    return f"{', '.join(part for part in head if part)}\n{entry.text}"
