"""awa_django: the awa job queue for Django.

The public names are re-exported lazily, so that ``import awa_django`` in ``INSTALLED_APPS`` loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from awa_django.errors import (
        AwaError,
        CallbackNotFound,
        ConfigurationError,
        InvalidJob,
        JobNotFound,
        SchemaOutOfDate,
        TerminalError,
        UniqueConflict,
        UnknownKind,
    )
    from awa_django.jobs import Job
    from awa_django.model_signals import on_delete, on_save
    from awa_django.outcomes import Cancel, RetryAfter, Snooze
    from awa_django.partitions import PartitionedQueue
    from awa_django.registry import JobKind, derive_kind, job
    from awa_django.states import JobState
    from awa_django.uniqueness import Unique
    from awa_django.worker.context import JobContext

_HOMES = {
    "AwaError": "errors",
    "CallbackNotFound": "errors",
    "Cancel": "outcomes",
    "ConfigurationError": "errors",
    "InvalidJob": "errors",
    "Job": "jobs",
    "JobContext": "worker.context",
    "JobKind": "registry",
    "JobNotFound": "errors",
    "JobState": "states",
    "PartitionedQueue": "partitions",
    "RetryAfter": "outcomes",
    "SchemaOutOfDate": "errors",
    "Snooze": "outcomes",
    "TerminalError": "errors",
    "Unique": "uniqueness",
    "UniqueConflict": "errors",
    "UnknownKind": "errors",
    "derive_kind": "registry",
    "job": "registry",
    "on_delete": "model_signals",
    "on_save": "model_signals",
}

__all__ = [
    "AwaError",
    "CallbackNotFound",
    "Cancel",
    "ConfigurationError",
    "InvalidJob",
    "Job",
    "JobContext",
    "JobKind",
    "JobNotFound",
    "JobState",
    "PartitionedQueue",
    "RetryAfter",
    "SchemaOutOfDate",
    "Snooze",
    "TerminalError",
    "Unique",
    "UniqueConflict",
    "UnknownKind",
    "derive_kind",
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
