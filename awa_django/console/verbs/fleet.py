"""``awa status``, ``runtimes`` and ``kinds``: the whole queue at a glance."""

from __future__ import annotations

import difflib
from typing import Any

from awa_django import operations, storage
from awa_django.console.documents import document
from awa_django.console.exits import Exit
from awa_django.console.screen import Answer, Column, Screen
from awa_django.console.text import ago, count, short, span
from awa_django.console.tree import Call, argument, verb
from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.operations import Runtime
from awa_django.operations.words import listed
from awa_django.registry import registry
from awa_django.states import JobState


@verb(
    "status",
    "Show how the queue does: jobs by state, workers, storage, and what needs attention.",
    examples=("status", "status --json"),
)
def status(call: Call) -> Answer:
    counts = operations.state_counts(exact=False, using=call.using)
    queues = operations.queue_overview(exact=False, using=call.using)
    fleet = operations.runtime_overview(using=call.using)
    move = storage.status(using=call.using)
    leaders = [each.name for each in fleet.instances if each.live and each.leader]
    stopping = sum(each.live and each.shutting_down for each in fleet.instances)
    paused = [queue.queue for queue in queues if queue.paused]
    lagging = max(
        (queue for queue in queues if queue.lag_seconds), key=lambda q: q.lag_seconds or 0, default=None
    )
    attention = list(fleet.attention)
    unserved = [queue.queue for queue in queues if queue.lag_seconds is not None and not queue.served]
    if unserved and fleet.live > stopping:
        attention.append(f"No worker serves {count(len(unserved), 'queue')} with jobs: {listed(unserved)}.")
    if paused:
        attention.append(f"{count(len(paused), 'queue is', 'queues are')} paused: {', '.join(paused)}.")
    if counts.dead:
        attention.append(f"{count(counts.dead, 'dead letter')}: `manage.py awa dlq list`.")
    if move.state != "active" and move.next_step is not None and move.state != "canonical":
        attention.append(
            f"The move to queue storage is {move.state.replace('_', ' ')}: `manage.py awa storage status`."
        )
    name = postgres(queue_alias(call.using)).settings_dict["NAME"]
    found: dict[str, Any] = {
        "database": str(name),
        "storage": move.state,
        "engine": move.active_engine,
        "jobs": {state.value: getattr(counts, state.value) for state in JobState},
        "dead_letters": counts.dead,
        "queued": counts.queued,
        "queues": len(queues),
        "paused": paused,
        "lag_seconds": None if lagging is None else lagging.lag_seconds,
        "workers": {
            "total": fleet.total,
            "live": fleet.live,
            "stale": fleet.stale,
            "healthy": fleet.healthy,
            "leaders": leaders,
        },
        "attention": attention,
    }

    def show(screen: Screen) -> None:
        screen.facts(
            {
                "database": f"{name}, {move.active_engine.replace('_', ' ')}"
                + ("" if move.state in ("active", "canonical") else f" ({move.state.replace('_', ' ')})"),
                "workers": f"{fleet.live - stopping} live, {fleet.healthy} healthy"
                + (f", {stopping} stopping" if stopping else "")
                + (f", {', '.join(leaders)} leads" if len(leaders) == 1 else ""),
                "queues": f"{len(queues)}" + (f", {len(paused)} paused" if paused else ""),
                "lag": None
                if lagging is None
                else f"{span(lagging.lag_seconds or 0)} in queue {lagging.queue}",
            }
        )
        screen.say()
        screen.table(
            [Column("state"), Column("jobs", right=True)],
            [
                *((state.value.replace("_", " "), f"{getattr(counts, state.value):,}") for state in JobState),
                ("dead letters", f"{counts.dead:,}"),
            ],
        )
        for sentence in attention:
            screen.say(f"! {sentence}", screen.style.WARNING)

    return Answer(found, show)


# Workers


def _state(each: Runtime) -> str:
    if each.stale:
        return "ended" if each.shutting_down else "stale"
    if each.shutting_down:
        return "stopping"
    if not each.healthy:
        return "unwell"
    return "leads" if each.leader else "well"


