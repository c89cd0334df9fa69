"""Dead letters: the list, and the page of one (contract: api/web_ui section 2, api/admin_ops section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from awa_django import operations
from awa_django.admin.frame import DeskAdmin, may
from awa_django.admin.job_page import job_number, job_page
from awa_django.admin.search import Search, pager, search_of, suggestions, terms_of
from awa_django.admin.values import error_line
from awa_django.admin.verbs import DEAD_LETTER_ACTIONS
from awa_django.conf import get_settings
from awa_django.errors import JobNotFound
from awa_django.operations import JobFilter, JobRecord, one_look
from awa_django.operations.desk import Desk
from awa_django.operations.names import known_kinds, known_queues

__all__ = ["DeadLetterAdmin"]

#: What dead letters can be filtered by.
NAMES = ("kind", "queue", "tag")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter of the list; ``error`` is None where it may not be seen."""

    record: JobRecord
    error: str | None


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many dead letters a queue has."""

    queue: str
    count: int
    url: str
    is_here: bool


class DeadLetterAdmin(DeskAdmin):
    """Jobs that failed for good and are kept until somebody has looked at them."""

    list_template = "admin/awa_django/dead_letter_list.html"
    detail_template = "admin/awa_django/dead_letter_detail.html"
    offered = DEAD_LETTER_ACTIONS

    class Media:
        #: None of the scripts that Django's own lists and forms need.
        extend = False

    def name_of(self, key: str) -> str:
        """As lists call it."""
        return _("dead letter %s") % key

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list. What was typed into the search field goes on as parameters, so that the address says it."""
        typed = request.GET.get("q", "").strip()
        if typed and self.has_view_permission(request):
            with one_look(statement_timeout=get_settings().admin_statement_timeout):
                terms = terms_of(typed, known_kinds(), known_queues(), NAMES)
            if terms.get("id", "").isdecimal():
                return redirect(self.detail_url(terms["id"]))
            return redirect(request.path + search_of(request.GET, NAMES).link(**terms))
        return super().changelist_view(request, extra_context)

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """A page of dead letters, the newest first, and how many each queue has."""
        search = search_of(request.GET, NAMES)
        records: list[JobRecord] = []
        if search.filter is not None:
            # One more than is shown says whether there are older ones.
            records = operations.dead_letters(
                search.filter, after=_place(search.before), limit=search.size + 1
            )
        shown = records[: search.size]
        depths = _depths(search)
        total = sum(depth.count for depth in depths)
        matching = search.filter is not None and not search.is_empty and may(request, "submit_batchoperation")
        bulk = self.bulk_offers(request)
        return {
            "search": search,
            "letters": [Letter(record, error_line(request, record)) for record in shown],
            "pager": pager(search, _place_text(shown[-1]) if len(records) > search.size else None),
            "depths": depths,
            "total": total,
            "all_url": search.link(queue=None),
            "kinds": suggestions()[0],
            "queues": sorted({depth.queue for depth in depths}),
            "bulk_offers": bulk,
            "matching_offers": [offer for offer in bulk if offer.action.batch is not None]
            if matching
            else [],
            "matching_count": _matching(search, depths) if matching else None,
            "next": request.get_full_path(),
            "is_first": not search.before,
        }

    def filter_of(self, parameters: QueryDict) -> JobFilter:
        """The dead letters that the list's parameters mean; refused where they mean all, or cannot be read."""
        search = search_of(parameters, NAMES)
        if search.filter is None:
            raise BadRequest("; ".join(search.problems))
        if search.is_empty:
            raise BadRequest(_("without a filter all dead letters would be meant"))
        return search.filter

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One dead letter: the job, and why it is one."""
        record = operations.load_job(job_number(key))
        if record.dead_letter is None:
            raise JobNotFound(f"job {key} is no dead letter; it is {record.job.state.value}")
        return {
            "title": record.job.kind,
            "offers": self.offers(request, record.job.id, record),
            "is_dead_letter_page": True,
            **job_page(request, record),
        }


def _depths(search: Search) -> list[QueueDepth]:
    """Dead letters by queue, the deepest first."""
    counted = {
        name: counts.dead for name, counts in operations.queue_counts(exact=False).items() if counts.dead
    }
    chosen = search.given.get("queue", "")
    return [
        QueueDepth(name, count, search.link(queue=name), name == chosen)
        for name, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ]


def _matching(search: Search, depths: list[QueueDepth]) -> int | None:
    """How many match, where only the queue says it."""
    if search.given.keys() != {"queue"}:
        return None
    return next((depth.count for depth in depths if depth.is_here), 0)


def _place(text: str) -> tuple[datetime, int] | None:
    """Where a page begins: the time and the id of the last one seen; None for the first page."""
    at_text, _bar, number = text.rpartition("_")
    try:
        at = parse_datetime(at_text)
    except ValueError:
        return None
    if at is None or at.tzinfo is None or not 1900 <= at.year < 9999:
        return None
    if not (number.isascii() and number.isdecimal() and len(number) < 19):
        return None
    return at, int(number)


def _place_text(record: JobRecord) -> str:
    assert record.dead_letter is not None, "only dead letters are listed"
    return f"{record.dead_letter.at.isoformat()}_{record.job.id}"
