"""A project with nothing but the queue: no admin, no users, no content types."""

from __future__ import annotations

from tests.settings import DATABASES, DEFAULT_AUTO_FIELD, SECRET_KEY, TIME_ZONE, USE_TZ

__all__ = ["DATABASES", "DEFAULT_AUTO_FIELD", "INSTALLED_APPS", "SECRET_KEY", "TIME_ZONE", "USE_TZ"]

INSTALLED_APPS = ["awa_django"]
