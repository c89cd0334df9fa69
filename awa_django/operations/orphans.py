"""Kinds of waiting jobs that somebody does not know: a release that is to be deployed, or the workers there are."""

from __future__ import annotations

from collections.abc import Collection

from awa_django.operations.queues import waiting_kinds
from awa_django.operations.reading import JobFilter, list_jobs
from awa_django.states import JobState

__all__ = ["orphan_kinds"]

_NOT_STARTED = (JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE)


def orphan_kinds(known: Collection[str], *, using: str | None = None) -> dict[str, int]:
    """How many jobs of each kind that is not ``known`` have not started, most first.

    Figures may be too high by jobs that were just claimed or cancelled, but each kind has a job.
    """
    return {
        kind: number
        for kind, number in waiting_kinds(using=using).items()
        if kind not in known and number > 0 and _has_job(kind, using)
    }


def _has_job(kind: str, using: str | None) -> bool:
    page = list_jobs(JobFilter(kind=kind, states=_NOT_STARTED), limit=1, using=using)
    # A search that was broken off found nothing out.
    return bool(page.jobs) or page.next is not None
