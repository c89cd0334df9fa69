"""Queues: how each does, and what operators do to it (contract: api/web_ui section 2, api/admin_ops section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from awa_django import operations, periodic
from awa_django.admin.actions import Action, Answer, Call, Offer, Text, each, some, submitted
from awa_django.admin.found_by_name import Choices, found_by_name
from awa_django.admin.frame import DeskAdmin
from awa_django.admin.pages import may
from awa_django.admin.words import config_facts, link_of
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import Cancel, Counts, JobFilter, QueueOverview
from awa_django.operations.desk import Desk, desk
from awa_django.operations.queues import MAX_SHARDS
from awa_django.operations.reading import waiting_ids
from awa_django.operations.runtimes import QueueRuntime, Runtime, RuntimeOverview
from awa_django.queue_names import queue_name_fault
from awa_django.states import JobState
from awa_django.validation import checked_queue

__all__ = ["QueueAdmin"]

#: What draining cancels.
NOT_RUNNING = (JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE, JobState.WAITING_EXTERNAL)
#: Seconds a job has been due, from which on a queue counts as late.
LATE = 10

#: Jobs that are drained while the operator waits, some seconds' worth; a batch operation cancels more.
AT_ONCE = 10_000
#: What tells our workers from those of other clients.
OUR_VERSION = "+awa-django."

_QUEUES = (_("queue"), _("queues"))


# What can be done


class _ShardsForm(forms.Form):
    shards = forms.IntegerField(
        label=_("Enqueue shards"),
        min_value=1,
        max_value=MAX_SHARDS,
        help_text=_(
            "1 to 64. With 1, jobs of equal priority start in the order in which they were enqueued."
        ),
    )


def _resume(call: Call) -> Answer:
    return some(call, operations.resume, _("it was not paused"))


def _to_drain(call: Call) -> int:
    with desk() as at:
        return sum(
            waiting_ids(at, plane, NOT_RUNNING, queue=queue, limit=1).total
            for queue in call.keys
            for plane in at.planes
        )


def _drain(call: Call) -> Answer:
    for queue in call.keys:
        checked_queue(queue)
    if _to_drain(call) <= AT_ONCE or not _somebody_runs_batches():
        return Answer(sum(operations.drain(queue) for queue in call.keys))
    made = [
        operations.submit_batch(Cancel(), JobFilter(queue=queue, states=NOT_RUNNING), submitted_by=call.by)
        for queue in call.keys
    ]
    return submitted(made, call)


def _somebody_runs_batches() -> bool:
    """Whether a live worker carries out batch operations that other clients do not know."""
    return any(
        each.live and each.maintenance_alive and not each.shutting_down and OUR_VERSION in each.version
        for each in operations.runtime_overview().instances
    )


def _shards_now(call: Call) -> Mapping[str, Any]:
    shards = {overview.queue: overview.enqueue_shards for overview in operations.queue_overview()}
    return {"shards": shards.get(call.keys[0], 1)}


QUEUE_ACTIONS = (
    Action(
        "pause",
        _("Pause"),
        _("paused"),
        ("pause_queue",),
        each(lambda call, queue: operations.pause(queue, call.by)),
        _(
            "Nobody claims jobs of it, and those that fall due stay scheduled. Running jobs go on; producers "
            "enqueue as before."
        ),
        applies=lambda shown: not shown.paused,
        noun=_QUEUES,
    ),
    Action(
        "resume",
        _("Resume"),
        _("resumed"),
        ("pause_queue",),
        _resume,
        _("Workers claim its jobs again."),
        applies=lambda shown: shown.paused,
        noun=_QUEUES,
    ),
    Action(
        "set-shards",
        _("Change enqueue shards"),
        _("changed"),
        ("change_queue_shards",),
        each(lambda call, queue: operations.set_enqueue_shards(queue, call.values["shards"])),
        _(
            "Each priority of the queue gets this many lanes, so that producers wait less for each other. Order holds "
            "within a lane only. Processes that run read the number when they start."
        ),
        form=_ShardsForm,
        initial=_shards_now,
        noun=_QUEUES,
    ),
    Action(
        "drain",
        _("Drain"),
        _("cancelled"),
        ("pause_queue", "drain_queue"),
        _drain,
        _(
            "Every job of the queue that is not running is cancelled: available, scheduled, retryable and waiting "
            "ones. Running jobs go on. Jobs that arrive meanwhile stay, so stop their producers first. More than "
            "10,000 jobs are cancelled in the background, by a batch operation that can be watched and stopped."
        ),
        counts=_to_drain,
        danger=True,
    ),
)


# What is shown


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue in the list: its figures, its workers, and what may be done to it."""

    overview: QueueOverview
    runtime: QueueRuntime | None
    offers: Sequence[Offer]

    @property
    def is_unserved(self) -> bool:
        """Whether jobs wait that no live worker would claim."""
        return not self.overview.served and self.overview.counts.available > 0

    @property
    def is_late(self) -> bool:
        """Whether a job has been due for long."""
        return (self.overview.lag_seconds or 0) >= LATE

    @property
    def dead_letters(self) -> bool | None:
        """Whether final failures become dead letters; None where no worker says."""
        value = self.runtime.config.get("dlq_enabled") if self.runtime is not None else None
        return value if isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way in which live workers run a queue, and who does."""

    facts: Sequence[tuple[str, str]]
    workers: Sequence[Runtime]


_SHOW: Choices[QueueRow] = {
    "paused": (_("Paused"), lambda row: row.overview.paused),
    "late": (_("Late"), lambda row: row.is_late),
    "unserved": (_("No worker"), lambda row: row.is_unserved),
}


class QueueAdmin(DeskAdmin):
    """Queues. One needs no row of settings to be listed; its key is its name."""

    label = _("Queues")
    list_template = "admin/awa_django/queue_list.html"
    detail_template = "admin/awa_django/queue_detail.html"
    called = _("queue %s")
    offered = QUEUE_ACTIONS

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """All queues, or those that are searched for."""
        runtimes = {queue.queue: queue for queue in operations.runtime_overview().queues}
        rows = [
            QueueRow(queue, runtimes.get(queue.queue), self.offers(request, queue.queue, queue))
            for queue in operations.queue_overview()
        ]
        return found_by_name(request, rows, _names, _("All"), _SHOW)

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One queue. A name that could be one is shown, for it may be paused before its first job."""
        overview = next((queue for queue in operations.queue_overview() if queue.queue == key), None)
        is_known = overview is not None
        if overview is None:
            if queue_name_fault(key):
                raise LookupError(f"there is no queue {key!r}")
            overview = QueueOverview(key, Counts(exact=False))
        workers = operations.runtime_overview()
        runtime = next((queue for queue in workers.queues if queue.queue == key), None)
        row = QueueRow(overview, runtime, self.offers(request, key, overview))
        return {
            "row": row,
            "queue": overview,
            "runtime": runtime,
            "is_known": is_known,
            "offers": row.offers,
            "docs_url": link_of(overview.descriptor),
            "states": _states(overview.counts),
            "configurations": _configurations(workers, key),
            "activity": operations.activity(queue=key),
            "schedules": [schedule for schedule in periodic.schedules() if schedule.queue == key]
            if may(request, "view_cronjob")
            else [],
        }


