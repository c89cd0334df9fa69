"""Callbacks that are waited for, and answering them by hand (contract: api/callbacks, api/web_ui section 2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.db import models
from django.http import HttpRequest, QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from awa_django import callbacks, operations
from awa_django.admin.actions import Action, Answer, Call, job_key, job_of
from awa_django.admin.frame import DeskAdmin
from awa_django.admin.search import suggestions
from awa_django.admin.values import Values, may_see, value_shown
from awa_django.encoding import encode
from awa_django.errors import InvalidJob
from awa_django.jobs import Job
from awa_django.models import WaitingCallback
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import JobFilter, JobRecord, WaitingJob, WaitingPosition
from awa_django.operations.desk import Desk
from awa_django.states import JobState

__all__ = ["CallbackAdmin", "PayloadField"]

PAGE = 50
#: Characters of a payload; as much as the receiver of callbacks takes.
LONGEST = 2 * 1024 * 1024


# What can be done


class PayloadField(forms.CharField):
    """JSON, or nothing. What is wrong with it is said with line and column."""

    widget = forms.Textarea(attrs={"rows": 8, "spellcheck": "false"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"required": False, "max_length": LONGEST, **options})

    def clean(self, value: Any) -> Any:
        """The value that the text means; None for none."""
        text = super().clean(value)
        if not text:
            return None
        try:
            return encode(json.loads(text, parse_constant=_refuse, object_pairs_hook=_once), "payload")
        except json.JSONDecodeError as error:
            raise forms.ValidationError(
                _now("Line %(line)d, column %(column)d: this is not JSON: %(why)s.")
                % {"line": error.lineno, "column": error.colno, "why": error.msg}
            ) from None
        except InvalidJob as error:
            raise forms.ValidationError(str(error)) from None
        except RecursionError:
            raise forms.ValidationError(_now("It is nested too deep.")) from None
        except ValueError as error:
            raise forms.ValidationError(_now("This cannot be taken: %s.") % error) from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; refused where a name comes twice, for one of its values would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _value in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            _now("the name %s comes twice in one object") % json.dumps(twice, ensure_ascii=False)
        )
    return found


class _ErrorForm(forms.Form):
    error = forms.CharField(
        label=_("Error"),
        max_length=10_000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("Why it failed; it becomes the error of the job."),
    )


class _TimeForm(forms.Form):
    seconds = forms.FloatField(
        label=_("Seconds from now"),
        min_value=0,
        max_value=callbacks.MAX_TIMEOUT.total_seconds(),
        initial=callbacks.DEFAULT_TIMEOUT,
        help_text=_("3600 is an hour. With 0 its time is up at once."),
    )


class _ResumeForm(forms.Form):
    payload = PayloadField(label=_("Payload"), help_text=_("JSON; what the handler gets. Left empty: none."))


class _ResolveForm(forms.Form):
    payload = PayloadField(
        label=_("Payload"), help_text=_("JSON; what the expressions see. Left empty: none.")
    )
    default = forms.ChoiceField(
        label=_("If they do not decide"),
        choices=[
            ("ignore", _("ignore the answer")),
            ("complete", _("complete the job")),
            ("fail", _("fail the job")),
        ],
    )


def _answered(call: Call, verb: Callable[[str], Job]) -> Answer:
    """Answer callbacks, and say what their jobs are now; one that is still waited for keeps its page."""
    jobs = [verb(key) for key in call.keys]
    text = " ".join(_now("Job %(id)s is %(state)s.") % {"id": job.id, "state": _state(job)} for job in jobs)
    goes_to = None
    if len(jobs) == 1:
        if jobs[0].state is JobState.WAITING_EXTERNAL:
            goes_to = call.url_of("waitingcallback", call.key)
        else:
            goes_to = call.url_of("job", jobs[0].id)
    return Answer(len(jobs), text=text, goes_to=goes_to)


def _state(job: Job) -> str:
    return str(STATE_LABELS[job.state])


def _complete(call: Call) -> Answer:
    return _answered(call, callbacks.complete)


def _fail(call: Call) -> Answer:
    return _answered(call, lambda key: callbacks.fail(key, call.values["error"]))


def _retry(call: Call) -> Answer:
    return _answered(call, callbacks.retry)


def _resume(call: Call) -> Answer:
    return _answered(call, lambda key: callbacks.resume(key, call.values["payload"]))


def _heartbeat(call: Call) -> Answer:
    return _answered(call, lambda key: callbacks.heartbeat(key, timedelta(seconds=call.values["seconds"])))


def _resolve(call: Call) -> Answer:
    def verb(key: str) -> Job:
        found = callbacks.resolve(key, call.values["payload"], default=call.values["default"])
        if found.is_ignored():
            messages.info(call.request, _now("The answer was ignored, and the callback stays valid."))
        if found.reason and may_see(call.request):
            # Its words may be those of the expressions or of the payload: not for the log.
            messages.info(call.request, str(value_shown(found.job.kind, "expression", found.reason)))
        return found.job

    return _answered(call, verb)


def _is_waiting(record: JobRecord) -> bool:
    return record.job.state is JobState.WAITING_EXTERNAL


_NOUN = (_("callback"), _("callbacks"))
_PERMISSION = ("resolve_callback",)

CALLBACK_ACTIONS = (
    Action(
        "complete",
        _("Complete"),
        _("completed"),
        _PERMISSION,
        _complete,
        _(
            "The job is completed. A payload is not asked for, since none is stored: what the application does with "
            "an answer, it does in its own view. Follow-up jobs are enqueued as usual."
        ),
        noun=_NOUN,
    ),
    Action(
        "fail",
        _("Fail"),
        _("failed"),
        _PERMISSION,
        _fail,
        _("The job has failed for good, whatever attempts are left. It does not become a dead letter."),
        form=_ErrorForm,
        danger=True,
        noun=_NOUN,
    ),
    Action(
        "retry",
        _("Retry"),
        _("will run again"),
        _PERMISSION,
        _retry,
        _(
            "The job runs again from the start, at once and with all its attempts. This callback is void then."
        ),
        applies=_is_waiting,
        noun=_NOUN,
    ),
    Action(
        "resolve",
        _("Resolve"),
        _("resolved"),
        _PERMISSION,
        _resolve,
        _(
            "The expressions that the callback was registered with judge the payload: the job is completed, fails, "
            "or waits on."
        ),
        form=_ResolveForm,
        noun=_NOUN,
    ),
    Action(
        "resume",
        _("Resume"),
        _("resumed"),
        _PERMISSION,
        _resume,
        _(
            "Only for a handler that waits in wait_for_callback: it gets the payload and runs on. A job whose handler "
            "returned WaitForCallback has nobody to run on: it would be running without a worker until it is rescued "
            "for its silence, and then run again."
        ),
        form=_ResumeForm,
        danger=True,
        noun=_NOUN,
    ),
    Action(
        "heartbeat",
        _("Give more time"),
        _("given more time"),
        _PERMISSION,
        _heartbeat,
        _("The job waits on, with this much time from now, whatever it had left."),
        form=_TimeForm,
        applies=_is_waiting,
        noun=_NOUN,
    ),
)


# What is shown


@dataclass(frozen=True, slots=True)
class _Search:
    """What the parameters of the list mean."""

    text: str = ""
    queue: str = ""
    kind: str = ""
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.queue or self.kind)

    def link(self, after: WaitingPosition | None = None) -> str:
        query = QueryDict(mutable=True)
        for name, value in (("q", self.text), ("queue", self.queue), ("kind", self.kind)):
            if value:
                query[name] = value
        if after is not None:
            at = after.timeout_at.isoformat() if after.timeout_at is not None else ""
            query["after"] = f"{at}~{after.job_id}~{after.plane}"
        return f"?{query.urlencode()}"


def _after(text: str) -> WaitingPosition | None:
    """Where a page begins; None for the first, and for what says nothing."""
    at, _tilde, rest = text.partition("~")
    number, _tilde, plane = rest.partition("~")
    if not (number.isascii() and number.isdecimal() and len(number) < 20 and int(number) < 2**63):
        return None
    try:
        timeout_at = parse_datetime(at) if at else None
    except ValueError:
        return None
    if (at and timeout_at is None) or (timeout_at is not None and timeout_at.tzinfo is None):
        return None
    return WaitingPosition(timeout_at, int(number), "canonical" if plane == "canonical" else "queue_storage")


class CallbackAdmin(DeskAdmin):
    """Callbacks that jobs wait for. Their keys are the ids that the outside has."""

    label = _("Callbacks")
    list_template = "admin/awa_django/callback_list.html"
    detail_template = "admin/awa_django/callback_detail.html"
    called = _("callback %s")
    offered = CALLBACK_ACTIONS

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """A callback for the page of past actions, which outlives it."""
        try:
            return WaitingCallback(callback_id=callbacks.callback_uuid(object_id))
        except InvalidJob:
            return None

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """Jobs that wait, soonest timeout first, or the one that is searched for."""
        text, queue, kind = (
            request.GET.get(name, "").strip().replace("\0", "") for name in ("q", "queue", "kind")
        )
        after = _after(request.GET.get("after", ""))
        problem = ""
        if text:
            items, following, problem = [], None, ""
            try:
                items = [_found(text)]
            except LookupError as error:
                problem = str(error)
        else:
            page = operations.waiting_callbacks(
                JobFilter(queue=queue or None, kind=kind or None), after=after, limit=PAGE
            )
            items, following = list(page.items), page.next
        search = _Search(text, queue, kind, problem)
        return {
            "items": [(item, job_key(item.record, look.planes)) for item in items],
            "search": search,
            "newest": search.link() if after is not None else None,
            "older": search.link(following) if following is not None else None,
            **suggestions()._asdict(),
        }

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One callback with its job; the job's id will do as well."""
        record = _found(key).record
        # However it was spelled, it has one address.
        key = str(record.job.callback_id)
        return {
            "title": _("Callback"),
            "key": key,
            "crumb": key,
            "record": record,
            "job": record.job,
            "job_key": job_key(record, look.planes),
            "callback": record.callback,
            "overdue": _is_overdue(record),
            "is_waiting": _is_waiting(record),
            "offers": self.offers(request, key, record),
            "values": Values(record) if may_see(request) else None,
        }


def _found(text: str) -> WaitingJob:
    """The callback with this id, or that of the job with this one."""
    if named := job_of(text):
        number, plane = named
        record = operations.load_job(number, plane=plane)
        if record.job.callback_id is None:
            raise LookupError(_now("job %s waits for no callback") % text)
    else:
        record = operations.find_callback(text)
    return WaitingJob(record, _is_overdue(record))


def _is_overdue(record: JobRecord) -> bool:
    timeout_at = record.job.callback_timeout_at
    return _is_waiting(record) and timeout_at is not None and timeout_at <= datetime.now(UTC)
