"""How a page of the desk is read: in one look at the database, with a time limit for each statement, and with the frame
that stands around every page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from django.contrib.admin import AdminSite
from django.db import OperationalError
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from awa_django.admin.actions import Text
from awa_django.conf import get_settings
from awa_django.operations import one_look
from awa_django.operations.desk import Desk, looking
from awa_django.operations.pulse import Pulse, pulse

__all__ = ["NAV", "Build", "frame_of", "look_of_page", "may", "read_only_reason", "read_page", "too_slow"]

logger = logging.getLogger("awa_django.admin")

#: Makes the context of a page from a look at the database.
Build = Callable[[Desk], Mapping[str, Any]]

#: Pages of the desk in the order of the navigation, by the models whose permissions they ask for.
NAV = (
    "job", "dlqentry", "waitingcallback", "queuemeta", "kinddescriptor", "cronjob", "runtimeinstance", "batchoperation",
    "storagetransitionstate",
)  # fmt: skip


def may(request: HttpRequest, codename: str) -> bool:
    """Whether the user has a permission of this app."""
    return request.user.has_perm(f"awa_django.{codename}")


def read_only_reason() -> Text | None:
    """Why nothing can be changed from here; None if it can. Within a look, the database has been asked too."""
    if get_settings().read_only:
        return _("This site only shows: AWA['READ_ONLY'] is set.")
    look = looking()
    if look is not None and look.read_only:
        return _("The database takes no changes: this connection is read-only.")
    return None


def frame_of(request: HttpRequest, site: AdminSite) -> dict[str, Any]:
    """What every page of the desk shows around its own: navigation, live workers, and whether anything can be changed.

    Called within the look that the page is read in.
    """
    beat = pulse()
    return {
        "nav": _navigation(request, site, beat),
        "pulse": beat,
        "read_only": read_only_reason(),
        "may_see_payloads": may(request, "view_job_payload"),
    }


def _navigation(request: HttpRequest, site: AdminSite, beat: Pulse) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    if may(request, "view_job"):
        url = reverse(f"{site.name}:app_list", args=["awa_django"])
        pages.append({"label": _("Dashboard"), "url": url, "is_here": request.path == url})
    labels = {
        model._meta.model_name: getattr(admin, "label", model._meta.verbose_name_plural)
        for model, admin in site._registry.items()
        if model._meta.app_label == "awa_django"
    }
    for model in NAV:
        if model in labels and may(request, f"view_{model}"):
            label, url = labels[model], reverse(f"{site.name}:awa_django_{model}_changelist")
            pages.append({"label": label, "url": url, "is_here": request.path.startswith(url)})
            if model == "dlqentry" and beat.dead_letters:
                pages[-1] |= {"count": beat.dead_letters, "is_more": beat.has_more_dead_letters}
    return pages


def look_of_page() -> AbstractContextManager[Desk]:
    """A look for a page, or for what is not quite one."""
    return one_look(statement_timeout=get_settings().admin_statement_timeout)


def read_page(
    request: HttpRequest, site: AdminSite, template: str, build: Build
) -> tuple[str, dict[str, Any], bool]:
    """A page's template, its context and whether it could be read; the context is what ``build`` reads, and the frame.

    Instead of a page that takes the database too long there is one that says so.
    """
    try:
        with look_of_page() as look:
            return template, {**site.each_context(request), **frame_of(request, site), **build(look)}, True
    except OperationalError as error:
        return (*too_slow(request, site, error), False)


def too_slow(request: HttpRequest, site: AdminSite, error: OperationalError) -> tuple[str, dict[str, Any]]:
    """The template and the context of the page that says so; any other error is raised again."""
    if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
        raise error
    # Without the parameters, which may hold values.
    logger.warning("a page took the database too long: %s", request.path)
    context = {
        **site.each_context(request),
        "title": _("That took the database too long"),
        "limit": get_settings().admin_statement_timeout.total_seconds(),
    }
    return "admin/awa_django/too_slow.html", context
