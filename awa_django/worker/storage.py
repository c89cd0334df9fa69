"""Which storage a worker serves, decided once when it starts (contract: runtime/instances section 3)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import psycopg

from awa_django.errors import ConfigurationError
from awa_django.planes.base import Plane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.routing import RoutedPlane
from awa_django.sql import statement
from awa_django.storage import QUEUE_STORAGE, SCHEMA, StorageStatus, read_status

__all__ = ["Storage", "resolve_storage"]

logger = logging.getLogger("awa_django.worker")

#: What a database is called whose new jobs go to queue storage, by what happens to the canonical ones.
_ROUTED = ("mixed_transition", "active")


@dataclass(frozen=True, slots=True)
class Storage:
    """What a worker serves until it ends, whatever the fleet does meanwhile, and how far the fleet was at its start."""

    plane: Plane
    role: str
    status: StorageStatus

    @property
    def is_canonical(self) -> bool:
        """Whether it works on the canonical tables, and drains them once new jobs go elsewhere."""
        return isinstance(self.plane, RoutedPlane)

    @property
    def shares_ids(self) -> bool:
        """Whether the other storage may run an attempt that goes by the same numbers as one of this."""
        return self.is_canonical or self.status.state != "active"

    def __str__(self) -> str:
        state = self.status.state
        if not self.is_canonical:
            return "queue storage" if state == "active" else f"queue storage, {state}"
        if state in _ROUTED:
            return f"canonical storage, draining, {state}"
        return "canonical storage" if state == "canonical" else f"canonical storage, {state}"


def resolve_storage(connection: psycopg.Connection[Any], role: str = "auto") -> Storage:
    """Decide which storage a worker in this role serves, and log how far a move is.

    In role ``auto`` an installation that was never used is promoted to queue storage. Raises ``ConfigurationError``
    where the role cannot be played here. Expects a schema that :func:`awa_django.schema.check_schema` passed.
    """
    status = read_status(connection)
    _check_schema(status)
    if role == "auto" and status.state == "canonical" and status.prepared_engine is None:
        row = connection.execute(statement("control/storage", "promote_if_fresh"), {}).fetchone()
        if row is not None and row[0]:
            logger.info("queue storage is in force: this installation was fresh")
        # Another worker may have promoted it in between.
        status = read_status(connection)
        _check_schema(status)
    storage = Storage(RoutedPlane() if _is_canonical(status, role) else QueueStoragePlane(), role, status)
    _log(storage)
    return storage


def _is_canonical(status: StorageStatus, role: str) -> bool:
    if role == "canonical_drain":
        return True
    if role == "queue_storage_target":
        if status.schema is None:
            raise ConfigurationError(
                "a worker in role queue_storage_target has nothing to serve: no move to queue storage is prepared; run "
                "`awa storage prepare` or awa_django.storage.prepare() first, or use the role auto"
            )
        return False
    return status.state not in _ROUTED


def _check_schema(status: StorageStatus) -> None:
    """Raise where the storage in force, or the one prepared, is not one that this release can serve."""
    if status.state in _ROUTED and status.active_engine != QUEUE_STORAGE:
        raise ConfigurationError(
            f"the storage in force is {status.active_engine!r} (state {status.state!r}), which this release of "
            "awa_django does not know: upgrade it, or leave the queues of this database to other workers"
        )
    if status.schema is None:
        return
    if status.schema != SCHEMA:
        raise ConfigurationError(
            f"queue storage of this database is in schema {status.schema!r}, and awa_django serves it in schema "
            f"{SCHEMA!r} alone: prepare the move again for that, or leave the queues to awa's own workers"
        )
    if status.missing:
        raise ConfigurationError(
            f"queue storage in schema {SCHEMA!r} lacks {', '.join(status.missing[:3])}: restore it from a backup, or "
            "abort the move"
        )


def _log(storage: Storage) -> None:
    status = storage.status
    logger.info(
        "role %s, state %s (%s in force, %s prepared): this worker serves %s; %d canonical jobs are not finished",
        storage.role,
        status.state,
        status.active_engine,
        status.prepared_engine or "nothing",
        storage,
        status.backlog,
    )
    if status.state in ("prepared", "mixed_transition") and status.blockers:
        logger.warning("the move to queue storage waits: %s", "; ".join(status.blockers))
