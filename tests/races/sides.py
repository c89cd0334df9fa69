"""Two sessions stepped in a written order: one keeps its transaction open while the other does its part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from awa_django.planes.base import Cursor
from tests.planes.sessions import session

PATIENCE = 60


@dataclass
class Side:
    """A session that does one thing at a time, in a thread of its own, and may have to wait for a lock meanwhile."""

    connection: psycopg.Connection[Any]
    watcher: psycopg.Connection[Any]
    _thread: threading.Thread | None = None
    _answers: list[Any] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def begin(self, work: Callable[[Cursor], Any]) -> Any:
        """Do something now, and leave its transaction open; what it answered."""
        self.connection.execute("BEGIN")
        with self.connection.cursor() as cursor:
            return work(cursor)

    def end(self, *, commit: bool) -> None:
        """Close the transaction that :meth:`begin` left open."""
        self.connection.execute("COMMIT" if commit else "ROLLBACK")

    def start(self, work: Callable[[Cursor], Any]) -> None:
        """Do something in a transaction of its own, and return as soon as it is done or waits for a lock."""

        def run() -> None:
            try:
                with self.connection.transaction(), self.connection.cursor() as cursor:
                    self._answers.append(work(cursor))
            except BaseException as error:
                self._errors.append(error)

        self._answers.clear()
        self._errors.clear()
        self._thread = threading.Thread(target=run)
        self._thread.start()
        until = time.monotonic() + PATIENCE
        while self.is_busy and not self.waits:
            assert time.monotonic() < until, f"neither done nor waiting within {PATIENCE} s"
            self._thread.join(0.002)

    @property
    def is_busy(self) -> bool:
        """Whether what was started goes on."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def waits(self) -> bool:
        """Whether it waits for a lock that another session holds."""
        row = self.watcher.execute(
            "SELECT cardinality(pg_blocking_pids(%s)) > 0", [self.connection.info.backend_pid]
        ).fetchone()
        return bool(row and row[0])

    def answer(self) -> Any:
        """What it answered, once it is done. Raises what it raised."""
        assert self._thread is not None
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it waits for ever"
        if self._errors:
            raise self._errors[0]
        return self._answers[-1]


@contextmanager
def two_sides(database: str) -> Iterator[tuple[Side, Side]]:
    """Two sessions of a database, and a third that watches them."""
    with (
        session(database) as watcher,
        session(database) as one,
        session(database) as other,
    ):
        first, second = Side(one, watcher), Side(other, watcher)
        try:
            yield first, second
        finally:
            for side in (first, second):
                if side.is_busy:
                    side.connection.cancel_safe(timeout=5)
                    assert side._thread is not None
                    side._thread.join(PATIENCE)


def race(
    first: Side, second: Side, one: Callable[[Cursor], Any], other: Callable[[Cursor], Any], *, commit: bool
) -> tuple[Any, Any]:
    """The first does its part, the second comes in between and waits if it has to, the first commits or rolls back."""
    answer = first.begin(one)
    try:
        second.start(other)
    except BaseException:
        first.end(commit=False)
        raise
    first.end(commit=commit)
    return answer, second.answer()
