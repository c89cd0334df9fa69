"""Dead letters: the list, and the page of one (contract: api/web_ui section 2, api/admin_ops section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _

from awa_django import operations
from awa_django.admin.job_lists import JobListAdmin
from awa_django.admin.job_page import job_at, job_page
from awa_django.admin.search import Search, pager
from awa_django.admin.values import error_line
from awa_django.admin.verbs import DEAD_LETTER_ACTIONS
from awa_django.errors import JobNotFound
from awa_django.operations import JobRecord
from awa_django.operations.desk import Desk

__all__ = ["DeadLetterAdmin"]


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


class DeadLetterAdmin(JobListAdmin):
    """Jobs that failed for good and are kept until somebody has looked at them."""

    label = _("Dead letters")
    list_template = "admin/awa_django/dead_letter_list.html"
    detail_template = "admin/awa_django/dead_letter_detail.html"
    offered = DEAD_LETTER_ACTIONS

    names = ("kind", "queue", "tag")
    called = _("dead letter %s")

    def found_at(self, request: HttpRequest, terms: Mapping[str, str]) -> str:
        """Where what was typed is found: one by its number has a page."""
        number = terms.get("id", "")
        return self.detail_url(number) if number.isdecimal() else super().found_at(request, terms)

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """A page of dead letters, the newest first, and how many each queue has."""
        search = self.search(request.GET)
        records: list[JobRecord] = []
        if search.filter is not None:
            # One more than is shown says whether there are older ones.
            records = operations.dead_letters(
                search.filter, after=_place(search.before), limit=search.size + 1
            )
        shown = records[: search.size]
        depths = _depths(search)
        return {
            **self.around_list(request, search),
            "letters": [Letter(record, error_line(request, record)) for record in shown],
            "pager": pager(search, _place_text(shown[-1]) if len(records) > search.size else None),
            "depths": depths,
            "total": sum(depth.count for depth in depths),
            "all_url": search.link(queue=None),
            "queues": sorted({depth.queue for depth in depths}),
            "matching_count": _matching(search, depths),
        }

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One dead letter: the job, and why it is one."""
        number, plane = job_at(key)
        record = operations.load_job(number, plane=plane)
        if record.dead_letter is None:
            raise JobNotFound(f"job {key} is no dead letter; it is {record.job.state.value}")
        return {
            "offers": self.offers(request, record.job.id, record),
            "is_dead_letter_page": True,
            **job_page(request, look, record),
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
