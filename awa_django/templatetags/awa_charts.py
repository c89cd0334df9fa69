"""The small charts of the desk's pages: ``{% sparkline values "enqueued" %} {% throughput minutes "what it shows" %}``.

SVG with attributes and classes alone: a strict content security policy allows neither ``style`` nor scripts in a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django import template
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from awa_django.operations.activity import Minute

register = template.Library()


@register.simple_tag
def sparkline(values: Sequence[float], label: str = "") -> SafeString:
    """A trend, as a line over its area; the highest value is the top."""
    height, pad = 32.0, 3.0
    if len(values) < 2:
        values = [0, 0]
    top = max(max(values), 1)
    step = 100 / (len(values) - 1)
    points = [
        f"{number * step:.2f},{height - 1 - max(value, 0) / top * (height - 1 - pad):.2f}"
        for number, value in enumerate(values)
    ]
    line = " ".join(points)
    return format_html(
        '<svg class="awa-spark" viewBox="0 0 100 {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polygon class="awa-spark-area" points="0,{} {} 100,{}"/>'
        '<polyline class="awa-spark-line" points="{}"/></svg>',
        int(height),
        label,
        int(height),
        line,
        int(height),
        line,
    )


@register.simple_tag
def throughput(minutes: Sequence[Minute], label: str = "") -> SafeString:
    """What ended in each minute: completed jobs, and failed ones on top of them."""
    top = max((minute.completed + minute.failed for minute in minutes), default=0) or 1
    width = 10
    bars = []
    for number, minute in enumerate(minutes):
        done, bad = minute.completed / top * 98, minute.failed / top * 98
        # What happened at all can be seen.
        done, bad = (max(size, 1.5) if size else 0 for size in (done, bad))
        bars.append(
            (
                _("%(time)s: %(completed)s completed, %(failed)s failed, %(enqueued)s enqueued")
                % {
                    "time": timezone.localtime(minute.at).strftime("%H:%M"),
                    "completed": f"{minute.completed:,}",
                    "failed": f"{minute.failed:,}",
                    "enqueued": f"{minute.enqueued:,}",
                },
                number * width,
                f"{100 - done:.1f}",
                f"{done:.1f}",
                number * width,
                f"{100 - done - bad:.1f}",
                f"{bad:.1f}",
            )
        )
    drawn = format_html_join(
        "",
        "<g><title>{}</title>"
        '<rect class="awa-state-completed" x="{}" y="{}" width="7.5" height="{}"/>'
        '<rect class="awa-state-failed" x="{}" y="{}" width="7.5" height="{}"/></g>',
        bars,
    )
    total = width * max(len(minutes), 1)
    # What the bars say together, for who cannot see them.
    said = _("%(label)s: %(completed)s completed, %(failed)s failed") % {
        "label": label,
        "completed": f"{sum(minute.completed for minute in minutes):,}",
        "failed": f"{sum(minute.failed for minute in minutes):,}",
    }
    return format_html(
        '<svg class="awa-chart" viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" aria-label="{}">'
        '{}<line class="awa-chart-base" x1="0" y1="100" x2="{}" y2="100"/></svg>',
        total,
        said,
        drawn,
        total,
    )
