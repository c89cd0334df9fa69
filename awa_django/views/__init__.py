"""What other machines ask this site over HTTP: answers to callbacks, and whether the queue is well.

The views are plain functions, in a sync and an async form each; :mod:`awa_django.urls` mounts them, and a project may
mount them itself, with decorators of its own around them.
"""

from awa_django.views.ingress import acallback, callback, no_such_route
from awa_django.views.status import ahealth, health

__all__ = ["acallback", "ahealth", "callback", "health", "no_such_route"]
