"""``awa job``: jobs found, shown and changed."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from awa_django import operations
from awa_django.console.documents import document, job_document
from awa_django.console.screen import Answer, Column, Screen
from awa_django.console.selection import FILTERS, filter_of, job_id, limit, note_strangers
from awa_django.console.text import ago, clip, instant
from awa_django.console.tree import Argument, Call, argument, usage, verb
from awa_django.console.verbs.changing import Change, answer_of, declare
from awa_django.operations import (
    Cancel,
    Changed,
    Discard,
    JobRecord,
    MoveQueue,
    Page,
    Position,
    Retry,
    RunNow,
    Selection,
    SetPriority,
)
from awa_django.operations.words import error_text, last_error
from awa_django.redaction import shown
from awa_django.states import JobState

__all__ = ["PAYLOADS", "POSITION_HELP", "job_table"]

PAYLOADS = argument(
    "--show-payloads",
    action="store_true",
    help="with --json: also args, metadata, errors and progress, as far as they may be shown",
)
POSITION_HELP = "go on after this place, which the page before ends with"
#: Seconds in which a list looks for its first job.
_PATIENCE = 3.0
_JOB = argument("id", type=job_id, metavar="ID", help="the job's id")


def state_of(record: JobRecord) -> str:
    """The state in the operators' words."""
    return (
        "dead letter" if record.dead_letter is not None else record.job.state.value.replace("_external", "")
    )


def _when(record: JobRecord, screen: Screen) -> str:
    """The moment that says most about a job in its state."""
    job = record.job
    match job.state:
        case JobState.SCHEDULED | JobState.RETRYABLE | JobState.AVAILABLE:
            return f"due {ago(job.run_at, screen.now)}"
        case JobState.WAITING_EXTERNAL:
            return f"until {ago(job.callback_timeout_at, screen.now)}"
        case JobState.RUNNING:
            return f"since {ago(job.attempted_at, screen.now)}"
    return f"ended {ago(job.finalized_at, screen.now)}"


def job_table(screen: Screen, records: Sequence[JobRecord]) -> None:
    """A line for each job."""
    screen.table(
        [
            Column("id", right=True),
            Column("state", floor=9),
            Column("queue"),
            Column("kind", floor=12),
            Column("attempt", right=True),
            Column("when", floor=14),
        ],
        [
            (
                record.job.id,
                state_of(record),
                record.job.queue,
                record.job.kind or "?",
                f"{record.job.attempt}/{record.job.max_attempts}",
                _when(record, screen),
            )
            for record in records
        ],
    )


# Looking


def _position(text: str) -> Position:
    number, _, plane = text.partition(":")
    if not number.isdecimal() or plane not in ("", "queue_storage", "canonical"):
        raise argparse.ArgumentTypeError(
            f"the place that a page ended with is needed, such as 1234, not {text!r}"
        )
    return Position(int(number), "queue_storage" if plane == "queue_storage" else "canonical")


def _place(position: Position | None) -> str | None:
    if position is None:
        return None
    return str(position.job_id) + (":queue_storage" if position.plane == "queue_storage" else "")


@verb(
    "job list",
    "List jobs, the newest first.",
    states="jobs in any state, dead letters among the failed ones",
    arguments=(
        *FILTERS,
        limit(20),
        argument("--after", type=_position, metavar="PLACE", help=POSITION_HELP),
        PAYLOADS,
    ),
    examples=(
        "job list --state failed --queue mail",
        "job list --kind send_receipt --created-after 2h --limit 100 --json",
    ),
)
def list_jobs(call: Call) -> Answer:
    page = _first_page(call)

    def show(screen: Screen) -> None:
        if page.jobs:
            job_table(screen, page.jobs)
        elif page.next is None:
            screen.say("No job matches.")
            note_strangers(call)
        else:
            screen.say(f"No job matches among those from id {page.next.job_id} on.")
            note_strangers(call)
        screen.more(_place(page.next))

    return Answer(_page(page, payloads=call["show_payloads"]), show)


def _first_page(call: Call) -> Page:
    """The next page that has something: a search that finds little among many is broken off, and here gone on with."""
    after, until = call["after"], time.monotonic() + _PATIENCE
    while True:
        page = operations.list_jobs(filter_of(call), after=after, limit=call["limit"], using=call.using)
        if page.jobs or page.next is None or time.monotonic() > until:
            return page
        after = page.next


def _page(page: Page, *, payloads: bool) -> dict[str, Any]:
    return {
        "jobs": [job_document(record, payloads=payloads) for record in page.jobs],
        "next": _place(page.next),
    }


