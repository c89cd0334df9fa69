"""The page of one job, which a dead letter has too: what it shows below the heading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F, Value
from django.http import HttpRequest
from django.utils.translation import gettext as _

from awa_django.admin.actions import job_key, job_of
from awa_django.admin.kept import Kept
from awa_django.admin.values import Values, may_see, value_shown
from awa_django.admin.words import link_of
from awa_django.enqueue import queue_alias
from awa_django.errors import JobNotFound
from awa_django.models import KindDescriptor, QueueDescriptor
from awa_django.operations import Descriptor
from awa_django.operations.desk import Desk
from awa_django.operations.dumps import TimelineEntry, timeline
from awa_django.operations.why import Why, WhyReason
from awa_django.planes.records import JobRecord, PlaneName

__all__ = ["Descriptions", "descriptions", "job_at", "job_page"]

#: Metadata of a job that a schedule made.
_SCHEDULE_KEY = "cron_name"
#: Reasons for not running that somebody has to do something about.
_TROUBLE = {
    WhyReason.UNKNOWN_KIND,
    WhyReason.NOT_PROMOTED,
    WhyReason.PAUSED,
    WhyReason.NO_WORKER_FOR_QUEUE,
    WhyReason.NO_WORKER_FOR_KIND,
    WhyReason.STALE,
    WhyReason.PAST_DEADLINE,
}


def job_at(key: str) -> tuple[int, PlaneName | None]:
    """A job's id, and the storage it is in, as an address has them. Raises ``JobNotFound`` for what is none."""
    found = job_of(key)
    if found is None:
        raise JobNotFound(f"there is no job {key!r}: ids are whole numbers")
    return found


def job_page(
    request: HttpRequest, look: Desk, record: JobRecord, answer: Why | None = None
) -> dict[str, Any]:
    """The context of ``includes/job_head.html`` and ``includes/job_body.html``.

    ``answer`` says why the job is not running, which is shown of one that may yet run.
    """
    job = record.job
    sees = may_see(request)
    is_open = record.dead_letter is None and not job.state.is_terminal
    described = descriptions()
    kind, queue = described.kinds.get(job.kind), described.queues.get(job.queue)
    reason = answer if is_open else None
    timeout_at = None if record.callback is None else record.callback.timeout_at
    return {
        "title": job.kind,
        "crumb": f"{job.kind} #{job.id}",
        "record": record,
        "job": job,
        "job_key": job_key(record, look.planes),
        "values": Values(record) if sees else None,
        "why": reason,
        "why_sentence": _sentence(reason, sees),
        "why_level": "warning" if reason is not None and reason.reason in _TROUBLE else "info",
        "steps": _steps(record, sees),
        "kind": kind,
        "kind_link": link_of(kind),
        "queue": queue,
        "queue_link": link_of(queue),
        "moved_from": _text(job.metadata.get("_awa_original_queue"), other_than=job.queue),
        "schedule": _text(job.metadata.get(_SCHEDULE_KEY)) if sees else None,
        "unique_key": job.unique_key.hex() if job.unique_key else "",
        "callback_is_expired": timeout_at is not None and timeout_at <= datetime.now(UTC),
        "ran_for": _ran_for(record),
        "is_live": is_open,
    }


class Descriptions(NamedTuple):
    """What is declared of kinds, and of queues, by name."""

    kinds: Mapping[str, Descriptor]
    queues: Mapping[str, Descriptor]


def _described() -> Descriptions:
    found: tuple[dict[str, Descriptor], dict[str, Descriptor]] = ({}, {})
    members = ("display_name", "owner", "docs_url")
    kinds, queues = (
        model.objects.using(queue_alias())
        .annotate(is_queue=Value(is_queue), name=F("pk"))
        .values_list("is_queue", "name", *members)
        for model, is_queue in ((KindDescriptor, False), (QueueDescriptor, True))
    )
    for is_queue, name, shown, owner, docs_url in kinds.union(queues, all=True):
        found[is_queue][name] = Descriptor(shown, owner=owner, docs_url=docs_url)
    return Descriptions(*found)


#: Descriptions change when a release is rolled out.
descriptions = Kept(timedelta(seconds=30), _described)


def _sentence(answer: Why | None, sees: bool) -> str:
    """Why the job is not running. The sentence may tell of the last error, which is not for everybody."""
    if answer is None:
        return ""
    if not sees and answer.facts.get("last_error"):
        return _("Its last attempt failed, and it waits for the next one.")
    return answer.sentence


def _steps(record: JobRecord, sees: bool) -> Sequence[TimelineEntry]:
    """What happened to the job, errors as they may be shown; also when a job that completed compactly started.

    An error may be an object: only as long as it is one, what is secret in it is known by its name.
    """
    errors = tuple(value_shown(record.job.kind, "errors", entry) for entry in record.job.errors)
    job = replace(record.job, errors=errors, attempted_at=record.started_at)
    steps = timeline(replace(record, job=job))
    return steps if sees else [replace(step, detail=None) for step in steps]


def _text(value: object, *, other_than: str = "") -> str | None:
    return value if isinstance(value, str) and value and value != other_than else None


def _ran_for(record: JobRecord) -> timedelta | None:
    """How long the last attempt took; None while it is not over, or where that is not known."""
    started, ended = record.started_at, record.job.finalized_at
    if not record.job.state.is_terminal or started is None or ended is None or ended < started:
        return None
    return ended - started
