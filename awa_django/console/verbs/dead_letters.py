"""``awa dlq``: dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from awa_django import operations
from awa_django.console.documents import document, job_document
from awa_django.console.screen import Answer, Column, Screen
from awa_django.console.selection import duration, filter_of, filters, limit, moment, note_strangers
from awa_django.console.text import ago, count
from awa_django.console.tree import Call, argument, usage, verb
from awa_django.console.verbs.changing import Change, declare
from awa_django.console.verbs.jobs import PAYLOADS, POSITION_HELP
from awa_django.operations import Changed, DeadLetter, JobRecord, Purge, Redrive, Selection
from awa_django.operations.words import last_error

_OF_ALL = filters("kind", "queue", "tag")


#: The same place as other clients spell it.
_SPELLED = (
    argument(
        "--before-id",
        type=int,
        metavar="ID",
        help="instead of --after, with --before-dlq-at: before this job",
    ),
    argument("--before-dlq-at", type=moment, metavar="TIME", help="and before this time"),
)


def _place(text: str) -> tuple[datetime, int]:
    at, _, job_id = text.rpartition("/")
    try:
        died = parse_datetime(at)
    except ValueError:
        died = None
    if died is None or timezone.is_naive(died) or not job_id.isdecimal():
        raise argparse.ArgumentTypeError(f"the place that a page ended with is needed, not {text!r}")
    return died, int(job_id)


@verb(
    "dlq list",
    "List dead letters, the newest first.",
    states="dead letters",
    arguments=(
        *_OF_ALL,
        limit(20),
        argument("--after", type=_place, metavar="PLACE", help=POSITION_HELP),
        *_SPELLED,
        PAYLOADS,
    ),
    examples=("dlq list --queue mail", "dlq list --kind send_receipt --limit 100 --json"),
)
def list_dead_letters(call: Call) -> Answer:
    after = call["after"]
    if call["before_id"] is not None or call["before_dlq_at"] is not None:
        if after is not None or None in (call["before_id"], call["before_dlq_at"]):
            raise usage("--before-id and --before-dlq-at say a place together, instead of --after")
        after = call["before_dlq_at"], call["before_id"]
    found = operations.dead_letters(filter_of(call), after=after, limit=call["limit"] + 1, using=call.using)
    page = found[: call["limit"]]
    following = None
    if len(found) > len(page):
        following = f"{document(_dead(page[-1]).at)}/{page[-1].job.id}"

    def show(screen: Screen) -> None:
        if page:
            _table(screen, page)
        else:
            screen.say("No dead letter matches.")
            note_strangers(call)
        screen.more(following)

    return Answer(
        {
            "jobs": [job_document(record, payloads=call["show_payloads"]) for record in page],
            "next": following,
        },
        show,
    )


def _dead(record: JobRecord) -> DeadLetter:
    assert record.dead_letter is not None  # nothing else is listed
    return record.dead_letter


def _table(screen: Screen, records: Sequence[JobRecord]) -> None:
    screen.table(
        [
            Column("id", right=True),
            Column("queue"),
            Column("kind", floor=12),
            Column("died"),
            Column("reason"),
            Column("last error"),
        ],
        [
            (
                record.job.id,
                record.job.queue,
                record.job.kind,
                ago(_dead(record).at, screen.now),
                _dead(record).reason or "-",
                (last_error(record.job) or "-").partition("\n")[0],
            )
            for record in records
        ],
    )


@verb(
    "dlq depth",
    "Count dead letters, in all and by queue.",
    states="dead letters",
    arguments=filters("queue"),
    examples=("dlq depth", "dlq depth --queue mail --json"),
)
def depth(call: Call) -> Answer:
    counts = operations.queue_counts(exact=False, queue=call["queue"], using=call.using)
    by_queue = {
        name: figures.dead
        for name, figures in sorted(counts.items(), key=lambda item: (-item[1].dead, item[0]))
        if figures.dead
    }
    total = sum(by_queue.values())

    def show(screen: Screen) -> None:
        screen.say(f"{count(total, 'dead letter')}.")
        if by_queue:
            screen.table(
                [Column("queue"), Column("dead letters", right=True)],
                [(name, f"{number:,}") for name, number in by_queue.items()],
            )

    return Answer({"total": total, "queues": by_queue}, show)


def _redrive(call: Call) -> Redrive:
    if call["at"] is not None and call["delay"] is not None:
        raise usage("--at and --in both say when: drop one of them")
    run_at: datetime | None = call["at"]
    delay: timedelta | None = call["delay"]
    if delay is not None:
        try:
            run_at = timezone.now() + delay
        except OverflowError:
            raise usage("--in: no calendar goes that far") from None
    return Redrive(run_at=run_at, priority=call["priority"], queue=call["to"])


def _retry(call: Call, jobs: Selection) -> Changed:
    meant = _redrive(call)
    return operations.retry_dead(
        jobs,
        run_at=meant.run_at,
        priority=meant.priority,
        queue=meant.queue,
        using=call.using,
        allow_all=call["all"],
    )


declare(
    Change(
        path="dlq retry",
        summary="Redrive dead letters: have them run again with all their attempts, now or later.",
        states="dead letters; failed jobs outside have `job retry`",
        did="to run again",
        now=_retry,
        later=_redrive,
        arguments=(
            argument("--at", type=moment, metavar="TIME", help="not before this time"),
            argument(
                "--in", dest="delay", type=duration, metavar="SPAN", help="not before so long, such as 15m"
            ),
            argument("--priority", type=int, metavar="N", help="with this priority, 1 (first) to 4 (last)"),
            argument("--to", metavar="QUEUE", help="on this queue instead of their own"),
        ),
        filters=_OF_ALL,
        examples=("dlq retry 4711", "dlq retry --queue mail --in 15m --yes"),
        aliases=("redrive", "retry-bulk"),
        things="dead letter",
    )
)
declare(
    Change(
        path="dlq move",
        summary="Make dead letters of failed jobs; history does not forget those so soon.",
        states="failed jobs of queue storage",
        did="moved to the dead letters",
        now=lambda call, jobs: operations.dead_letter(
            jobs, call["reason"], using=call.using, allow_all=call["all"]
        ),
        later=lambda call: operations.DeadLetterBatch(call["reason"]),
        arguments=(
            argument("--reason", default="manual", metavar="TEXT", help="why, for people; default: manual"),
        ),
        examples=('dlq move 4711 --reason "bank was down"', "dlq move --kind send_receipt --yes"),
    )
)
declare(
    Change(
        path="dlq purge",
        summary="Forget dead letters for good; their unique keys are free.",
        states="dead letters",
        did="forgotten",
        now=lambda call, jobs: operations.purge_dead(jobs, using=call.using, allow_all=call["all"]),
        later=lambda call: Purge(),
        filters=_OF_ALL,
        examples=("dlq purge 4711", "dlq purge --queue mail --yes"),
        is_final=True,
        things="dead letter",
    )
)
