"""Jobs: the list over all planes, the page of one, and its dumps (contract: api/web_ui section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from awa_django import operations
from awa_django.admin.actions import Offer, Text, job_key, job_of
from awa_django.admin.frame import DeskAdmin
from awa_django.admin.job_lists import JobListAdmin
from awa_django.admin.job_page import descriptions, job_at, job_page
from awa_django.admin.pages import look_of_page, may
from awa_django.admin.payloads import PayloadAdmin, download
from awa_django.admin.search import Search, pager, position_of, position_text
from awa_django.admin.values import Values
from awa_django.admin.verbs import JOB_ACTIONS
from awa_django.enqueue import queue_alias
from awa_django.models import QueueMeta, WaitingCallback
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import Counts, Descriptor, JobFilter, JobRecord, Page, QueueOverview
from awa_django.operations.desk import Desk
from awa_django.operations.dumps import dump_job, dump_run
from awa_django.operations.why import why
from awa_django.states import JobState
from awa_django.templatetags.awa import plain_text

__all__ = ["JobAdmin"]

#: The id of a callback, as an outside's log has it.
_CALLBACK = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Pill:
    """A state to filter by, and how many jobs there are in it; None where that is not known."""

    name: Text
    state: str
    count: int | None
    url: str
    is_here: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A job of a list, with what is declared of its kind and queue."""

    #: What addresses it.
    key: str
    record: JobRecord
    kind: Descriptor | None
    queue: Descriptor | None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is in the storage that no new jobs go to."""
        return self.key != str(self.record.job.id)

    @property
    def was(self) -> int | None:
        """The priority before somebody changed it, or age raised it."""
        original = self.record.original_priority
        return None if original == self.record.job.priority else original

    @property
    def due_at(self) -> datetime | None:
        """When it will be available, if it has to wait for that."""
        waits = self.record.job.state in (JobState.SCHEDULED, JobState.RETRYABLE)
        return self.record.job.run_at if waits else None

    @property
    def ended_at(self) -> datetime | None:
        """When it finished; a job that waits for its next attempt has not, whatever ended before."""
        return self.record.job.finalized_at if self.record.job.state.is_terminal else None


class JobAdmin(JobListAdmin, PayloadAdmin):
    """Every job, wherever it is stored."""

    label = gettext_lazy("Jobs")
    list_template = "admin/awa_django/job_list.html"
    detail_template = "admin/awa_django/job_detail.html"
    offered = JOB_ACTIONS

    called = gettext_lazy("job %s")

    def get_urls(self) -> list[URLPattern]:
        """The ordinary ones, and those of the job's dumps."""
        return [
            self.document("<path:object_id>/dump/", self.dump_view, "dump"),
            self.document("<path:object_id>/dump/<int:attempt>/", self.dump_view, "run_dump"),
            *super().get_urls(),
        ]

    # The list

    def found_at(self, request: HttpRequest, terms: Mapping[str, str]) -> str:
        """Where what was typed is found: one job by its number, and a callback by its id, have pages.

        Beside a filter a number narrows that. One that there is not leads to the list, which says so.
        """
        typed = request.GET["q"].strip()
        if not self.search(request.GET).given and "_popup" not in request.GET:
            if terms.keys() == {"id"} and (number := job_of(terms["id"])) is not None:
                with look_of_page() as look:
                    found = operations.list_jobs(JobFilter(ids=[number[0]]), limit=2).jobs
                if len(found) == 1:
                    return self.detail_url(job_key(found[0], look.planes))
            if _CALLBACK.fullmatch(typed) and may(request, "view_waitingcallback"):
                pages = self.admin_site._registry.get(WaitingCallback)
                if isinstance(pages, DeskAdmin):
                    return f"{pages.list_url()}?{urlencode({'q': typed})}"
        return super().found_at(request, terms)

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """A page of jobs, the newest first, and what there is to filter by."""
        search = self.search(request.GET)
        page = Page([], None)
        if search.filter is not None:
            page = operations.list_jobs(search.filter, after=position_of(search.before), limit=search.size)
        counts = self._counts(search)
        is_popup = "_popup" in request.GET
        return {
            **self.around_list(request, search),
            "rows": _rows(page, look),
            "pills": _pills(search, counts),
            "pager": pager(search, position_text(page), self._note(page)),
            "is_cut_short": page.next is not None and len(page.jobs) < search.size,
            "matching_count": _matching(search, counts),
            "queue": None if is_popup else self._queue(request, search, counts),
            "is_popup": is_popup,
        }

    def _counts(self, search: Search) -> Counts | None:
        """Counts for the pills; None where nothing has counted jobs by what the filter says."""
        if search.filter is None or not search.given.keys() <= {"state", "queue"}:
            return None
        queue = search.filter.queue
        if queue is None:
            return operations.state_counts(exact=False)
        return operations.queue_counts(exact=False, queue=queue).get(queue, Counts(exact=False))

    def _note(self, page: Page) -> str:
        if not page.jobs:
            return ""
        return _("ids %(last)s to %(first)s") % {"last": page.jobs[-1].job.id, "first": page.jobs[0].job.id}

    def _queue(self, request: HttpRequest, search: Search, counts: Counts | None) -> Mapping[str, Any] | None:
        """The queue, where the filter names one: its state, and what can be done with it."""
        name = None if search.filter is None else search.filter.queue
        if name is None or not may(request, "view_queuemeta"):
            return None
        settings = QueueMeta.objects.using(queue_alias()).filter(pk=name).first()
        overview = QueueOverview(
            name,
            counts or Counts(exact=False),
            paused=bool(settings and settings.paused),
            paused_at=settings and settings.paused_at,
            paused_by=settings and settings.paused_by,
        )
        return {
            "overview": overview,
            "is_counted": counts is not None,
            "offers": self._offers_of(QueueMeta, request, name, overview),
        }

    def _offers_of(
        self, model: type[models.Model], request: HttpRequest, key: str, shown: object
    ) -> Sequence[Offer]:
        """What another of our pages offers to do to one of its objects."""
        pages = self.admin_site._registry.get(model)
        return pages.offers(request, key, shown) if isinstance(pages, DeskAdmin) else ()

    # One job

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One job with all that is known of it."""
        number, plane = job_at(key)
        # Whoever says why a job does not run has read the job.
        answer = why(number) if plane is None else None
        record = operations.load_job(number, plane=plane) if answer is None else answer.job
        return {
            "offers": self.offers(request, job_key(record, look.planes), record),
            **job_page(request, look, record, answer),
        }

    # Dumps and long values

    def dump_view(self, request: HttpRequest, object_id: str, attempt: int | None = None) -> HttpResponse:
        """The job, or one attempt of it, as a JSON document to attach to a ticket."""

        def document(key: str) -> str:
            number, plane = job_at(key)
            if attempt is None:
                return plain_text(dump_job(number, plane=plane))
            return plain_text(dump_run(number, attempt, plane=plane))

        text = self.payload(request, object_id, document)
        name = f"job {object_id}" if attempt is None else f"job {object_id} attempt {attempt}"
        return download(text, "application/json", name, "json")

    def read_part(self, key: str, part: str) -> str:
        """Arguments, metadata, progress or errors."""
        number, plane = job_at(key)
        return Values(operations.load_job(number, plane=plane)).part(part)


def _rows(page: Page, look: Desk) -> list[Row]:
    described = descriptions()
    return [
        Row(
            job_key(record, look.planes),
            record,
            described.kinds.get(record.job.kind),
            described.queues.get(record.job.queue),
        )
        for record in page.jobs
    ]


def _pills(search: Search, counts: Counts | None) -> list[Pill]:
    chosen = search.given.get("state", "")
    by_state: dict[JobState, int | None] = {} if counts is None else dict(counts.by_state)
    total = None if counts is None else sum(counts.by_state.values())
    if counts is not None and not counts.exact and not counts.cancelled:
        # Estimates count cancelled jobs among the completed ones.
        by_state[JobState.CANCELLED] = None
    pills = [Pill(_("all"), "", total, search.link(state=None), not chosen)]
    for state in JobState:
        url = search.link(state=state.value)
        pills.append(Pill(STATE_LABELS[state], state.value, by_state.get(state), url, chosen == state.value))
    return pills


def _matching(search: Search, counts: Counts | None) -> int | None:
    """About how many jobs pass the filter, where that is counted."""
    if counts is None or search.filter is None:
        return None
    return sum(number for state, number in counts.by_state.items() if state in search.filter.wanted)
