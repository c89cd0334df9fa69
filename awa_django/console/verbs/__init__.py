"""The verbs, a module for each group. Importing this package puts them into the tree."""

from __future__ import annotations

from awa_django.console.verbs import (
    batches,
    callbacks,
    dead_letters,
    fleet,
    health,
    jobs,
    queues,
    schedules,
    storage,
)

__all__ = [
    "batches",
    "callbacks",
    "dead_letters",
    "fleet",
    "health",
    "jobs",
    "queues",
    "schedules",
    "storage",
]