@verb(
    "runtimes",
    "List worker processes: who is there, who leads, what they serve and how busy they are.",
    arguments=(argument("--live", action="store_true", help="leave out those that no longer report"),),
    examples=("runtimes", "runtimes --live --json"),
    aliases=("workers",),
)
def runtimes(call: Call) -> Answer:
    fleet = operations.runtime_overview(using=call.using)
    shown = [each for each in fleet.instances if each.live or not call["live"]]

    def show(screen: Screen) -> None:
        if not shown:
            screen.say("No worker has reported within a day; start one: manage.py awa_worker.")
            return
        screen.table(
            [
                Column("worker", floor=14),
                Column("state", floor=8),
                Column("running", right=True),
                Column("queues", floor=10),
                Column("version", floor=9),
                Column("seen"),
                Column("up"),
            ],
            [
                (
                    each.name,
                    _state(each),
                    each.in_flight,
                    ", ".join(f"{queue.queue} {queue.in_flight}" for queue in each.queues) or "-",
                    each.version,
                    ago(each.last_seen_at, screen.now),
                    span(each.last_seen_at - each.started_at),
                )
                for each in shown
            ],
        )
        for sentence in fleet.attention:
            screen.say(f"! {sentence}", screen.style.WARNING)

    return Answer(
        {
            "total": fleet.total,
            "live": fleet.live,
            "stale": fleet.stale,
            "healthy": fleet.healthy,
            "leaders": fleet.leaders,
            "instances": [
                {**document(each), "name": each.name, "in_flight": each.in_flight} for each in shown
            ],
            "queues": document(fleet.queues),
            "attention": fleet.attention,
        },
        show,
    )


# Kinds


@verb(
    "kinds",
    "Compare waiting kinds with those that are registered here; for CI, before a release is deployed.",
    arguments=(
        argument("--all", action="store_true", help="also kinds of which no job waits"),
        argument(
            "--fail-on",
            choices=("unregistered", "unhandled", "never"),
            default="unregistered",
            help="answer 1 for waiting kinds that are not registered here, or that no live worker handles either; "
            "default: unregistered",
        ),
    ),
    examples=("kinds", "kinds --json --fail-on never"),
)
def kinds(call: Call) -> Answer:
    overviews = {each.kind: each for each in operations.kind_overview(using=call.using)}
    registered = set(registry)
    # The overview looks at a part of what is long, which may have none of a rare kind.
    numbers = operations.waiting_kinds(using=call.using)
    rows: list[dict[str, Any]] = []
    for kind in sorted(overviews.keys() | numbers.keys() | registered):
        each = overviews.get(kind)
        waiting = numbers.get(kind, 0)
        if not waiting and not call["all"]:
            continue
        near = [] if kind in registered else difflib.get_close_matches(kind, sorted(registered), 1)
        rows.append(
            {
                "kind": kind,
                "waiting": waiting,
                "registered": kind in registered,
                "nearest": near[0] if near else None,
                "handled_by": 0 if each is None else each.handled_by,
                "queues": [] if each is None else list(each.queues),
            }
        )
    missing = operations.orphan_kinds(registered, using=call.using)
    rows = [row for row in rows if row["registered"] or row["kind"] in missing or call["all"]]
    rows.sort(key=lambda row: (row["registered"], -row["waiting"], row["kind"]))
    unknown = [row for row in rows if row["kind"] in missing]
    unhandled = [row for row in rows if row["waiting"] and not row["handled_by"]]
    failing = {"unregistered": unknown, "unhandled": [*unknown, *unhandled], "never": []}[call["fail_on"]]

    def show(screen: Screen) -> None:
        if rows:
            screen.table(
                [
                    Column("kind", floor=16),
                    Column("waiting", right=True),
                    Column("here", floor=6),
                    Column("workers", right=True),
                    Column("queues"),
                    Column("remark", floor=14),
                ],
                [
                    (
                        row["kind"],
                        short(row["waiting"]),
                        "yes" if row["registered"] else "no",
                        row["handled_by"],
                        ", ".join(row["queues"]) or "-",
                        f"is it {row['nearest']}?" if row["nearest"] else "",
                    )
                    for row in rows
                ],
            )
        if unknown:
            jobs = sum(row["waiting"] for row in unknown)
            screen.say(
                f"{count(len(unknown), 'waiting kind is', 'waiting kinds are')} not registered here; "
                f"{count(jobs, 'job')} would be put off.",
                screen.style.ERROR,
            )
        else:
            screen.say("Every kind that waits is registered here.", screen.style.SUCCESS)

    return Answer(rows, show, Exit.FAILED if failing else Exit.DONE)
