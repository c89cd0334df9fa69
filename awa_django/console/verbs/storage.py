"""``awa storage``: the move from the canonical tables to queue storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from awa_django import storage
from awa_django.console.documents import storage_document
from awa_django.console.exits import Exit
from awa_django.console.screen import Answer, Screen
from awa_django.console.selection import duration
from awa_django.console.text import instant
from awa_django.console.tree import Call, argument, verb
from awa_django.storage import Step, StorageStatus

#: What the next step is called here.
#: Seconds between two looks at what stands in the way.
_LOOK = 2.0
_COMMANDS = {"prepare": "prepare", "enter_mixed": "enter-mixed", "finalize": "finalize"}


def _show(screen: Screen, status: StorageStatus) -> None:
    screen.facts(
        {
            "state": status.state.replace("_", " "),
            "new jobs go to": status.active_engine.replace("_", " "),
            "moving to": status.prepared_engine and status.prepared_engine.replace("_", " "),
            "since": instant(status.entered_at, screen.now),
            "canonical jobs unfinished": f"{status.backlog:,}",
            "live workers": ", ".join(
                f"{number} {capability.replace('_', ' ')}"
                for capability, number in status.runtimes.items()
                if number
            )
            or "none",
            "queue storage lacks": ", ".join(status.missing) or None,
        }
    )
    if status.next_step is None:
        screen.say("The move is complete; there is no next step.", screen.style.SUCCESS)
        return
    step = _COMMANDS[status.next_step.value]
    if not status.blockers:
        screen.say(f"Next: manage.py awa storage {step}", screen.style.SUCCESS)
        return
    screen.say(f"Before `storage {step}`:", screen.style.WARNING)
    for blocker in status.blockers:
        screen.wrap(f"- {blocker}", indent="  ")


@verb(
    "storage status",
    "Show how far the move is; which engine takes new jobs, and what the next step waits for.",
    examples=("storage status", "storage status --json"),
)
def status(call: Call) -> Answer:
    found = storage.status(using=call.using)
    return Answer(storage_document(found), lambda screen: _show(screen, found))


def _step(call: Call, take: Callable[..., StorageStatus]) -> Answer:
    before = storage.status(using=call.using)
    after = take(using=call.using)

    def show(screen: Screen) -> None:
        screen.say(
            f"{before.state} -> {after.state}" if before.state != after.state else f"still {after.state}",
            screen.style.SUCCESS,
        )
        _show(screen, after)

    return Answer(storage_document(after), show)


@verb(
    "storage prepare",
    "Choose queue storage as the engine to move to; nothing changes for jobs yet.",
    arguments=(
        argument(
            "--engine",
            choices=("queue_storage",),
            default="queue_storage",
            help="the engine to move to; there is one",
        ),
    ),
    examples=("storage prepare",),
    changes=True,
)
def prepare(call: Call) -> Answer:
    return _step(call, storage.prepare)


@verb(
    "storage enter-mixed",
    "Send new jobs to queue storage; canonical ones are finished by the workers that run now.",
    examples=("storage enter-mixed",),
    aliases=("enter-mixed-transition",),
    changes=True,
)
def enter_mixed(call: Call) -> Answer:
    return _step(call, storage.enter_mixed)


@verb(
    "storage finalize",
    "End the move; needs every canonical job finished, and there is no way back.",
    arguments=(
        argument(
            "--check", action="store_true", help="only say whether it could be ended now; answers 3 if not"
        ),
        argument(
            "--wait",
            nargs="?",
            type=duration,
            const=timedelta.max,
            metavar="SPAN",
            help="wait until nothing stands in the way, for so long at most, such as 2h",
        ),
    ),
    examples=("storage finalize --check", "storage finalize --yes --wait 2h"),
    changes=True,
)
def finalize(call: Call) -> Answer:
    found = storage.status(using=call.using)
    blockers = found.blockers_of(Step.FINALIZE)
    if call["check"]:
        return Answer(
            storage_document(found),
            lambda screen: _show(screen, found),
            Exit.NOT_CHANGED if blockers else Exit.DONE,
        )
    call.confirm("end the move to queue storage, from which there is no way back")
    if call["wait"] is not None and found.state == "mixed_transition":
        _wait(call, blockers)
    return _step(call, storage.finalize)


def _wait(call: Call, blockers: tuple[str, ...]) -> None:
    """Wait until the move can be ended, and say on standard error what is in the way; as long as the operator said."""
    began, said = time.monotonic(), None
    while blockers and time.monotonic() - began < call["wait"].total_seconds():
        if (line := "; ".join(blockers)) != said:
            call.screen.note(f"waiting: {line}")
            said = line
        time.sleep(_LOOK)
        blockers = storage.status(using=call.using).blockers_of(Step.FINALIZE)


@verb(
    "storage abort",
    "Give the move up; new jobs go to the canonical tables as before.",
    examples=("storage abort --yes",),
    changes=True,
)
def abort(call: Call) -> Answer:
    call.confirm("give up the move to queue storage")
    return _step(call, storage.abort)
