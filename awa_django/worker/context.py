"""What a handler knows of its job (contract: runtime/attempt sections 3 and 4)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from awa_django.encoding import encode
from awa_django.errors import InvalidJob
from awa_django.jobs import Job
from awa_django.worker.flights import Flight

__all__ = ["MAX_PROGRESS_BYTES", "JobContext"]

#: Encoded progress of one job; it is rewritten with each change.
MAX_PROGRESS_BYTES = 64 * 1024


class JobContext:
    """The handler's view of its attempt. Usable from the handler and from threads it starts.

    Progress is buffered: it is stored with the next heartbeat, with the outcome, or by
    :meth:`flush_progress`. It survives retries and is dropped by success.
    """

    __slots__ = ("_flight", "_flush", "_job", "_logger")

    def __init__(self, flight: Flight, flush: Callable[[Flight], None]) -> None:
        self._flight = flight
        self._flush = flush
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
        """A logger named for the kind, whose records carry the job's id, queue and attempt."""
        if self._logger is None:
            attempt = self._flight.attempt
            self._logger = logging.LoggerAdapter(
                logging.getLogger(f"awa_django.job.{attempt.kind}"),
                {"job_id": attempt.job_id, "queue": attempt.queue, "attempt": attempt.attempt},
            )
        return self._logger

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
            raise InvalidJob("metadata", f"an object is needed, not {values!r}")
        current = self._current() or {}
        metadata = current.get("metadata", {})
        if not isinstance(metadata, Mapping):
            raise InvalidJob("metadata", f"the stored value is no object: {metadata!r}")
        self._change({**current, "metadata": {**metadata, **values}})

    def flush_progress(self) -> None:
        """Store the progress now; returns silently when the attempt is no longer current. One round trip."""
        if self._flight.has_news:
            self._flush(self._flight)

    async def aflush_progress(self) -> None:
        """:meth:`flush_progress` for async handlers."""
        await sync_to_async(self.flush_progress, thread_sensitive=False)()

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