def _names(row: QueueRow) -> tuple[str | None, ...]:
    described = row.overview.descriptor
    return row.overview.queue, None if described is None else described.display_name


def _states(counts: Counts) -> list[tuple[str, Text, int, bool]]:
    """States in the order of a job's life: name, label, how many jobs, and whether that is exact."""
    rounded = set() if counts.exact else {"available", "scheduled", "retryable", "completed"}
    names = (
        JobState.AVAILABLE, JobState.RUNNING, JobState.SCHEDULED, JobState.RETRYABLE, JobState.WAITING_EXTERNAL,
        JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED,
    )  # fmt: skip
    figures = [
        (name.value, STATE_LABELS[name], getattr(counts, name.value), name.value not in rounded)
        for name in names
    ]
    return [*figures, ("dead", _("dead letters"), counts.dead, True)]


def _configurations(workers: RuntimeOverview, queue: str) -> list[Configuration]:
    """How live workers run a queue, the way that most do first."""
    found: list[tuple[Sequence[tuple[str, str]], list[Runtime]]] = []
    for instance in workers.instances:
        for served in instance.queues:
            if instance.live and served.queue == queue:
                facts = config_facts(served.config)
                known = next((who for said, who in found if said == facts), None)
                if known is None:
                    found.append((facts, [instance]))
                else:
                    known.append(instance)
    return [Configuration(facts, who) for facts, who in sorted(found, key=lambda item: -len(item[1]))]
