"""``awa queue``: queues watched and set."""

from __future__ import annotations

import difflib
from typing import Any

from awa_django import operations
from awa_django.console.documents import document
from awa_django.console.exits import Exit
from awa_django.console.screen import Answer, Column, Screen, done
from awa_django.console.selection import note_strangers
from awa_django.console.text import ago, count, short, span
from awa_django.console.tree import Call, argument, verb
from awa_django.operations import Counts, QueueOverview

_NAME = argument("queue", metavar="QUEUE", help="the queue's name")
_NAMES = argument("queues", nargs="+", metavar="QUEUE", help="a queue's name; several may be given")


def _document(queue: QueueOverview) -> dict[str, Any]:
    found: dict[str, Any] = document(queue)
    return {**found, "queued": queue.counts.queued}


def _remark(queue: QueueOverview, screen: Screen) -> str:
    if queue.paused:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        return f"paused{by} {ago(queue.paused_at, screen.now)}"
    if not queue.served:
        return "no worker"
    return ""


@verb(
    "queue list",
    "List queues with what waits and how long; figures are quick and about right.",
    examples=("queue list", "queue list --json"),
)
def list_queues(call: Call) -> Answer:
    found = operations.queue_overview(exact=False, using=call.using)

    def show(screen: Screen) -> None:
        if not found:
            screen.say("There are no queues yet.")
            return
        screen.table(
            [
                Column("queue", floor=10),
                Column("available", right=True),
                Column("running", right=True),
                Column("lag", right=True),
                Column("later", right=True),
                Column("waiting", right=True),
                Column("failed", right=True),
                Column("remark", floor=9),
            ],
            [
                (
                    queue.queue,
                    short(queue.counts.available),
                    short(queue.counts.running),
                    "-" if queue.lag_seconds is None else span(queue.lag_seconds),
                    short(queue.counts.scheduled + queue.counts.retryable),
                    short(queue.counts.waiting_external),
                    short(queue.counts.failed + queue.counts.dead),
                    _remark(queue, screen),
                )
                for queue in found
            ],
        )

    return Answer([_document(queue) for queue in found], show)


_STATES = (
    ("scheduled", "sched."), ("available", "avail."), ("running", "run."), ("retryable", "retry"),
    ("waiting_external", "waiting"), ("completed", "done"), ("failed", "failed"), ("dead", "dead"),
    ("cancelled", "canc."),
)  # fmt: skip


@verb(
    "queue stats",
    "Count the jobs of each queue by state; history counts as far as it is held.",
    arguments=(
        argument("queues", nargs="*", metavar="QUEUE", help="only these queues"),
        argument("--exact", action="store_true", help="count every job, however long it takes"),
    ),
    examples=("queue stats", "queue stats mail --exact --json"),
)
def stats(call: Call) -> Answer:
    wanted = call["queues"]
    only = wanted[0] if len(wanted) == 1 else None
    found = {
        name: counts
        for name, counts in sorted(
            operations.queue_counts(exact=call["exact"], queue=only, using=call.using).items()
        )
        if name in wanted or not wanted
    }
    missing = [name for name in wanted if name not in found]

    def show(screen: Screen) -> None:
        if found:
            screen.table(
                [Column("queue"), *(Column(title, right=True) for _, title in _STATES)],
                [
                    (name, *(short(getattr(counts, state)) for state, _ in _STATES))
                    for name, counts in found.items()
                ],
            )
        elif not wanted:
            screen.say("There are no jobs.")
        for name in missing:
            screen.note(f"queue {name} has no jobs and no history", screen.style.WARNING)

    figures: dict[str, Any] = {name: _figures(counts) for name, counts in found.items()}
    return Answer(figures, show, Exit.NOT_CHANGED if missing else Exit.DONE)


def _figures(counts: Counts) -> dict[str, Any]:
    found: dict[str, Any] = document(counts)
    return {**found, "queued": counts.queued}


@verb(
    "queue pause",
    "Have nobody claim from queues; their due jobs stay scheduled, running ones go on.",
    arguments=(_NAMES, argument("--by", metavar="NAME", help="who pauses it; default: the login")),
    examples=("queue pause mail", "queue pause mail sms --by ann"),
    changes=True,
)
def pause(call: Call) -> Answer:
    known = operations.known_queues(using=call.using)
    for name in call["queues"]:
        operations.pause(name, call.by, using=call.using)

    def show(screen: Screen) -> None:
        for name in call["queues"]:
            screen.say(f"queue {name} is paused by {call.by}.", screen.style.SUCCESS)
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                guess = f"; did you mean {near[0]}?" if near else "."
                screen.note(f"queue {name} has no jobs and no workers so far{guess}", screen.style.WARNING)

    return Answer({"paused": list(call["queues"]), "by": call.by}, show)


@verb(
    "queue resume",
    "Have paused queues work again.",
    arguments=(_NAMES,),
    examples=("queue resume mail",),
    changes=True,
)
def resume(call: Call) -> Answer:
    resumed = {name: operations.resume(name, using=call.using) for name in call["queues"]}

    def show(screen: Screen) -> None:
        for name, was_paused in resumed.items():
            if was_paused:
                screen.say(f"queue {name} works again.", screen.style.SUCCESS)
            else:
                screen.say(f"queue {name} was not paused.")

    return Answer(
        {
            "resumed": [name for name, was_paused in resumed.items() if was_paused],
            "not_paused": [name for name, was_paused in resumed.items() if not was_paused],
        },
        show,
    )


@verb(
    "queue drain",
    "Cancel every job of a queue that nobody runs; stop the producers first, for what arrives meanwhile stays.",
    states="available, scheduled, retryable and waiting_external jobs; running ones go on",
    arguments=(_NAME,),
    examples=("queue drain mail --yes",),
    changes=True,
)
def drain(call: Call) -> Answer:
    call.confirm(f"cancel every job of queue {call['queue']} that nobody runs")
    cancelled = operations.drain(call["queue"], using=call.using)

    def show(screen: Screen) -> None:
        screen.say(f"{count(cancelled, 'job')} of queue {call['queue']} cancelled.", screen.style.SUCCESS)
        if not cancelled:
            note_strangers(call)

    return Answer({"queue": call["queue"], "cancelled": cancelled}, show)


@verb(
    "queue shards",
    "Give each priority of a queue several lanes; then producers do not wait for each other.",
    arguments=(
        _NAME,
        argument(
            "shards",
            type=int,
            metavar="N",
            help="lanes of each priority, 1 to 64; order holds within one",
        ),
    ),
    examples=("queue shards mail 4",),
    changes=True,
)
def shards(call: Call) -> Answer:
    operations.set_enqueue_shards(call["queue"], call["shards"], using=call.using)
    return done(
        {"queue": call["queue"], "shards": call["shards"]},
        f"queue {call['queue']} has {count(call['shards'], 'lane')} for each priority.",
    )
