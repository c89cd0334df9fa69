"""Kinds of jobs: what they are, how many wait, who knows them (contract: api/web_ui section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from awa_django import operations, periodic
from awa_django.admin.actions import Text
from awa_django.admin.found_by_name import Choices, found_by_name
from awa_django.admin.frame import DeskAdmin
from awa_django.admin.pages import may
from awa_django.admin.words import link_of
from awa_django.operations import KindOverview
from awa_django.operations.desk import Desk
from awa_django.registry import JobKind, registry

__all__ = ["KindAdmin"]


@dataclass(frozen=True, slots=True)
class KindRow:
    """A kind in the list."""

    overview: KindOverview
    #: Whether this process registers it: a web server that enqueues it may well not.
    is_registered: bool
    docs_url: str

    @property
    def is_orphaned(self) -> bool:
        """Whether jobs of it wait that no live worker could run."""
        return self.overview.waiting > 0 and self.overview.handled_by == 0


_SHOW: Choices[KindRow] = {
    "orphaned": (_("No live worker knows it"), lambda row: row.is_orphaned),
    "waiting": (_("Waiting"), lambda row: row.overview.waiting > 0),
    "failed": (_("With failures"), lambda row: row.overview.failed > 0),
}


class KindAdmin(DeskAdmin):
    """Kinds, whether code describes them or jobs alone have them."""

    label = _("Kinds")
    list_template = "admin/awa_django/kind_list.html"
    detail_template = "admin/awa_django/kind_detail.html"
    called = _("kind %s")

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """All kinds, or those that are searched for."""
        rows = [
            KindRow(kind, kind.kind in registry, link_of(kind.descriptor))
            for kind in operations.kind_overview()
        ]
        return {
            "orphaned": [row.overview for row in rows if row.is_orphaned],
            **found_by_name(request, rows, _names, _("All"), _SHOW),
        }

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One kind, if anybody knows it."""
        overview = next((kind for kind in operations.kind_overview() if kind.kind == key), None)
        handler = registry.get(key)
        if overview is None and handler is None:
            raise LookupError(f"there is no kind {key!r}")
        if overview is None:
            overview = KindOverview(key, None, 0, None, 0, (), 0, 0)
        row = KindRow(overview, handler is not None, link_of(overview.descriptor))
        runs = operations.runtime_overview().instances if may(request, "view_runtimeinstance") else ()
        return {
            "row": row,
            "kind": overview,
            "docs_url": row.docs_url,
            "handler": ""
            if handler is None
            else f"{handler.handler.__module__}.{handler.handler.__qualname__}",
            "options": _options(handler),
            "workers": [each for each in runs if each.live and key in each.kinds],
            "schedules": [schedule for schedule in periodic.schedules() if schedule.kind == key]
            if may(request, "view_cronjob")
            else [],
        }


def _options(kind: JobKind[Any, Any] | None) -> list[tuple[Text, str]]:
    """The options of its jobs as the code of this process has them."""
    if kind is None:
        return []
    options = kind.options
    return [
        (_("Default queue"), options.queue),
        (_("Priority"), str(options.priority)),
        (_("Attempts"), str(options.max_attempts)),
        (_("Timeout"), _now("none") if kind.timeout is None else str(kind.timeout)),
    ]


def _names(row: KindRow) -> tuple[str | None, ...]:
    described = row.overview.descriptor
    found = () if described is None else (*described.tags, described.display_name, described.owner)
    return row.overview.kind, *found
