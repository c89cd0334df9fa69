"""The Django app of the shop."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Nothing to set up: awa_django finds ``jobs.py`` by itself."""

    name = "example_project.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
