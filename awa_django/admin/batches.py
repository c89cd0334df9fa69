"""Batch operations: what was submitted and how far it is, and submitting one (contract: api/web_ui section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from awa_django import operations
from awa_django.admin.actions import Action, Answer, Call, Offer
from awa_django.admin.frame import PREFIX, DeskAdmin, changing
from awa_django.admin.pages import may, read_only_reason
from awa_django.admin.search import suggestions
from awa_django.admin.verbs import DEAD_LETTER_ACTIONS, JOB_ACTIONS, LocalTimeField
from awa_django.errors import AwaError
from awa_django.models.columns import STATE_LABELS
from awa_django.operations import BatchOperation, BatchState, JobFilter
from awa_django.operations.batch.filters import MOST_IDS
from awa_django.operations.desk import Desk

__all__ = ["BatchAdmin"]

#: Operations in the list, the newest first.
SHOWN = 100
#: Jobs that did not change, on the page of an operation.
PROBLEMS = 100

#: What can be done to all jobs that match, by name, and what else it needs beside the permission to submit.
CHANGES: Mapping[str, Action] = {
    action.name: action for action in (*JOB_ACTIONS, *DEAD_LETTER_ACTIONS) if action.batch is not None
}

#: The colours of the states.
LEVELS: Mapping[BatchState, str] = {
    BatchState.PENDING: "",
    BatchState.SCANNING: "info",
    BatchState.RUNNING: "info",
    BatchState.CANCELLING: "warning",
    BatchState.COMPLETED: "ok",
    BatchState.CANCELLED: "",
    BatchState.FAILED: "error",
}


def _known(filter: object) -> Mapping[str, Any]:
    """What is set of a filter; another client may have stored anything."""
    found = filter if isinstance(filter, Mapping) else {"": filter}
    return {name: value for name, value in found.items() if value is not None}


def _stop(call: Call) -> Answer:
    for key in call.keys:
        operations.cancel_batch(key)
    return Answer(text=_now("It stops after the jobs it is at; what is left counts as skipped."))


BATCH_ACTIONS = (
    Action(
        "cancel",
        _("Stop"),
        _("stopped"),
        ("cancel_batchoperation",),
        _stop,
        _(
            "It stops after the jobs it is at. What it has changed stays changed; what is left counts as skipped."
        ),
        applies=lambda operation: (
            not operation.state.is_over and operation.state is not BatchState.CANCELLING
        ),
        danger=True,
        noun=(_("batch operation"), _("batch operations")),
    ),
)


# Submitting


class _BatchForm(forms.Form):
    """What is to be done, and to which jobs."""

    operation = forms.ChoiceField(label=_("Operation"))
    queue = forms.CharField(label=_("Queue"), required=False)
    kind = forms.CharField(label=_("Kind"), required=False)
    tag = forms.CharField(label=_("Tag"), required=False)
    state = forms.ChoiceField(
        label=_("State"),
        required=False,
        choices=[
            ("", _("any that the operation is for")),
            *((state.value, label) for state, label in STATE_LABELS.items()),
        ],
    )
    id = forms.CharField(
        label=_("Job ids"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("Whole numbers, with blanks, commas or new lines between them."),
    )
    created_from = LocalTimeField(label=_("Created from"), required=False)
    created_before = LocalTimeField(label=_("Created before"), required=False)
    all = forms.BooleanField(
        label=_("All jobs"),
        required=False,
        help_text=_("Only with an empty filter: every job that the operation is for, on every queue."),
    )

    def __init__(self, changes: Sequence[Action], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        field = self.fields["operation"]
        assert isinstance(field, forms.ChoiceField)
        groups = ((_("Jobs"), JOB_ACTIONS), (_("Dead letters"), DEAD_LETTER_ACTIONS))
        field.choices = [
            (label, [(action.name, capfirst(str(action.label))) for action in group if action in changes])
            for label, group in groups
            if any(action in changes for action in group)
        ]
        for name, listed in (("queue", "awa-queues"), ("kind", "awa-kinds")):
            self.fields[name].widget.attrs |= {"list": listed, "autocomplete": "off"}

    def clean_id(self) -> list[int] | None:
        """The ids; None where none are given, for they are no filter then."""
        words = [word for word in re.split(r"[\s,]+", self.cleaned_data["id"]) if word]
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) < 20 and int(word) < 2**63):
                raise forms.ValidationError(_now("“%s” is no job id; ids are whole numbers.") % word[:60])
        if len(words) > MOST_IDS:
            raise forms.ValidationError(
                _now("%(given)s ids are too many, at most %(most)s; name jobs by queue, kind or tag.")
                % {"given": f"{len(words):,}", "most": f"{MOST_IDS:,}"}
            )
        return sorted({int(word) for word in words}) or None

    def clean(self) -> dict[str, Any]:
        """The values, with the filter that they mean; it has to mean some jobs or, said so, all."""
        values = super().clean() or {}
        if self.errors:
            return values
        chosen = JobFilter(
            state=values["state"] or None,
            kind=values["kind"] or None,
            queue=values["queue"] or None,
            tag=values["tag"] or None,
            ids=values["id"],
            created_from=values["created_from"],
            created_before=values["created_before"],
        )
        if chosen.is_empty and not values["all"]:
            raise forms.ValidationError(
                _("Say which jobs are meant, or tick “All jobs” if it is really all of them.")
            )
        if values["all"] and not chosen.is_empty:
            self.add_error("all", _("There is a filter: empty it, or untick this."))
        values["filter"] = chosen
        return values


@dataclass(frozen=True, slots=True)
class BatchRow:
    """An operation in the list."""

    operation: BatchOperation
    level: str
    offers: Sequence[Offer]

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return not self.operation.state.is_over

    @property
    def percent(self) -> int | None:
        """How far it is; None while jobs are still collected."""
        progress = self.operation.progress
        return None if progress is None else int(progress * 100)


@dataclass(frozen=True, slots=True)
class Pill:
    """A state to choose, in the list."""

    value: str
    label: str
    is_here: bool


#: Submitting, as the log calls it. It is asked for by a form of its own.
_SUBMIT = Action("submit", _("Submit"), _("submitted"), ("submit_batchoperation",), lambda call: Answer())


class BatchAdmin(DeskAdmin):
    """Operations of both tables, which to people are one list."""

    label = _("Batch operations")
    list_template = "admin/awa_django/batch_list.html"
    detail_template = "admin/awa_django/batch_detail.html"
    called = _("batch operation %s")
    offered = BATCH_ACTIONS

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """The newest, or those in a state."""
        state = request.GET.get("state", "")
        known = {each.value for each in BatchState}
        found = operations.batch_operations(state if state in known else None, limit=SHOWN)
        pills = [Pill("", _now("All"), state not in known)]
        pills += [Pill(each.value, each.value, state == each.value) for each in BatchState]
        return {
            "rows": [self._row(request, operation) for operation in found],
            "pills": pills,
            "state": state if state in known else "",
            "is_full": len(found) == SHOWN,
            "may_submit": self.has_add_permission(request),
        }

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """One operation: how far it is, and what did not go through."""
        operation = operations.batch_operation(key)
        row = self._row(request, operation)
        return {
            "title": capfirst(operation.description),
            "row": row,
            "operation": operation,
            "offers": row.offers,
            "problems": operations.batch_problems(operation.id, limit=PROBLEMS),
            "filter": _known(operation.filter),
        }

    def _row(self, request: HttpRequest, operation: BatchOperation) -> BatchRow:
        return BatchRow(operation, LEVELS[operation.state], self.offers(request, operation.id, operation))

    # Submitting

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Whoever may submit operations, where anything can be changed."""
        return may(request, "submit_batchoperation") and not read_only_reason()

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Say what is to be done, see what that means, and submit it.

        The first POST answers with how many jobs match and with what else the operation asks; the second, which has
        ``confirmed``, submits. Each operation needs its own permission besides.
        """
        if not self.has_view_permission(request) or not self.has_add_permission(request):
            raise PermissionDenied(str(read_only_reason() or ""))
        permitted = [action for action in CHANGES.values() if action.is_permitted(request)]
        if request.method != "POST":
            given = {name: request.GET[name] for name in _BatchForm.base_fields if name in request.GET}
            given.pop("all", None)
            return self._asked(request, _BatchForm(permitted, initial=given))
        wanted = CHANGES.get(request.POST.get("operation", ""))
        if wanted is not None and wanted not in permitted:
            raise PermissionDenied
        form = _BatchForm(permitted, request.POST)
        if not form.is_valid() or "edit" in request.POST:
            return self._asked(request, form)
        assert wanted is not None
        confirmed = "confirmed" in request.POST
        more = None
        if wanted.form is not None:
            more = wanted.form(request.POST if confirmed else None, prefix=PREFIX)
        if confirmed and (more is None or more.is_valid()):
            answer = self._submitted(request, wanted, form, more)
            if answer is not None:
                return answer
        return self._previewed(request, wanted, form, more)

    def _submitted(
        self, request: HttpRequest, wanted: Action, form: _BatchForm, more: forms.Form | None
    ) -> HttpResponse | None:
        """Store it and show it; None if it was refused, with what the form then says."""
        assert wanted.batch is not None
        values = more.cleaned_data if more is not None else {}
        try:
            with changing():
                operation = operations.submit_batch(
                    wanted.batch(values),
                    form.cleaned_data["filter"],
                    submitted_by=request.user.get_username(),
                    allow_all=form.cleaned_data["all"],
                )
                said = _now("Submitted: %s.") % operation.description
                self._log(_SUBMIT, Call(request, (str(operation.id),)), Answer(text=said))
        except (AwaError, ValueError) as error:
            (more or form).add_error(None, str(error))
            return None
        messages.success(
            request, said + " " + _now("A worker goes on with it; this page shows how far it is.")
        )
        return redirect(self.detail_url(operation.id))

    def _asked(self, request: HttpRequest, form: _BatchForm) -> HttpResponse:
        return self.page(
            request,
            "admin/awa_django/batch_form.html",
            lambda look: {
                "title": _("Submit a batch operation"),
                "crumb": _("Submit a batch operation"),
                "form": form,
                "has_choices": bool(form.fields["operation"].choices),  # type: ignore[attr-defined]
                **suggestions()._asdict(),
                "time_zone": timezone.get_current_timezone_name(),
            },
        )

    def _previewed(
        self, request: HttpRequest, wanted: Action, form: _BatchForm, more: forms.Form | None
    ) -> HttpResponse:
        assert wanted.batch is not None
        change = wanted.batch(wanted.sample)

        def build(look: Desk) -> Mapping[str, Any]:
            if reason := read_only_reason():
                raise PermissionDenied(str(reason))
            return {
                "title": capfirst(str(wanted.label)),
                "crumb": capfirst(str(wanted.label)),
                "action": wanted,
                "form": more,
                "filter_form": form,
                "preview": operations.preview_batch(
                    change, form.cleaned_data["filter"], allow_all=form.cleaned_data["all"]
                ),
                "chosen": [
                    (form.fields[name].label, form.data[name])
                    for name in ("queue", "kind", "tag", "state", "id", "created_from", "created_before")
                    if form.data.get(name)
                ],
                "hidden": [(name, form.data[name]) for name in form.fields if form.data.get(name)],
            }

        try:
            return self.page(request, "admin/awa_django/batch_preview.html", build)
        except (AwaError, ValueError) as error:
            form.add_error(None, str(error))
            return self._asked(request, form)
