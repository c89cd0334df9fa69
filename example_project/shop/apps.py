"""The Django app of the shop."""

from django.apps import AppConfig

from example_project import observability


class ShopConfig(AppConfig):
    """Nothing to set up for jobs: awa_django finds ``jobs.py`` by itself."""

    name = "example_project.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Switch OpenTelemetry on if the environment asks for it; middleware is not loaded yet."""
        observability.configure()
