"""A web server for the browser suite, in a process of its own: prints its port and serves until its input ends.

In the tests' process it would share a thread's event loop with Playwright, in which Django refuses to work.
"""

from __future__ import annotations

import sys
import threading

import django

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.contrib.auth.models import Permission  # noqa: E402
from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: E402
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402

#: Name, and the codenames of what they may do; None is a superuser. The password is the name.
USERS: dict[str, list[str] | None] = {
    "maria": None,
    "otto": [
        "view_job",
        "view_dlqentry",
        "view_waitingcallback",
        "view_queuemeta",
        "view_kinddescriptor",
        "view_cronjob",
        "view_runtimeinstance",
        "view_batchoperation",
        "view_storagetransitionstate",
    ],
    "nora": [],
}


class Handler(WSGIRequestHandler):
    """Says nothing about requests; errors come with their traceback."""

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


def make_users() -> None:
    for name, codenames in USERS.items():
        user, _ = get_user_model().objects.get_or_create(
            username=name, defaults={"is_staff": True, "is_superuser": codenames is None}
        )
        user.set_password(name)
        user.save()
        found = Permission.objects.filter(content_type__app_label="awa_django", codename__in=codenames or [])
        assert len(found) == len(codenames or [])
        user.user_permissions.set(found)


def main() -> None:
    make_users()
    server = ThreadedWSGIServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()


main()
