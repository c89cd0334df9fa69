"""The style sheet that some pages have beside that of all."""

from __future__ import annotations

__all__ = ["PagesMedia"]


class PagesMedia:
    """For a page's ``Media``."""

    #: None of the scripts that Django's own lists and forms need.
    extend = False
    css = {"all": ["awa_django/pages.css"]}
