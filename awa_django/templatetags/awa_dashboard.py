"""The dashboard, as a tag: Django's own view of an app's index knows nothing of what a template may need.

So it works on every admin site, the project's own ones too, and none has to be replaced for it.
"""

from __future__ import annotations

from typing import Any

from django import template
from django.contrib.admin.sites import AdminSite, all_sites, site
from django.http import HttpRequest
from django.template import Context
from django.template.loader import render_to_string

register = template.Library()


@register.simple_tag(takes_context=True)
def awa_dashboard(context: Context) -> str:
    """The whole page."""
    from awa_django.admin.dashboard import dashboard_page

    request: HttpRequest = context["request"]
    name, found = dashboard_page(request, _site(request))
    around: dict[str, Any] = {str(key): value for key, value in context.flatten().items()}
    return render_to_string(name, {**around, **found}, request)


def _site(request: HttpRequest) -> AdminSite:
    """The site that answers the request; it left its name there."""
    name = getattr(request, "current_app", None)
    return next((each for each in all_sites if each.name == name), site)
