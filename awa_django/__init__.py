"""awa_django: the awa job queue for Django.

The public names are re-exported lazily, so that ``import awa_django`` in ``INSTALLED_APPS`` loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from awa_django.callbacks import CallbackToken
    from awa_django.errors import (
        AwaError,
        CallbackNotFound,
        CallbackRefused,
        ConfigurationError,
        InvalidJob,
        JobNotFound,
        ScheduleNotFound,
        SchemaOutOfDate,
        TerminalError,
        UniqueConflict,
        UnknownKind,
    )
    from awa_django.followups import follow_up
    from awa_django.http_jobs import http_job
    from awa_django.jobs import Job
    from awa_django.model_signals import on_delete, on_save
    from awa_django.outcomes import Cancel, RetryAfter, Snooze, WaitForCallback
    from awa_django.partitions import PartitionedQueue
    from awa_django.periodic import cron
    from awa_django.registry import JobKind, derive_kind, job
    from awa_django.states import JobState
    from awa_django.transitions import Notice
    from awa_django.uniqueness import Unique
    from awa_django.worker.context import JobContext

_HOMES = {
    "AwaError": "errors",
    "CallbackNotFound": "errors",
    "CallbackRefused": "errors",
    "CallbackToken": "callbacks",
    "Cancel": "outcomes",
    "ConfigurationError": "errors",
    "InvalidJob": "errors",
    "Job": "jobs",
    "JobContext": "worker.context",
    "JobKind": "registry",
    "JobNotFound": "errors",
    "JobState": "states",
    "Notice": "transitions",
    "PartitionedQueue": "partitions",
    "RetryAfter": "outcomes",
    "ScheduleNotFound": "errors",
    "SchemaOutOfDate": "errors",
    "Snooze": "outcomes",
    "TerminalError": "errors",
    "Unique": "uniqueness",
    "UniqueConflict": "errors",
    "UnknownKind": "errors",
    "WaitForCallback": "outcomes",
    "cron": "periodic",
    "derive_kind": "registry",
    "follow_up": "followups",
    "http_job": "http_jobs",
    "job": "registry",
    "on_delete": "model_signals",
    "on_save": "model_signals",
}

__all__ = [
    "AwaError",
    "CallbackNotFound",
    "CallbackRefused",
    "CallbackToken",
    "Cancel",
    "ConfigurationError",
    "InvalidJob",
    "Job",
    "JobContext",
    "JobKind",
    "JobNotFound",
    "JobState",
    "Notice",
    "PartitionedQueue",
    "RetryAfter",
    "ScheduleNotFound",
    "SchemaOutOfDate",
    "Snooze",
    "TerminalError",
    "Unique",
    "UniqueConflict",
    "UnknownKind",
    "WaitForCallback",
    "cron",
    "derive_kind",
    "follow_up",
    "http_job",
    "job",
    "on_delete",
    "on_save",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
