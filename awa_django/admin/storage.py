"""The move from the canonical tables to queue storage: how far it is, and its steps.

(contract: api/web_ui section 2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from awa_django import storage
from awa_django.admin.actions import Action, Answer, Call, Offer, Text
from awa_django.admin.frame import DeskAdmin
from awa_django.enqueue import queue_alias
from awa_django.models import StorageTransitionState
from awa_django.operations.desk import Desk
from awa_django.storage import Step, StorageStatus

__all__ = ["StorageAdmin"]

#: The only object of these pages, in their addresses.
KEY = "storage"


def _take(step: Callable[[], StorageStatus]) -> Callable[[Call], Answer]:
    def run(call: Call) -> Answer:
        state = step().state
        return Answer(text=_now("Done: the storage transition is now %s.") % STATES[state][0])

    return run


#: What each state is called, and what it means.
STATES: Mapping[str, tuple[Text, Text]] = {
    "canonical": (_("not begun"), _("Jobs are stored in the canonical tables. Nothing has been prepared.")),
    "prepared": (
        _("prepared"),
        _("Jobs are stored in the canonical tables. Workers for queue storage can be started."),
    ),
    "mixed_transition": (
        _("mixed"),
        _("New jobs go to queue storage. Canonical jobs are finished by the workers that drain them."),
    ),
    "active": (_("complete"), _("All jobs are in queue storage. Nothing is left to be done.")),
}

_NOUN = (_("database"), _("databases"))

#: Each step with the action that takes it, in the order of the way.
STEPS: Mapping[Step, Action] = {
    Step.PREPARE: Action(
        "prepare",
        _("Prepare"),
        _("prepared"),
        ("manage_storage",),
        _take(storage.prepare),
        _(
            "Queue storage becomes the engine to move to. Nothing changes for jobs yet. From then on workers can be "
            "started with --role queue_storage_target. It can be taken back with Abort."
        ),
        applies=lambda status: status.state == "canonical" and not status.blockers_of(Step.PREPARE),
        noun=_NOUN,
    ),
    Step.ENTER_MIXED: Action(
        "enter-mixed",
        _("Enter mixed transition"),
        _("moved on"),
        ("manage_storage",),
        _take(storage.enter_mixed),
        _(
            "From now on all new jobs go to queue storage. Workers that run now finish the canonical jobs. Once jobs "
            "have been stored in queue storage there is no way back."
        ),
        applies=lambda status: not status.blockers_of(Step.ENTER_MIXED),
        danger=True,
        noun=_NOUN,
    ),
    Step.FINALIZE: Action(
        "finalize",
        _("Finalize"),
        _("finalized"),
        ("manage_storage",),
        _take(storage.finalize),
        _(
            "The move ends, and cannot be undone. Finished canonical jobs are no longer listed. Restart all workers "
            "without a role afterwards."
        ),
        applies=lambda status: not status.blockers_of(Step.FINALIZE),
        danger=True,
        noun=_NOUN,
    ),
    Step.ABORT: Action(
        "abort",
        _("Abort"),
        _("given up"),
        ("manage_storage",),
        _take(storage.abort),
        _("The move is given up: new jobs go to the canonical tables, as before."),
        applies=lambda status: (
            (status.state != "canonical" or status.prepared_engine is not None)
            and not status.blockers_of(Step.ABORT)
        ),
        danger=True,
        noun=_NOUN,
    ),
}


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step: whether it may be taken now, and if not, why."""

    action: Action
    offer: Offer | None
    blockers: Sequence[str]
    is_next: bool


class StorageAdmin(DeskAdmin):
    """The state of the move: one page, whose only object is the database."""

    label = _("Storage")
    list_template = "admin/awa_django/storage.html"
    offered = tuple(STEPS.values())

    def name_of(self, key: str) -> str:
        """The database, by its alias."""
        return queue_alias()

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """The only row, for the page of past actions."""
        return StorageTransitionState(singleton=True) if object_id == KEY else None

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """How far the move is, and what each step waits for."""
        status = storage.status()
        offers = {offer.action.name: offer for offer in self.offers(request, KEY, status)}
        name, meaning = STATES.get(status.state, (status.state, ""))
        return {
            "title": _("Storage transition"),
            "key": KEY,
            "status": status,
            "state_name": name,
            "meaning": meaning,
            "alias": queue_alias(),
            "steps": [
                StepRow(action, offers.get(action.name), status.blockers_of(step), step is status.next_step)
                for step, action in STEPS.items()
            ],
        }
