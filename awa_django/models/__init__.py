"""What schema ``awa`` holds, as read-only models.

For looking: in shells, admin pages, reports, tests. Jobs are changed by awa_django's functions, which keep
the rules between these tables; ``save``, ``delete`` and their kin raise. A queryset takes locks like any
other (``select_for_update()``, but never with ``of=``: PostgreSQL wants bare names there).

Django neither makes nor changes these tables. :class:`BulkOperation` alone is of a table that Django makes, outside
schema ``awa``. Partitions are reached through their parents. Where the real key has several columns and one of them
tells rows apart in practice, that one is the primary key here, since the admin cannot show a model with a composite
key; the others have their real, composite one.

At any size, think before using ``Job``: each query on that view reads every job first (contract: schema,
section 4.5).
"""

from __future__ import annotations

from awa_django.models.attempts import (
    AttemptState,
    Lease,
    LeaseClaim,
    LeaseClaimBatch,
    LeaseClaimClosure,
    LeaseClaimClosureBatch,
    ReceiptCompletionBatch,
    ReceiptCompletionTombstone,
    WaitingCallback,
)
from awa_django.models.bulk import BulkOperation
from awa_django.models.canonical import (
    Job,
    JobHot,
    ScheduledJob,
    UniqueClaim,
)
from awa_django.models.columns import table
from awa_django.models.control import (
    BatchOperation,
    BatchOperationItem,
    CronJob,
    DirtyKind,
    DirtyKindMark,
    DirtyQueue,
    DirtyQueueMark,
    JobKind,
    JobQueue,
    KindDescriptor,
    QueueDescriptor,
    QueueMeta,
    QueueStateCount,
    RuntimeInstance,
    RuntimeStorageBackend,
    SchemaVersion,
    StorageTransitionState,
)
from awa_django.models.jobs import (
    DeferredJob,
    DlqEntry,
    DoneEntry,
    ReadyEntry,
    TerminalJob,
)
from awa_django.models.lanes import (
    QueueClaimerLease,
    QueueClaimerState,
    QueueClaimHead,
    QueueEnqueueHead,
    QueueLane,
    ReadyClaimAttemptBatch,
    ReadySegment,
    ReadyTombstone,
)
from awa_django.models.rings import (
    ClaimRingSlot,
    ClaimRingState,
    LeaseRingSlot,
    LeaseRingState,
    QueueRingSlot,
    QueueRingState,
    QueueTerminalCountDelta,
    QueueTerminalLiveCount,
    QueueTerminalRollup,
)

__all__ = [
    "AttemptState",
    "BatchOperation",
    "BatchOperationItem",
    "BulkOperation",
    "ClaimRingSlot",
    "ClaimRingState",
    "CronJob",
    "DeferredJob",
    "DirtyKind",
    "DirtyKindMark",
    "DirtyQueue",
    "DirtyQueueMark",
    "DlqEntry",
    "DoneEntry",
    "Job",
    "JobHot",
    "JobKind",
    "JobQueue",
    "KindDescriptor",
    "Lease",
    "LeaseClaim",
    "LeaseClaimBatch",
    "LeaseClaimClosure",
    "LeaseClaimClosureBatch",
    "LeaseRingSlot",
    "LeaseRingState",
    "QueueClaimHead",
    "QueueClaimerLease",
    "QueueClaimerState",
    "QueueDescriptor",
    "QueueEnqueueHead",
    "QueueLane",
    "QueueMeta",
    "QueueRingSlot",
    "QueueRingState",
    "QueueStateCount",
    "QueueTerminalCountDelta",
    "QueueTerminalLiveCount",
    "QueueTerminalRollup",
    "ReadyClaimAttemptBatch",
    "ReadyEntry",
    "ReadySegment",
    "ReadyTombstone",
    "ReceiptCompletionBatch",
    "ReceiptCompletionTombstone",
    "RuntimeInstance",
    "RuntimeStorageBackend",
    "ScheduledJob",
    "SchemaVersion",
    "StorageTransitionState",
    "TerminalJob",
    "UniqueClaim",
    "WaitingCallback",
    "table",
]
