"""The operator's desk in Django's admin.

Registered with the default site, unless ``AWA["ADMIN"]`` is False; a project with a site of its own calls
:func:`register`.
"""

from __future__ import annotations

from django.contrib.admin import AdminSite, site
from django.db import models

from awa_django.admin.batches import BatchAdmin
from awa_django.admin.callbacks import CallbackAdmin
from awa_django.admin.dead_letters import DeadLetterAdmin
from awa_django.admin.frame import DeskAdmin
from awa_django.admin.jobs import JobAdmin
from awa_django.admin.kinds import KindAdmin
from awa_django.admin.queues import QueueAdmin
from awa_django.admin.schedules import ScheduleAdmin
from awa_django.admin.storage import StorageAdmin
from awa_django.admin.workers import WorkerAdmin
from awa_django.conf import get_settings, setting_faults
from awa_django.models import (
    BatchOperation,
    CronJob,
    DlqEntry,
    Job,
    KindDescriptor,
    QueueMeta,
    RuntimeInstance,
    StorageTransitionState,
    WaitingCallback,
)

__all__ = ["ADMINS", "register"]

#: The pages, by the model whose permissions they ask for.
ADMINS: dict[type[models.Model], type[DeskAdmin]] = {
    Job: JobAdmin,
    DlqEntry: DeadLetterAdmin,
    WaitingCallback: CallbackAdmin,
    QueueMeta: QueueAdmin,
    KindDescriptor: KindAdmin,
    CronJob: ScheduleAdmin,
    RuntimeInstance: WorkerAdmin,
    BatchOperation: BatchAdmin,
    StorageTransitionState: StorageAdmin,
}


def register(on: AdminSite) -> None:
    """Register the desk's pages with an admin site."""
    for model, pages in ADMINS.items():
        on.register(model, pages)


# A wrong setting is reported by the check; it must not keep `manage.py check` from running.
if not setting_faults() and get_settings().admin:
    register(site)
