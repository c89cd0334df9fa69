"""Worker processes: who is there, how they do, how they run their queues (contract: api/web_ui section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from awa_django import operations
from awa_django.admin.actions import Text
from awa_django.admin.frame import DeskAdmin
from awa_django.admin.words import config_facts
from awa_django.enqueue import queue_alias
from awa_django.errors import RuntimeNotFound
from awa_django.models import RuntimeInstance
from awa_django.operations.desk import Desk
from awa_django.operations.runtimes import Runtime

__all__ = ["WorkerAdmin"]

#: Processes in the list, the one that reported last first.
SHOWN = 200


class WorkerAdmin(DeskAdmin):
    """Worker processes, as they report themselves. Nothing can be done to them from here."""

    label = _("Workers")
    list_template = "admin/awa_django/worker_list.html"
    detail_template = "admin/awa_django/worker_detail.html"
    called = _("worker %s")

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """Live ones, or with ``show=all`` those that are gone as well."""
        overview = operations.runtime_overview()
        every = request.GET.get("show") == "all"
        found = [each for each in overview.instances if every or each.live]
        return {
            "overview": overview,
            "attention": overview.attention,
            "instances": found[:SHOWN],
            "left_out": max(0, (overview.total if every else len(found)) - SHOWN),
            "every": every,
            "in_flight": sum(each.in_flight for each in overview.instances if each.live),
        }

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One of them, with all that its last report holds."""
        instance = operations.runtime(key)
        hashes = (
            RuntimeInstance.objects.using(queue_alias())
            .values_list("queue_descriptor_hashes", flat=True)
            .filter(pk=instance.instance_id)
            .first()
        )
        if hashes is None:
            raise RuntimeNotFound(f"there is no worker {key}")
        return {
            "title": instance.name,
            "crumb": instance.name,
            "worker": instance,
            "flags": _flags(instance),
            "queue_descriptors": len(hashes) if isinstance(hashes, dict) else 0,
            "queues": [(queue, config_facts(queue.config)) for queue in instance.queues],
        }


def _flags(instance: Runtime) -> Sequence[tuple[Text, bool, Text]]:
    """What it says of itself, one by one: what, whether it is so, and what that means."""
    return (
        (_("Healthy"), instance.healthy, _("all of the below that its work needs")),
        (_("Database"), instance.postgres_connected, _("its connections work")),
        (_("Looks for jobs"), instance.poll_loop_alive, _("its queues are polled")),
        (_("Heartbeats"), instance.heartbeat_alive, _("its running jobs give signs of life")),
        (_("Maintenance"), instance.maintenance_alive, _("it is ready to lead")),
    )
