"""The tests' project with another admin theme, which replaces Django's templates and its site."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = ["unfold", *_APPS, "django.contrib.staticfiles"]
STATIC_URL = "static/"
ALLOWED_HOSTS = ["testserver"]
