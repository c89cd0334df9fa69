"""Attempts that this process holds, from the claim until their outcome is durable.

(contract: runtime/attempt section 1)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from awa_django.jobs import Attempt, JsonValue

if TYPE_CHECKING:
    from awa_django.worker.dispatcher import Dispatcher

__all__ = ["Flight", "Flights"]


class Flight:
    """One attempt in this process: its flag, its progress, and who waits for its slot.

    It is *executing* until the handler's outcome is known, then *finalizing* until that is stored.
    """

    __slots__ = (
        "attempt",
        "cancelled",
        "dispatcher",
        "done",
        "flushed",
        "generation",
        "has_lease",
        "left_state",
        "lost",
        "progress",
        "settling",
        "started",
    )

    def __init__(self, attempt: Attempt, dispatcher: Dispatcher) -> None:
        self.attempt = attempt
        self.dispatcher = dispatcher
        self.cancelled = False
        #: The handler's outcome is known; whatever comes later is dropped.
        self.done = False
        #: The database no longer knows this attempt as current.
        self.lost = False
        #: Whether a heartbeat or progress may have been stored, which the end of the attempt has to remove.
        self.left_state = False
        #: Whether the attempt may have become a lease: it registered a callback, or was about to.
        self.has_lease = False
        #: Its outcome is being written: heartbeats would wait for that transaction, or come after it.
        self.settling = False
        #: When the handler began, by the monotonic clock; None before.
        self.started: float | None = None
        self.progress: JsonValue = None
        #: Counts changes of progress; ``flushed`` is the one that is stored.
        self.generation = 0
        self.flushed = 0

    @property
    def pair(self) -> tuple[int, int]:
        """What identifies the attempt."""
        return self.attempt.job_id, self.attempt.run_lease

    @property
    def has_news(self) -> bool:
        """Whether the progress changed since it was last stored."""
        return self.generation != self.flushed


class Flights:
    """All attempts of this process. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Flight] = {}
        self._lock = threading.Lock()
        self._executing = 0
        #: How many attempts were ever held.
        self.seen = 0
        self._empty = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def executing(self) -> int:
        """Attempts whose handler has not returned."""
        return self._executing

    @property
    def finalizing(self) -> int:
        """Attempts whose outcome is not durable yet."""
        return len(self._held) - self._executing

    def all(self) -> list[Flight]:
        """A copy of what is held now."""
        with self._lock:
            return list(self._held.values())

    def get(self, job_id: int, run_lease: int) -> Flight | None:
        """The flight of an attempt, if this process holds it."""
        return self._held.get((job_id, run_lease))

    def add(self, flights: Iterable[Flight]) -> None:
        """Hold attempts that have just been claimed."""
        with self._lock:
            for flight in flights:
                self._held[flight.pair] = flight
                self._executing += 1
                self.seen += 1

    def finish(self, flight: Flight) -> bool:
        """Note that the handler's outcome is known; False if it was known already."""
        with self._lock:
            if flight.done:
                return False
            flight.done = True
            self._executing -= 1
            return True

    def settle(self, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Keep heartbeats away from attempts whose outcome is about to be written.

        Returns those that may have left a heartbeat or progress. A heartbeat notes that before it looks whether it
        may go, and here it is the other way round: so none is stored unnoticed.
        """
        left = set()
        for pair in pairs:
            flight = self._held.get(pair)
            if flight is not None:
                flight.settling = True
                if flight.left_state:
                    left.add(pair)
        return left

    def has_lease(self, pair: tuple[int, int]) -> bool:
        """Whether an attempt of this process may have become a lease."""
        flight = self._held.get(pair)
        return flight is not None and flight.has_lease

    def resume(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let heartbeats go on for attempts whose outcome could not be written yet."""
        for pair in pairs:
            flight = self._held.get(pair)
            if flight is not None:
                flight.settling = False

    def forget(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let go of attempts whose outcome is durable or stale."""
        with self._lock:
            for pair in pairs:
                self._held.pop(pair, None)
            if not self._held:
                self._empty.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until nothing is held; whether that came to pass."""
        with self._lock:
            return self._empty.wait_for(lambda: not self._held, timeout)

    def cancel_all(self) -> None:
        """Raise the flag of every attempt."""
        for flight in self.all():
            flight.cancelled = True


def describe(flights: Iterable[Flight], most: int = 20) -> str:
    """Ids of attempts for a log line."""
    ids: list[Any] = [flight.attempt.job_id for flight in flights]
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(str(number) for number in ids[:most]) + more
