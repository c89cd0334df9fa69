"""Which jobs a verb is about: ids, or options that a job must match."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from awa_django.console.text import count
from awa_django.console.tree import Argument, Call, argument, usage
from awa_django.operations import JobFilter
from awa_django.operations.names import known_names
from awa_django.states import JobState

__all__ = [
    "FILTERS",
    "IDS",
    "duration",
    "filter_of",
    "job_id",
    "limit",
    "moment",
    "moment_ago",
    "note_strangers",
    "positive",
    "said",
    "selection_of",
    "words_of",
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)")
#: The largest number of anything that can be asked for.
MOST = 1_000_000
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration(text: str) -> timedelta:
    """A duration such as ``90s``, ``15m``, ``2h`` or ``3d``; a bare number is seconds."""
    found = _DURATION.fullmatch(text.strip() if not text.strip().isdecimal() else f"{text.strip()}s")
    try:
        if found:
            return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    except OverflowError:
        pass
    raise argparse.ArgumentTypeError(f"a duration such as 90s, 15m, 2h or 3d is needed, not {text!r}")


def _instant(text: str) -> datetime | None:
    try:
        # As answers print it, or as ISO 8601 has it.
        given = parse_datetime(text.replace(" UTC", "+00:00"))
    except ValueError:
        return None
    return given if given is None or timezone.is_aware(given) else timezone.make_aware(given)


def moment(text: str) -> datetime:
    """An instant: ISO 8601, in the project's time zone unless it says another."""
    given = _instant(text)
    if given is None:
        raise argparse.ArgumentTypeError(f"a time such as 2026-03-01T09:30 is needed, not {text!r}")
    return given


def moment_ago(text: str) -> datetime:
    """An instant as :func:`moment` takes it, or a day, or a duration back from now."""
    given = _instant(f"{text}T00:00:00" if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else text)
    if given is not None:
        return given
    try:
        return timezone.now() - duration(text)
    except (argparse.ArgumentTypeError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"a time such as 2026-03-01T09:30, or how long ago, such as 2h, is needed, not {text!r}"
        ) from None


def job_id(text: str) -> int:
    """The id of a job."""
    try:
        given = int(text)
    except ValueError:
        given = 0
    if not 0 < given < 1 << 63:
        raise argparse.ArgumentTypeError(f"the id of a job is needed, a whole number, not {text!r}")
    return given


def positive(text: str) -> int:
    """A whole number from 1 to a million."""
    if not text.isdecimal() or len(text) > 7 or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to {MOST:,} is needed, not {text!r}")
    return int(text)


def limit(default: int) -> Argument:
    """The option that says how many are listed."""
    return argument(
        "--limit",
        type=positive,
        default=default,
        metavar="N",
        help=f"list so many at most; default {default}",
    )


IDS = argument("ids", nargs="*", type=job_id, metavar="ID", help="a job's id; several may be given")

_STATES = ", ".join(state.value for state in JobState)
_FILTERS: Mapping[str, Argument] = {
    "state": argument(
        "--state",
        action="append",
        dest="states",
        choices=[state.value for state in JobState],
        metavar="STATE",
        help=f"jobs in this state, may be given several times: {_STATES}",
    ),
    "kind": argument("--kind", metavar="KIND", help="jobs of this kind"),
    "queue": argument("--queue", metavar="QUEUE", help="jobs of this queue"),
    "tag": argument("--tag", metavar="TAG", help="jobs that have this tag"),
    "created-after": argument(
        "--created-after",
        type=moment_ago,
        dest="created_from",
        metavar="TIME",
        help="jobs created at this time or later: 2026-03-01T09:30, or how long ago, such as 2h",
    ),
    "created-before": argument(
        "--created-before",
        type=moment_ago,
        dest="created_before",
        metavar="TIME",
        help="jobs created before this time",
    ),
}
#: Options that choose jobs.
FILTERS: tuple[Argument, ...] = tuple(_FILTERS.values())


def filters(*names: str) -> tuple[Argument, ...]:
    """Some of the options that choose jobs."""
    return tuple(_FILTERS[name] for name in names)


def filter_of(call: Call, *, ids: bool = True) -> JobFilter:
    """The filter that the options describe."""
    states = call.options.get("states") or None
    given = call.options.get("ids") if ids else None
    return JobFilter(
        state=states[0] if states and len(states) == 1 else None,
        states=tuple(states) if states and len(states) > 1 else None,
        kind=call.options.get("kind"),
        queue=call.options.get("queue"),
        tag=call.options.get("tag"),
        ids=tuple(given) if given else None,
        created_from=call.options.get("created_from"),
        created_before=call.options.get("created_before"),
    )


def selection_of(call: Call) -> list[int] | JobFilter:
    """The ids that were given, or else the filter; refused if neither says anything and ``--all`` was not said."""
    ids = call.options.get("ids") or []
    if ids and filter_of(call, ids=False).is_empty:
        return list(ids)
    chosen = filter_of(call)
    return said(chosen, call)


def said(chosen: JobFilter, call: Call) -> JobFilter:
    """The filter; refused if it says nothing and ``--all`` was not said."""
    if chosen.is_empty and not call.options.get("all"):
        raise usage("which jobs? Give ids, or options such as --queue or --kind; --all means every one")
    return chosen


def note_strangers(call: Call) -> None:
    """Say of the queue and the kind that options name if nobody knows them here: for where nothing was found."""
    asked = {thing: call.options[thing] for thing in ("queue", "kind") if call.options.get(thing) is not None}
    if not asked:
        return
    names = known_names(using=call.using)
    for thing, name in asked.items():
        known = names.queues if thing == "queue" else names.kinds
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            guess = f"; did you mean {near[0]}?" if near else ""
            call.screen.note(f"there is no {thing} {name} so far{guess}", call.screen.style.WARNING)


_WORDS: tuple[tuple[str, Callable[[object], str]], ...] = (
    ("kind", lambda value: f"kind {value}"),
    ("queue", lambda value: f"queue {value}"),
    ("tag", lambda value: f"tag {value}"),
    ("created_from", lambda value: f"created since {value}"),
    ("created_before", lambda value: f"created before {value}"),
)


def words_of(selection: list[int] | JobFilter) -> str:
    """A selection in words, such as ``3 jobs`` or ``jobs of queue mail, state failed``."""
    if not isinstance(selection, JobFilter):
        return f"job {selection[0]}" if len(selection) == 1 else count(len(set(selection)), "job")
    words = [say(value) for name, say in _WORDS if (value := getattr(selection, name)) is not None]
    if selection.state is not None or selection.states is not None:
        words.append(f"state {' or '.join(sorted(selection.wanted))}")
    if selection.ids is not None:
        words.append(f"{len(selection.ids)} ids")
    return f"all jobs with {', '.join(words)}" if words else "all jobs"
