"""Unique jobs: the key, the states in which it is held, and what cannot work (contract: api/unique_keys).

A key is built from the kind and, as chosen, the queue, the encoded arguments and a period. While a job is in
one of the ``states`` no other job with the same key can enter one. The default states are the non-terminal
ones, so that a finished job never blocks its key.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from blake3 import blake3

from awa_django.encoding import dump_json
from awa_django.errors import InvalidJob
from awa_django.jobs import JsonValue
from awa_django.states import NON_TERMINAL_STATES, JobState, mask_bits, state_mask

__all__ = [
    "ALL_STATES",
    "AWA_DEFAULT_STATES",
    "UNTIL_STARTED_STATES",
    "Unique",
    "canonical_json",
    "mask_hazards",
    "unique_key",
]

logger = logging.getLogger("awa_django.uniqueness")

#: 31, the default of other awa clients: holds the key after completion too, as long as the history row is kept.
AWA_DEFAULT_STATES = state_mask(
    JobState.SCHEDULED, JobState.AVAILABLE, JobState.RUNNING, JobState.COMPLETED, JobState.RETRYABLE
)
#: 3: the key is free once a worker has the job, so one more can wait behind the running one.
UNTIL_STARTED_STATES = state_mask(JobState.SCHEDULED, JobState.AVAILABLE)
#: 255: one job for each key for as long as its row is kept, however it ended.
ALL_STATES = state_mask(*JobState)

#: Moves that the runtime makes by itself: a key claimed on the right and not on the left can meet another holder.
_MOVES = (
    (JobState.SCHEDULED, JobState.AVAILABLE),
    (JobState.RETRYABLE, JobState.AVAILABLE),
    (JobState.RUNNING, JobState.RETRYABLE),
    (JobState.RUNNING, JobState.SCHEDULED),
    (JobState.RUNNING, JobState.COMPLETED),
    (JobState.RUNNING, JobState.FAILED),
    (JobState.RUNNING, JobState.CANCELLED),
    (JobState.RUNNING, JobState.WAITING_EXTERNAL),
    (JobState.WAITING_EXTERNAL, JobState.RUNNING),
)


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one job for each key while it is in one of ``states``.

    ``period`` (a timedelta or seconds) makes the key change with time: its bucket is the number of whole
    periods since 1970 at the moment of the enqueue. ``by_period`` is such a number chosen by the caller.
    ``states`` is a mask, or the states themselves. Raises ``InvalidJob`` for what cannot work.
    """

    by_args: bool = True
    by_queue: bool = False
    by_period: int | None = None
    period: timedelta | float | None = None
    states: int | Iterable[JobState] = NON_TERMINAL_STATES

    def __post_init__(self) -> None:
        for name in ("by_args", "by_queue"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidJob(f"unique.{name}", f"True or False is needed, not {getattr(self, name)!r}")
        if self.by_period is not None:
            if isinstance(self.by_period, bool) or not isinstance(self.by_period, int):
                raise InvalidJob(
                    "unique.by_period",
                    f"a bucket number is needed, not {self.by_period!r}; durations go in period=",
                )
            if not -(2**63) <= self.by_period < 2**63:
                raise InvalidJob("unique.by_period", f"{self.by_period} does not fit in 64 bits")
            if self.period is not None:
                raise InvalidJob(
                    "unique.period", "give either by_period, a bucket number, or period, a duration"
                )
        if self.period is not None:
            object.__setattr__(self, "period", _positive(self.period))
        mask = _mask(self.states)
        object.__setattr__(self, "states", mask)
        if hazards := mask_hazards(mask):
            _warn_once(mask, hazards)

    @classmethod
    def of(cls, value: Unique | Mapping[str, Any] | bool | None) -> Unique | None:
        """What an option ``unique=`` means: a Unique, True for the defaults, or a dict of options."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls() if value else None
        if isinstance(value, Mapping):
            known = [field.name for field in fields(cls)]
            for name in value:
                if name not in known:
                    raise InvalidJob(f"unique.{name}", f"unknown option; known are {', '.join(known)}")
            return cls(**value)
        raise InvalidJob("unique", f"Unique(...), True or a dict of its options is needed, not {value!r}")

    @property
    def mask(self) -> int:
        """The states as a number, bit *n* for the state numbered *n*."""
        assert isinstance(self.states, int)
        return self.states

    @property
    def bits(self) -> str:
        """The states as the database writes them."""
        return mask_bits(self.mask)

    def bucket(self, at: datetime | None = None) -> int | None:
        """The period's number at an instant, now by default; keep it to build the same key again later."""
        if self.period is None:
            return self.by_period
        assert isinstance(self.period, timedelta)
        moment = at if at is not None else datetime.now(UTC)
        return (moment - _EPOCH) // self.period

    def key(self, kind: str, queue: str, args: JsonValue, at: datetime | None = None) -> bytes:
        """The 16 bytes for a job; ``args`` is the encoded value."""
        return unique_key(
            kind,
            queue=queue if self.by_queue else None,
            canonical_args=canonical_json(args) if self.by_args else None,
            bucket=self.bucket(at),
        )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def unique_key(
    kind: str, *, queue: str | None = None, canonical_args: str | None = None, bucket: int | None = None
) -> bytes:
    """The key of these components; one that is None is absent from it."""
    parts = [kind.encode()]
    if queue is not None:
        parts.append(queue.encode())
    if canonical_args is not None:
        parts.append(canonical_args.encode())
    if bucket is not None:
        parts.append(bucket.to_bytes(8, "little", signed=True))
    return blake3(b"\0".join(parts)).digest(length=16)


def _positive(period: timedelta | float) -> timedelta:
    if isinstance(period, timedelta):
        span = period
    elif isinstance(period, bool) or not isinstance(period, int | float) or not math.isfinite(period):
        raise InvalidJob("unique.period", f"a timedelta or a number of seconds is needed, not {period!r}")
    else:
        try:
            span = timedelta(seconds=period)
        except OverflowError:
            raise InvalidJob("unique.period", f"{period!r} seconds is no usable duration") from None
    if span <= timedelta(0):
        raise InvalidJob("unique.period", f"a duration above zero is needed, not {period!r}")
    return span


def _mask(states: int | Iterable[JobState]) -> int:
    if isinstance(states, int) and not isinstance(states, bool):
        mask = states
        if not 0 <= mask <= 255:
            raise InvalidJob("unique.states", f"a mask of eight bits is needed, not {mask}")
    else:
        try:
            mask = state_mask(*(JobState(state) for state in states))  # type: ignore[union-attr]
        except (TypeError, ValueError) as error:
            raise InvalidJob("unique.states", f"a mask or a list of states is needed: {error}") from None
    if mask >> JobState.RUNNING.bit & 1 and not mask >> JobState.AVAILABLE.bit & 1:
        # A claim would have to take the key from its holder; workers of other clients then fail to claim
        # anything behind that job, for ever (H-08).
        raise InvalidJob(
            "unique.states",
            f"mask {mask} holds the key while running but not while available, so the conflict would come when a "
            "worker claims the job; add available to the states",
        )
    return mask


def mask_hazards(mask: int) -> tuple[str, ...]:
    """Moves at which a job with this mask can meet a newer holder of its key, and then ends cancelled."""
    return tuple(_entered(mask))


def _entered(mask: int) -> Iterator[str]:
    for before, after in _MOVES:
        if mask >> after.bit & 1 and not mask >> before.bit & 1:
            yield f"{before} to {after}"


@cache
def _warn_once(mask: int, hazards: tuple[str, ...]) -> None:
    logger.warning(
        "unique states %d leave the key free and take it again when a job moves from %s; "
        "if a newer job holds it then, the older one ends cancelled",
        mask,
        ", ".join(hazards),
    )


# Canonical JSON


def canonical_json(value: JsonValue) -> str:
    """The one text of a JSON value that keys are computed from (contract: api/unique_keys section 3)."""
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts)


