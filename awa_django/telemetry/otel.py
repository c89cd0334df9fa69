"""opentelemetry, if it is installed; the only module that imports it at run time.

Also the trace context that jobs carry in their metadata, which needs nothing else.
(contract: runtime/observability section 3)
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from awa_django.errors import said

try:
    from opentelemetry import context, metrics, trace
except ImportError:  # the extra ``otel`` is not installed
    context = metrics = trace = None  # type: ignore[assignment]
    INSTALLED = False
else:
    INSTALLED = True

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

__all__ = [
    "INSTALLED",
    "TRACEPARENT_KEY",
    "capture_is_off",
    "context",
    "current_span",
    "fail",
    "format_traceparent",
    "metrics",
    "parse_traceparent",
    "record",
    "trace",
    "trace_fields",
]

#: Metadata under which a job carries the span that enqueued it.
TRACEPARENT_KEY = "awa:traceparent"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


def capture_is_off() -> bool:
    """Whether the environment forbids to write trace context into jobs."""
    return os.environ.get("AWA_TRACE_CAPTURE", "").strip().lower() in ("off", "false", "0")


def format_traceparent(span: SpanContext) -> str:
    """A span's identity as W3C writes it."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def parse_traceparent(value: object) -> SpanContext | None:
    """The remote span that a job carries, or None for anything malformed."""
    if not INSTALLED or not isinstance(value, str) or (found := _TRACEPARENT.fullmatch(value)) is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    span = trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
    )
    return span if span.is_valid else None


def trace_fields(span: SpanContext | None = None) -> dict[str, str]:
    """``trace_id`` and ``span_id`` of a span, else of the current one, in hexadecimal; nothing where there is none."""
    if not INSTALLED:
        return {}
    if span is None:
        span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


@contextmanager
def current_span(tracer: Tracer, name: str, **options: Any) -> Iterator[Span]:
    """A span around a block, below the current one; an exception makes it an error (:func:`fail`)."""
    with tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False, **options
    ) as span:
        try:
            yield span
        except Exception as error:
            fail(span, error)
            raise


def fail(span: Span, error: BaseException) -> None:
    """Put an exception on a span and make it an error, without what a database quotes of rows, in which jobs are."""
    text = f"{type(error).__name__}: {said(error)}"
    record(span, error, said(error), "".join([*traceback.format_tb(error.__traceback__), text]))
    span.set_status(trace.Status(trace.StatusCode.ERROR, text))


def record(span: Span, error: BaseException, message: str, stacktrace: str) -> None:
    """Put an exception on a span in these words rather than its own."""
    span.record_exception(
        error, attributes={"exception.message": message, "exception.stacktrace": stacktrace}
    )
