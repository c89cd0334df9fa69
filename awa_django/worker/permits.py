"""Who may run how much: permits of queues, reserved or shared by weight (contract: runtime/dispatcher section 2).

Without ``GLOBAL_MAX_WORKERS`` each queue has permits of its own. With it a queue has a few of its own, and what is left
of the global number is a pool from which queues that have more to do borrow, each up to its share by weight. All of
this is per process.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from awa_django.conf import QueueConfig, guaranteed_fault
from awa_django.errors import ConfigurationError

__all__ = ["Overflow", "Permits", "Reserved", "Weighted", "capacity", "permits_for"]

Wake = Callable[[], None]


class Permits(ABC):
    """The permits of one queue, shared by its claimers. Every method may be called from any thread.

    A claimer acquires permits, claims, uses one for each job it found and gives the others back; a job's own is
    released when its handler returned.
    """

    #: Jobs of the queue that can ever run at once.
    most: int

    @abstractmethod
    def available(self, most: int) -> int:
        """How many of ``most`` permits an :meth:`acquire` would get just now. Changes nothing."""

    @abstractmethod
    def acquire(self, most: int, wake: Wake) -> int:
        """Take up to ``most`` permits, without waiting. After 0 ``wake`` is called, once, when more can be had."""

    @abstractmethod
    def use(self, count: int) -> None:
        """Have acquired permits held by jobs from now on."""

    @abstractmethod
    def give_back(self, count: int) -> None:
        """Free acquired permits for which no job was found."""

    @abstractmethod
    def release(self) -> None:
        """Free the permit of a job whose handler returned."""

    @abstractmethod
    def rest(self) -> None:
        """Note that the queue does not want permits: others need keep none free for it."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Permits held by jobs."""

    @property
    @abstractmethod
    def overflow_held(self) -> int | None:
        """Permits borrowed from the common pool; None where there is none."""


class Reserved(Permits):
    """Permits that belong to one queue alone."""

    overflow_held = None

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._free = most
        #: Permits of claims in progress, which may not find as many jobs.
        self._claiming = 0
        self._waiting: tuple[Wake, ...] = ()

    @property
    def in_flight(self) -> int:
        return self.most - self._free - self._claiming

    def available(self, most: int) -> int:
        return min(self._free, most)

    def acquire(self, most: int, wake: Wake) -> int:
        with self._lock:
            granted = min(self._free, most)
            if granted <= 0:
                if wake not in self._waiting:
                    self._waiting += (wake,)
                return 0
            self._free -= granted
            self._claiming += granted
            return granted

    def use(self, count: int) -> None:
        with self._lock:
            self._claiming -= count

    def give_back(self, count: int) -> None:
        with self._lock:
            self._claiming -= count
            self._free += count
            waiting, self._waiting = self._waiting, ()
        for wake in waiting:
            wake()

    def release(self) -> None:
        with self._lock:
            self._free += 1
            waiting = self._waiting
            if not waiting:
                return
            self._waiting = ()
        for wake in waiting:
            wake()

    def rest(self) -> None:
        """Nobody else waits for these permits."""


