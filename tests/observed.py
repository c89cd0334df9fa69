"""Spans and metrics of a test, kept in memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from awa_django import telemetry

Point = frozenset[tuple[str, Any]]


class Metric(NamedTuple):
    """One metric as it left the process: its points by their attributes."""

    unit: str
    type: str
    points: dict[Point, Any]


class Observed:
    """Providers in memory, in force inside the block; a worker has to be built inside it."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader])
        self._stack = ExitStack()
        self.telemetry = telemetry.SILENT

    def __enter__(self) -> Observed:
        self.telemetry = self._stack.enter_context(telemetry.override(self.tracers, self._meters))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self.tracers.shutdown()
        self._meters.shutdown()

    def spans(self, prefix: str = "") -> list[ReadableSpan]:
        """Every span that has ended, in that order."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(prefix)]

    def _collected(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        return (
            [] if data is None else [scope for part in data.resource_metrics for scope in part.scope_metrics]
        )

    def scopes(self) -> set[str]:
        """Names of the meters that recorded anything."""
        return {scope.scope.name for scope in self._collected()}

    def metrics(self) -> dict[str, Metric]:
        """Every metric that has a value."""
        found = {}
        for scope in self._collected():
            for item in scope.metrics:
                points = {
                    frozenset((point.attributes or {}).items()): point for point in item.data.data_points
                }
                found[item.name] = Metric(item.unit, _type(item.data), points)
        return found

    def sums(self) -> dict[str, dict[Point, int]]:
        """The counters, and what is up or down."""
        return {
            name: {key: point.value for key, point in metric.points.items()}
            for name, metric in self.metrics().items()
            if metric.type in ("counter", "up-down counter")
        }

    def values(self, name: str) -> dict[Point, float]:
        """The points of one gauge."""
        return {key: point.value for key, point in self.metrics()[name].points.items()}


def _type(data: object) -> str:
    if isinstance(data, Histogram):
        return "histogram"
    if isinstance(data, Gauge):
        return "gauge"
    assert isinstance(data, Sum)
    return "counter" if data.is_monotonic else "up-down counter"