@verb(
    "job show",
    "Show one job with what it carries.",
    states="jobs in any state, dead letters too",
    arguments=(_JOB,),
    examples=("job show 4711",),
)
def show_job(call: Call) -> Answer:
    record = operations.load_job(call["id"], using=call.using)
    return Answer(job_document(record, payloads=True), lambda screen: _show(screen, record))


def _show(screen: Screen, record: JobRecord) -> None:
    job = record.job
    screen.say(f"job {job.id}: {job.kind}, {state_of(record)}", screen.style.MIGRATE_HEADING)
    dead = record.dead_letter
    callback = record.callback
    screen.facts(
        {
            "queue": job.queue,
            "priority": f"{job.priority} (was {record.original_priority})"
            if record.original_priority != job.priority
            else job.priority,
            "attempt": f"{job.attempt} of {job.max_attempts}, run lease {job.run_lease}",
            "created": instant(job.created_at, screen.now),
            "due": None if job.state.is_terminal else instant(job.run_at, screen.now),
            "last started": job.attempted_at and instant(job.attempted_at, screen.now),
            "sign of life": record.heartbeat_at and instant(record.heartbeat_at, screen.now),
            "deadline": job.deadline_at and instant(job.deadline_at, screen.now),
            "ended": job.finalized_at and instant(job.finalized_at, screen.now),
            "dead letter": dead and f"{dead.reason or 'no reason given'}, {instant(dead.at, screen.now)}",
            "callback": callback and callback.id and f"{callback.id}",
            "callback until": callback and callback.timeout_at and instant(callback.timeout_at, screen.now),
            "tags": ", ".join(job.tags) or None,
            "unique key": job.unique_key and job.unique_key.hex(),
            "plane": record.plane.replace("_", " "),
            "errors": f"{len(job.errors)}, the last: {_error_lines(last_error(job))[0]}"
            if job.errors
            else None,
        }
    )
    if record.is_unreadable:
        screen.say(
            "Something in this job cannot be read by Python, and is left out here.", screen.style.WARNING
        )
    screen.block("args", shown(job.kind, "args", job.args))
    for title, value in (
        ("metadata", shown(job.kind, "metadata", job.metadata) if job.metadata else None),
        ("progress", shown(job.kind, "progress", job.progress) if job.progress is not None else None),
    ):
        if value is not None:
            screen.block(title, value)
    if job.errors:
        _show_errors(screen, record)


def _show_errors(screen: Screen, record: JobRecord) -> None:
    """Error entries in their order: the last one whole, with its traceback, of the others the first line."""
    job = record.job
    screen.say("errors", screen.style.MIGRATE_HEADING)
    *earlier, last = [shown(job.kind, "errors", entry) for entry in job.errors]
    for entry in earlier:
        (line, *_) = _error_lines(entry)
        screen.say(clip(f"  {_error_title(entry, screen)}: {line}", screen.width))
    screen.say(f"  {_error_title(last, screen)}:")
    for line in _error_lines(last):
        screen.say(f"    {line}")
    if earlier:
        screen.say(f"Earlier ones are whole in `manage.py awa job dump-run {job.id} --attempt N`.")


def _error_lines(entry: object) -> list[str]:
    text = error_text(entry)
    return (json.dumps(entry, default=str) if text is None else text).expandtabs(4).splitlines() or [""]


def _error_title(entry: object, screen: Screen) -> str:
    if not isinstance(entry, Mapping):
        return "an error"
    attempt = entry.get("attempt")
    said = ["an error" if attempt is None else f"attempt {attempt}"]
    with suppress(
        ValueError, OverflowError
    ):  # another client's, without a time or with one that only it can read
        said.append(instant(datetime.fromisoformat(str(entry.get("at"))).astimezone(UTC), screen.now))
    if entry.get("terminal") is True:
        said.append("for good")
    return ", ".join(said)


def _dumped(found: dict[str, Any]) -> Answer:
    """A dump is JSON whoever looks at it: it goes into a ticket."""
    return Answer(found, lambda screen: screen.dump(found))


@verb(
    "job dump",
    "Print one job as JSON for a ticket; with summary and timeline.",
    states="jobs in any state, dead letters too",
    arguments=(_JOB,),
    examples=("job dump 4711 > job-4711.json",),
)
def dump_job(call: Call) -> Answer:
    return _dumped(document(operations.dump_job(call["id"], using=call.using)))


