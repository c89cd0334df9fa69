"""Which telemetry is on: what the project has configured, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from awa_django.telemetry import otel
from awa_django.telemetry.seams import Telemetry

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["SILENT", "current", "override"]

#: Between two looks for a provider while none has been found.
LOOK_AGAIN_SECONDS = 1.0
#: What is used while nothing is configured.
SILENT = Telemetry()

_found: tuple[Any, Any, Telemetry] | None = None
_overridden: Telemetry | None = None
_look_again_at = 0.0


def _configured(provider: Any) -> Any:
    """A provider, or None for one of the API's own, which do nothing."""
    own = type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
    return None if own else provider


def _look() -> Telemetry:
    global _found, _look_again_at
    if _overridden is not None:
        return _overridden
    if _found is None or _found[0] is None or _found[1] is None:
        now = time.monotonic()
        if now < _look_again_at:
            return SILENT if _found is None else _found[2]
        _look_again_at = now + LOOK_AGAIN_SECONDS
        tracers = _configured(otel.trace.get_tracer_provider())
        meters = _configured(otel.metrics.get_meter_provider())
        if tracers is None and meters is None:
            return SILENT
        if _found is None or (tracers, meters) != _found[:2]:
            _found = tracers, meters, Telemetry(tracers, meters)
    return _found[2]


def _silence() -> Telemetry:
    return SILENT


#: The telemetry that the project has configured by now: its tracer provider, its meter provider, or both.
current: Callable[[], Telemetry] = _silence if not otel.INSTALLED else _look


@contextmanager
def override(
    tracers: TracerProvider | None = None, meters: MeterProvider | None = None
) -> Iterator[Telemetry]:
    """Use these providers instead of the process's own inside the block, in every thread; for tests. Workers keep what
    they were built with."""
    global _overridden
    before, _overridden = _overridden, Telemetry(tracers, meters)
    try:
        yield _overridden
    finally:
        _overridden = before
