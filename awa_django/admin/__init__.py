"""The operator's desk in Django's admin.

Registered with the default site, unless ``AWA["ADMIN"]`` is False; a project with a site of its own calls
:func:`register`.
"""

from __future__ import annotations

from django.contrib.admin import AdminSite, site
from django.db import models

from awa_django.admin.frame import DeskAdmin
from awa_django.conf import get_settings, setting_faults

__all__ = ["ADMINS", "register"]

#: The pages, by the model whose permissions they ask for.
ADMINS: dict[type[models.Model], type[DeskAdmin]] = {}


def register(on: AdminSite) -> None:
    """Register the desk's pages with an admin site."""
    for model, pages in ADMINS.items():
        on.register(model, pages)


# A wrong setting is reported by the check; it must not keep `manage.py check` from running.
if not setting_faults() and get_settings().admin:
    register(site)
