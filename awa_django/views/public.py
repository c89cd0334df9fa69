"""What the views for other machines have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt

__all__ = ["answer", "public"]

View = TypeVar("View", bound=Callable[..., Any])


def public(view: View) -> View:
    """A view that anybody may call: without a session, a CSRF token or a login, whatever the project's middleware asks.

    Nor does it run in the transaction of ``ATOMIC_REQUESTS``, which Django refuses to async views and which would begin
    before the view can say that the database is away.
    """
    made = csrf_exempt(view)
    login_not_required(made)
    for alias in connections:
        transaction.non_atomic_requests(using=alias)(made)
    return made


def answer(status: int, body: dict[str, Any], **headers: str) -> JsonResponse:
    """JSON that no cache keeps. Names of headers are given with underscores."""
    response = JsonResponse(body, status=status)
    response["Cache-Control"] = "no-store"
    for name, value in headers.items():
        response[name.replace("_", "-")] = value
    return response
