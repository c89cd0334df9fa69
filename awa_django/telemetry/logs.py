"""The fields of log records about attempts (contract: runtime/observability section 4)."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from awa_django.jobs import Attempt, Taken
from awa_django.telemetry import otel

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

__all__ = ["JobLogger", "log_fields"]


def log_fields(
    attempt: Attempt | Taken, outcome: str | None = None, context: SpanContext | None = None
) -> dict[str, Any]:
    """What a log record about an attempt carries, for ``extra``: ``job_id``, ``kind``, ``queue``, ``attempt``,
    ``run_lease``, ``outcome`` if there is one, and ``trace_id`` and ``span_id`` in hexadecimal of ``context``, else
    of the current span, if there is one."""
    fields: dict[str, Any] = {
        "job_id": attempt.job_id,
        "kind": attempt.kind,
        "queue": attempt.queue,
        "attempt": attempt.attempt,
        "run_lease": attempt.run_lease,
    }
    if outcome is not None:
        fields["outcome"] = outcome
    return fields | otel.trace_fields(context)


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of a handler, ``awa_django.job.<kind>``: its records carry :func:`log_fields` and what the handler
    gives as ``extra``."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(logging.getLogger(f"awa_django.job.{attempt.kind}"), log_fields(attempt))

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the fields to one record; the trace's are those of the moment."""
        kwargs["extra"] = {**(self.extra or {}), **otel.trace_fields(), **(kwargs.get("extra") or {})}
        return msg, kwargs
