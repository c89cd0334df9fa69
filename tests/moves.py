"""Putting a database where a move from canonical storage to queue storage may find it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections

from awa_django import storage
from tests import databases
from tests.settings import database
from tests.workers import wait_until

RUNTIME = """
    INSERT INTO awa.runtime_instances (
        instance_id, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy, postgres_connected,
        poll_loop_alive, heartbeat_alive, shutting_down, leader, storage_capability, transition_role
    ) VALUES (
        %s, 1, '0.6.9', now(), now() - %s::interval, %s, true, true, true, true, false, false, %s, %s
    )
"""


def make_canonical(connection: psycopg.Connection[Any]) -> None:
    """Put an unused installation of ours back to where an installation of the real client begins."""
    connection.execute(
        "UPDATE awa.storage_transition_state SET current_engine = 'canonical', prepared_engine = NULL,"
        " state = 'canonical', details = '{}', transition_epoch = 0, finalized_at = NULL"
    )
    connection.execute("DELETE FROM awa.runtime_storage_backends")


def add_runtime(
    connection: psycopg.Connection[Any],
    capability: str = "queue_storage",
    role: str = "queue_storage_target",
    *,
    silent: str = "0",
    interval_ms: int = 10_000,
) -> None:
    """The row of a worker of that sort, last seen so long ago."""
    connection.execute(RUNTIME, [uuid.uuid4(), silent, interval_ms, capability, role])


def enter_mixed(connection: psycopg.Connection[Any]) -> None:
    """Prepare and enter the mixed transition, with nobody running."""
    connection.execute("""SELECT awa.storage_prepare('queue_storage', '{"schema": "awa"}')""")
    add_runtime(connection)
    connection.execute("SELECT awa.storage_enter_mixed_transition()")
    connection.execute("DELETE FROM awa.runtime_instances")


class Moving:
    """A database that is to be moved, an alias of it, and a session beside Django's own."""

    def __init__(self, url: str, alias: str, connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self.alias = alias
        self.connection = connection

    def status(self) -> storage.StorageStatus:
        return storage.status(using=self.alias)

    def step(self, step: Callable[..., storage.StorageStatus]) -> storage.StorageStatus:
        return step(using=self.alias)

    def runtime(self, *what: str, **when: Any) -> None:
        add_runtime(self.connection, *what, **when)

    def forget_runtimes(self) -> None:
        self.run("DELETE FROM awa.runtime_instances")

    def enqueue(self) -> None:
        self.run("SELECT awa.insert_job_compat('k', 'q')")

    def run(self, query: str, values: Any = None) -> None:
        self.connection.execute(query, values)

    def singleton(self) -> tuple[Any, ...]:
        row = self.connection.execute(
            "SELECT current_engine, prepared_engine, state, transition_epoch, details,"
            " (SELECT schema_name FROM awa.runtime_storage_backends) FROM awa.storage_transition_state"
        ).fetchone()
        assert row is not None
        return row

    def cli(self, *arguments: str) -> str:
        return databases.awa_cli(self.url, "storage", *arguments).stdout

    def cli_refuses(self, *arguments: str) -> bool:
        return databases.awa_cli(self.url, "storage", *arguments, check=False).returncode != 0


def _database_for(request: pytest.FixtureRequest, theirs: bool) -> str:
    if theirs:
        return "oracle_database"
    return "awa_database" if request.node.get_closest_marker("changes_schema") else "emptied_database"


def on_the_move(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[Moving]:
    """Make a fixture of it: a canonical database. Parametrised with ``theirs``, it is one that the real client made."""
    theirs = getattr(request, "param", "ours") == "theirs"
    url = request.getfixturevalue(_database_for(request, theirs))
    connections.databases["moving"] = connections.configure_settings(
        {"default": {}, "moving": database(url)}
    )["moving"]
    with psycopg.connect(url, autocommit=True) as connection, django_db_blocker.unblock():
        if not theirs:
            make_canonical(connection)
        yield Moving(url, "moving", connection)
        connections["moving"].close()
    del connections["moving"]
    del connections.databases["moving"]


class Producer:
    """Stores a job every few milliseconds, wherever routing says; ``enqueue`` is told the number of each."""

    def __init__(
        self, url: str, enqueue: Callable[[psycopg.Connection[Any], int], object], every: float = 0.02
    ) -> None:
        self.count = 0
        self._url = url
        self._enqueue = enqueue
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(self._every):
                self._enqueue(connection, self.count)
                self.count += 1

    @contextmanager
    def working(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_for(self, more: int) -> None:
        """Until so many more jobs were enqueued."""
        wanted = self.count + more
        wait_until(lambda: self.count >= wanted or not self._thread.is_alive(), seconds=60)
        assert self._thread.is_alive()
