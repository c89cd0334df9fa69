"""What an operator can do from the admin, as data.

An :class:`Action` names its permissions, asks its question, and runs. One view (:mod:`awa_django.admin.frame`) serves
them all: it shows the confirmation, checks the permissions, writes the log entry, and says what changed, what did not,
and why. (contract: api/web_ui section 3, api/security section 4)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from awa_django.operations import BatchChange, BatchOperation, Changed, JobFilter, JobRecord
from awa_django.planes.base import Plane
from awa_django.planes.records import PlaneName

__all__ = ["Action", "Answer", "Call", "Offer", "Text", "each", "job_key", "job_of", "some", "submitted"]

Text = str | Promise


def job_key(record: JobRecord, planes: Sequence[Plane]) -> str:
    """What addresses a job: its number, and the storage it is in where that is not the first that is asked.

    Ids of the two overlap. The first is queue storage wherever there are two.
    """
    number = str(record.job.id)
    return number if record.plane == planes[0].name else f"{number}.{record.plane}"


def job_of(key: str) -> tuple[int, PlaneName | None] | None:
    """What :func:`job_key` made the key of; None for what it never makes."""
    number, dot, plane = key.partition(".")
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        return None
    if plane == "canonical":
        return int(number), "canonical"
    return None if dot else (int(number), None)


@dataclass(frozen=True, slots=True)
class Call:
    """One request for an action: by whom, on what, and how.

    ``keys`` are the primary keys that were chosen; ``filter`` is set where all that match are meant. ``values`` is what
    the action's form says.
    """

    request: HttpRequest
    keys: Sequence[str] = ()
    filter: JobFilter | None = None
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def by(self) -> str:
        """The name that goes on record."""
        return self.request.user.get_username()

    @property
    def key(self) -> str:
        """The only key."""
        (key,) = self.keys
        return key

    def url_of(self, name: str, key: int | str | UUID) -> str | None:
        """Where an object's page is: ``url_of("job", 17)``. None if the site, or whoever asks, is not shown such."""
        if not self.request.user.has_perm(f"awa_django.view_{name}"):
            return None
        site = getattr(self.request, "current_app", None)
        try:
            return reverse(f"admin:awa_django_{name}_change", args=[quote(key)], current_app=site)
        except NoReverseMatch:
            return None

    @property
    def ids(self) -> dict[PlaneName | None, list[int]]:
        """The keys as job ids, by the storage that they name; what is no key of a job names none and is left out."""
        found: dict[PlaneName | None, list[int]] = {}
        for key in self.keys:
            if named := job_of(key):
                number, plane = named
                found.setdefault(plane, []).append(number)
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """What an action did: how many changed, and for what reasons how many did not.

    ``text`` is said instead where counts say little; ``goes_to`` is the page to show next.
    """

    changed: int = 1
    skipped: Mapping[str, int] = field(default_factory=dict)
    text: str = ""
    goes_to: str | None = None

    @classmethod
    def of(cls, *changes: Changed) -> Answer:
        """What became of jobs."""
        skipped = Counter(item.why for changed in changes for item in changed.skipped)
        return cls(sum(changed.count for changed in changes), skipped)

    def and_skipped(self, why: Text, count: int) -> Answer:
        """The same, with more that did not change."""
        return replace(self, skipped={**self.skipped, str(why): count})

    def sentence(self, action: Action) -> str:
        """What is told to the operator and written to the log."""
        if self.text:
            return self.text
        parts = []
        if self.changed or not self.skipped:
            one, many = action.noun
            noun = one if self.changed == 1 else many
            parts.append(f"{self.changed:,} {noun} {action.done}.")
        total = sum(self.skipped.values())
        if total:
            reasons = ", ".join(
                f"{why} ({count:,})" if len(self.skipped) > 1 else why for why, count in self._reasons()
            )
            said = ngettext("%(count)s not changed: %(why)s.", "%(count)s not changed: %(why)s.", total)
            parts.append(said % {"count": f"{total:,}", "why": reasons})
        return capfirst(" ".join(parts))

    def _reasons(self) -> Iterator[tuple[str, int]]:
        ordered = sorted(self.skipped.items(), key=lambda item: -item[1])
        yield from ordered[:5]
        if rest := sum(count for _why, count in ordered[5:]):
            yield _("other reasons"), rest


def each(verb: Callable[[Call, str], object]) -> Callable[[Call], Answer]:
    """An action that does one thing to each key, and cannot fail to."""

    def run(call: Call) -> Answer:
        for key in call.keys:
            verb(call, key)
        return Answer(len(call.keys))

    return run


def some(call: Call, verb: Callable[[str], bool], otherwise: Text) -> Answer:
    """Do one thing to each key, where ``verb`` answers whether it could; ``otherwise`` is why not."""
    done = sum(map(verb, call.keys))
    left = len(call.keys) - done
    return Answer(done, {str(otherwise): left} if left else {})


def submitted(operations: Sequence[BatchOperation], call: Call) -> Answer:
    """That workers go on with it, and where that can be watched."""
    said = _("Submitted: %s. A worker goes on with it.") % "; ".join(each.description for each in operations)
    goes_to = call.url_of("batchoperation", operations[0].id) if len(operations) == 1 else None
    return Answer(text=said, goes_to=goes_to)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    ``permissions`` are codenames of this app, all of which are needed. ``run`` does it, in a transaction that the log
    entry shares. ``form`` asks for more, beginning with what ``initial`` says; ``explains`` is said on the confirmation
    page, and ``counts`` says there how many it concerns. ``applies`` tells whether a shown object may be meant,
    ``to_many`` whether a list offers it for what is selected, and ``batch`` how a batch operation does it to all that
    match a filter; ``sample`` stands for what the form will say while only their number is asked.
    """

    name: str
    label: Text
    done: Text
    permissions: tuple[str, ...]
    run: Callable[[Call], Answer]
    explains: Text = ""
    form: type[forms.Form] | None = None
    initial: Callable[[Call], Mapping[str, Any]] = lambda call: {}
    counts: Callable[[Call], int] | None = None
    applies: Callable[[Any], bool] = lambda shown: True
    to_many: bool = False
    batch: Callable[[Mapping[str, Any]], BatchChange] | None = None
    sample: Mapping[str, Any] = field(default_factory=dict)
    danger: bool = False
    noun: tuple[Text, Text] = ("job", "jobs")

    def is_permitted(self, request: HttpRequest, *more: str) -> bool:
        """Whether whoever asks may do it."""
        return all(request.user.has_perm(f"awa_django.{name}") for name in (*self.permissions, *more))


@dataclass(frozen=True, slots=True)
class Offer:
    """An action as a page shows it: a button that posts to ``url``."""

    action: Action
    url: str
