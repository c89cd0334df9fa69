"""A site with the receiver in all its forms, below a catch-all that would like a slash at the end of everything."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from awa_django import views
from awa_django.urls import async_receiver_urls, async_urls, receiver_urls


def limited(view: Callable[..., Any]) -> Callable[..., Any]:
    """As a project's rate limit wraps a view."""

    @wraps(view)
    def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if "flood" in request.GET:
            return HttpResponse(status=429)
        return view(request, *args, **kwargs)

    return inner


def anything(request: HttpRequest, rest: str) -> HttpResponse:
    return HttpResponse(f"the site has a page {rest}")


urlpatterns = [
    path("awa/", include("awa_django.urls")),
    path("async/", include(async_urls, namespace="awa_async")),
    path("api/callbacks/", include(receiver_urls, namespace="awa_receiver")),
    path("async/api/callbacks/", include(async_receiver_urls, namespace="awa_async_receiver")),
    path("hooks/<str:callback_id>/<str:action>", limited(views.callback)),
    path("<path:rest>/", anything),
]
