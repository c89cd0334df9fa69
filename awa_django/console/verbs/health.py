"""``awa why`` and ``awa doctor``: what is in the way of one job, and of all."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import groupby
from typing import Any

from awa_django import operations
from awa_django.console.documents import document
from awa_django.console.exits import Exit
from awa_django.console.screen import Answer, Screen
from awa_django.console.selection import duration, job_id
from awa_django.console.text import count, pad
from awa_django.console.tree import Call, argument, verb
from awa_django.console.verbs.jobs import state_of
from awa_django.errors import ConfigurationError
from awa_django.operations import Finding, Level


@verb(
    "why",
    "Say why a job is not running: the one reason that counts now, and what can be done.",
    states="jobs in any state, dead letters too",
    arguments=(argument("id", type=job_id, metavar="ID", help="the job's id"),),
    examples=("why 4711", "why 4711 --json"),
)
def why(call: Call) -> Answer:
    found = operations.why(call["id"], using=call.using)
    job = found.job.job

    def show(screen: Screen) -> None:
        screen.say(f"job {job.id}: {job.kind}, {state_of(found.job)}", screen.style.MIGRATE_HEADING)
        screen.wrap(found.sentence)
        if found.hint:
            screen.wrap(found.hint)

    answer: dict[str, Any] = {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "state": job.state.value,
        "reason": found.reason.value,
        "sentence": found.sentence,
        "hint": found.hint,
        "facts": document(found.facts),
    }
    return Answer(answer, show)


@verb(
    "doctor",
    "Examine server, schema, workers and work; answers 1 if anything is broken.",
    arguments=(
        argument(
            "--timeout",
            type=duration,
            default=timedelta(seconds=5),
            metavar="SPAN",
            help="how long one look may take, such as 30s; default 5s",
        ),
    ),
    needs="server",
    examples=("doctor", "doctor --json"),
)
def doctor(call: Call) -> Answer:
    try:
        findings = operations.doctor(using=call.using, timeout=call["timeout"])
    except ConfigurationError as error:  # this role may not look into the schema
        findings = [Finding("schema", Level.ERROR, str(error))]
    levels = Counter(finding.level for finding in findings)

    def show(screen: Screen) -> None:
        paints = {
            Level.OK: screen.style.SUCCESS,
            Level.WARNING: screen.style.WARNING,
            Level.ERROR: screen.style.ERROR,
            Level.SKIPPED: screen.style.NOTICE,
        }
        for (level, sentence, hint), same in groupby(
            findings, key=lambda each: (each.level, each.sentence, each.hint)
        ):
            label = pad(level.value, 8)
            names = ", ".join(finding.check for finding in same)
            lines = screen.wrapped(f"{names}: {sentence}", indent=" " * 9)
            screen.out.write(f"{paints[level](label)} {lines[0].lstrip()}")
            for line in lines[1:]:
                screen.out.write(line)
            if hint:
                for line in screen.wrapped(f"-> {hint}", indent=" " * 9):
                    screen.out.write(line)
        screen.say(
            f"{count(levels[Level.ERROR], 'error')}, {count(levels[Level.WARNING], 'warning')}, "
            f"{count(levels[Level.SKIPPED], 'check')} skipped.",
            screen.style.ERROR if levels[Level.ERROR] else None,
        )

    return Answer(
        [
            {
                "check": finding.check,
                "level": finding.level.value,
                "sentence": finding.sentence,
                "hint": finding.hint,
            }
            for finding in findings
        ],
        show,
        Exit.FAILED if levels[Level.ERROR] else Exit.DONE,
    )
