"""The Django app."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class AwaConfig(AppConfig):
    """Registers the checks and finds the job modules of installed apps. Opens no connection."""

    name = "awa_django"
    label = "awa_django"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import_module("awa_django.checks")
        from awa_django.conf import setting_faults

        # A wrong setting is reported by the check; it must not keep `manage.py check` from running.
        if not setting_faults():
            from awa_django.conf import get_settings

            settings = get_settings()
            autodiscover_modules(*settings.autodiscover)
            if settings.http_jobs:
                import_module("awa_django.http_jobs").declare_from_settings(settings)
