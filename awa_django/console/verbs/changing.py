"""Verbs that change jobs, at once or as a batch operation: what they have in common."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from awa_django import operations
from awa_django.console.documents import batch_document, changed_document
from awa_django.console.exits import Exit
from awa_django.console.screen import Answer, Screen
from awa_django.console.selection import FILTERS, IDS, note_strangers, selection_of, words_of
from awa_django.console.text import count
from awa_django.console.tree import Argument, Call, argument, usage, verb
from awa_django.operations import BatchChange, BatchOperation, BatchState, Changed, JobFilter, Selection
from awa_django.operations.batch import kind_of

__all__ = ["BATCH", "Change", "answer_of", "batch_answer", "declare", "follow", "matching"]

#: Skipped jobs that are named one by one.
_NAMED = 10
#: Seconds between two looks at a batch operation that is waited for.
_LOOK = 0.5

BATCH: tuple[Argument, ...] = (
    argument("--batch", action="store_true", help="have the leader do it in the background, bit by bit"),
    argument("--wait", action="store_true", help="with --batch: wait for the end and show how far it is"),
    argument("--by", metavar="NAME", help="with --batch: who submits it; default: the login"),
)
_ALL = argument("--all", action="store_true", help="every job, where no option says which")


@dataclass(frozen=True)
class Change:
    """One thing that is done to chosen jobs.

    ``did`` is its past tense, as in "3 jobs cancelled". ``now`` does it at once, ``later`` says it as a batch
    operation. ``is_final`` jobs cannot be had back, so the operator is asked even for one.
    """

    path: str
    summary: str
    states: str
    did: str
    now: Callable[[Call, Selection], Changed]
    later: Callable[[Call], BatchChange]
    examples: Sequence[str]
    arguments: Sequence[Argument] = ()
    filters: Sequence[Argument] = FILTERS
    aliases: Sequence[str] = ()
    is_final: bool = False
    things: str = "job"


def declare(change: Change) -> None:
    """Put a change into the tree."""

    @verb(
        change.path,
        change.summary,
        states=change.states,
        arguments=(IDS, *change.filters, _ALL, *change.arguments, *BATCH),
        examples=change.examples,
        aliases=change.aliases,
        changes=True,
    )
    def run(call: Call) -> Answer:
        return _run(change, call)


def _run(change: Change, call: Call) -> Answer:
    if call["wait"] and not call["batch"]:
        raise usage("--wait waits for a batch operation: say --batch as well, or drop it")
    selection = selection_of(call)
    # Asked for first: wrong options are told before anybody is asked anything.
    meant = change.later(call)
    if change.is_final or isinstance(selection, JobFilter):
        call.confirm(f"{kind_of(meant).sentence(meant)}: {_how_many(meant, selection, call)}")
    if call["batch"]:
        chosen = selection if isinstance(selection, JobFilter) else JobFilter(ids=selection)
        operation = operations.submit_batch(
            meant, chosen, submitted_by=call.by, allow_all=call["all"], using=call.using
        )
        return batch_answer(follow(operation, call) if call["wait"] else operation)
    return answer_of(change.now(call, selection), change.did, change.things, call=call)


def _how_many(meant: BatchChange, selection: list[int] | JobFilter, call: Call) -> str:
    words = words_of(selection)
    return words + matching(meant, selection, call) if isinstance(selection, JobFilter) else words


def matching(meant: BatchChange, chosen: JobFilter | Mapping[str, Any], call: Call) -> str:
    """How many jobs a filter matches now, in brackets; nothing where nobody is to be asked."""
    if call["yes"] or not call.screen.is_interactive:
        return ""
    found = operations.preview_batch(meant, chosen, allow_all=call["all"], using=call.using)
    least = "" if found.is_exact else "at least "
    return f" ({least}{count(found.total_matched, 'match', 'match')})"


def answer_of(changed: Changed, did: str, things: str = "job", *, call: Call) -> Answer:
    """What people and programs are told about a change; jobs that were skipped make the exit code 3."""

    def show(screen: Screen) -> None:
        paint = screen.style.SUCCESS if changed.count else None
        screen.say(f"{count(changed.count, things)} {did}.", paint)
        if not (changed.count or changed.skipped):
            note_strangers(call)
        for item in changed.skipped[:_NAMED]:
            screen.say(f"not changed: {item}", screen.style.WARNING)
        rest = Counter(item.reason.value.replace("_", " ") for item in changed.skipped[_NAMED:])
        for reason, number in rest.most_common():
            screen.say(f"not changed: {number:,} more, {reason}", screen.style.WARNING)
        if changed.pruned_failed:
            screen.say(f"{count(changed.pruned_failed, 'failure')} of the queue are forgotten already.")

    return Answer(changed_document(changed), show, Exit.NOT_CHANGED if changed.skipped else Exit.DONE)


def follow(operation: BatchOperation, call: Call) -> BatchOperation:
    """Wait until a batch operation is over, and say on standard error how far it is; as it is at its end.

    Interrupted, the operation goes on.
    """
    said = None
    try:
        while not operation.state.is_over:
            time.sleep(_LOOK)
            operation = operations.batch_operation(operation.id, using=call.using)
            if (line := _progress(operation)) != said:
                call.screen.note(line)
                said = line
    except KeyboardInterrupt:
        call.screen.note(f"no longer waiting; the operation goes on: manage.py awa batch get {operation.id}")
    return operation


def _progress(operation: BatchOperation) -> str:
    if operation.state is BatchState.PENDING:
        return "waiting for the leader"
    if operation.total_matched is None:
        return "collecting jobs"
    done = operation.processed + operation.skipped + operation.errored
    return f"{done:,} of {count(operation.total_matched, 'job')}"


def batch_answer(operation: BatchOperation) -> Answer:
    """What people and programs are told about a batch operation."""

    def show(screen: Screen) -> None:
        screen.say(f"batch operation {operation.id}: {operation.description}")
        if not operation.state.is_over:
            screen.say(f"It is {operation.state}; see `manage.py awa batch get {operation.id}`.")
            return
        paint = screen.style.SUCCESS if operation.state is BatchState.COMPLETED else screen.style.ERROR
        screen.say(
            f"{operation.state}: {operation.processed:,} changed, {operation.skipped:,} skipped, "
            f"{operation.errored:,} with an error",
            paint,
        )
        if operation.last_error:
            screen.say(f"last error: {operation.last_error}", screen.style.ERROR)

    code = Exit.DONE
    if operation.state is BatchState.FAILED:
        code = Exit.FAILED
    elif operation.errored or operation.state is BatchState.CANCELLED:
        code = Exit.NOT_CHANGED
    return Answer(batch_document(operation), show, code)
