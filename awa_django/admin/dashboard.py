"""The dashboard: how the queue does, on one page (contract: api/web_ui section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from awa_django.admin.actions import Text
from awa_django.admin.kept import Kept
from awa_django.admin.pages import may, read_page
from awa_django.admin.values import error_line
from awa_django.enqueue import queue_alias
from awa_django.models import DeferredJob, WaitingCallback
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import Counts, JobRecord, QueueOverview, queue_overview
from awa_django.operations.activity import Activity, activity, recent_failures
from awa_django.operations.desk import Desk, looking
from awa_django.operations.dumps import timeline
from awa_django.operations.runtimes import runtime_overview
from awa_django.states import JobState

__all__ = ["Failure", "Stat", "dashboard_page", "read_dashboard"]

#: Queues, failures and workers that are shown; each has a page with all of them.
SHOWN = 10
#: Newest rows of a table that a trend is made of.
TREND_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Stat:
    """One figure, and where there is one its trend: ``trend`` says what the line is of, minute by minute."""

    name: Text
    state: str
    value: int
    exact: bool
    note: str
    values: Sequence[float]
    trend: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed; the line of its error that says most, and when, are None where they cannot be seen."""

    record: JobRecord
    error: str | None
    at: datetime | None

    @classmethod
    def of(cls, request: HttpRequest, record: JobRecord) -> Failure:
        """As whoever asks may see it."""
        failed = [entry.timestamp for entry in timeline(record) if entry.is_error]
        at = record.job.finalized_at or (failed[-1] if failed else record.job.attempted_at)
        return cls(record, error_line(request, record), at)


def dashboard_page(request: HttpRequest, site: AdminSite) -> tuple[str, dict[str, Any]]:
    """The template and the context of the page, read in one look."""
    own = {"title": _("Job queue"), "is_dashboard": True}
    template, context, is_read = read_page(
        request,
        site,
        "admin/awa_django/dashboard.html",
        lambda look: {**own, **read_dashboard(request, look)},
    )
    return template, context if is_read else {**own, **context}


def read_dashboard(request: HttpRequest, look: Desk) -> Mapping[str, Any]:
    """What whoever asks may see of it: jobs, queues and workers have a permission each."""
    found: dict[str, Any] = {}
    if may(request, "view_job"):
        queues = queue_overview()
        hour, trends = _lately()
        total = _sum(queue.counts for queue in queues)
        found |= {
            "stats": _stats(total, hour, trends, sum(queue.completed_last_hour for queue in queues)),
            "total": total,
            "activity": hour,
            "pickup": _median(minute.pickup_p50 for minute in hour.minutes),
            "run": _median(minute.run_p50 for minute in hour.minutes),
            "failures": [Failure.of(request, record) for record in recent_failures(SHOWN)],
        }
        if may(request, "view_queuemeta"):
            found |= {"queues": _busiest(queues), "queue_count": len(queues)}
    if may(request, "view_runtimeinstance"):
        workers = runtime_overview()
        found |= {"workers": workers, "instances": workers.instances[:SHOWN]}
    return found


def _sum(counts: Iterable[Counts]) -> Counts:
    total = Counts(exact=False)
    for each in counts:
        for name in (*(state.value for state in JobState), "dead", "pruned_completed", "pruned_failed"):
            total.add(name, getattr(each, name))
    return total


def _read_lately() -> tuple[Activity, Mapping[JobState, Sequence[float]]]:
    hour = activity()
    return hour, _waiting_trends(hour)


#: The last hour minute by minute: the dearest part of the page, and ten seconds make no difference to it.
_lately = Kept(timedelta(seconds=10), _read_lately)


def _waiting_trends(hour: Activity) -> Mapping[JobState, Sequence[float]]:
    """By the minute in which they began to: jobs that are scheduled, and that wait for a callback.

    The newest alone are looked at, which lie together; in canonical storage they do not, and there is no trend.
    """
    look = looking()
    if look is None or look.planes[0].name != "queue_storage":
        return {}
    alias = queue_alias()
    deferred = DeferredJob.objects.using(alias).order_by("-job_id").values_list("state", "created_at")
    parked = WaitingCallback.objects.using(alias).filter(state=JobState.WAITING_EXTERNAL).order_by("-job_id")
    began: dict[str, list[datetime | None]] = {JobState.SCHEDULED: [], JobState.WAITING_EXTERNAL: []}
    # In one statement, since each is a journey.
    for state, at in deferred[:TREND_ROWS].union(
        parked.values_list("state", "attempted_at")[:TREND_ROWS], all=True
    ):
        if state in began:
            began[state].append(at)
    return {JobState(state): _by_minute(hour, times) for state, times in began.items()}


def _by_minute(hour: Activity, times: Iterable[datetime | None]) -> Sequence[float]:
    places = {minute.at: number for number, minute in enumerate(hour.minutes)}
    counted = [0] * len(hour.minutes)
    for at in times:
        number = None if at is None else places.get(at.replace(second=0, microsecond=0).astimezone(UTC))
        if number is not None:
            counted[number] += 1
    return counted


def _stats(
    total: Counts, hour: Activity, trends: Mapping[JobState, Sequence[float]], completed: int
) -> list[Stat]:
    minutes = hour.minutes

    def line(pick: str) -> list[float]:
        return [getattr(minute, pick) for minute in minutes]

    ended = [minute.completed + minute.failed + minute.cancelled for minute in minutes]
    failed = total.failed + total.dead
    return [
        _stat(
            JobState.AVAILABLE,
            total.available,
            line("enqueued"),
            _("enqueued"),
            _("%s enqueued, last minute") % _latest(line("enqueued")),
        ),
        _stat(
            JobState.RUNNING,
            total.running,
            ended,
            _("ended"),
            _("%s ended, last minute") % _latest(ended),
        ),
        _stat(JobState.FAILED, failed, line("failed"), _("failed"), _dead_note(total)),
        _stat(
            JobState.SCHEDULED,
            total.scheduled,
            trends.get(JobState.SCHEDULED, ()),
            _("created"),
            _retry_note(total),
        ),
        _stat(
            JobState.WAITING_EXTERNAL,
            total.waiting_external,
            trends.get(JobState.WAITING_EXTERNAL, ()),
            _("began to wait"),
            "",
        ),
        Stat(
            _("completed, last hour"),
            JobState.COMPLETED.value,
            completed,
            hour.exact,
            _("%s in the last minute") % _latest(line("completed")),
            line("completed"),
            _("completed"),
        ),
    ]


def _stat(state: JobState, value: int, values: Sequence[float], trend: str, note: str) -> Stat:
    return Stat(STATE_LABELS[state], state.value, value, False, note, values, trend)


def _latest(values: Sequence[float]) -> str:
    """The figure of the last minute that is over."""
    return f"{values[-2] if len(values) > 1 else 0:,.0f}"


def _dead_note(total: Counts) -> str:
    return ngettext("%s dead letter", "%s dead letters", total.dead) % f"{total.dead:,}" if total.dead else ""


def _retry_note(total: Counts) -> str:
    return _("and %s to be retried") % f"{total.retryable:,}" if total.retryable else ""


def _median(values: Iterable[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def _busiest(queues: Sequence[QueueOverview]) -> list[QueueOverview]:
    def busy(queue: QueueOverview) -> tuple[int, int, int]:
        return (queue.counts.queued, queue.counts.running, queue.completed_last_hour)

    return sorted(queues, key=busy, reverse=True)[:SHOWN]