@verb(
    "job dump-run",
    "Print one attempt of a job as JSON for a ticket.",
    states="jobs in any state; of earlier attempts, those that left an error",
    arguments=(
        _JOB,
        argument("--attempt", type=int, metavar="N", help="which attempt; default: the current one"),
    ),
    examples=("job dump-run 4711 --attempt 2",),
)
def dump_run(call: Call) -> Answer:
    return _dumped(document(operations.dump_run(call["id"], call["attempt"], using=call.using)))


# Changing

declare(
    Change(
        path="job cancel",
        summary="End jobs that have not finished; running ones are told to stop.",
        states="scheduled, available, retryable, running and waiting_external jobs",
        did="cancelled",
        now=lambda call, jobs: operations.cancel(jobs, using=call.using, allow_all=call["all"]),
        later=lambda call: Cancel(),
        examples=("job cancel 4711 4712", "job cancel --queue mail --state scheduled --batch --wait"),
    )
)
declare(
    Change(
        path="job retry",
        summary="Have jobs run again; now and with all their attempts.",
        states="failed, cancelled and waiting_external jobs; dead letters have `dlq retry`",
        did="to run again",
        now=lambda call, jobs: operations.retry(jobs, using=call.using, allow_all=call["all"]),
        later=lambda call: Retry(),
        examples=("job retry 4711", "job retry --kind send_receipt --state failed --created-after 1d"),
        aliases=("retry-bulk",),
    )
)
declare(
    Change(
        path="job run",
        summary="Make jobs that wait for their time due now.",
        states="scheduled and retryable jobs",
        did="due now",
        now=lambda call, jobs: operations.run_now(jobs, using=call.using, allow_all=call["all"]),
        later=lambda call: RunNow(),
        examples=("job run 4711", "job run --kind nightly_report --state retryable"),
        aliases=("run-now",),
    )
)


def _discard(call: Call, jobs: Selection) -> Changed:
    return operations.discard(jobs, using=call.using, allow_all=call["all"])


declare(
    Change(
        path="job discard",
        summary="Forget failures for good; their unique keys are free.",
        states="failed jobs and dead letters",
        did="forgotten",
        now=_discard,
        later=lambda call: Discard(),
        examples=("job discard 4711", "job discard --kind send_receipt --yes"),
        is_final=True,
    )
)


def _priority(call: Call) -> SetPriority:
    return SetPriority(call["to"])


declare(
    Change(
        path="job priority",
        summary="Give waiting jobs another priority; they go to the end of its lane.",
        states="scheduled and available jobs",
        did="changed",
        now=lambda call, jobs: operations.set_priority(
            jobs, call["to"], using=call.using, allow_all=call["all"]
        ),
        later=_priority,
        arguments=(
            argument(
                "--to", type=int, required=True, metavar="N", help="the priority, 1 (first) to 4 (last)"
            ),
        ),
        examples=("job priority --to 1 4711", "job priority --to 4 --queue mail --batch"),
    )
)
declare(
    Change(
        path="job move",
        summary="Have waiting jobs wait on another queue; it may be paused.",
        states="scheduled and available jobs",
        did="moved",
        now=lambda call, jobs: operations.move_queue(
            jobs, call["to"], priority=call["priority"], using=call.using, allow_all=call["all"]
        ),
        later=lambda call: MoveQueue(call["to"], call["priority"]),
        arguments=(
            argument("--to", required=True, metavar="QUEUE", help="the queue to wait on"),
            argument("--priority", type=int, metavar="N", help="and this priority, 1 (first) to 4 (last)"),
        ),
        examples=("job move --to bulk 4711", "job move --to bulk --kind newsletter --batch --wait"),
    )
)


_EITHER: tuple[Argument, ...] = (
    argument("--kind", metavar="KIND", help="all failed jobs of this kind"),
    argument("--queue", metavar="QUEUE", help="all failed jobs of this queue"),
)


@verb(
    "job retry-failed",
    "Have all failed jobs of a kind or queue run again.",
    states="failed jobs, dead letters left out",
    arguments=_EITHER,
    examples=("job retry-failed --queue mail --yes",),
    changes=True,
)
def retry_failed(call: Call) -> Answer:
    if (call["kind"] is None) == (call["queue"] is None):
        raise usage("either --kind or --queue is needed")
    call.confirm(
        f"retry all failed jobs of {'kind ' + call['kind'] if call['kind'] else 'queue ' + call['queue']}"
    )
    changed = operations.retry_failed(kind=call["kind"], queue=call["queue"], using=call.using)
    return answer_of(changed, "to run again", call=call)
