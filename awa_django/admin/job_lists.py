"""What the lists of jobs and of dead letters have in common: their filter, and what can be done to all that match."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from awa_django.admin.frame import DeskAdmin
from awa_django.admin.pages import look_of_page, may
from awa_django.admin.search import NAMES, Search, search_of, suggestions, terms_of
from awa_django.operations import JobFilter
from awa_django.operations.names import known_names

__all__ = ["JobListAdmin"]


class JobListAdmin(DeskAdmin):
    """A list whose address says which jobs it holds."""

    #: The parameters of its filter.
    names: ClassVar[Collection[str]] = NAMES

    def search(self, parameters: QueryDict) -> Search:
        """What the list's parameters mean."""
        return search_of(parameters, self.names)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list. What was typed into the search field goes on as parameters, so that the address says it."""
        typed = request.GET.get("q", "").strip()
        if typed and self.has_view_permission(request):
            return self.in_time(request, lambda: redirect(self.found_at(request, self.meant_by(typed))))
        return super().changelist_view(request, extra_context)

    def meant_by(self, typed: str) -> dict[str, str]:
        """The parameters that typed words mean, by the names that there are."""
        with look_of_page():
            return terms_of(typed, *known_names(), self.names)

    def found_at(self, request: HttpRequest, terms: Mapping[str, str]) -> str:
        """Where what was typed is found."""
        return request.path + self.search(request.GET).link(**terms)

    def filter_of(self, parameters: QueryDict) -> JobFilter:
        """The jobs that the list's parameters mean; refused where they mean all, or cannot be read."""
        search = self.search(parameters)
        if search.filter is None:
            raise BadRequest("; ".join(search.problems))
        if search.is_empty:
            raise BadRequest(_("without a filter all would be meant"))
        return search.filter

    def around_list(self, request: HttpRequest, search: Search) -> dict[str, Any]:
        """The context of ``includes/job_filters.html`` and ``includes/selection.html``."""
        kinds, queues = suggestions()
        bulk = [] if "_popup" in request.GET else self.bulk_offers(request)
        matching = search.filter is not None and not search.is_empty and may(request, "submit_batchoperation")
        return {
            "search": search,
            "kinds": kinds,
            "queues": queues,
            "bulk_offers": bulk,
            "matching_offers": [offer for offer in bulk if matching and offer.action.batch is not None],
            "next": request.get_full_path(),
            "is_first": not search.before,
        }
