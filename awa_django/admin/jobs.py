"""Jobs: the list over all planes, the page of one, and its dumps (contract: api/web_ui section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from awa_django import operations
from awa_django.admin.actions import Offer, Text
from awa_django.admin.frame import DeskAdmin, may
from awa_django.admin.job_page import descriptions, job_number, job_page
from awa_django.admin.search import (
    Search,
    pager,
    position_of,
    position_text,
    search_of,
    suggestions,
    terms_of,
)
from awa_django.admin.values import Values, may_see
from awa_django.admin.verbs import JOB_ACTIONS
from awa_django.conf import get_settings
from awa_django.enqueue import queue_alias
from awa_django.models import QueueMeta
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import Counts, Descriptor, JobFilter, JobRecord, Page, QueueOverview, one_look
from awa_django.operations.desk import Desk
from awa_django.operations.dumps import dump_job, dump_run
from awa_django.operations.names import known_kinds, known_queues
from awa_django.operations.why import why
from awa_django.planes.records import PlaneName
from awa_django.states import JobState

__all__ = ["JobAdmin"]


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

    record: JobRecord
    kind: Descriptor | None
    queue: Descriptor | None
    #: To be added to the address of its page, where its number alone names another job.
    suffix: str

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


class JobAdmin(DeskAdmin):
    """Every job, wherever it is stored."""

    list_template = "admin/awa_django/job_list.html"
    detail_template = "admin/awa_django/job_detail.html"
    offered = JOB_ACTIONS

    class Media:
        #: None of the scripts that Django's own lists and forms need.
        extend = False

    def get_urls(self) -> list[URLPattern]:
        """The ordinary ones, and those of the job's dumps and long values."""
        wrap = self.admin_site.admin_view
        pages = (
            ("<path:object_id>/dump/", self.dump_view, "dump"),
            ("<path:object_id>/dump/<int:attempt>/", self.dump_view, "run_dump"),
            ("<path:object_id>/part/<slug:part>/", self.part_view, "part"),
        )
        return [
            *(
                path(route, wrap(require_safe(view)), name=f"awa_django_job_{name}")
                for route, view, name in pages
            ),
            *super().get_urls(),
        ]

    def name_of(self, key: str) -> str:
        """As lists call it."""
        return _("job %s") % key

    # The list

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list. What was typed into the search field goes on as parameters, so that the address says it."""
        typed = request.GET.get("q", "").strip()
        if typed and self.has_view_permission(request):
            with one_look(statement_timeout=get_settings().admin_statement_timeout):
                terms = terms_of(typed, known_kinds(), known_queues())
            return redirect(request.path + search_of(request.GET).link(**terms))
        return super().changelist_view(request, extra_context)

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """A page of jobs, the newest first, and what there is to filter by."""
        search = search_of(request.GET)
        page = Page([], None)
        if search.filter is not None:
            page = operations.list_jobs(search.filter, after=position_of(search.before), limit=search.size)
        counts = self._counts(search)
        kinds, queues = suggestions()
        is_popup = "_popup" in request.GET
        matching = search.filter is not None and not search.is_empty and may(request, "submit_batchoperation")
        bulk = [] if is_popup else self.bulk_offers(request)
        return {
            "search": search,
            "rows": _rows(page, look),
            "pills": _pills(search, counts),
            "pager": pager(search, position_text(page), self._note(page)),
            "is_cut_short": page.next is not None and len(page.jobs) < search.size,
            "kinds": kinds,
            "queues": queues,
            "states": [(state.value, STATE_LABELS[state]) for state in JobState],
            "bulk_offers": bulk,
            "matching_offers": [offer for offer in bulk if offer.action.batch is not None]
            if matching
            else [],
            "matching_count": _matching(search, counts) if matching else None,
            "queue": None if is_popup else self._queue(request, search, counts),
            "next": request.get_full_path(),
            "is_popup": is_popup,
            "is_first": not search.before,
        }

    def filter_of(self, parameters: QueryDict) -> JobFilter:
        """The jobs that the list's parameters mean; refused where they mean all, or cannot be read."""
        search = search_of(parameters)
        if search.filter is None:
            raise BadRequest("; ".join(search.problems))
        if search.is_empty:
            raise BadRequest(_("without a filter all jobs would be meant"))
        return search.filter

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
        number, plane = job_number(key), _plane(request)
        # Whoever says why a job does not run has read the job.
        answer = why(number) if plane is None else None
        record = operations.load_job(number, plane=plane) if answer is None else answer.job
        return {
            "title": record.job.kind,
            "offers": self.offers(request, record.job.id, record),
            **job_page(request, record, answer),
        }

    # Dumps and long values

    def dump_view(self, request: HttpRequest, object_id: str, attempt: int | None = None) -> HttpResponse:
        """The job, or one attempt of it, as a JSON document to attach to a ticket."""
        self._check_payload(request)
        try:
            number = job_number(unquote(object_id))
            document = dump_job(number) if attempt is None else dump_run(number, attempt)
        except (LookupError, ValueError) as error:
            raise Http404(str(error)) from error
        name = f"job-{number}.json" if attempt is None else f"job-{number}-attempt-{attempt}.json"
        answer = JsonResponse(document, json_dumps_params={"indent": 2, "ensure_ascii": False})
        return _download(answer, name)

    def part_view(self, request: HttpRequest, object_id: str, part: str) -> HttpResponse:
        """Arguments, metadata, progress or errors in full, as plain text."""
        self._check_payload(request)
        try:
            number = job_number(unquote(object_id))
            text = Values(operations.load_job(number, plane=_plane(request))).part(part)
        except LookupError as error:
            raise Http404(str(error)) from error
        answer = HttpResponse(text, content_type="text/plain; charset=utf-8")
        return _download(answer, f"job-{number}-{part}.txt", inline=True)

    def _check_payload(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request) or not may_see(request):
            raise PermissionDenied


def _download(answer: HttpResponse, name: str, *, inline: bool = False) -> HttpResponse:
    """What came with a job, in a form that no browser takes for a page."""
    answer["Content-Disposition"] = f'{"inline" if inline else "attachment"}; filename="{name}"'
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Cache-Control"] = "no-store"
    return answer


def _plane(request: HttpRequest) -> PlaneName | None:
    """The plane that the address names: ids of the two overlap."""
    match request.GET.get("plane"):
        case "canonical":
            return "canonical"
        case "queue_storage":
            return "queue_storage"
    return None


def _rows(page: Page, look: Desk) -> list[Row]:
    described = descriptions()
    first = look.planes[0].name
    return [
        Row(
            record,
            described.kinds.get(record.job.kind),
            described.queues.get(record.job.queue),
            "" if record.plane == first else f"?plane={record.plane}",
        )
        for record in page.jobs
    ]


def _pills(search: Search, counts: Counts | None) -> list[Pill]:
    chosen = search.given.get("state", "")
    by_state = None if counts is None else counts.by_state
    pills = [
        Pill(
            _("all"),
            "",
            None if by_state is None else sum(by_state.values()),
            search.link(state=None),
            not chosen,
        )
    ]
    for state in JobState:
        pills.append(
            Pill(
                STATE_LABELS[state],
                state.value,
                None if by_state is None else by_state[state],
                search.link(state=state.value),
                chosen == state.value,
            )
        )
    return pills


def _matching(search: Search, counts: Counts | None) -> int | None:
    """About how many jobs pass the filter, where that is counted."""
    if counts is None or search.filter is None:
        return None
    return sum(number for state, number in counts.by_state.items() if state in search.filter.wanted)
