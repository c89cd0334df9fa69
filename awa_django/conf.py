"""Settings, read once.

A project configures awa with one dict, ``AWA``; every key has a default. Durations are
``timedelta`` or a number of seconds. :func:`get_settings` builds the frozen value on first use and
again after ``setting_changed``; everything below takes it as an argument. A wrong value raises
:class:`~awa_django.errors.ConfigurationError` naming the key; ``manage.py check`` reports all
of them at once (``awa.E001``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from awa_django.errors import ConfigurationError
from awa_django.http_options import HttpJobConfig, http_jobs_of
from awa_django.queue_names import queue_name_fault
from awa_django.setting_values import (
    SettingFault,
    as_count,
    as_duration,
    as_flag,
    as_secret,
    as_text,
    unknown_key,
)

__all__ = [
    "REDACTED_NAMES",
    "TRANSITION_ROLES",
    "QueueConfig",
    "RateLimit",
    "Settings",
    "get_settings",
    "guaranteed_fault",
    "setting_faults",
]

#: What a worker may be for while a fleet moves from one storage to the other.
TRANSITION_ROLES = ("auto", "canonical_drain", "queue_storage_target")


#: Keys that look secret, wherever they stand.
REDACTED_NAMES = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "private_key",
    "credential",
    "cookie",
)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``max_rate`` jobs a second, after a burst; ``burst`` 0 means one second's worth."""

    max_rate: float
    burst: int = 0

    @property
    def capacity(self) -> int:
        """Tokens that a full bucket holds."""
        return self.burst or max(1, math.ceil(self.max_rate))


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """How this process works on one queue (contract: runtime/dispatcher section 1)."""

    name: str
    #: Jobs that run at once; 0 claims nothing. Means nothing where ``GLOBAL_MAX_WORKERS`` is set.
    max_workers: int = 50
    #: With ``GLOBAL_MAX_WORKERS``: jobs that may run at once whatever the other queues do.
    min_workers: int = 0
    #: With ``GLOBAL_MAX_WORKERS``: the queue's share of what is guaranteed to none, against that of the others.
    weight: int = 1
    #: Loops of this process that claim from the queue, each with a session of its own; they share its limits.
    claimers: int = 1
    #: Each attempt's time limit in the database; zero means none, and claims are compact receipts.
    deadline: timedelta = timedelta(0)
    #: Waiting this long raises a job by one priority level; zero turns it off.
    priority_aging_interval: timedelta = timedelta(seconds=60)
    #: Jobs that one claim takes at most.
    claim_batch_size: int = 512
    rate_limit: RateLimit | None = None
    #: Whether failures go to the dead-letter table; None follows ``DLQ_ENABLED``.
    dlq_enabled: bool | None = None
    #: How long finished jobs and dead letters of this queue are kept; None follows the settings of the same names. The
    #: first two count for canonical storage only: queue storage forgets finished jobs of all queues together.
    completed_retention: timedelta | None = None
    failed_retention: timedelta | None = None
    dlq_retention: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of awa_django. The field names are the keys of ``AWA`` in lower case."""

    #: Alias of the database that holds schema ``awa``.
    database: str = "default"
    #: Queues that a worker serves when the command line names none.
    queues: Mapping[str, QueueConfig] = field(default_factory=lambda: {"default": QueueConfig("default")})
    #: Modules looked for in every installed app when Django starts.
    autodiscover: tuple[str, ...] = ("jobs", "tasks")
    #: What happens to a job whose kind this worker does not know: "defer" or "fail".
    unknown_kind: str = "defer"
    #: How long an unknown kind is put off before it fails.
    unknown_kind_grace: timedelta = timedelta(hours=24)
    #: Jobs that a process runs at once on all its queues together; None gives each queue its own ``max_workers``.
    global_max_workers: int | None = None
    #: Loops of the whole fleet that claim from one queue at once; 0 lets any number do so, without asking.
    max_claimers_per_queue: int = 4
    #: What a worker is for while the fleet moves from one storage to the other: "auto", "canonical_drain" or
    #: "queue_storage_target".
    transition_role: str = "auto"
    #: Whether failures of queues without a policy of their own go to the dead-letter table.
    dlq_enabled: bool = False
    #: Whether a RetryAfter in the last attempt fails the job.
    retry_after_exhausts: bool = False
    #: Whether a rescue in the last attempt fails the job.
    rescue_exhausts: bool = False
    #: Between two looks at a queue when notifications do not reach this worker.
    poll_interval: timedelta = timedelta(milliseconds=200)
    #: Between two looks at a queue while notifications arrive.
    listen_poll_interval: timedelta = timedelta(seconds=5)
    #: Whether to use LISTEN; turn it off behind a pooler that hands out a session per transaction.
    listen: bool = True
    heartbeat_interval: timedelta = timedelta(seconds=30)
    #: An attempt without a sign of life for this long is taken away; at least three heartbeats.
    stale_after: timedelta = timedelta(seconds=90)
    rescue_interval: timedelta = timedelta(seconds=30)
    promote_interval: timedelta = timedelta(milliseconds=250)
    leader_election_interval: timedelta = timedelta(seconds=10)
    leader_check_interval: timedelta = timedelta(seconds=30)
    #: Between two rotations of the claim and lease rings.
    ring_rotate_interval: timedelta = timedelta(seconds=1)
    #: How long finished jobs stay readable, while our worker leads.
    completed_retention: timedelta = timedelta(hours=24)
    #: Finished jobs kept at most, while our worker leads.
    history_max_rows: int = 5_000_000
    #: How long failed jobs are carried forward when their part of the history is pruned.
    failed_retention: timedelta = timedelta(hours=72)
    dlq_retention: timedelta = timedelta(days=30)
    descriptor_retention: timedelta = timedelta(days=30)
    instance_retention: timedelta = timedelta(hours=24)
    #: How long a batch operation stays on record after it has ended.
    batch_operation_retention: timedelta = timedelta(days=90)
    cleanup_interval: timedelta = timedelta(seconds=60)
    rollup_interval: timedelta = timedelta(seconds=30)
    orphan_sweep_interval: timedelta = timedelta(hours=1)
    snapshot_interval: timedelta = timedelta(seconds=10)
    #: Grace time after the first TERM or INT.
    drain_timeout: timedelta = timedelta(seconds=30)
    #: Outcomes that one settling transaction writes at most.
    settle_batch_size: int = 512
    #: Whether jobs carry the trace of whoever enqueues them; it makes them dearer to complete.
    trace_capture: bool = False
    #: Kinds whose jobs a function elsewhere runs, over HTTP.
    http_jobs: Mapping[str, HttpJobConfig] = field(default_factory=dict)
    #: Secrets that outside systems sign their callbacks with, 32 bytes each; the first also signs what we send.
    callback_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    #: Whether callbacks are taken without a signature while there is no secret.
    callback_unsigned: bool = False
    #: Whether the admin, ``manage.py awa`` and the callback receiver refuse every change.
    read_only: bool = False
    #: Whether the admin's pages are registered with the default site.
    admin: bool = True
    #: Longest statement of an admin page.
    admin_statement_timeout: timedelta = timedelta(seconds=5)
    #: Keys whose values nobody is shown, at any depth and in any case; a part of a key is enough.
    redacted_names: tuple[str, ...] = REDACTED_NAMES
    #: A function, or its dotted path, that says what may be shown of a value: ``(kind, part, value) -> value``.
    redact: str | Callable[[str, str, Any], Any] | None = None
    #: ``HOST:PORT`` where a worker answers ``/healthz`` and ``/readyz``.
    health_addr: str | None = None

    def queue(self, name: str) -> QueueConfig:
        """The configuration of one queue; defaults for a queue that no setting names."""
        return self.queues.get(name) or QueueConfig(name)

    def dead_letters(self, queue: str) -> bool:
        """Whether failures of this queue go to the dead-letter table."""
        # Asked for each job that ends, so nothing is built for a queue that no setting names.
        config = self.queues.get(queue)
        own = None if config is None else config.dlq_enabled
        return self.dlq_enabled if own is None else own


def guaranteed_fault(queues: Iterable[QueueConfig], global_max_workers: int) -> str | None:
    """What is wrong where queues are guaranteed more jobs at once than a process may run; None if they are not."""
    guaranteed = {queue.name: queue.min_workers for queue in queues if queue.min_workers}
    if sum(guaranteed.values()) <= global_max_workers:
        return None
    each = ", ".join(f"{name} {number}" for name, number in guaranteed.items())
    return (
        f"AWA['GLOBAL_MAX_WORKERS']: {global_max_workers} is less than the {sum(guaranteed.values())} jobs at once "
        f"that min_workers guarantees ({each}); raise the one or lower the others"
    )


def _rate_limit(path: str, value: object) -> RateLimit | None:
    if value is None or isinstance(value, RateLimit):
        return value
    if not isinstance(value, Mapping):
        raise SettingFault(path, f"a rate limit is a dict with max_rate and burst, not {value!r}")
    for key in value:
        if key not in ("max_rate", "burst"):
            raise unknown_key(path, key, ["max_rate", "burst"])
    rate = value.get("max_rate")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise SettingFault(f"{path}['max_rate']", f"jobs a second above zero are needed, not {rate!r}")
    return RateLimit(float(rate), as_count(f"{path}['burst']", value.get("burst", 0), 0))


#: Options of one queue: name to (default source, parser).
_ZERO_ALLOWED = frozenset({"deadline", "priority_aging_interval", "descriptor_retention", "failed_retention"})
#: Options of a queue that follow the setting of the same name unless they are given.
_INHERITED = frozenset({"completed_retention", "failed_retention", "dlq_retention"})
_LEAST = {"max_workers": 0, "min_workers": 0, "max_claimers_per_queue": 0}


def _queue(path: str, name: object, options: object) -> QueueConfig:
    if not isinstance(name, str):
        raise SettingFault(path, f"a queue name is text, not {name!r}")
    if fault := queue_name_fault(name):
        raise SettingFault(f"{path}[{name!r}]", fault)
    path = f"{path}[{name!r}]"
    if isinstance(options, QueueConfig):
        return options
    if isinstance(options, int) and not isinstance(options, bool):
        options = {"max_workers": options}
    if not isinstance(options, Mapping):
        raise SettingFault(path, f"options of a queue are a dict or a number of workers, not {options!r}")
    known = [item.name for item in fields(QueueConfig) if item.name != "name"]
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key not in known:
            raise unknown_key(path, key, known)
        if value is None and key in _INHERITED:
            continue
        values[key] = _value(f"{path}[{key!r}]", key, value)
    return QueueConfig(name, **values)


def _queues(path: str, value: object) -> dict[str, QueueConfig]:
    if not isinstance(value, Mapping) or not value:
        raise SettingFault(path, f"a dict from queue name to its options is needed, not {value!r}")
    return {name: _queue(path, name, options) for name, options in value.items()}


#: What the lists of words are lists of.
_LISTED = {"autodiscover": "module names", "redacted_names": "parts of keys"}


def _secrets(path: str, value: object) -> tuple[bytes, ...]:
    if not isinstance(value, list | tuple):
        raise SettingFault(path, f"a list of secrets is needed, not {type(value).__name__}")
    return tuple(as_secret(f"{path}[{number}]", given) for number, given in enumerate(value))


def _address(path: str, value: object) -> str:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingFault(path, f"'HOST:PORT' is needed, such as '0.0.0.0:8080', not {value!r}")
    return f"{host}:{port}"


def _value(path: str, key: str, value: object) -> object:
    """One setting or queue option, checked by its name or by the type of its default."""
    match key:
        case "queues":
            return _queues(path, value)
        case "autodiscover" | "redacted_names":
            if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
                raise SettingFault(path, f"a list of {_LISTED[key]} is needed, not {value!r}")
            return tuple(value)
        case "http_jobs":
            return http_jobs_of(path, value)
        case "callback_secrets":
            return _secrets(path, value)
        case "redact":
            if value is not None and not callable(value) and not (isinstance(value, str) and "." in value):
                raise SettingFault(path, f"a function or its dotted path is needed, not {value!r}")
            return value
        case "health_addr" if value is not None:
            return _address(path, value)
        case "unknown_kind":
            if value not in ("defer", "fail"):
                raise SettingFault(path, f"'defer' or 'fail' is needed, not {value!r}")
            return value
        case "transition_role":
            if value not in TRANSITION_ROLES:
                raise SettingFault(
                    path, f"one of {', '.join(map(repr, TRANSITION_ROLES))} is needed, not {value!r}"
                )
            return value
        case "rate_limit":
            return _rate_limit(path, value)
        case "dlq_enabled" | "global_max_workers" | "health_addr" if value is None:
            return None
        case "global_max_workers":
            return as_count(path, value, 1)
    default = _DEFAULTS[key]
    if isinstance(default, bool) or default is None:
        return as_flag(path, value)
    if isinstance(default, timedelta):
        return as_duration(path, value, zero=key in _ZERO_ALLOWED)
    if isinstance(default, int):
        return as_count(path, value, _LEAST.get(key, 1))
    return as_text(path, value)


_DEFAULTS: dict[str, object] = {
    item.name: item.default
    for owner in (QueueConfig, Settings)
    for item in fields(owner)
    if item.default is not MISSING
}


def _parse(raw: object) -> Iterator[tuple[str, object] | SettingFault]:
    if not isinstance(raw, Mapping):
        yield SettingFault("AWA", f"a dict is needed, not {raw!r}")
        return
    known = {item.name.upper(): item.name for item in fields(Settings)}
    for key, value in raw.items():
        if key not in known:
            yield unknown_key("AWA", key, list(known))
            continue
        name = known[key]
        try:
            yield name, _value(f"AWA[{key!r}]", name, value)
        except SettingFault as fault:
            yield fault


def _build(raw: object) -> tuple[Settings, list[str]]:
    """The settings that could be read, and what is wrong with the others."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for item in _parse(raw):
        if isinstance(item, SettingFault):
            faults.append(str(item))
        else:
            values[item[0]] = item[1]
    settings = Settings(**values)
    return settings, faults or list(_combined_faults(settings))


def _combined_faults(settings: Settings) -> Iterator[str]:
    """What is wrong with settings that each are right."""
    if settings.stale_after < 3 * settings.heartbeat_interval:
        yield (
            f"AWA['STALE_AFTER']: {settings.stale_after} is under three heartbeats of "
            f"{settings.heartbeat_interval}; live attempts would be taken away"
        )
    if settings.global_max_workers is not None:
        fault = guaranteed_fault(settings.queues.values(), settings.global_max_workers)
        if fault is not None:
            yield fault


def setting_faults() -> list[str]:
    """What is wrong with ``settings.AWA``, a line for each fault; for the system check."""
    return _build(getattr(django_settings, "AWA", {}))[1]


@cache
def get_settings() -> Settings:
    """The project's settings. Raises ``ConfigurationError`` naming every wrong key."""
    settings, faults = _build(getattr(django_settings, "AWA", {}))
    if faults:
        raise ConfigurationError("\n".join(faults))
    return settings


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "AWA":
        get_settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="awa_django.conf")
