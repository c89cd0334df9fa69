"""Periodic schedules: when each fires, and what operators do to it (contract: api/web_ui section 2, api/admin_ops
section 8)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from awa_django import operations, periodic
from awa_django.admin.actions import Action, Answer, Call, Offer, each, some
from awa_django.admin.payloads import PayloadAdmin
from awa_django.admin.values import may_see, value_shown
from awa_django.enqueue import queue_alias
from awa_django.errors import ScheduleNotFound
from awa_django.models import QueueMeta
from awa_django.operations.desk import Desk
from awa_django.operations.runtimes import RuntimeOverview
from awa_django.periodic import ScheduleStatus
from awa_django.templatetags.awa import plain_text

__all__ = ["ScheduleAdmin"]

#: Fires that a schedule's page tells in advance.
FIRES = 10
#: The leader writes each schedule that its code declares once a minute; one that it left alone for so long, it does not
#: declare.
FORGOTTEN = timedelta(minutes=3)

_SCHEDULES = (_("schedule"), _("schedules"))


# What can be done


def _delete(call: Call) -> Answer:
    return some(call, periodic.delete, _("there is no such schedule any more"))


def _trigger(call: Call) -> Answer:
    job_ids = [periodic.trigger(name) for name in call.keys]
    made = ", ".join(map(str, job_ids))
    goes_to = call.url_of("job", job_ids[0]) if len(job_ids) == 1 else None
    return Answer(len(job_ids), text=_now("Enqueued: job %s.") % made, goes_to=goes_to)


SCHEDULE_ACTIONS = (
    Action(
        "trigger",
        _("Trigger now"),
        _("triggered"),
        ("trigger_cronjob",),
        _trigger,
        _("One job is enqueued now, also while the schedule is paused. Its own fires stay as they are."),
        noun=_SCHEDULES,
    ),
    Action(
        "pause",
        _("Pause"),
        _("paused"),
        ("pause_cronjob",),
        each(lambda call, name: periodic.pause(name, call.by)),
        _(
            "It does not fire until it is resumed, whoever leads. Jobs that it enqueued already are not touched."
        ),
        applies=lambda shown: not shown.is_paused,
        noun=_SCHEDULES,
    ),
    Action(
        "resume",
        _("Resume"),
        _("resumed"),
        ("pause_cronjob",),
        each(lambda call, name: periodic.resume(name)),
        _("It fires again. Of the fires that it missed, its policy makes up the latest one or all."),
        applies=lambda shown: shown.is_paused,
        noun=_SCHEDULES,
    ),
    Action(
        "delete",
        _("Delete"),
        _("deleted"),
        ("delete_cronjob",),
        _delete,
        _(
            "It is gone from the database, and never fires again. A running worker whose code declares it stores it "
            "again within a minute: take it out of the code first, or pause it instead."
        ),
        danger=True,
        noun=_SCHEDULES,
    ),
)


# What is shown


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule, and what else decides whether its jobs run."""

    status: ScheduleStatus
    offers: Sequence[Offer]
    queue_is_paused: bool
    #: Whether the code of this process declares it.
    is_declared_here: bool
    #: Whether neither the worker that leads declares it nor this process: its declaration may have gone from the code.
    is_orphaned: bool
    #: Whether a live worker knows its kind.
    is_handled: bool


class ScheduleAdmin(PayloadAdmin):
    """Schedules that the database holds, whoever declared them."""

    label = _("Schedules")
    list_template = "admin/awa_django/schedule_list.html"
    detail_template = "admin/awa_django/schedule_detail.html"
    called = _("schedule %s")
    offered = SCHEDULE_ACTIONS

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """All of them, by name."""
        rows = self._rows(request, periodic.schedules())
        return {
            "rows": rows,
            "paused": sum(row.status.is_paused for row in rows),
            "faulty": sum(row.status.fault is not None for row in rows),
        }

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One of them, with its next fires."""
        status = _status(key)
        (row,) = self._rows(request, [status])
        return {
            "row": row,
            "schedule": status,
            "offers": row.offers,
            "fires": [] if status.fault else periodic.next_fires(key, FIRES),
            "declared_at": periodic.declared[key].place if row.is_declared_here else "",
            "values": _values(status) if may_see(request) else None,
        }

    def read_part(self, key: str, part: str) -> str:
        """Arguments or metadata."""
        values = _values(_status(key))
        if part not in values:
            raise LookupError(f"a schedule has no part {part!r}")
        return plain_text(values[part])

    def _rows(self, request: HttpRequest, found: Collection[ScheduleStatus]) -> list[ScheduleRow]:
        workers = operations.runtime_overview()
        kinds = {kind for each in workers.instances if each.live for kind in each.kinds}
        paused = set(
            QueueMeta.objects.using(queue_alias())
            .filter(queue__in={status.queue for status in found}, paused=True)
            .values_list("queue", flat=True)
        )
        return [
            ScheduleRow(
                status,
                self.offers(request, status.name, status),
                status.queue in paused,
                status.name in periodic.declared,
                status.name not in periodic.declared and _is_orphaned(status, workers),
                status.kind in kinds,
            )
            for status in found
        ]


def _status(name: str) -> ScheduleStatus:
    status = next((status for status in periodic.schedules() if status.name == name), None)
    if status is None:
        raise ScheduleNotFound(f"there is no schedule {name!r}")
    return status


def _values(status: ScheduleStatus) -> Mapping[str, Any]:
    """What its jobs get, as it may be shown."""
    return {
        "args": value_shown(status.kind, "args", status.args),
        "metadata": value_shown(status.kind, "metadata", status.metadata),
    }


def _is_orphaned(status: ScheduleStatus, workers: RuntimeOverview) -> bool:
    """Whether whoever leads, for long enough to know, has left it alone."""
    return any(
        each.last_seen_at - max(status.updated_at, each.started_at) > FORGOTTEN
        for each in workers.instances
        if each.live and each.leader
    )
