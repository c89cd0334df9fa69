"""What can be done to jobs and dead letters from the admin."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from awa_django import operations
from awa_django.admin.actions import Action, Answer, Call, job_of
from awa_django.operations import Changed, JobRecord
from awa_django.operations.batch import (
    Cancel,
    DeadLetter,
    Discard,
    MoveQueue,
    Purge,
    Redrive,
    Retry,
    RunNow,
    SetPriority,
)
from awa_django.queue_names import queue_name_fault
from awa_django.states import JobState

__all__ = ["DEAD_LETTER_ACTIONS", "JOB_ACTIONS", "LocalTimeField", "QueueNameField"]

PRIORITIES = [(1, _("1 (first)")), (2, "2"), (3, "3"), (4, _("4 (last)"))]


class QueueNameField(forms.CharField):
    """The name of a queue, checked as everywhere else."""

    def clean(self, value: Any) -> Any:
        """The name; it is refused here rather than by the queue."""
        name = super().clean(value)
        if name and (fault := queue_name_fault(name)):
            raise forms.ValidationError(fault)
        return name


class LocalTimeField(forms.DateTimeField):
    """An instant, as the browser's own field gives it, in the current time zone."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")

    def clean(self, value: Any) -> Any:
        """The instant, with its zone also in a project that goes without (``USE_TZ = False``)."""
        at = super().clean(value)
        return timezone.make_aware(at) if isinstance(at, datetime) and timezone.is_naive(at) else at


class _PriorityForm(forms.Form):
    priority = forms.TypedChoiceField(label=_("Priority"), choices=PRIORITIES, coerce=int, initial=2)


class _MoveForm(forms.Form):
    queue = QueueNameField(
        label=_("Queue"), help_text=_("Jobs may be moved to a paused queue, and wait there.")
    )
    priority = forms.TypedChoiceField(
        label=_("Priority"),
        choices=[("", _("as it is")), *PRIORITIES],
        coerce=int,
        empty_value=None,
        required=False,
    )


class _ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        initial="manual",
        max_length=200,
        help_text=_("Goes on record with each dead letter."),
    )


class _RedriveForm(forms.Form):
    run_at = LocalTimeField(label=_("Run at"), required=False, help_text=_("Left empty: now."))
    priority = forms.TypedChoiceField(
        label=_("Priority"),
        choices=[("", _("as it was")), *PRIORITIES],
        coerce=int,
        empty_value=None,
        required=False,
    )
    queue = QueueNameField(label=_("Queue"), required=False, help_text=_("Left empty: the one it failed on."))


def _options(call: Call) -> dict[str, Any]:
    return {name: value or None for name, value in call.values.items()}


def _jobs(verb: Callable[..., Changed]) -> Callable[[Call], Answer]:
    """An action that is one of the operations, with what the form says as its options."""

    def run(call: Call) -> Answer:
        # Without a storage, that is the first that has the job.
        found = call.ids or {None: []}
        answer = Answer.of(*(verb(ids, plane=plane, **_options(call)) for plane, ids in found.items()))
        return _with_strangers(call, answer)

    return run


def _with_strangers(call: Call, answer: Answer) -> Answer:
    """The answer that also counts keys which are those of no job, though no page of ours sends any."""
    strangers = sum(job_of(key) is None for key in call.keys)
    return answer if not strangers else answer.and_skipped(_("that is no job's key"), strangers)


def _dead_letters(verb: Callable[..., Changed]) -> Callable[[Call], Answer]:
    """The same of an operation on dead letters, which the canonical tables have none of."""

    def run(call: Call) -> Answer:
        answer = _with_strangers(call, Answer.of(verb(call.ids.get(None, []), **_options(call))))
        elsewhere = len(call.ids.get("canonical", []))
        if not elsewhere:
            return answer
        return answer.and_skipped(_("the canonical tables have no dead letters"), elsewhere)

    return run


def _is(*states: JobState) -> Callable[[JobRecord], bool]:
    return lambda record: record.dead_letter is None and record.job.state in states


JOB_ACTIONS = (
    Action(
        "retry",
        _("Retry"),
        _("will run again"),
        ("retry_job",),
        _jobs(operations.retry),
        _(
            "Failed, cancelled and waiting jobs run again, now, with all their attempts. Errors stay on record."
        ),
        applies=lambda record: record.can_retry,
        to_many=True,
        batch=lambda values: Retry(),
    ),
    Action(
        "run-now",
        _("Run now"),
        _("made due"),
        ("run_job_now",),
        _jobs(operations.run_now),
        _("Jobs that wait for their time, or for their next attempt, become available at once."),
        applies=_is(JobState.SCHEDULED, JobState.RETRYABLE),
        to_many=True,
        batch=lambda values: RunNow(),
    ),
    Action(
        "cancel",
        _("Cancel"),
        _("cancelled"),
        ("cancel_job",),
        _jobs(operations.cancel),
        _("Jobs that have not finished end. One that runs is told to stop, and what it returns is ignored."),
        applies=lambda record: record.can_cancel,
        to_many=True,
        batch=lambda values: Cancel(),
        danger=True,
    ),
    Action(
        "set-priority",
        _("Change priority"),
        _("changed"),
        ("change_job_priority",),
        _jobs(operations.set_priority),
        _("Available and scheduled jobs go to the end of the lane of another priority."),
        form=_PriorityForm,
        applies=lambda record: record.can_move,
        to_many=True,
        batch=lambda values: SetPriority(values["priority"]),
        sample={"priority": 1},
    ),
    Action(
        "move-queue",
        _("Move to another queue"),
        _("moved"),
        ("move_job",),
        _jobs(operations.move_queue),
        _("Available and scheduled jobs wait on another queue, at the end of its lane."),
        form=_MoveForm,
        applies=lambda record: record.can_move,
        to_many=True,
        batch=lambda values: MoveQueue(values["queue"], values["priority"]),
        sample={"queue": "default", "priority": None},
    ),
    Action(
        "dead-letter",
        _("Move to the dead letters"),
        _("moved to the dead letters"),
        ("move_dlqentry",),
        _dead_letters(operations.dead_letter),
        _("Failed jobs are kept as dead letters, which history does not forget so soon."),
        form=_ReasonForm,
        applies=_is(JobState.FAILED),
        to_many=True,
        batch=lambda values: DeadLetter(values["reason"]),
        sample={"reason": "manual"},
    ),
    Action(
        "discard",
        _("Discard"),
        _("discarded"),
        ("discard_job",),
        _jobs(operations.discard),
        _("Failed jobs are forgotten for good. This cannot be undone."),
        applies=_is(JobState.FAILED),
        to_many=True,
        batch=lambda values: Discard(),
        danger=True,
    ),
)

_LETTERS = (_("dead letter"), _("dead letters"))

DEAD_LETTER_ACTIONS = (
    Action(
        "redrive",
        _("Redrive"),
        _("will run again"),
        ("retry_dlqentry",),
        _dead_letters(operations.retry_dead),
        _("Dead letters run again with all their attempts. Errors stay on record, progress does not."),
        form=_RedriveForm,
        to_many=True,
        batch=lambda values: Redrive(
            run_at=values.get("run_at"), priority=values.get("priority"), queue=values.get("queue") or None
        ),
        noun=_LETTERS,
    ),
    Action(
        "purge",
        _("Purge"),
        _("purged"),
        ("purge_dlqentry",),
        _dead_letters(operations.purge_dead),
        _("Dead letters are forgotten for good. This cannot be undone."),
        to_many=True,
        batch=lambda values: Purge(),
        danger=True,
        noun=_LETTERS,
    ),
)
