"""Django's default connection on a database of the test's choice, for servers and clients that know no other alias."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from tests.settings import database

__all__ = ["default_database"]


@contextmanager
def default_database(url: str, **options: Any) -> Iterator[None]:
    """Have every thread's ``default`` connection mean this database; ``options`` are libpq's.

    Threads that have one open keep it: begin before they do, and end after they have.
    """
    settings = connections.settings["default"]
    before = dict(settings)
    found = database(url)
    connections["default"].close()
    settings.update(found)
    settings["OPTIONS"] = {**found["OPTIONS"], **options}  # type: ignore[dict-item]
    try:
        yield
    finally:
        connections["default"].close()
        settings.clear()
        settings.update(before)
