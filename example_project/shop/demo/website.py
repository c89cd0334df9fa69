"""The shop's site on a port of its own, for as long as the demo needs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.core.wsgi import get_wsgi_application
from django.db import connections


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """The demo says itself what was answered."""


@contextmanager
def shop_on_the_web() -> Iterator[str]:
    """The address of the site, which a thread serves on a free port until the block ends."""
    # Loading the application sets logging up again, so this comes first.
    server = make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=_Quiet)
    requests = logging.getLogger("django.request")
    level = requests.level
    requests.setLevel(logging.ERROR)  # refusals are warnings there, and part of the story here
    thread = threading.Thread(target=_serve, args=[server], name="shop's site", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        requests.setLevel(level)


def _serve(server: WSGIServer) -> None:
    try:
        server.serve_forever(poll_interval=0.05)
    finally:
        connections.close_all()  # those of this thread
