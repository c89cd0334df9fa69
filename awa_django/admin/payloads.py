"""Arguments, metadata, errors and dumps in full, as documents of their own, for whoever may see them.

Pages show the beginning of a long value and lead here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from awa_django.admin.frame import DeskAdmin
from awa_django.admin.pages import look_of_page
from awa_django.admin.values import may_see

__all__ = ["PayloadAdmin"]


class PayloadAdmin(DeskAdmin):
    """Pages over objects with values that may be long."""

    def read_part(self, key: str, part: str) -> str:
        """One value in full, as it may be shown. Raises ``LookupError`` for an object or a part that there is not."""
        raise NotImplementedError

    def get_urls(self) -> list[URLPattern]:
        """The ordinary ones, and those of long values."""
        return [
            self.document("<path:object_id>/part/<slug:part>/", self.part_view, "part"),
            *super().get_urls(),
        ]

    def document(self, route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
        """Where a document is."""

        def in_time(request: HttpRequest, **parts: Any) -> HttpResponse:
            return self.in_time(request, lambda: view(request, **parts))

        return path(
            route,
            self.admin_site.admin_view(require_safe(in_time)),
            name=f"awa_django_{self.opts.model_name}_{name}",
        )

    def part_view(self, request: HttpRequest, object_id: str, part: str) -> HttpResponse:
        """One value in full, as plain text."""
        text = self.payload(request, object_id, lambda key: self.read_part(key, part))
        name = f"{self.name_of(unquote(object_id))} {part}"
        return download(text, "text/plain; charset=utf-8", name, "txt", inline=True)

    def payload(self, request: HttpRequest, object_id: str, read: Callable[[str], str]) -> str:
        """What is read of an object in one look, for whoever may see payloads."""
        if not self.has_view_permission(request) or not may_see(request):
            raise PermissionDenied
        try:
            with look_of_page():
                return read(unquote(object_id))
        except (LookupError, ValueError) as error:
            raise Http404(str(error)) from error
        except RecursionError:
            raise Http404(_("it holds values that are nested too deep for a document")) from None


def download(text: str, content_type: str, name: str, ending: str, *, inline: bool = False) -> HttpResponse:
    """What came with a job, in a form that no browser takes for a page."""
    answer = HttpResponse(text, content_type=content_type)
    disposition = "inline" if inline else "attachment"
    answer["Content-Disposition"] = f'{disposition}; filename="{slugify(name)}.{ending}"'
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Cache-Control"] = "no-store"
    return answer
