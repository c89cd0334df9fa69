"""Running handlers: a pool of threads for plain functions, one event loop for coroutines.

The executor knows no plane and sends no SQL. It turns what a handler does into an outcome and
hands that to ``finish``. (contract: runtime/outcomes section 1, runtime/attempt)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper

from awa_django import telemetry
from awa_django.errors import InvalidJob, TerminalError
from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.registry import JobKind
from awa_django.settle import announce_start
from awa_django.signals import job_started
from awa_django.unreadable import Unreadable
from awa_django.worker.attendant import Attendant
from awa_django.worker.context import JobContext
from awa_django.worker.flights import Flight

__all__ = ["Executor", "outcome_of_error", "outcome_of_result"]

logger = logging.getLogger("awa_django.worker")

#: Error texts keep the first line and drop the beginning of the traceback above this.
MAX_ERROR_BYTES = 32 * 1024
#: An unused connection may have died; one that was used this recently is taken as good.
IDLE_SECONDS = 1.0
#: Between two looks at attempts that have a time limit.
TIMEOUT_TICK_SECONDS = 0.1


class Finish(Protocol):
    """What takes an outcome; ``returned`` is False while the handler still runs and keeps its slot."""

    def __call__(self, flight: Flight, outcome: Outcome, *, returned: bool = True) -> None: ...


_PACKAGE = str(Path(__file__).parent.parent)


def outcome_of_result(kind: JobKind[Any, Any], result: Any) -> Outcome:
    """What a handler's return value means."""
    if result is None:
        return _SUCCESS
    if isinstance(result, RetryAfter | Snooze | Cancel | WaitForCallback | Failed | Terminal):
        return result  # the last two are not for projects: they are failures that say everything themselves
    if not kind.keep_result:
        logger.debug("%s returned a %s, which is not kept", kind.kind, type(result).__name__)
        return _SUCCESS
    return Completed(result)


_SUCCESS = Completed()


