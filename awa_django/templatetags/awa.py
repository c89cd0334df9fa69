"""What the pages of the desk are made of: times, figures, marks, small charts, values.

    {% load awa %}
    {% reltime job.created_at %} {% abstime job.run_at %} {{ seconds|duration }} {% lag queue.lag_seconds %}
    {{ number|count }} {% figure counts.queued counts.exact %} {% meter in_flight capacity %}
    {% badge record %} {% mark "paused" "warning" "on hover" %} {% named queue.queue queue.descriptor %}
    {% job_tags job.tags %} {% copy job.id %} {% json_block value "element-id" "label" full_url %}
    {% page_url "job" job.id as url %} {% page_url "job" queue=name state="failed" as url %}
    {% link_to "job" job.id %}{{ job.kind }}{% endlink_to %} {% payload_url "job" job.id "part" "args" as url %}
    {{ text|first_line }} {{ sentence|ticks }}

Everything that comes from a job is escaped here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.contrib.admin.utils import quote
from django.http import QueryDict
from django.template import Context
from django.template.base import FilterExpression, NodeList, Parser, Token, token_kwargs
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from awa_django.jobs import Job
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import Descriptor, JobRecord
from awa_django.operations.pulse import Pulse
from awa_django.states import JobState
from awa_django.unreadable import Unreadable

__all__ = ["about", "duration", "plain_text", "relative", "shown_json"]

register = template.Library()

#: Characters of a value that a page shows; there is a way to see the whole.
SHORT = 20_000
#: Tags of a job that a list shows before it counts.
FEW_TAGS = 3
#: Seconds of lag from which on it is amber, and red.
LATE, VERY_LATE = 10, 60
#: Below this, an estimate is near enough to be shown in full.
_ROUND = 10_000
_YEAR = 365 * 86400
_NOTHING = mark_safe('<span class="awa-zero">–</span>')


# Times


def relative(value: datetime, now: datetime) -> str:
    """How long ago, or in how long, in one unit."""
    seconds = (value - now).total_seconds()
    span = abs(seconds)
    if span < 1:
        return _("now")
    units = ((_YEAR, _("%d y")), (86400, _("%d d")), (3600, _("%d h")), (60, _("%d min")), (1, _("%d s")))
    text = next(said % (span // size) for size, said in units if span >= size)
    return (_("in %s") if seconds > 0 else _("%s ago")) % text


def _local(value: datetime) -> str:
    """A time to the second in the current zone; in UTC where no zone has it, at either end of the calendar."""
    try:
        value = timezone.localtime(value)
    except OverflowError:
        value = value.astimezone(UTC)
    return value.isoformat(" ", "seconds")[:19] + f" {value.tzname()}"


def _aware(value: datetime) -> datetime:
    return value if timezone.is_aware(value) else timezone.make_aware(value)


def _time(value: datetime, shown: str, hint: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}" class="awa-nowrap">{}</time>', value.isoformat(), hint, shown
    )


@register.simple_tag
def reltime(value: datetime | None) -> SafeString:
    """A time in words, the exact one on hover; a dash for none."""
    if not isinstance(value, datetime):
        return _NOTHING
    value = _aware(value)
    return _time(value, relative(value, datetime.now(UTC)), _local(value))


@register.simple_tag
def abstime(value: datetime | None) -> SafeString:
    """A time to the second, with how long ago on hover."""
    if not isinstance(value, datetime):
        return _NOTHING
    value = _aware(value)
    return _time(value, _local(value), relative(value, datetime.now(UTC)))


@register.filter
def duration(value: float | timedelta | None) -> str:
    """A span of time, given as seconds or a ``timedelta``, in at most two units."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return sign + (_("%d ms") % round(seconds * 1000))
    if seconds < 10:
        return sign + (_("%s s") % f"{seconds:.1f}".removesuffix(".0"))
    units = ((86400, _("%d d")), (3600, _("%d h")), (60, _("%d min")), (1, _("%d s")))
    parts: list[str] = []
    rest = round(seconds)
    for size, text in units:
        if rest >= size and len(parts) < 2:
            parts.append(text % (rest // size))
            rest %= size
        elif parts:
            break
    return sign + " ".join(parts)


def _lateness(seconds: float) -> str:
    return "is-ok" if seconds < LATE else "is-warning" if seconds < VERY_LATE else "is-error"


@register.simple_tag
def lag(seconds: float | None) -> SafeString:
    """How long the longest waiting job has been due, in its colour; a dash where none waits."""
    if seconds is None:
        return _NOTHING
    return format_html('<span class="awa-lag {}">{}</span>', _lateness(seconds), duration(max(seconds, 0)))


# Figures


@register.filter
def count(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return "–" if value is None else f"{value:,}"


def about(value: int) -> str:
    """An estimate, with as many digits as it deserves."""
    if value < _ROUND:
        return f"{value:,}"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            scaled = value / size
            # Half a unit more would be rounded into the next digit.
            return f"~{scaled:.1f} {unit}" if scaled < 99.95 else f"~{scaled:.0f} {unit}"
    raise AssertionError(value)


@register.simple_tag
def figure(value: int | None, exact: bool = True, rough: bool = False) -> SafeString:
    """A number of jobs: quiet if it is zero, rounded if it is an estimate; a ``rough`` one keeps two digits."""
    if value is None:
        return _NOTHING
    if not value:
        return mark_safe('<span class="awa-zero">0</span>')
    if exact or (value < _ROUND and not rough):
        return SafeString(f"{value:,}")
    if value < _ROUND:
        return SafeString(f"~{round(value, 2 - len(str(value))) if value > 99 else value:,}")
    return format_html('<span title="{}">{}</span>', _("about %s") % f"{value:,}", about(value))


@register.simple_tag
def meter(used: int, total: int | None, label: str = "") -> SafeString:
    """How much of a capacity is in use, as figures and a bar."""
    if not total:
        return format_html('<span class="awa-nowrap">{}</span>', f"{used:,}")
    return format_html(
        '<span class="awa-meter"><span class="awa-nowrap">{} / {}</span>'
        '<progress class="awa-progress{}" max="{}" value="{}" aria-label="{}"></progress></span>',
        f"{used:,}",
        f"{total:,}",
        " is-warning" if used >= total else "",
        total,
        min(used, total),
        label or _("in use"),
    )


# Marks


def _state(value: object) -> tuple[str, Any]:
    if isinstance(value, JobRecord):
        value = "dead" if value.dead_letter else value.job.state
    elif isinstance(value, Job):
        value = value.state
    if value == "dead":
        return "dead", _("dead letter")
    try:
        state = JobState(str(value))
    except ValueError:
        return "cancelled", value
    return state.value, STATE_LABELS[state]


@register.simple_tag
def badge(state: object) -> SafeString:
    """The state of a job in its colour; takes a state, its name, ``"dead"``, a job or a record of one."""
    name, label = _state(state)
    return format_html('<span class="awa-badge awa-state-{}">{}</span>', name, label)


@register.simple_tag
def mark(text: object, level: str = "", hint: str = "") -> SafeString:
    """A short remark; ``level`` is ``ok``, ``warning``, ``error``, ``info`` or nothing, ``hint`` shown on hover."""
    classes = f"awa-mark is-{level}" if level else "awa-mark"
    return format_html('<span class="{}" title="{}">{}</span>', classes, hint, text)


@register.simple_tag
def named(name: str, descriptor: Descriptor | None = None) -> SafeString:
    """A queue or kind: the name that people gave it first, then the technical one."""
    if descriptor is None or not descriptor.display_name:
        return format_html("{}", name)
    return format_html(
        '{} <span class="awa-mono awa-quiet">{}</span>',
        descriptor.display_name,
        name,
    )


@register.inclusion_tag("admin/awa_django/includes/tags.html")
def job_tags(tags: Iterable[str], limit: int = FEW_TAGS) -> dict[str, Any]:
    """The first tags of a job and how many more there are."""
    names = list(tags)
    return {"first": names[:limit], "rest": names[limit:]}


@register.inclusion_tag("admin/awa_django/includes/chip.html", takes_context=True)
def worker_chip(context: Context, pulse: Pulse) -> dict[str, Any]:
    """How many workers live, and on which storage; it warns of none, and of ones that are not well."""
    engine = str(pulse.engine).replace("_", " ")
    level, note = "is-ok", _("jobs are stored in %s") % engine
    if not pulse.workers:
        level, note = "is-error", _("nothing runs until a worker is started: manage.py awa_worker")
    elif pulse.unwell:
        level = "is-warning"
        note = ngettext("%d worker is unhealthy", "%d workers are unhealthy", pulse.unwell) % pulse.unwell
    elif pulse.leaders != 1:
        level, note = "is-warning", _("no worker leads: nothing is promoted, rescued or pruned")
        if pulse.leaders:
            note = _("%d workers believe that they lead") % pulse.leaders
    live = ngettext("%d live worker", "%d live workers", pulse.workers) % pulse.workers
    return {
        "text": f"{live if pulse.workers else _('No live worker')} · {engine}",
        "level": level,
        "note": note,
        "url": page_url(context, "runtimeinstance"),
    }


@register.simple_tag
def copy(text: object, label: str = "") -> SafeString:
    """A button that copies a text; hidden until the script can do it."""
    return format_html(
        '<button type="button" class="awa-copy" data-awa-copy="{}" aria-label="{}" hidden>{}</button>',
        text,
        label or _("Copy %s") % text,
        _("Copy"),
    )


# Links


@register.simple_tag(takes_context=True)
def page_url(context: Context, model: str, key: object = None, **parameters: object) -> str:
    """Where the list of a model is, or with ``key`` one object's page; empty if whoever asks cannot see it.

    Further arguments become the list's parameters: ``{% page_url "job" queue=name as url %}``.
    """
    if not _may(context, f"view_{model}"):
        return ""
    url = _address(context, model, "changelist") if key is None else _address(context, model, "change", key)
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{url}?{_encoded(given)}" if url and given else url


@register.simple_tag(takes_context=True)
def payload_url(context: Context, model: str, key: object, name: str, *args: object) -> str:
    """Where a value of an object, or its dump, is in full; empty if whoever asks cannot see it."""
    if not (_may(context, f"view_{model}") and _may(context, "view_job_payload")):
        return ""
    return _address(context, model, name, key, *args)


def _may(context: Context, codename: str) -> bool:
    request = context.get("request")
    return request is not None and request.user.has_perm(f"awa_django.{codename}")


def _address(context: Context, model: str, name: str, *args: object) -> str:
    """Empty if the site that was asked does not show such."""
    site = getattr(context.get("request"), "current_app", None)
    try:
        return reverse(
            f"admin:awa_django_{model}_{name}", args=[quote(str(each)) for each in args], current_app=site
        )
    except NoReverseMatch:
        return ""


class _Link(template.Node):
    """Made by :func:`link_to`."""

    child_nodelists = ("body",)

    def __init__(
        self, args: Sequence[FilterExpression], options: Mapping[str, FilterExpression], body: NodeList
    ) -> None:
        self.args = args
        self.options = options
        self.body = body

    def render(self, context: Context) -> SafeString:
        options = {name: value.resolve(context) for name, value in self.options.items()}
        css = options.pop("css", "")
        url = page_url(context, *(value.resolve(context) for value in self.args), **options)
        body = self.body.render(context)
        if url:
            return format_html(
                '<a href="{}"{}>{}</a>', url, format_html(' class="{}"', css) if css else "", body
            )
        return format_html('<span class="{}">{}</span>', css, body) if css else body


@register.tag
def link_to(parser: Parser, token: Token) -> _Link:
    """What is in it, as a link to a page; as it is, for whoever cannot see the page.

    It takes the arguments of :func:`page_url`, and ``css`` for classes:
    ``{% link_to "queuemeta" name css="awa-break" %}…{% endlink_to %}``.
    """
    args: list[FilterExpression] = []
    options: dict[str, FilterExpression] = {}
    for bit in token.split_contents()[1:]:
        named = token_kwargs([bit], parser)
        options |= named
        if not named:
            args.append(parser.compile_filter(bit))
    body = parser.parse(("endlink_to",))
    parser.delete_first_token()
    return _Link(args, options, body)


def _encoded(parameters: Mapping[str, object]) -> str:
    query = QueryDict(mutable=True)
    for name, value in parameters.items():
        query[name] = str(value)
    return query.urlencode()


# Values


def plain_text(value: Any) -> str:
    """A value as text: JSON with its members on lines of their own, other text as it is."""
    match value:
        case None:
            return "null"
        case str():
            return value
        case Unreadable():
            return value.text
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except RecursionError:
        # The encoder that indents is of Python, and meets the interpreter's limit long before the plain one.
        return json.dumps(value, ensure_ascii=False, default=str)


_TOKENS = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*+"(?=:))|(?P<text>"(?:[^"\\]|\\.)*+")|(?P<word>\b(?:true|false|null)\b)'
)


def shown_json(value: Any, limit: int | None = SHORT) -> tuple[SafeString, int, bool]:
    """A value as escaped markup, how many characters it has in all, and whether some are left out."""
    text = plain_text(value)
    short = limit is not None and len(text) > limit
    part = text[:limit] if short else text
    if isinstance(value, str | Unreadable):
        return SafeString(escape(part)), len(text), short
    pieces: list[str] = []
    at = 0
    for token in _TOKENS.finditer(part):
        pieces.append(escape(part[at : token.start()]))
        pieces.append(f'<span class="awa-json-{token.lastgroup}">{escape(token.group())}</span>')
        at = token.end()
    pieces.append(escape(part[at:]))
    if short:
        pieces.append("…")
    return SafeString("".join(pieces)), len(text), short


@register.inclusion_tag("admin/awa_django/includes/json.html")
def json_block(value: Any, name: str, label: str = "", full_url: str = "") -> dict[str, Any]:
    """A value, pretty and escaped, with a button to copy it; a long one is shortened and leads to ``full_url``.

    ``name`` becomes the element's id, which must be the only one of its kind in the page. Whoever calls it has asked
    ``awa_django.redaction.shown`` for the value.
    """
    html, size, short = shown_json(value)
    return {
        "html": html,
        "id": name,
        "label": label or name,
        "text_size": _("%s characters") % f"{size:,}",
        "is_short": short,
        "full_url": full_url,
    }


@register.filter
def ticks(text: object) -> SafeString:
    """A sentence whose commands, which stand between backticks, look like commands."""
    return SafeString(re.sub("`([^`]+)`", r"<code>\1</code>", escape(str(text))))


@register.filter
def first_line(text: object) -> str:
    """The line of an error that says most: the last one of a traceback, else the first."""
    lines = [line.strip() for line in str(text).strip().splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
