"""``awa cron``: schedules."""

from __future__ import annotations

from typing import Any

from awa_django import periodic
from awa_django.console.documents import document
from awa_django.console.screen import Answer, Column, Screen, done
from awa_django.console.selection import positive
from awa_django.console.text import ago, instant
from awa_django.console.tree import Call, argument, refusal, verb
from awa_django.periodic import ScheduleStatus
from awa_django.redaction import shown

_NAME = argument("name", metavar="NAME", help="the schedule's name")


def _document(schedule: ScheduleStatus) -> dict[str, Any]:
    found: dict[str, Any] = document(schedule)
    return {
        **found,
        "args": document(shown(schedule.kind, "args", schedule.args)),
        "metadata": document(shown(schedule.kind, "metadata", schedule.metadata)),
        "is_paused": schedule.is_paused,
    }


def _next(schedule: ScheduleStatus, screen: Screen) -> str:
    if schedule.fault:
        return f"never: {schedule.fault}"
    if schedule.is_paused:
        return f"paused by {schedule.paused_by or '?'}"
    return ago(schedule.next_fire_at, screen.now)


@verb(
    "cron list",
    "List schedules with their last and next fires.",
    examples=("cron list", "cron list --json"),
)
def list_schedules(call: Call) -> Answer:
    found = periodic.schedules(using=call.using)

    def show(screen: Screen) -> None:
        if not found:
            screen.say("There are no schedules; those of code are stored once a worker leads.")
            return
        screen.table(
            [
                Column("name", floor=12),
                Column("when", floor=10),
                Column("zone"),
                Column("kind", floor=10),
                Column("queue"),
                Column("last"),
                Column("next", floor=9),
            ],
            [
                (
                    schedule.name,
                    schedule.cron_expr,
                    schedule.timezone,
                    schedule.kind,
                    schedule.queue,
                    ago(schedule.last_enqueued_at, screen.now),
                    _next(schedule, screen),
                )
                for schedule in found
            ],
        )

    return Answer([_document(schedule) for schedule in found], show)


@verb(
    "cron next",
    "Show when a schedule fires next, paused or not.",
    arguments=(
        _NAME,
        argument("--count", type=positive, default=10, metavar="N", help="so many fires; default 10"),
    ),
    examples=("cron next nightly --count 3",),
)
def next_fires(call: Call) -> Answer:
    fires = periodic.next_fires(call["name"], call["count"], using=call.using)

    def show(screen: Screen) -> None:
        for fire in fires:
            screen.say(instant(fire, screen.now))
        if not fires:
            screen.say("It never fires again.")

    return Answer({"name": call["name"], "fires": document(fires)}, show)


@verb(
    "cron pause",
    "Stop the automatic fires of a schedule; whoever leads obeys.",
    arguments=(_NAME, argument("--by", metavar="NAME", help="who pauses it; default: the login")),
    examples=("cron pause nightly --by ann",),
    changes=True,
)
def pause(call: Call) -> Answer:
    periodic.pause(call["name"], call.by, using=call.using)
    return done(
        {"name": call["name"], "paused": True, "by": call.by},
        f"schedule {call['name']} is paused by {call.by}.",
    )


@verb(
    "cron resume",
    "Let a schedule fire again; its policy decides about the fires that it missed.",
    arguments=(_NAME,),
    examples=("cron resume nightly",),
    changes=True,
)
def resume(call: Call) -> Answer:
    periodic.resume(call["name"], using=call.using)
    return done(
        {"name": call["name"], "paused": False},
        f"schedule {call['name']} fires again.",
    )


@verb(
    "cron trigger",
    "Enqueue one job of a schedule now, paused or not.",
    arguments=(_NAME,),
    examples=("cron trigger nightly",),
    changes=True,
)
def trigger(call: Call) -> Answer:
    job_id = periodic.trigger(call["name"], using=call.using)
    return done(
        {"name": call["name"], "id": job_id},
        f"job {job_id} is enqueued.",
    )


@verb(
    "cron delete",
    "Remove a schedule; a worker that declares it brings it back when it leads.",
    arguments=(_NAME,),
    examples=("cron delete nightly --yes",),
    aliases=("remove",),
    changes=True,
)
def delete(call: Call) -> Answer:
    call.confirm(f"remove schedule {call['name']}")
    if not periodic.delete(call["name"], using=call.using):
        raise refusal(f"no schedule is named {call['name']!r}; `cron list` shows those there are")
    return done(
        {"name": call["name"], "deleted": True},
        f"schedule {call['name']} is removed.",
    )
