"""What a handler knows of its job, and what it can do for it (contract: runtime/attempt sections 3 to 5)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from awa_django.callbacks import DEFAULT_TIMEOUT, CallbackToken, timeout_of
from awa_django.cel import Expressions, check
from awa_django.encoding import encode
from awa_django.errors import CallbackRefused, InvalidJob
from awa_django.jobs import Callback, Job, JsonValue
from awa_django.telemetry import JobLogger
from awa_django.worker.attendant import Attendant
from awa_django.worker.flights import Flight
from awa_django.worker.waits import POLL_SECONDS, Wait

__all__ = ["MAX_PROGRESS_BYTES", "JobContext"]

Answer = TypeVar("Answer")

#: Encoded progress of one job; it is rewritten with each change.
MAX_PROGRESS_BYTES = 64 * 1024


class JobContext:
    """The handler's view of its attempt. Usable from the handler and from threads it starts.

    Progress is buffered: it is stored with the next heartbeat, with the outcome, or by
    :meth:`flush_progress`. It survives retries and is dropped by success.
    """

    __slots__ = ("_answers", "_attendant", "_flight", "_job", "_logger")

    def __init__(self, flight: Flight, attendant: Attendant) -> None:
        self._flight = flight
        self._attendant = attendant
        #: Answers that were taken for a wait which was given up at that moment, by token.
        self._answers: dict[uuid.UUID, JsonValue] = {}
        self._job: Job | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = self._flight.attempt.job
        return self._job

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._flight.attempt.attempt

    @property
    def deadline(self) -> datetime | None:
        """When the database takes this attempt away, or None."""
        return self._flight.attempt.deadline_at

    @property
    def progress(self) -> Mapping[str, Any] | None:
        """The current progress, also what an earlier attempt left."""
        value = self._current()
        return dict(value) if value is not None else None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger named for the kind, whose records carry the job's id, queue and attempt, and the trace."""
        if self._logger is None:
            self._logger = JobLogger(self._flight.attempt)
        return self._logger

    @property
    def traceparent(self) -> str | None:
        """The trace that the job was enqueued in, as W3C ``traceparent``, or None."""
        value = self._flight.attempt.metadata.get("awa:traceparent")
        return value if isinstance(value, str) else None

    def is_cancelled(self) -> bool:
        """Whether somebody wants this attempt to stop: an operator, a rescue, or the worker's own shutdown."""
        return self._flight.cancelled

    def set_progress(self, percent: int, message: str | None = None) -> None:
        """Note how far the job is, 0 to 100; more is taken as 100. Memory only.

        Raises ``InvalidJob`` for a negative or fractional percentage, and when the whole exceeds 64 KiB.
        """
        if isinstance(percent, bool) or not isinstance(percent, int) or percent < 0:
            raise InvalidJob("percent", f"a whole number from 0 to 100 is needed, not {percent!r}")
        value: dict[str, Any] = {"percent": min(percent, 100)}
        if message is not None:
            value["message"] = message
        current = self._current()
        if current is not None and "metadata" in current:
            value["metadata"] = current["metadata"]
        self._change(value)

    def update_metadata(self, values: Mapping[str, Any]) -> None:
        """Merge values into ``progress["metadata"]``; nested objects are replaced. Memory only."""
        if not isinstance(values, Mapping):
            raise InvalidJob("metadata", f"an object is needed, not {type(values).__name__}")
        current = self._current() or {}
        metadata = current.get("metadata", {})
        if not isinstance(metadata, Mapping):
            raise InvalidJob("metadata", f"the stored value is no object but {type(metadata).__name__}")
        self._change({**current, "metadata": {**metadata, **values}})

    def flush_progress(self) -> None:
        """Store the progress now; returns silently when the attempt is no longer current. One round trip.

        In a coroutine it returns an awaitable: :meth:`aflush_progress`.
        """
        return _here_or_awaited(self._flush)

    async def aflush_progress(self) -> None:
        """:meth:`flush_progress` for async handlers."""
        await _in_thread(self._flush)

    def _flush(self) -> None:
        if self._flight.has_news:
            self._attendant.flush(self._flight)

    # -- callbacks -------------------------------------------------------------------------------------------------

    def register_callback(
        self,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        filter: str | None = None,
        on_complete: str | None = None,
        on_fail: str | None = None,
        transform: str | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> CallbackToken:
        """A token that an outside system may answer with; it is stored, whatever becomes of your own transaction.

        Register before telling the outside system: it may answer at once. A registration replaces the one before,
        whose token is dead from then on. ``timeout`` (seconds, or a timedelta, at most ten years) begins now and
        counts once the job waits; ``timeout_seconds`` is another name for it. The expressions are CEL over
        ``payload``, for :func:`awa_django.callbacks.resolve`.

        Raises ``InvalidJob`` for a timeout or an expression that cannot be, ``CallbackRefused`` when the attempt
        is over. In a coroutine it returns an awaitable: :meth:`aregister_callback`.
        """
        time_given = timeout if timeout_seconds is None else timeout_seconds
        work = partial(self._register, time_given, Expressions(filter, on_complete, on_fail, transform))
        return _here_or_awaited(work)

    async def aregister_callback(
        self,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        filter: str | None = None,
        on_complete: str | None = None,
        on_fail: str | None = None,
        transform: str | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> CallbackToken:
        """:meth:`register_callback` for async handlers."""
        time_given = timeout if timeout_seconds is None else timeout_seconds
        return await _in_thread(
            partial(self._register, time_given, Expressions(filter, on_complete, on_fail, transform))
        )

    def cancel_callback(self) -> bool:
        """Withdraw the registration of this attempt; whether there was one. Awaitable in a coroutine."""
        return _here_or_awaited(partial(self._attendant.withdraw, self._flight))

    async def acancel_callback(self) -> bool:
        """:meth:`cancel_callback` for async handlers."""
        return await _in_thread(partial(self._attendant.withdraw, self._flight))

    def wait_for_callback(self, token: CallbackToken, timeout: float | timedelta | None = None) -> JsonValue:
        """Wait here until somebody calls :func:`awa_django.callbacks.resume`, and return the payload of that.

        The handler keeps its slot, and holds no database connection of the worker's. From here on no deadline
        applies. The payload may have come before the wait; None is one too.

        Raises ``CallbackRefused`` when there is nothing to wait for any more: another token was registered since, the
        job was completed, failed, retried, rescued or cancelled, or this worker wants the handler to stop; and
        ``TimeoutError`` after ``timeout``. The attempt then runs on, with the token still valid if it was.

        In a coroutine it returns an awaitable: :meth:`await_for_callback`.
        """
        if _in_coroutine():
            return self.await_for_callback(token, timeout)  # type: ignore[return-value]
        until = None if timeout is None else time.monotonic() + timeout_of(timeout).total_seconds()
        wait = Wait(self._flight, self._attendant, token, self._answers)
        try:
            wait.begin()
            while not wait.look():
                pause = POLL_SECONDS if until is None else min(POLL_SECONDS, until - time.monotonic())
                if pause <= 0:
                    raise TimeoutError(f"callback {token} was not answered within {timeout}")
                time.sleep(pause)
        except BaseException:
            wait.give_up()
            raise
        return wait.answer()

    async def await_for_callback(
        self, token: CallbackToken, timeout: float | timedelta | None = None
    ) -> JsonValue:
        """:meth:`wait_for_callback` for async handlers; it may also be cancelled, as ``asyncio.timeout`` does."""
        wait = Wait(self._flight, self._attendant, token, self._answers)
        try:
            async with asyncio.timeout(None if timeout is None else timeout_of(timeout).total_seconds()):
                await _uncut(wait.begin)
                while not await _uncut(wait.look):
                    await asyncio.sleep(POLL_SECONDS)
        except GeneratorExit:
            raise  # the loop is gone, and with it whatever the handler would return
        except BaseException as error:
            await _uncut(wait.give_up)
            if isinstance(error, TimeoutError) and timeout is not None:
                raise TimeoutError(f"callback {token} was not answered within {timeout}") from error
            raise
        return wait.answer()

    def _register(self, timeout: float | timedelta, expressions: Expressions) -> CallbackToken:
        check(expressions)
        callback_id = uuid.uuid4()
        wanted = Callback(
            callback_id,
            None,
            expressions.filter,
            expressions.on_complete,
            expressions.on_fail,
            expressions.transform,
        )
        if not self._attendant.register(self._flight, callback_id, timeout_of(timeout), wanted):
            raise CallbackRefused(f"job {self._flight.attempt.job_id} is not in running state")
        return CallbackToken(str(callback_id))

    # -- progress --------------------------------------------------------------------------------------------------

    def _current(self) -> Mapping[str, Any] | None:
        flight = self._flight
        value = flight.progress
        if value is None and flight.generation == 0:
            value = (flight.attempt.payload or {}).get("progress")
        return value if isinstance(value, Mapping) else None

    def _change(self, value: dict[str, Any]) -> None:
        encoded = encode(value, "progress")
        size = len(json.dumps(encoded, ensure_ascii=False).encode())
        if size > MAX_PROGRESS_BYTES:
            raise InvalidJob("progress", f"{size} bytes, at most {MAX_PROGRESS_BYTES} are kept")
        self._flight.progress = encoded
        self._flight.generation += 1


def _in_coroutine() -> bool:
    """Whether the caller runs in an event loop, which no call to the database may hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _here_or_awaited(work: Callable[[], Answer]) -> Answer:
    """The answer, or in a coroutine an awaitable of it, so that handlers written for other clients run unchanged."""
    return _in_thread(work) if _in_coroutine() else work()  # type: ignore[return-value]


async def _in_thread(work: Callable[[], Answer]) -> Answer:
    return await sync_to_async(work, thread_sensitive=False)()


async def _uncut(work: Callable[[], Answer]) -> Answer:
    """Do something in a thread to its end, also when this task is cancelled meanwhile; then be cancelled."""
    task = asyncio.ensure_future(_in_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:
            break  # that of the work: it is raised below
    if cancelled is not None:
        task.exception()  # looked at, so that nobody complains of it
        raise cancelled
    return task.result()
