"""Which engine stores the jobs, and moving a running fleet from the canonical tables to queue storage.

::

    canonical --prepare--> prepared --enter_mixed--> mixed_transition --finalize--> active
        ^                     |                            |
        +------- abort -------+------ while unused --------+

:func:`status` says how far a move is and what stands in the way of the next step. The steps run in the caller's
transaction and hold the transition's row to its end, so that workers that are about to put a canonical job off wait.
They are the database's own functions, the same that ``awa storage`` calls: either may take any step.
(contract: control-functions section 6, runtime/instances section 3)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, transaction

from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import ConfigurationError, SchemaOutOfDate, StorageTransitionRefused
from awa_django.schema import VERSION, read_schema
from awa_django.sql import statement

if TYPE_CHECKING:
    from awa_django.schema import SchemaFacts, Session

__all__ = [
    "SCHEMA",
    "Step",
    "StorageStatus",
    "abort",
    "enter_mixed",
    "finalize",
    "prepare",
    "read_status",
    "status",
]

logger = logging.getLogger("awa_django.storage")

#: The only schema whose queue storage this release serves.
SCHEMA = "awa"
QUEUE_STORAGE = "queue_storage"

#: "Not now" and "not this", of the functions that take a step.
_REFUSALS = ("55000", "22023")


class Step(StrEnum):
    """A step of the move, by the name of the function that takes it."""

    PREPARE = "prepare"
    ENTER_MIXED = "enter_mixed"
    FINALIZE = "finalize"
    ABORT = "abort"


_NEXT: Mapping[str, Step] = {
    "canonical": Step.PREPARE,
    "prepared": Step.ENTER_MIXED,
    "mixed_transition": Step.FINALIZE,
}
#: The states in which each step may be taken.
_FROM: Mapping[Step, tuple[str, ...]] = {
    Step.PREPARE: ("canonical", "prepared"),
    Step.ENTER_MIXED: ("prepared",),
    Step.FINALIZE: ("mixed_transition",),
    Step.ABORT: ("canonical", "prepared", "mixed_transition"),
}


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """How far a database is on its way to queue storage, at one moment.

    ``state`` is ``canonical``, ``prepared``, ``mixed_transition`` or ``active``; ``active_engine`` takes new jobs.
    ``schema`` is where queue storage is or is going to be, None while no move is planned; ``missing`` names what it
    lacks there. ``backlog`` counts canonical jobs that are not finished. ``runtimes`` counts live worker processes by
    capability, those of other clients included, and ``targets`` those that were started to run queue storage.
    ``used`` names tables of queue storage that hold rows, while a move could still be given up, and ``writers`` counts
    transactions that are storing something there just now.
    """

    state: str
    current_engine: str
    active_engine: str
    prepared_engine: str | None
    epoch: int
    schema: str | None
    auto_finalized: bool
    missing: tuple[str, ...]
    backlog: int
    runtimes: Mapping[str, int]
    targets: int
    used: tuple[str, ...]
    writers: int
    entered_at: datetime
    updated_at: datetime
    finalized_at: datetime | None

    @property
    def is_ready(self) -> bool:
        """Whether queue storage is complete where it is expected."""
        return self.schema is not None and not self.missing

    @property
    def next_step(self) -> Step | None:
        """The step that leads on; None at the end of the way."""
        return _NEXT.get(self.state)

    @property
    def blockers(self) -> tuple[str, ...]:
        """What stands in the way of the next step, in words; empty if nothing does."""
        return () if self.next_step is None else self.blockers_of(self.next_step)

    def blockers_of(self, step: Step) -> tuple[str, ...]:
        """What stands in the way of this step, with what to do about it; empty if it may be taken."""
        if step is Step.ABORT and self.state == "active":
            return ("the move is complete, and there is no way back from queue storage",)
        if step is Step.PREPARE and self.current_engine == QUEUE_STORAGE:
            return ("queue storage is in force already; there is nothing to prepare",)
        if self.state not in _FROM[step]:
            return (f"the state is {self.state!r}, and {step} leads on from {_listed(_FROM[step])}",)
        match step:
            case Step.PREPARE:
                return self._lacks(SCHEMA)
            case Step.ENTER_MIXED:
                return (*self._wrong_target(), *self._canonical_only(), *self._nobody_to_run())
            case Step.FINALIZE:
                return (*self._wrong_engine(), *self._unfinished(), *self._canonical_only())
            case Step.ABORT:
                return self._in_use() if self.state == "mixed_transition" else ()

    def _lacks(self, schema: str | None) -> tuple[str, ...]:
        if not self.missing:
            return ()
        more = f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else ""
        return (
            f"schema {schema!r} lacks {', '.join(self.missing[:3])}{more} of queue storage: restore it from a backup, "
            f"or run `awa storage prepare-queue-storage-schema --schema {schema}`",
        )

    def _wrong_engine(self) -> tuple[str, ...]:
        if self.prepared_engine == QUEUE_STORAGE:
            return ()
        return (
            f"the engine to move to is {self.prepared_engine!r}, which nobody serves: abort, and prepare again",
        )

    def _wrong_target(self) -> tuple[str, ...]:
        if wrong := self._wrong_engine():
            return wrong
        if self.schema != SCHEMA:
            return (
                f"the move is to schema {self.schema!r}, and awa_django serves queue storage in schema {SCHEMA!r} "
                "alone: prepare again from here",
            )
        return self._lacks(self.schema)

    def _canonical_only(self) -> tuple[str, ...]:
        number = self.runtimes["canonical"]
        if not number:
            return ()
        return (
            f"{_count(number, 'live worker')} can execute the canonical tables only: stop "
            f"{'it' if number == 1 else 'them'}, or start a release that knows queue storage instead",
        )

    def _nobody_to_run(self) -> tuple[str, ...]:
        if self.targets:
            return ()
        return (
            "no live worker has the role queue_storage_target, so nobody would run the new jobs: start one with "
            "`manage.py awa_worker --role queue_storage_target` first",
        )

    def _unfinished(self) -> tuple[str, ...]:
        if not self.backlog:
            return ()
        draining = self.runtimes["canonical_drain_only"]
        who = (
            f"{_count(draining, 'worker')} at it"
            if draining
            else "and nobody is at it: start `manage.py awa_worker --role canonical_drain`"
        )
        return (f"not finished yet: {_count(self.backlog, 'canonical job')}, {who}",)

    def _in_use(self) -> tuple[str, ...]:
        blockers: list[str] = []
        if number := self.runtimes["queue_storage"]:
            blockers.append(
                f"{_count(number, 'live worker')} may run queue storage: stop {'it' if number == 1 else 'them'}, and "
                "wait until the report has aged"
            )
        if self.used:
            blockers.append(
                f"queue storage has taken jobs (rows in {', '.join(self.used)}): finish the move instead"
            )
        if self.writers:
            blockers.append(
                f"{_count(self.writers, 'open transaction')} may be storing jobs in queue storage: wait for the end"
            )
        return tuple(blockers)


def read_status(session: Session) -> StorageStatus:
    """:func:`status` over a session of the caller's: Django's connection of an alias, or one of the driver's."""
    facts = _facts(session)
    with session.cursor() as cursor:
        cursor.execute(statement("control/storage", "report"), {})
        row = cursor.fetchone()
        if row is None:
            raise ConfigurationError(
                "awa.storage_transition_state has no row, so nobody can tell which storage is in force; "
                "restore it from a backup"
            )
        found: dict[str, Any] = dict(zip((column[0] for column in cursor.description), row, strict=True))
    named = found.pop("named_schema")
    runtimes = {
        capability: found.pop(capability)
        for capability in ("canonical", "canonical_drain_only", QUEUE_STORAGE)
    }
    planned = QUEUE_STORAGE in (found["prepared_engine"], found["active_engine"])
    schema = (named or SCHEMA) if planned else None
    missing = facts.missing if schema in (None, SCHEMA) else ()
    used: tuple[str, ...] = ()
    writers = 0
    if found["state"] != "active" and schema in (None, SCHEMA) and not missing:
        with session.cursor() as cursor:
            # In this order: a writer that commits between the two is seen by the second.
            cursor.execute(statement("control/storage", "writers"), {})
            (writers,) = cursor.fetchone()
            cursor.execute(statement("control/storage", "used_tables"), {})
            used = tuple(name for (name,) in cursor.fetchall())
    return StorageStatus(
        epoch=found.pop("transition_epoch"),
        schema=schema,
        missing=missing,
        runtimes=runtimes,
        used=used,
        writers=writers,
        **found,
    )


