"""One run of a handler, as its span (contract: runtime/observability section 2)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from awa_django.outcomes import MissingCallback, WaitForCallback
from awa_django.states import JobState
from awa_django.telemetry import otel
from awa_django.transitions import RULES, Transition

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

__all__ = ["Execution"]


class Execution:
    """One run of a handler, as :meth:`Telemetry.execution` began it; a context manager.

    Inside the block the span is the current one, so contexts that are copied there inherit it. Enter and leave
    in the same thread or task.
    """

    __slots__ = ("_open", "_show", "_token", "context", "recorded", "span")

    def __init__(self, span: Span, show: Callable[[str, str], str]) -> None:
        self.span = span
        #: What may be shown of an error's text.
        self._show = show
        #: The span's identity, also where it is not recorded; what comes after the attempt refers to it.
        self.context: SpanContext = span.get_span_context()
        self.recorded = span if span.is_recording() else None
        self._token: Any = None
        #: Taken out by whoever ends the span.
        self._open = [span]

    def __enter__(self) -> Execution:
        self._token = otel.context.attach(otel.trace.set_span_in_context(self.span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        otel.context.detach(self._token)
        self.end()

    def conclude(self, transition: Transition) -> None:
        """Set the span's status (DEC-21)."""
        outcome = transition.outcome
        if isinstance(outcome, WaitForCallback) and not transition.has_lease:
            outcome = MissingCallback()
        match RULES[type(outcome)].state:
            case JobState.COMPLETED | JobState.CANCELLED:
                self.span.set_status(otel.trace.Status(otel.trace.StatusCode.OK))
            case JobState.FAILED:
                text = self._show(transition.attempt.kind, str(getattr(outcome, "error", "")))
                self.span.set_status(otel.trace.Status(otel.trace.StatusCode.ERROR, text.partition("\n")[0]))

    def end(self) -> None:
        """End the span, if nobody has: where the handler runs on beyond its attempt, others come first."""
        with suppress(IndexError):
            self._open.pop().end()