class Overflow:
    """The common pool of a process, and the queues that borrow from it.

    The arithmetic alone: whoever calls holds :attr:`lock`. A queue *contends* while it wants or holds permits; its
    share goes by weight among those that do. What is held above a share that shrank stays until it is released.
    """

    def __init__(self, total: int, weights: Mapping[str, int]) -> None:
        self.total = total
        self.lock = threading.Lock()
        self._weights = weights
        self.held = dict.fromkeys(weights, 0)
        self._demand = dict.fromkeys(weights, 0)
        self._waiting: dict[str, tuple[Wake, ...]] = {}

    @property
    def free(self) -> int:
        """Permits that nobody holds."""
        return self.total - sum(self.held.values())

    def room(self, queue: str) -> int:
        """How many more permits a queue could get now."""
        others = sum(
            weight
            for name, weight in self._weights.items()
            if name != queue and (self._demand[name] or self.held[name])
        )
        weight = self._weights[queue]
        share = -(-self.total * weight // (weight + others))
        return max(0, min(self.free, share - self.held[queue]))

    def request(self, queue: str, wanted: int) -> int:
        """Take up to ``wanted`` permits, and be remembered as wanting so many; 0 only ends that."""
        self._demand[queue] = wanted
        granted = min(wanted, self.room(queue)) if wanted else 0
        self.held[queue] += granted
        return granted

    def give_back(self, queue: str, count: int) -> None:
        """Return permits of a queue."""
        self.held[queue] -= count

    def wait(self, queue: str, wake: Wake) -> None:
        """Have ``wake`` handed out when permits can be had that could not before."""
        waiting = self._waiting.get(queue, ())
        if wake not in waiting:
            self._waiting[queue] = (*waiting, wake)

    def woken(self, queue: str | None = None) -> list[Wake]:
        """Take those who need wait no longer: of ``queue``, and of every queue that could borrow now."""
        if not self._waiting:
            return []
        names = [name for name in self._waiting if name == queue or self.room(name)]
        return [wake for name in names for wake in self._waiting.pop(name)]


class Weighted(Permits):
    """A guaranteed number of permits, and what can be borrowed beyond it.

    Permits are alike: the guaranteed ones are taken first, borrowed ones are returned first. So a queue borrows
    only while more than its guaranteed number run.
    """

    def __init__(self, queue: str, guaranteed: int, overflow: Overflow) -> None:
        self.most = guaranteed + overflow.total
        self._queue = queue
        self._guaranteed = guaranteed
        self._overflow = overflow
        self._held = 0
        self._claiming = 0

    @property
    def in_flight(self) -> int:
        return self._held - self._claiming

    @property
    def overflow_held(self) -> int:
        return self._overflow.held[self._queue]

    def available(self, most: int) -> int:
        with self._overflow.lock:
            own = max(0, self._guaranteed - self._held)
            return min(most, own + self._overflow.room(self._queue))

    def acquire(self, most: int, wake: Wake) -> int:
        with self._overflow.lock:
            granted = min(most, max(0, self._guaranteed - self._held))
            granted += self._overflow.request(self._queue, most - granted)
            self._held += granted
            self._claiming += granted
            if not granted:
                self._overflow.wait(self._queue, wake)
            return granted

    def use(self, count: int) -> None:
        with self._overflow.lock:
            self._claiming -= count

    def give_back(self, count: int) -> None:
        with self._overflow.lock:
            self._claiming -= count
            woken = self._free(count)
        _call(woken)

    def release(self) -> None:
        with self._overflow.lock:
            woken = self._free(1)
        _call(woken)

    def rest(self) -> None:
        with self._overflow.lock:
            self._overflow.request(self._queue, 0)
            woken = self._overflow.woken()
        _call(woken)

    def _free(self, count: int) -> list[Wake]:
        """Free permits, under the lock; returns who is to be woken."""
        self._held -= count
        self._overflow.give_back(self._queue, min(count, self._overflow.held[self._queue]))
        return self._overflow.woken(self._queue if self._held < self._guaranteed else None)


def _call(wakes: Iterable[Wake]) -> None:
    for wake in wakes:
        wake()


def permits_for(queues: Sequence[QueueConfig], global_max_workers: int | None) -> dict[str, Permits]:
    """The permits of each queue of a process, by name.

    Raises ``ConfigurationError`` where the queues are guaranteed more than the process may run.
    """
    if global_max_workers is None:
        return {queue.name: Reserved(queue.max_workers) for queue in queues}
    if fault := guaranteed_fault(queues, global_max_workers):
        raise ConfigurationError(fault)
    overflow = Overflow(
        global_max_workers - sum(queue.min_workers for queue in queues),
        {queue.name: queue.weight for queue in queues},
    )
    return {queue.name: Weighted(queue.name, queue.min_workers, overflow) for queue in queues}


def capacity(queues: Sequence[QueueConfig], global_max_workers: int | None) -> int:
    """Jobs that a process with these queues runs at once."""
    if not queues:
        return 0
    return sum(queue.max_workers for queue in queues) if global_max_workers is None else global_max_workers
