"""What a worker shows with each snapshot, where somebody collects (contract: runtime/observability section 1).

The descriptions of its queues and kinds, and how far the database is on its way to queue storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.storage import Step, StorageStatus, read_status
from awa_django.telemetry import KIND, QUEUE, Telemetry
from awa_django.worker.descriptors import Descriptor

__all__ = ["show"]

_ACTIONS = {"enter_mixed_transition": Step.ENTER_MIXED, "finalize": Step.FINALIZE}


def show(
    live: Telemetry,
    connection: psycopg.Connection[Any],
    *,
    queues: Mapping[str, Descriptor],
    kinds: Mapping[str, Descriptor],
) -> None:
    """Set the gauges of a snapshot. Some reads, without locks; nothing where no meter is configured."""
    if not live.metering:
        return
    live.show("awa.queue.info", _described(QUEUE, "awa.queue", queues))
    live.show("awa.job_kind.info", _described(KIND, "awa.job_kind", kinds))
    _show_storage(live, read_status(connection))


def _described(
    label: str, prefix: str, items: Mapping[str, Descriptor]
) -> Iterator[tuple[dict[str, str], int]]:
    for name, item in items.items():
        said = {key: getattr(item, key) for key in telemetry.DESCRIBED if key != "tags"}
        said["tags"] = ",".join(item.tags)
        yield {label: name} | {f"{prefix}.{key}": value for key, value in said.items() if value}, 1


def _show_storage(live: Telemetry, status: StorageStatus) -> None:
    engines = {
        "awa.storage.state": status.state,
        "awa.storage.current_engine": status.current_engine,
        "awa.storage.active_engine": status.active_engine,
        "awa.storage.prepared_engine": status.prepared_engine,
    }
    live.show("awa.storage.state", [({name: value for name, value in engines.items() if value}, 1)])
    live.show(
        "awa.storage.transition_ready",
        [
            ({"awa.storage.action": action}, 0 if status.blockers_of(step) else 1)
            for action, step in _ACTIONS.items()
        ],
    )
    live.show("awa.storage.canonical_live_backlog", [({}, status.backlog)])
    live.show(
        "awa.storage.live_runtime_capability",
        [({"awa.storage.capability": capability}, count) for capability, count in status.runtimes.items()],
    )
