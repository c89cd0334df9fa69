"""OpenTelemetry for the shop, switched on by its standard environment variables.

``OTEL_TRACES_EXPORTER`` and ``OTEL_METRICS_EXPORTER`` name exporters: ``console`` comes with the SDK, ``otlp`` with the
package opentelemetry-exporter-otlp. ``OTEL_EXPORTER_OTLP_ENDPOINT`` by itself means ``otlp`` for both. Without any of
them nothing of OpenTelemetry is imported here.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any


def exporter_of(signal: str) -> str | None:
    """The exporter that the environment names for ``traces`` or ``metrics``, or None."""
    default = "otlp" if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else "none"
    name = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or default
    return None if name == "none" else name


def _exporter(signal: str, name: str) -> Any:
    found = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
    if not found:
        raise RuntimeError(
            f"OpenTelemetry has no exporter {name!r} for {signal} here; "
            f"install it (opentelemetry-exporter-{name}) or set OTEL_{signal.upper()}_EXPORTER=console"
        )
    return next(iter(found)).load()()


def configure() -> bool:
    """Set the providers and instrument Django and psycopg, if the environment asks for it; whether it does.

    Called once in each process, before the first request and before any connection is opened.
    """
    traces, measures = exporter_of("traces"), exporter_of("metrics")
    if traces is None and measures is None:
        return False
    from opentelemetry import metrics, trace
    from opentelemetry.instrumentation.django import DjangoInstrumentor
    from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    os.environ.setdefault("OTEL_SERVICE_NAME", "awa-shop")
    resource = Resource.create()
    if traces is not None:
        processor = BatchSpanProcessor(_exporter("traces", traces))
        tracers = TracerProvider(resource=resource)
        tracers.add_span_processor(processor)
        trace.set_tracer_provider(tracers)
        DjangoInstrumentor().instrument()
        PsycopgInstrumentor().instrument(skip_dep_check=True)
    if measures is not None:
        reader = PeriodicExportingMetricReader(_exporter("metrics", measures))
        metrics.set_meter_provider(MeterProvider([reader], resource=resource))
    return True
