"""The parameters of a list of jobs: what they mean, and links to the same list with others.

All of a list's state is in its address. A parameter that cannot be read matches nothing, and the page says why: to
leave it out would widen what "all that match" means. (contract: api/web_ui section 1)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import time as time_of_day
from typing import Any, NamedTuple

from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from awa_django.admin.actions import Text
from awa_django.admin.kept import Kept
from awa_django.operations import JobFilter, Page, Position
from awa_django.operations.names import known_names
from awa_django.states import JobState

__all__ = [
    "NAMES",
    "PAGE_SIZES",
    "Chip",
    "Pager",
    "Search",
    "pager",
    "position_of",
    "position_text",
    "search_of",
    "suggestions",
    "terms_of",
]

PAGE_SIZES = (20, 50, 100)
#: Ids that a filter may list.
MOST_IDS = 1000
_HIGHEST_ID = 2**63 - 1
#: Parameters that say which jobs, in the order in which a page names them.
NAMES = ("state", "kind", "queue", "tag", "id", "created_from", "created_before")
#: Those that say how the list is shown, and stay when the filter changes.
_KEPT = ("size", "_popup", "_to_field")
_TERM = re.compile(r'(?:(?P<name>\w+):)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')


class Chip(NamedTuple):
    """One member of the filter, and where the list is without it."""

    name: Text
    value: str
    without: str


@dataclass(frozen=True, slots=True)
class Search:
    """What a list's parameters mean.

    ``filter`` is None where some of them cannot be read: no job is meant then, and ``problems`` says why. ``given`` are
    the members of the filter as they were written, ``kept`` what else stays from page to page.
    """

    filter: JobFilter | None
    given: Mapping[str, str]
    kept: Mapping[str, str]
    problems: Sequence[str] = ()
    size: int = PAGE_SIZES[1]
    before: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether no member of the filter is given."""
        return not self.given

    @property
    def chips(self) -> list[Chip]:
        """The members of the filter but the state, which has pills of its own."""
        return [
            Chip(_LABELS[name], self.given[name], self.link(**{name: None}))
            for name in NAMES
            if name in self.given and name != "state"
        ]

    @property
    def cleared(self) -> str:
        """The address of this list without a filter."""
        return self.link(**dict.fromkeys(self.given))

    def link(self, **changes: object) -> str:
        """The address of the first page of this list with other parameters; None takes one away."""
        return self._link({"size": self.kept.get("size"), **changes}, "")

    def page_link(self, before: str) -> str:
        """The address of another page of this list; the empty text is the first."""
        return self._link({}, before)

    def _link(self, changes: Mapping[str, object], before: str) -> str:
        query = QueryDict(mutable=True)
        for name, value in {**self.kept, **self.given, **changes}.items():
            if value not in (None, ""):
                query[name] = str(value)
        if before:
            query["before"] = before
        return f"?{query.urlencode()}"


_LABELS: Mapping[str, Text] = {
    "state": gettext_lazy("state"),
    "kind": gettext_lazy("kind"),
    "queue": gettext_lazy("queue"),
    "tag": gettext_lazy("tag"),
    "id": gettext_lazy("id"),
    "created_from": gettext_lazy("created from"),
    "created_before": gettext_lazy("created before"),
}


def search_of(parameters: QueryDict, names: Collection[str] = NAMES) -> Search:
    """What a list's parameters mean; ``names`` are those that this list knows, others are ignored."""
    read = _Reader()
    given = {name: text for name in names if (text := parameters.get(name, "").strip())}
    members: dict[str, Any] = {}
    for name, text in given.items():
        if "\0" in text or len(text) > 10_000:
            read.problem(_("%s: there is none of that name") % _LABELS[name])
            continue
        match name:
            case "state":
                members["state"] = read.state(text)
            case "id":
                members["ids"] = read.ids(text)
            case "created_from" | "created_before":
                members[name] = read.instant(name, text)
            case _:
                members[name] = text
    size = parameters.get("size", "")
    kept = {name: value for name in _KEPT if (value := parameters.get(name, "")) and "\0" not in value}
    if size not in {str(each) for each in PAGE_SIZES}:
        kept.pop("size", None)
    return Search(
        filter=None if read.problems else JobFilter(**members),
        given=given,
        kept=kept,
        problems=read.problems,
        size=int(kept.get("size", PAGE_SIZES[1])),
        before=parameters.get("before", ""),
    )


