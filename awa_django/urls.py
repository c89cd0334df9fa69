"""URLs for other machines: the receiver of callbacks, and whether the queue is well.

::

    path("awa/", include("awa_django.urls"))

gives, in the namespace ``awa_django``:

=====================================  ===========================================================
``awa/callbacks/<id>/<action>``        ``callback``: complete, fail or heartbeat, by POST
``awa/health/``                        ``health``: 200 or 503, by GET
=====================================  ===========================================================

so the prefix that ``build_callback_url`` needs is ``/awa/callbacks``. A site that shows the outside nothing but the
receiver mounts ``receiver_urls`` where it likes, awa's own ``/api/callbacks`` for example::

    path("api/callbacks/", include(receiver_urls))

Projects on an async server may take ``async_urls`` or ``async_receiver_urls`` instead: the same routes, with views
that need no thread for what they refuse. All of these work under either kind of server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from django.urls import URLPattern, URLResolver, include, path

from awa_django import views

__all__ = ["app_name", "async_receiver_urls", "async_urls", "receiver_urls", "urlpatterns"]

Patterns: TypeAlias = list[URLPattern | URLResolver]

app_name = "awa_django"


def _receiver(callback: Callable[..., Any]) -> Patterns:
    return [
        path("<str:callback_id>/<str:action>", callback, name="callback"),
        # Never somebody else's catch-all, nor a redirect to the same address with a slash.
        path("<path:rest>", views.no_such_route),
    ]


def _everything(receiver: Patterns, health: Callable[..., Any]) -> Patterns:
    return [
        path("callbacks/", include(receiver)),
        path("health/", health, name="health"),
        path("health", health),  # a probe need not follow redirects
    ]


_sync, _async = _receiver(views.callback), _receiver(views.acallback)

urlpatterns = _everything(_sync, views.health)
async_urls = (_everything(_async, views.ahealth), app_name)
receiver_urls = (_sync, app_name)
async_receiver_urls = (_async, app_name)
