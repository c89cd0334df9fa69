"""``awa batch``: changes of many jobs that go on in the background."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from awa_django import operations
from awa_django.console.documents import batch_document, document
from awa_django.console.screen import Answer, Column, Screen, done
from awa_django.console.selection import (
    FILTERS,
    duration,
    filter_of,
    job_id,
    limit,
    moment_ago,
    note_strangers,
    positive,
    said,
    words_of,
)
from awa_django.console.text import ago, clip, count, instant
from awa_django.console.tree import Argument, Call, argument, usage, verb
from awa_django.console.verbs.changing import batch_answer, follow, matching
from awa_django.operations import BatchChange, BatchOperation, BatchState, JobFilter
from awa_django.operations.batch import CHANGES, kind_of, read_spec

_ID = argument("id", metavar="OPERATION", help="the operation's id, a UUID")
_CHANGE: tuple[Argument, ...] = (
    argument(
        "change",
        nargs="?",
        choices=[name.replace("_", "-") for name in CHANGES],
        metavar="CHANGE",
        help=f"what is done: {', '.join(name.replace('_', '-') for name in CHANGES)}",
    ),
    *FILTERS,
    argument("--id", dest="ids", action="append", type=job_id, metavar="ID", help="jobs with these ids"),
    argument("--all", action="store_true", help="every job, where no option says which"),
    argument("--to", metavar="QUEUE", help="move-queue, redrive: the queue they go to"),
    argument(
        "--priority", type=int, metavar="N", help="set-priority, move-queue, redrive: 1 (first) to 4 (last)"
    ),
    argument("--reason", metavar="TEXT", help="dead-letter: why, for people"),
    argument(
        "--in", dest="delay", type=duration, metavar="SPAN", help="redrive: not before so long, such as 15m"
    ),
)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a JSON object is needed: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is needed, not {text!r}")
    return found


#: The same as other clients spell it.
_SPELLED: tuple[Argument, ...] = (
    argument("--op-kind", metavar="KIND", help="instead of CHANGE, as it is stored, such as set_priority"),
    argument("--spec", type=_json, metavar="JSON", help="""with --op-kind: such as '{"priority": 1}'"""),
    argument(
        "--filter",
        type=_json,
        metavar="JSON",
        help="instead of the options that choose jobs, as it is stored",
    ),
)


def _change(call: Call) -> BatchChange:
    if (call["change"] is None) == (call["op_kind"] is None):
        raise usage(f"what is to be done? Say one of {', '.join(name.replace('_', '-') for name in CHANGES)}")
    if call["op_kind"] is not None:
        try:
            return read_spec(call["op_kind"], call["spec"] or {})
        except KeyError as error:
            raise usage(f"--spec: {error} is missing") from None
    given = {
        "queue": call["to"],
        "priority": call["priority"],
        "reason": call["reason"],
        "run_at": call["delay"],
    }
    kind = CHANGES[call["change"].replace("-", "_")].made_by
    known = getattr(kind, "__dataclass_fields__", {})
    values = {name: value for name, value in given.items() if value is not None}
    options = {"queue": "--to", "priority": "--priority", "reason": "--reason", "run_at": "--in"}
    for name in values:
        if name not in known:
            raise usage(f"{options[name]} means nothing to {call['change']}")
    try:
        return kind(**values)
    except TypeError:
        needed = {"set_priority": "--priority", "move_queue": "--to"}[call["change"].replace("-", "_")]
        raise usage(f"{call['change']} needs {needed}") from None


def _filter(call: Call) -> JobFilter | Mapping[str, Any]:
    chosen = filter_of(call)
    if call["filter"] is None:
        return said(chosen, call)
    if not chosen.is_empty:
        raise usage("--filter and the options that choose jobs say the same: drop one of them")
    found: dict[str, Any] = call["filter"]
    return found or said(JobFilter(), call)


@verb(
    "batch list",
    "List batch operations, the newest first.",
    arguments=(
        argument(
            "--state",
            choices=[state.value for state in BatchState],
            metavar="STATE",
            help=f"operations in this state: {', '.join(state.value for state in BatchState)}",
        ),
        limit(20),
    ),
    examples=("batch list --state running",),
)
def list_operations(call: Call) -> Answer:
    found = operations.batch_operations(call["state"], limit=call["limit"], using=call.using)

    def show(screen: Screen) -> None:
        if not found:
            screen.say("There are no batch operations.")
            return
        screen.table(
            [
                Column("id", floor=36),
                Column("state", floor=9),
                Column("done", right=True),
                Column("what", floor=12),
            ],
            [(each.id, each.state.value, _done(each), each.description) for each in found],
        )

    return Answer([batch_document(each) for each in found], show)


def _done(operation: BatchOperation) -> str:
    return "-" if operation.progress is None else f"{operation.progress:.0%}"


@verb(
    "batch get",
    "Show one batch operation and what did not go through.",
    arguments=(
        _ID,
        argument(
            "--problems",
            type=positive,
            default=10,
            metavar="N",
            help="name so many jobs with problems; default 10",
        ),
    ),
    examples=("batch get 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e",),
    aliases=("show",),
)
def get(call: Call) -> Answer:
    operation = operations.batch_operation(call["id"], using=call.using)
    problems = operations.batch_problems(operation.id, limit=call["problems"], using=call.using)

    def show(screen: Screen) -> None:
        screen.say(f"batch operation {operation.id}", screen.style.MIGRATE_HEADING)
        screen.facts(
            {
                "what": operation.description,
                "state": operation.state.value,
                "submitted": instant(operation.submitted_at, screen.now)
                + (f" by {operation.submitted_by}" if operation.submitted_by else ""),
                "started": operation.started_at and instant(operation.started_at, screen.now),
                "ended": operation.finalized_at and instant(operation.finalized_at, screen.now),
                "moved last": None if operation.state.is_over else ago(operation.updated_at, screen.now),
                "matched": None if operation.total_matched is None else f"{operation.total_matched:,}",
                "changed": f"{operation.processed:,}",
                "skipped": f"{operation.skipped:,}",
                "errors": f"{operation.errored:,}",
                "last error": operation.last_error,
            }
        )
        for sentence in problems.sentences:
            screen.say(f"skipped: {sentence}")
        for problem in problems.jobs:
            screen.say(clip(f"job {problem.job_id}: {problem.text}", screen.width), screen.style.WARNING)

    return Answer(
        {
            **batch_document(operation),
            "problems": {
                "skipped": dict(problems.skipped),
                "jobs": [
                    {"id": problem.job_id, "reason": problem.reason, "text": problem.text}
                    for problem in problems.jobs
                ],
            },
        },
        show,
    )


@verb(
    "batch preview",
    "Show how many jobs a change would match now; writes nothing.",
    arguments=(*_CHANGE, *_SPELLED),
    examples=("batch preview cancel --queue mail --state scheduled",),
)
def preview(call: Call) -> Answer:
    found = operations.preview_batch(_change(call), _filter(call), allow_all=call["all"], using=call.using)

    def show(screen: Screen) -> None:
        least = "" if found.is_exact else "at least "
        screen.say(f"It would match {least}{count(found.total_matched, 'job')}.")
        if found.sample:
            screen.say(f"for example {', '.join(map(str, found.sample))}")
        if not found.total_matched:
            note_strangers(call)

    return Answer(document(found), show)


@verb(
    "batch submit",
    "Have a change made in the background; which jobs it is about is settled when it begins.",
    arguments=(
        *_CHANGE,
        *_SPELLED,
        argument("--by", "--submitted-by", metavar="NAME", help="who submits it; default: the login"),
        argument("--wait", action="store_true", help="wait for the end and show how far it is"),
    ),
    examples=(
        "batch submit cancel --queue mail --yes --wait",
        "batch submit move-queue --to bulk --kind newsletter --yes",
    ),
    changes=True,
)
def submit(call: Call) -> Answer:
    change, chosen = _change(call), _filter(call)
    words = words_of(chosen) if isinstance(chosen, JobFilter) else json.dumps(chosen)
    call.confirm(f"{kind_of(change).sentence(change)}: {words}{matching(change, chosen, call)}")
    operation = operations.submit_batch(
        change, chosen, submitted_by=call.by, allow_all=call["all"], using=call.using
    )
    return batch_answer(follow(operation, call) if call["wait"] else operation)


@verb(
    "batch cancel",
    "Stop a batch operation; what it has not come to is skipped.",
    states="operations that are pending, scanning or running",
    arguments=(_ID,),
    examples=("batch cancel 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e",),
    changes=True,
)
def cancel(call: Call) -> Answer:
    operation = operations.cancel_batch(call["id"], using=call.using)
    return done(
        batch_document(operation),
        f"batch operation {operation.id} is {operation.state}.",
    )


@verb(
    "batch purge",
    "Forget batch operations that ended before a time.",
    states="operations that are completed, cancelled or failed",
    arguments=(
        argument(
            "--before",
            type=moment_ago,
            required=True,
            metavar="TIME",
            help="that ended before this time: 2026-03-01T09:30, or how long ago, such as 30d",
        ),
        limit(1000),
    ),
    examples=("batch purge --before 30d --yes",),
    changes=True,
)
def purge(call: Call) -> Answer:
    call.confirm(f"forget batch operations that ended before {call['before']}")
    purged = operations.purge_batches(call["before"], limit=call["limit"], using=call.using)
    return done(
        {"purged": purged},
        f"{count(purged, 'batch operation')} forgotten.",
    )
