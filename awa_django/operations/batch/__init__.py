"""Changes of many jobs that go on in the background, bit by bit, with progress and a way to stop.

An operation is stored and survives its submitter and any number of workers. Another priority or another queue are
wire operations: every client knows their table, and whichever client leads makes them. Everything else is in a table
of our own, and a worker of this package makes it. Either way each job is asked again when its turn comes.
(contract: api/admin_ops section 5, schema section 5.8)
"""

from __future__ import annotations

from awa_django.operations.batch.changes import (
    CHANGES,
    BatchChange,
    Cancel,
    ChangeKind,
    DeadLetter,
    Discard,
    MoveQueue,
    Purge,
    Redrive,
    Retry,
    RunNow,
    SetPriority,
    kind_of,
    read_spec,
    spec_of,
    verb_of,
)
from awa_django.operations.batch.filters import (
    checked_filter,
    describe_filter,
    eligible_states,
    read_filter,
    stored_filter,
)
from awa_django.operations.batch.records import (
    SKIPPED_BECAUSE,
    BatchOperation,
    BatchProblems,
    BatchState,
    Preview,
    Problem,
    read_bulk,
    read_operations,
)
from awa_django.operations.batch.requests import (
    BULK_CHANNEL,
    batch_operation,
    batch_operations,
    batch_problems,
    cancel_batch,
    has_bulk_table,
    preview_batch,
    purge_batches,
    submit_batch,
    tell_runners,
)
from awa_django.operations.batch.walk import Found, Walk

__all__ = [
    "BULK_CHANNEL",
    "CHANGES",
    "SKIPPED_BECAUSE",
    "BatchChange",
    "BatchOperation",
    "BatchProblems",
    "BatchState",
    "Cancel",
    "ChangeKind",
    "DeadLetter",
    "Discard",
    "Found",
    "MoveQueue",
    "Preview",
    "Problem",
    "Purge",
    "Redrive",
    "Retry",
    "RunNow",
    "SetPriority",
    "Walk",
    "batch_operation",
    "batch_operations",
    "batch_problems",
    "cancel_batch",
    "checked_filter",
    "describe_filter",
    "eligible_states",
    "has_bulk_table",
    "kind_of",
    "preview_batch",
    "purge_batches",
    "read_bulk",
    "read_filter",
    "read_operations",
    "read_spec",
    "spec_of",
    "stored_filter",
    "submit_batch",
    "tell_runners",
    "verb_of",
]
