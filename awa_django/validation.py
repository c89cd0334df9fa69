"""What a job must look like before any SQL (contract: runtime/validation section 1, api/producing section 2)."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from awa_django.encoding import encode, member_path, text_fault
from awa_django.errors import InvalidJob
from awa_django.jobs import JobInsert
from awa_django.partitions import ordering_key_bytes
from awa_django.queue_names import queue_name_fault

__all__ = [
    "checked_kind",
    "checked_max_attempts",
    "checked_metadata",
    "checked_priority",
    "checked_queue",
    "checked_run_at",
    "checked_tags",
    "validated",
    "warn_of_size",
]

logger = logging.getLogger("awa_django.enqueue")

MAX_KIND_CHARACTERS = 200
MAX_TAGS = 20
#: Arguments above this many characters of JSON are stored, with a warning.
LARGE_ARGS = 1024 * 1024
_UNIQUE_STATES = re.compile("[01]{8}")


def checked_kind(kind: object) -> str:
    """A kind of 1 to 200 characters."""
    if not isinstance(kind, str) or not kind:
        raise InvalidJob("kind", f"a name is needed, not {kind!r}")
    if len(kind) > MAX_KIND_CHARACTERS:
        raise InvalidJob("kind", f"{len(kind)} characters, at most {MAX_KIND_CHARACTERS} can be stored")
    if fault := text_fault(kind):
        raise InvalidJob("kind", fault)
    return kind


def checked_queue(queue: object) -> str:
    """A queue name that can be stored and woken."""
    if not isinstance(queue, str):
        raise InvalidJob("queue", f"a queue name is text, not {queue!r}")
    if fault := queue_name_fault(queue):
        raise InvalidJob("queue", fault)
    return str(queue)


def _between(path: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidJob(path, f"a whole number from {least} to {most} is needed, not {value!r}")
    return int(value)


def checked_priority(priority: object) -> int:
    """1, the most urgent, to 4."""
    return _between("priority", priority, 1, 4)


def checked_max_attempts(max_attempts: object) -> int:
    """1 to 1000 executions."""
    return _between("max_attempts", max_attempts, 1, 1000)


def checked_tags(tags: object) -> tuple[str, ...]:
    """At most 20 texts."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidJob("tags", f"a list of texts is needed, not {tags!r}")
    result = tuple(tags)
    for index, tag in enumerate(result):
        if not isinstance(tag, str):
            raise InvalidJob(f"tags[{index}]", f"text is needed, not {tag!r}")
        if fault := text_fault(tag):
            raise InvalidJob(f"tags[{index}]", fault)
    if len(result) > MAX_TAGS:
        raise InvalidJob("tags", f"{len(result)} tags, at most {MAX_TAGS} can be stored")
    return tuple(str(tag) for tag in result)


def checked_metadata(metadata: object) -> dict[str, Any]:
    """A JSON object; keys that awa uses itself are refused, save ``awa:traceparent`` and ``awa:tracestate``."""
    if not isinstance(metadata, Mapping):
        raise InvalidJob("metadata", f"a dict is needed, not {type(metadata).__name__}")
    encoded = encode(dict(metadata), "metadata")
    assert isinstance(encoded, dict)
    for key in encoded:
        if key.startswith("_awa_") or (
            key.startswith("awa:") and key not in ("awa:traceparent", "awa:tracestate")
        ):
            raise InvalidJob(
                member_path("metadata", key),
                "keys beginning with _awa_ or awa: belong to awa; choose another",
            )
    return encoded


def checked_run_at(run_at: object) -> datetime | None:
    """An aware instant, or None for at once.

    A naive datetime is taken in the current time zone, with Django's warning. A timedelta counts from this
    machine's clock now.
    """
    match run_at:
        case None:
            return None
        case timedelta():
            try:
                return datetime.now(UTC) + run_at
            except OverflowError:
                raise InvalidJob("run_at", f"{run_at} from now is beyond any calendar") from None
        case datetime() if timezone.is_naive(run_at):
            if settings.USE_TZ:
                warnings.warn(
                    f"run_at received a naive datetime ({run_at}) while time zone support is active.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return timezone.make_aware(run_at)
        case datetime():
            return run_at
        case date():
            raise InvalidJob("run_at", f"a date has no time of day; pass a datetime instead of {run_at!r}")
    raise InvalidJob("run_at", f"a datetime or a timedelta is needed, not {run_at!r}")


def validated(job: JobInsert) -> JobInsert:
    """The job with everything in it checked and encoded; raises ``InvalidJob`` naming what cannot be stored."""
    if (job.unique_key is None) != (job.unique_states is None):
        raise InvalidJob("unique_key", "unique_key and unique_states come together")
    if job.unique_key is not None and (not isinstance(job.unique_key, bytes) or len(job.unique_key) != 16):
        raise InvalidJob("unique_key", f"16 bytes are needed, not {job.unique_key!r}")
    if job.unique_states is not None and not _UNIQUE_STATES.fullmatch(job.unique_states):
        raise InvalidJob("unique_states", f"eight characters 0 or 1 are needed, not {job.unique_states!r}")
    return replace(
        job,
        kind=checked_kind(job.kind),
        queue=checked_queue(job.queue),
        args=encode(job.args),
        priority=checked_priority(job.priority),
        max_attempts=checked_max_attempts(job.max_attempts),
        run_at=checked_run_at(job.run_at),
        metadata=checked_metadata(job.metadata),
        tags=checked_tags(job.tags),
        ordering_key=None if job.ordering_key is None else ordering_key_bytes(job.ordering_key),
    )


def warn_of_size(kind: str, args: str) -> None:
    """Log large arguments; they are stored all the same."""
    if len(args) > LARGE_ARGS:
        logger.warning(
            "arguments of a %s job are %d characters of JSON; pass a reference to what is stored elsewhere",
            kind,
            len(args),
        )