def error_text(error: BaseException) -> str:
    """``ExceptionName: message``, then the end of the traceback, at most 32 KiB."""
    try:
        headline = f"{type(error).__name__}: {error}"
    except Exception:
        headline = f"{type(error).__name__}: its message cannot be printed"
    lines = traceback.format_exception(type(error), error, _below_us(error.__traceback__))
    text = f"{headline}\n{''.join(lines).rstrip()}"
    raw = text.encode("utf-8", "replace")
    if len(raw) <= MAX_ERROR_BYTES:
        return text
    head = headline.encode("utf-8", "replace")[: MAX_ERROR_BYTES // 2]
    tail = raw[-(MAX_ERROR_BYTES - len(head) - 8) :]
    return head.decode("utf-8", "ignore") + "\n...\n" + tail.decode("utf-8", "ignore")


def _below_us(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the handler; the whole if it never left this package."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        inner = inner.tb_next
    return inner or trace


def outcome_of_error(error: BaseException) -> Outcome:
    """What a raised exception means; also those that are no ``Exception`` (DEC-12)."""
    text = error_text(error)
    return Terminal(text) if isinstance(error, TerminalError) else Failed(text)


class ThreadPool:
    """Threads that take handed-over work from one deque.

    Work is handed over in chunks and threads are woken one by one: a thread that starts on something while
    more is waiting wakes the next. So short handlers run in a row on few threads, where a wake-up would cost more
    than they do, and the first one that blocks lets the next thread in.
    """

    def __init__(self, size: int, run: Callable[[Flight], None]) -> None:
        self.size = size
        self._run = run
        self._pending: deque[Flight] = deque()
        self._idle: deque[threading.Lock] = deque()
        self._threads: list[threading.Thread] = []
        self._growing = threading.Lock()
        self._waking = False
        self._closed = False

    def submit(self, flights: Iterable[Flight]) -> None:
        """Hand work over; returns at once."""
        self._pending.extend(flights)
        self._wake_one()

    def nudge(self) -> None:
        """Let one more thread in if work is waiting."""
        if self._pending:
            self._waking = False
            self._wake_one()

    def close(self) -> None:
        """Let idle threads end. Busy ones end after what they are doing."""
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().release()
            except IndexError:
                break

    def _wake_one(self) -> None:
        if self._waking:
            return
        self._waking = True
        try:
            self._idle.pop().release()
        except IndexError:
            self._grow()

    def _grow(self) -> None:
        if self._start_thread():
            return
        self._waking = False
        # A thread may have become idle, and work have come for it, while the flag kept others from waking it.
        if self._pending and self._idle:
            self._wake_one()

    def _start_thread(self) -> bool:
        with self._growing:
            if len(self._threads) >= self.size or self._closed:
                return False
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._work, name=f"awa-handler-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads; those there are do the work
                logger.warning("thread %d of %d could not be started: %s", number, self.size, error)
                return False
            self._threads.append(thread)
            return True

    def _work(self) -> None:
        pending, idle, run = self._pending, self._idle, self._run
        parked = threading.Lock()
        parked.acquire()
        self._waking = False
        try:
            while not self._closed:
                try:
                    flight = pending.popleft()
                except IndexError:
                    idle.append(parked)
                    # Work or the end may have come between the lines above; who takes us off the list wakes us.
                    if pending or self._closed:
                        try:
                            idle.remove(parked)
                            continue
                        except ValueError:
                            pass
                    parked.acquire()
                    self._waking = False
                    continue
                if pending and not self._waking:
                    self._wake_one()
                run(flight)
        finally:
            connections.close_all()


class Executor:
    """Runs attempts. ``finish`` is called from any thread when an outcome is known.

    It is called once more with ``returned`` when a plain function comes back from beyond its time limit.
    """

    def __init__(
        self,
        kinds: Callable[[str], JobKind[Any, Any] | None],
        finish: Finish,
        unknown: Callable[[Flight], Outcome],
        attendant: Attendant,
        threads: int,
    ) -> None:
        self._kinds = kinds
        self._finish = finish
        self._unknown = unknown
        self._attendant = attendant
        # Chosen once: nobody looks for each job whether anything is traced.
        self._telemetry = telemetry.current()
        traced = self._telemetry.tracing
        self._run_coroutine = self._run_async_traced if traced else self._run_async
        self._pool = ThreadPool(max(threads, 1), self._run_sync_traced if traced else self._run_sync)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()
        self._coroutines: deque[Flight] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._contexts: list[ThreadSensitiveContext] = []
        self._timed: dict[Flight, tuple[float, float]] = {}
        self._timed_lock = threading.Lock()
        self._watching = False
        self._local = threading.local()
        self._closed = threading.Event()

    def submit(self, flights: Sequence[Flight]) -> None:
        """Start attempts. Each holds a permit until its outcome is known."""
        plain: list[Flight] = []
        coroutines: list[Flight] = []
        for flight in flights:
            kind = self._kinds(flight.attempt.kind)
            (coroutines if kind is not None and kind.is_async else plain).append(flight)
        if coroutines:
            self._event_loop().call_soon_threadsafe(self._start_coroutines, coroutines)
        if plain:
            self._pool.submit(plain)

    def nudge(self) -> None:
        """Called now and then while attempts wait for a thread."""
        self._pool.nudge()

    def close(self) -> None:
        """Let the threads and the loop end as they become idle."""
        self._closed.set()
        self._pool.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # -- one attempt ---------------------------------------------------------------------------------

    def _prepare(self, flight: Flight) -> tuple[JobKind[Any, Any], Callable[[], Any]] | Outcome:
        """The handler bound to its arguments, or the outcome of an attempt that cannot run."""
        attempt = flight.attempt
        payload = attempt.payload
        if payload is not None:
            fault = _payload_fault(payload)
            if fault is not None:
                return Terminal(f"invalid stored payload: {fault}")
        kind = self._kinds(attempt.kind)
        if kind is None:
            return self._unknown(flight)
        try:
            arguments = kind.decode(attempt.args)
        except InvalidJob as error:
            return Terminal(f"InvalidJob: {error}")
        if kind.timeout is not None and not kind.is_async:
            self._watch(flight, kind.timeout.total_seconds())
        context = JobContext(flight, self._attendant) if kind.takes_context else None
        flight.started = time.monotonic()
        if job_started.receivers and job_started.has_listeners(kind):
            announce_start(attempt.job)
        return kind, partial(kind.run, context, arguments)

    def _run_sync_traced(self, flight: Flight) -> None:
        """:meth:`_run_sync` with a span that is the current one, for what the handler does too."""
        if flight.done:
            self._run_sync(flight)
            return
        with self._telemetry.execution(flight.attempt):
            self._run_sync(flight)

    async def _run_async_traced(self, flight: Flight, context: ThreadSensitiveContext) -> None:
        """The same for :meth:`_run_async`."""
        if flight.done:
            await self._run_async(flight, context)
            return
        with self._telemetry.execution(flight.attempt):
            await self._run_async(flight, context)

    def _run_sync(self, flight: Flight) -> None:
        outcome: Outcome
        if flight.done:  # handed back before a thread was free for it
            flight.dispatcher.release()
            return
        try:
            prepared = self._prepare(flight)
            if isinstance(prepared, Outcome):
                outcome = prepared
            else:
                kind, call = prepared
                self._before_job()
                # In a context of its own: what it sets, such as a language, is not there for the next job.
                outcome = outcome_of_result(kind, copy_context().run(call))
        except BaseException as error:
            self._telemetry.raised(flight.attempt.kind, error)
            outcome = outcome_of_error(error)
        try:
            outcome = self._after_job(outcome)
        except BaseException as error:
            outcome = outcome_of_error(error)
        self._end(flight, outcome)

    async def _run_coroutines(self) -> None:
        """Run waiting coroutines one after another; the pump starts another of these when one of them awaits.

        So handlers that never really wait share one task, whose start would cost more than they do. A handler that
        changes context variables is the last of its task, so that none sees those of another.
        """
        waiting = self._coroutines
        # Synchronous code below a coroutine runs in one thread per context. With a context of its own each job's ORM
        # calls go on beside those of the others; contexts are kept, and their threads' connections with them.
        context = self._contexts.pop() if self._contexts else ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(context)
        before = copy_context()
        while waiting:
            await self._run_coroutine(waiting.popleft(), context)
            if copy_context() != before:
                break
        self._contexts.append(context)

    async def _run_async(self, flight: Flight, context: ThreadSensitiveContext) -> None:
        outcome: Outcome
        if flight.done:  # handed back before its turn came
            flight.dispatcher.release()
            return
        try:
            prepared = self._prepare(flight)
            if isinstance(prepared, Outcome):
                outcome = prepared
            else:
                kind, call = prepared
                if context in SyncToAsync.context_to_thread_executor:
                    await sync_to_async(self._before_job)()
                if kind.timeout is None:
                    result = await call()
                else:
                    async with asyncio.timeout(kind.timeout.total_seconds()):
                        result = await call()
                outcome = outcome_of_result(kind, result)
        except BaseException as error:
            self._telemetry.raised(flight.attempt.kind, error)
            outcome = outcome_of_error(error)
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
        if context in SyncToAsync.context_to_thread_executor:
            try:
                outcome = await sync_to_async(self._after_job)(outcome)
            except BaseException as error:
                outcome = outcome_of_error(error)
        self._end(flight, outcome)

    def _end(self, flight: Flight, outcome: Outcome) -> None:
        if self._timed:
            with self._timed_lock:
                self._timed.pop(flight, None)
        self._finish(flight, outcome)

    # -- Django's connections --------------------------------------------------------------------------

    def _before_job(self) -> None:
        """Give the handler live connections: one that lay idle may have died unnoticed."""
        used = connections.all(initialized_only=True)
        if not used:
            return
        close_old_connections()
        if time.monotonic() - getattr(self._local, "last", 0.0) < IDLE_SECONDS:
            return
        for connection in used:
            if connection.connection is not None and not connection.is_usable():
                connection.close()

    def _after_job(self, outcome: Outcome) -> Outcome:
        """Leave no transaction and no query log behind; an open transaction is a bug of the handler."""
        used = connections.all(initialized_only=True)
        if not used:
            return outcome
        for connection in used:
            # Not get_autocommit(): it would open a connection that the handler closed.
            if connection.in_atomic_block or not (connection.connection is None or connection.autocommit):
                _abort(connection)
                if isinstance(outcome, Completed):
                    outcome = Failed(
                        f"OpenTransaction: the handler returned inside a transaction on {connection.alias!r}; "
                        "it was rolled back"
                    )
        reset_queries()
        close_old_connections()
        self._local.last = time.monotonic()
        return outcome

    # -- the event loop --------------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve_loop, name="awa-event-loop", daemon=True).start()
            return self._loop

    def _serve_loop(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _start_coroutines(self, flights: Sequence[Flight]) -> None:
        self._coroutines.extend(flights)
        self._pump()

    def _pump(self) -> None:
        """Start a task for what is waiting, and look again after the loop has given it a turn."""
        if self._coroutines and self._loop is not None:
            task = self._loop.create_task(self._run_coroutines())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._loop.call_soon(self._pump)

    # -- time limits of plain functions ------------------------------------------------------------------

    def _watch(self, flight: Flight, seconds: float) -> None:
        with self._timed_lock:
            self._timed[flight] = (time.monotonic() + seconds, seconds)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch_timeouts, name="awa-timeouts", daemon=True).start()

    def _watch_timeouts(self) -> None:
        """End attempts that outlive their limit.

        A thread cannot be stopped: it goes on and keeps its slot, but its attempt is over and whatever it
        returns is dropped.
        """
        while not self._closed.wait(TIMEOUT_TICK_SECONDS):
            now = time.monotonic()
            with self._timed_lock:
                late = [(flight, limit) for flight, (until, limit) in self._timed.items() if until <= now]
                for flight, _ in late:
                    del self._timed[flight]
            for flight, limit in late:
                flight.cancelled = True
                logger.warning(
                    "job %s (%s) outlived its limit of %g s",
                    flight.attempt.job_id,
                    flight.attempt.kind,
                    limit,
                )
                self._finish(
                    flight,
                    Failed(f"TimeoutError: still running after its limit of {limit:g} s"),
                    returned=False,
                )


def _abort(connection: BaseDatabaseWrapper) -> None:
    """Close a connection with the transaction that is open on it.

    The wrapper of a connection that is closed inside ``atomic`` would refuse every later query, waiting for the
    block to end.
    """
    connection.in_atomic_block = False
    connection.closed_in_transaction = False
    try:
        connection.close()
    finally:
        connection.connection = None


def _payload_fault(payload: Any) -> str | None:
    """What keeps a stored payload from being read, or None (DEC-18)."""
    if isinstance(payload, Unreadable):
        return repr(payload)
    if not isinstance(payload, dict):
        return f"an object is needed, not {type(payload).__name__}"
    for key, shape in (("metadata", dict), ("tags", list), ("errors", list)):
        value = payload.get(key)
        if value is not None and not isinstance(value, shape):
            return f"{key} is no {'object' if shape is dict else 'array'}"
    return None
