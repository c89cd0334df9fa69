"""Which jobs a batch operation is about: checked when it is submitted, stored, and read again by whoever runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from awa_django.errors import InvalidJob
from awa_django.operations.batch.changes import BatchChange, kind_of, verb_of
from awa_django.operations.reading import HIGHEST_ID, JobFilter
from awa_django.states import JobState

__all__ = ["checked_filter", "describe_filter", "eligible_states", "read_filter", "stored_filter"]

#: Ids that a filter of ours names at most. They are read with every chunk; who means more has a queue, a kind or a tag.
MOST_IDS = 10_000
_MEMBERS = ("kind", "queue", "ids", "tag", "state", "created_at_gte", "created_at_lt")
#: A member of ours, which no other client reads.
_STATES = "states"
_ALL_STATES = frozenset(state.value for state in JobState)


def eligible_states(change: BatchChange, filter: JobFilter) -> frozenset[JobState]:
    """The states in which jobs can be changed, as far as the filter wants them; dead letters are failed."""
    return kind_of(change).states(change) & filter.wanted


def read_filter(stored: Mapping[str, Any], *, is_wire: bool = True) -> JobFilter:
    """A filter from its stored words. A member that no client knows is refused, since it would widen the selection."""
    known = _MEMBERS if is_wire else (*_MEMBERS, _STATES)
    for name in stored:
        if name not in known:
            raise ValueError(f"filter.{name}: unknown member; known are {', '.join(known)}")
    return JobFilter(
        state=stored.get("state"),
        states=stored.get(_STATES),
        kind=stored.get("kind"),
        queue=stored.get("queue"),
        tag=stored.get("tag"),
        ids=stored.get("ids") or None,
        created_from=_instant(stored.get("created_at_gte")),
        created_before=_instant(stored.get("created_at_lt")),
    )


def stored_filter(filter: JobFilter) -> dict[str, Any]:
    """A filter in the words of every client, and of ours where states are named."""
    stored: dict[str, Any] = {
        "kind": filter.kind,
        "queue": filter.queue,
        "ids": None if filter.ids is None else sorted(set(filter.ids)),
        "tag": filter.tag,
        "state": None if filter.state is None else JobState(filter.state).value,
        "created_at_gte": _text(filter.created_from),
        "created_at_lt": _text(filter.created_before),
    }
    if filter.states is not None:
        stored[_STATES] = sorted({JobState(state).value for state in filter.states})
    return stored


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat()


def checked_filter(
    change: BatchChange, filter: JobFilter | Mapping[str, Any], *, allow_all: bool
) -> JobFilter:
    """A filter that means what it says; raises ``InvalidJob``, or ``ValueError`` for one that means all jobs."""
    kind = kind_of(change)
    if isinstance(filter, Mapping):
        if filter.get("ids") is not None and not filter["ids"]:
            raise InvalidJob("filter.ids", "an empty list matches nothing; leave it out to match any id")
        try:
            filter = read_filter(filter, is_wire=False)
        except (ValueError, TypeError) as error:
            raise InvalidJob("filter", str(error)) from None
    _check_ids(filter, None if kind.is_wire else MOST_IDS)
    for name in ("kind", "queue", "tag"):
        text = getattr(filter, name)
        if text is not None and (not isinstance(text, str) or "\0" in text):
            raise InvalidJob(f"filter.{name}", f"text is needed, not {text!r}")
    for name in ("created_from", "created_before"):
        instant = getattr(filter, name)
        if instant is not None and (not isinstance(instant, datetime) or instant.tzinfo is None):
            raise InvalidJob(f"filter.{name}", f"an aware instant is needed, not {instant!r}")
    if filter.is_empty and not allow_all:
        raise ValueError("the filter means all jobs; say allow_all=True if that is what you want")
    return _with_states(change, filter, is_wire=kind.is_wire)


def _check_ids(filter: JobFilter, most: int | None) -> None:
    if filter.ids is None:
        return
    if not filter.ids:
        raise InvalidJob("filter.ids", "an empty list matches nothing; leave it out to match any id")
    if most is not None and len(filter.ids) > most:
        raise InvalidJob(
            "filter.ids",
            f"{len(filter.ids)} ids are too many, at most {most}; name jobs by queue, kind or tag",
        )
    for job_id in filter.ids:
        if isinstance(job_id, bool) or not isinstance(job_id, int):
            raise InvalidJob("filter.ids", f"whole numbers are needed, not {job_id!r}")
        if abs(job_id) > HIGHEST_ID:
            raise InvalidJob("filter.ids", f"no job has an id as high as {job_id}")


def _with_states(change: BatchChange, filter: JobFilter, *, is_wire: bool) -> JobFilter:
    """The filter with states that are some, and that the change is made in."""
    for path, names in (
        ("state", () if filter.state is None else (filter.state,)),
        ("states", filter.states),
    ):
        for name in names or ():
            if name not in _ALL_STATES:
                raise InvalidJob(f"filter.{path}", f"{name!r} is no state of a job")
    eligible = eligible_states(change, filter)
    if not eligible:
        may = sorted(state.value for state in kind_of(change).states(change))
        dead = "; dead letters are failed" if verb_of(change).dead else ""
        raise InvalidJob(
            "filter.state" if filter.state is not None else "filter.states",
            f"of the states given none can be changed so; {', '.join(may)} can{dead}",
        )
    if filter.states is None or not is_wire:
        return filter
    # Other clients know one state, or none for both that these changes are made in.
    only = next(iter(eligible)) if len(eligible) == 1 else None
    return replace(filter, state=only, states=None)


def describe_filter(stored: Mapping[str, Any]) -> str:
    """A stored filter for people: ``queue=mail, state=available``."""
    said = []
    for name in ("queue", "kind", "state", "states", "tag", "ids", "created_at_gte", "created_at_lt"):
        value = stored.get(name)
        if value is None:
            continue
        match name:
            case "ids":
                said.append(f"{len(value)} id{'' if len(value) == 1 else 's'}")
            case "states":
                said.append(f"state={' or '.join(value)}")
            case "created_at_gte":
                said.append(f"created from {value}")
            case "created_at_lt":
                said.append(f"created before {value}")
            case _:
                said.append(f"{name}={value}")
    return ", ".join(said)
