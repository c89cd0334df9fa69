"""Lifecycle signals: what became of jobs, told after the commit (contract: runtime/followups-events section 3).

::

    @receiver(job_exhausted, sender=send_receipt)
    def alert(sender, job, error, attempt, **kwargs): ...

The sender is the job's :class:`~awa_django.registry.JobKind`, or None for a kind that this process has no handler for.
Receivers run outside any request, one after another for each kind, in threads of their own: they delay neither
jobs nor outcomes nor the worker's shutdown. One that fails is logged, and the next one still runs. Signals are sent at
most once, and only in the process that made the transition: whatever must happen belongs into a follow-up.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from django.db import close_old_connections
from django.dispatch import Signal

__all__ = [
    "job_cancelled",
    "job_completed",
    "job_exhausted",
    "job_rescued",
    "job_retried",
    "job_started",
    "job_waiting",
    "send_detached",
]

logger = logging.getLogger("awa_django.signals")

#: ``job``: the attempt's handler is about to run. Sent only where a handler is known; the only one before an outcome.
job_started = Signal()
#: ``job``, ``duration`` in seconds, 0 for a callback that completed it.
job_completed = Signal()
#: ``job``, ``error`` (empty for RetryAfter), ``attempt``, ``next_run_at``.
job_retried = Signal()
#: ``job``, ``error``, ``attempt``.
job_exhausted = Signal()
#: ``job``, ``reason``.
job_cancelled = Signal()
#: ``job`` with ``callback_id`` and ``callback_timeout_at``.
job_waiting = Signal()
#: ``job``, ``reason``: ``stale_heartbeat``, ``deadline_exceeded`` or ``expired_callback``.
job_rescued = Signal()

_NAMES = {
    job_started: "started",
    job_completed: "completed",
    job_retried: "retried",
    job_exhausted: "exhausted",
    job_cancelled: "cancelled",
    job_waiting: "waiting_for_callback",
    job_rescued: "rescued",
}

THREADS = 4
MOST_WAITING = 1000


class _Message(NamedTuple):
    signal: Signal
    sender: Any
    kind: str
    values: dict[str, Any]

    def __repr__(self) -> str:
        return f"_Message({_NAMES.get(self.signal, 'other')}, kind={self.kind!r})"


class _Outbox:
    """Threads that send signals, those of one kind in order and by the same thread."""

    def __init__(self, dropped: Callable[[str, str], None]) -> None:
        self._queues: list[deque[_Message]] = [deque() for _ in range(THREADS)]
        self._busy = [False] * THREADS
        self._changed = threading.Condition()
        self._started = [False] * THREADS
        self.dropped = dropped

    def put(self, message: _Message) -> None:
        number = hash(message.kind) % THREADS
        with self._changed:
            if sum(map(len, self._queues)) >= MOST_WAITING:
                lost = max(self._queues, key=len).popleft()
                logger.warning("receivers are too slow: a signal about a job of kind %r is lost", lost.kind)
                self.dropped(lost.kind, _NAMES.get(lost.signal, "other"))
            self._queues[number].append(message)
            if not self._started[number]:
                self._started[number] = True
                threading.Thread(
                    target=self._work, args=(number,), name=f"awa-signals-{number + 1}", daemon=True
                ).start()
            self._changed.notify_all()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until everything has been sent; whether that came to pass. For tests."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._queues) and not any(self._busy), timeout)

    def _work(self, number: int) -> None:
        queue = self._queues[number]
        while True:
            with self._changed:
                self._busy[number] = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(queue))
                message = queue.popleft()
                self._busy[number] = True
            _send(message)


def _send(message: _Message) -> None:
    close_old_connections()
    try:
        for receiver, answer in message.signal.send_robust(message.sender, **message.values):
            if isinstance(answer, Exception):
                logger.warning(
                    "receiver %r of a job of kind %r failed: %s: %s",
                    getattr(receiver, "__qualname__", receiver),
                    message.kind,
                    type(answer).__name__,
                    answer,
                )
    except BaseException:
        logger.exception("a signal about a job of kind %r could not be sent", message.kind)
    finally:
        close_old_connections()


def _count_nothing(kind: str, event: str) -> None:
    """Nobody counts lost signals."""


outbox = _Outbox(_count_nothing)


def send_detached(signal: Signal, sender: Any, kind: str, **values: Any) -> None:
    """Send a signal from a thread of its own, soon; at most once."""
    outbox.put(_Message(signal, sender, kind, values))