def _facts(session: Session) -> SchemaFacts:
    """What the schema is like; raises ``SchemaOutOfDate`` where it cannot even be asked about its storage."""
    facts = read_schema(session)
    if facts.version is None or facts.version < VERSION:
        raise SchemaOutOfDate(facts.fault())
    return facts


def status(*, using: str | None = None) -> StorageStatus:
    """How far the queue's database is, and what the next step waits for. A few reads; takes no lock.

    Raises ``SchemaOutOfDate`` where schema ``awa`` is missing or too old.
    """
    return read_status(postgres(queue_alias(using)))


def prepare(*, using: str | None = None) -> StorageStatus:
    """Choose queue storage as the engine to move to; nothing changes for jobs yet.

    Workers in role ``queue_storage_target`` can be started from here on. Taking the step again changes nothing. Raises
    :class:`~awa_django.errors.StorageTransitionRefused` with what stands in the way, and so do the other steps; the
    caller's transaction stays usable then.
    """
    return _take(Step.PREPARE, using)


def enter_mixed(*, using: str | None = None) -> StorageStatus:
    """Send new jobs to queue storage; canonical ones are finished by the workers that run now.

    Needs a live worker in role ``queue_storage_target``, and none that knows the canonical tables only. Workers in
    role ``auto`` that started before go on draining, and run queue storage once they are started again.
    """
    return _take(Step.ENTER_MIXED, using)


def finalize(*, using: str | None = None) -> StorageStatus:
    """End the move; needs every canonical job to be finished. There is no way back."""
    return _take(Step.FINALIZE, using)


def abort(*, using: str | None = None) -> StorageStatus:
    """Give the move up: new jobs go to the canonical tables, as before.

    From ``mixed_transition`` only while no live worker may run queue storage and nothing was stored there, nor is
    being stored. A producer that began in the very moment of this commit could still leave a job there, which then
    shows in :attr:`StorageStatus.used` and waits for the next move.
    """
    return _take(Step.ABORT, using)


def _take(step: Step, using: str | None) -> StorageStatus:
    connection = postgres(queue_alias(using))
    _facts(connection)
    try:
        with transaction.atomic(using=connection.alias):
            with connection.cursor() as cursor:
                cursor.execute(statement("control/storage", "lock_transition"), {})
            before = read_status(connection)
            if blockers := before.blockers_of(step):
                raise StorageTransitionRefused(step, blockers)
            with connection.cursor() as cursor:
                cursor.execute(statement("control/storage", step.value), {})
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) not in _REFUSALS:
            raise
        # Something changed in between, or this schema's function asks for more than ours.
        raise StorageTransitionRefused(step, (str(error).partition("\n")[0],)) from error
    after = read_status(connection)
    logger.info("storage of database %r: %s to %s", connection.alias, before.state, after.state)
    return after


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _listed(states: tuple[str, ...]) -> str:
    return " or ".join(map(repr, states))