def _write(value: Any, emit: Any) -> None:
    match value:
        case None:
            emit("null")
        case bool():
            emit("true" if value else "false")
        case str():
            # Raw text; the standard encoder escapes exactly what the contract does, with the same letters.
            emit(dump_json(value))
        case int():
            emit(str(value))
        case float():
            emit(_float_text(value))
        case dict():
            lead = "{"
            for key in sorted(value):
                emit(f"{lead}{dump_json(key)}:")
                _write(value[key], emit)
                lead = ","
            emit("{}" if lead == "{" else "}")
        case list() | tuple():
            lead = "["
            for item in value:
                emit(lead)
                _write(item, emit)
                lead = ","
            emit("[]" if lead == "[" else "]")
        case _:
            raise TypeError(f"{value!r} is not plain JSON")


def _float_text(value: float) -> str:
    """Shortest digits that read back; positional for exponents -5 to 15."""
    mantissa, mark, power = repr(value).partition("e")
    if not mark:
        # repr switches at 1e16 and 1e-4; everything between is positional in both.
        return mantissa
    exponent = int(power)
    if exponent == -5:
        sign = "-" if mantissa.startswith("-") else ""
        digits = mantissa.lstrip("-").replace(".", "")
        return f"{sign}0.0000{digits}"
    return f"{mantissa}e{exponent:+d}"
