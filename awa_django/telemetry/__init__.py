"""Metrics, spans and the fields of log records; the only package that imports opentelemetry.

The seams (enqueue, claim, execute, settle, each maintenance duty) hold a :class:`Telemetry` from :func:`current`
and call one method where something happened; names, units and attributes are all in here. Without opentelemetry,
or before the project has configured a provider, :func:`current` is :data:`SILENT`, whose ``on`` is False and whose
methods return at once. A worker asks once, when it is built, so that nothing is looked up for each job; a
producer asks with each call, because a site may configure its providers late. (contract: runtime/observability)
"""

from awa_django.telemetry.binding import SILENT, current, override
from awa_django.telemetry.execution import Execution
from awa_django.telemetry.instruments import (
    DESCRIBED,
    DUTIES,
    INSTRUMENTS,
    KIND,
    QUEUE,
    SPANS,
    STATE,
    Instrument,
    duty_names,
)
from awa_django.telemetry.logs import JobLogger, log_fields
from awa_django.telemetry.otel import TRACEPARENT_KEY, format_traceparent, parse_traceparent
from awa_django.telemetry.seams import Busy, Telemetry

__all__ = [
    "DESCRIBED",
    "DUTIES",
    "INSTRUMENTS",
    "KIND",
    "QUEUE",
    "SILENT",
    "SPANS",
    "STATE",
    "TRACEPARENT_KEY",
    "Busy",
    "Execution",
    "Instrument",
    "JobLogger",
    "Telemetry",
    "current",
    "duty_names",
    "format_traceparent",
    "log_fields",
    "override",
    "parse_traceparent",
]