@dataclass(slots=True)
class _Reader:
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def state(self, text: str) -> JobState | None:
        try:
            return JobState(text)
        except ValueError:
            self.problem(
                _("“%(text)s” is no state; there are %(states)s")
                % {
                    "text": text,
                    "states": ", ".join(state.value for state in JobState),
                }
            )
            return None

    def ids(self, text: str) -> list[int]:
        words = [word for word in re.split(r"[\s,]+", text) if word]
        found = [int(word) for word in words if word.isascii() and word.isdecimal() and len(word) < 20]
        if len(found) < len(words):
            wrong = next(
                word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 20)
            )
            self.problem(_("“%s” is no job id; ids are whole numbers") % wrong)
        if len(found) > MOST_IDS:
            self.problem(
                _("%(given)s ids are too many; a list finds up to %(most)s")
                % {"given": f"{len(found):,}", "most": f"{MOST_IDS:,}"}
            )
        return [each for each in found if each <= _HIGHEST_ID]

    def instant(self, name: str, text: str) -> datetime | None:
        try:
            at = parse_datetime(text)
            if at is None and (day := parse_date(text)) is not None:
                at = datetime.combine(day, time_of_day())
        except ValueError:
            at = None
        if at is None or not 1900 <= at.year < 9999:
            self.problem(
                _("%(name)s: “%(text)s” is no time; write it as 2026-01-31 or 2026-01-31T14:30")
                % {"name": _LABELS[name], "text": text}
            )
            return None
        return at if timezone.is_aware(at) else timezone.make_aware(at)


def terms_of(
    text: str, kinds: Collection[str] = (), queues: Collection[str] = (), names: Collection[str] = NAMES
) -> dict[str, str]:
    """What somebody typed, as parameters: ``kind:x queue:y tag:z id:7``, or words by themselves.

    Numbers are job ids. A word is a state, a kind or a queue if there is one of that name, and else a kind that there
    is not: nothing is found rather than everything.
    """
    found: dict[str, str] = {}
    ids: list[str] = []
    for term in _TERM.finditer(text):
        name, value = term["name"], term["quoted"] if term["quoted"] is not None else term["plain"]
        if name == "id" or (name is None and value.strip(",").isdecimal()):
            ids += [word for word in value.split(",") if word]
        elif name in names:
            found[name] = value
        else:
            word = term.group() if name else value
            found[_meaning(word, kinds, queues, names)] = word
    if ids:
        found["id"] = " ".join(ids)
    return found


def _meaning(word: str, kinds: Collection[str], queues: Collection[str], names: Collection[str]) -> str:
    if word in kinds:
        return "kind"
    if "state" in names and word in {state.value for state in JobState}:
        return "state"
    return "queue" if word in queues else "kind"


# Names to choose from


#: Kinds and queues that a filter suggests, as they were a short while ago: a name more or less does no harm.
suggestions = Kept(timedelta(seconds=30), known_names)


# Paging


@dataclass(frozen=True, slots=True)
class Pager:
    """Where to go on from a page: other sizes, the newest rows, and older ones."""

    sizes: Sequence[Mapping[str, Any]]
    newest: str | None
    older: str | None
    note: str = ""


def pager(search: Search, older: str | None, note: str = "") -> Pager:
    """The pager of a list whose next page begins below ``older``, the text of its ``before``; None at the end."""
    sizes: Iterable[dict[str, Any]] = (
        {
            "size": size,
            "is_here": size == search.size,
            "url": search.link(size=None if size == PAGE_SIZES[1] else size),
        }
        for size in PAGE_SIZES
    )
    return Pager(
        list(sizes),
        search.page_link("") if search.before else None,
        search.page_link(older) if older else None,
        note,
    )


def position_of(text: str) -> Position | None:
    """Where a page of jobs begins; None for the first page, and for what says nothing."""
    number, _dot, plane = text.partition(".")
    if not (number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= _HIGHEST_ID):
        return None
    return Position(int(number), "queue_storage" if plane == "q" else "canonical")


def position_text(page: Page) -> str | None:
    """The text of where the page after this one begins; None at the end."""
    if page.next is None:
        return None
    return f"{page.next.job_id}.q" if page.next.plane == "queue_storage" else str(page.next.job_id)
