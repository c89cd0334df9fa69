"""``awa callback``: jobs that wait for an answer from outside."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from awa_django import callbacks, operations
from awa_django.conf import get_settings
from awa_django.console.documents import document, job_document
from awa_django.console.screen import Answer, Column, Screen, done
from awa_django.console.selection import duration, filter_of, filters, limit
from awa_django.console.text import ago
from awa_django.console.tree import Call, argument, usage, verb
from awa_django.console.verbs.jobs import POSITION_HELP
from awa_django.jobs import Job
from awa_django.operations import WaitingPosition
from awa_django.redaction import shown
from awa_django.signatures import DEFAULT_PATH_PREFIX, SIGNATURE_HEADER, build_callback_url, sign

_ID = argument("id", metavar="CALLBACK", help="the callback's id, a UUID")
_LEASE = argument(
    "--run-lease", type=int, metavar="N", help="only if the callback is of this attempt: the job's run lease"
)
_PAYLOAD = argument(
    "--payload", metavar="JSON", help="the answer as JSON; @FILE takes it from a file, - from standard input"
)

#: The time of a callback without a timeout, in the place of a page. It must not look like an option.
_NEVER = "never"


def _place(text: str) -> WaitingPosition:
    at, _, job = text.rpartition("/")
    number, _, plane = job.partition(":")
    try:
        timeout_at = None if at == _NEVER else datetime.fromisoformat(at)
        if plane not in ("", "canonical") or (timeout_at is not None and timeout_at.tzinfo is None):
            raise ValueError
        return WaitingPosition(timeout_at, int(number), "canonical" if plane else "queue_storage")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"the place that a page ended with is needed, not {text!r}"
        ) from None


def _spelled(position: WaitingPosition) -> str:
    at = _NEVER if position.timeout_at is None else document(position.timeout_at)
    return f"{at}/{position.job_id}" + (":canonical" if position.plane == "canonical" else "")


def _payload(call: Call) -> Any:
    text: str | None = call["payload"]
    if text is None:
        return None
    source = "--payload"
    try:
        if text == "-":
            source = "standard input"
            text = call.screen.stdin.read() if call.screen.stdin else ""
        elif text.startswith("@"):
            source = text[1:]
            text = Path(source).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise usage(f"{source}: JSON is needed: {error}") from error


def _answered(call: Call, job: Job, what: str, **more: Any) -> Answer:
    return done(
        {
            "callback_id": str(callbacks.callback_uuid(call["id"])),
            "id": job.id,
            "state": job.state.value,
            **more,
        },
        f"job {job.id} {what}.",
    )


@verb(
    "callback list",
    "List jobs that wait for a callback; soonest timeout first.",
    states="waiting_external jobs",
    arguments=(
        *filters("kind", "queue", "tag"),
        limit(20),
        argument("--after", type=_place, metavar="PLACE", help=POSITION_HELP),
    ),
    examples=("callback list --kind charge_card",),
)
def list_callbacks(call: Call) -> Answer:
    page = operations.waiting_callbacks(
        filter_of(call), after=call["after"], limit=call["limit"], using=call.using
    )
    following = None if page.next is None else _spelled(page.next)

    def show(screen: Screen) -> None:
        if page.items:
            screen.table(
                [
                    Column("job", right=True),
                    Column("queue"),
                    Column("kind", floor=8),
                    Column("callback", floor=36),
                    Column("times out", floor=9),
                ],
                [
                    (
                        item.record.job.id,
                        item.record.job.queue,
                        item.record.job.kind,
                        item.record.job.callback_id or "-",
                        ago(item.record.job.callback_timeout_at, screen.now)
                        + (" (overdue)" if item.overdue else ""),
                    )
                    for item in page.items
                ],
            )
        elif following is None:
            screen.say("No job waits for a callback.")
        screen.more(following)

    return Answer(
        {
            "jobs": [{**job_document(item.record), "overdue": item.overdue} for item in page.items],
            "next": following,
        },
        show,
    )


@verb(
    "callback complete",
    "Complete the job that waits for a callback; the payload is not stored.",
    states="waiting_external jobs, and running ones that registered the callback",
    arguments=(_ID, _PAYLOAD, _LEASE),
    examples=("callback complete 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e",),
    changes=True,
)
def complete(call: Call) -> Answer:
    job = callbacks.complete(call["id"], _payload(call), run_lease=call["run_lease"], using=call.using)
    return _answered(call, job, "is completed")


@verb(
    "callback fail",
    "Fail the job that waits for a callback; it does not matter how many attempts are left.",
    states="waiting_external jobs, and running ones that registered the callback",
    arguments=(
        _ID,
        argument("--error", required=True, metavar="TEXT", help="the error that the job records"),
        _LEASE,
    ),
    examples=('callback fail 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e --error "declined"',),
    changes=True,
)
def fail(call: Call) -> Answer:
    job = callbacks.fail(call["id"], call["error"], run_lease=call["run_lease"], using=call.using)
    return _answered(call, job, "has failed")


@verb(
    "callback retry",
    "Have the waiting job run again from the start.",
    states="waiting_external jobs",
    arguments=(_ID, _LEASE),
    examples=("callback retry 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e",),
    changes=True,
)
def retry(call: Call) -> Answer:
    job = callbacks.retry(call["id"], run_lease=call["run_lease"], using=call.using)
    return _answered(call, job, "runs again")


@verb(
    "callback resume",
    "Hand a payload to a handler that waits; it runs on.",
    states="jobs whose handler is inside wait_for_callback; any other would run with nobody on it",
    arguments=(_ID, _PAYLOAD, _LEASE),
    examples=("""callback resume 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e --payload '{"step": 2}'""",),
    changes=True,
)
def resume(call: Call) -> Answer:
    job = callbacks.resume(call["id"], _payload(call), run_lease=call["run_lease"], using=call.using)
    return _answered(call, job, "runs on")


@verb(
    "callback resolve",
    "Let the callback's expressions judge a payload; what they say is done.",
    states="waiting_external jobs, and running ones that registered the callback",
    arguments=(
        _ID,
        _PAYLOAD,
        argument(
            "--default",
            choices=("ignore", "complete", "fail"),
            default="ignore",
            help="what to do where they do not decide; default: ignore",
        ),
        _LEASE,
    ),
    examples=("""callback resolve 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e --payload '{"paid": true}'""",),
    changes=True,
)
def resolve(call: Call) -> Answer:
    found = callbacks.resolve(
        call["id"], _payload(call), default=call["default"], run_lease=call["run_lease"], using=call.using
    )
    reason = shown(found.job.kind, "errors", found.reason) if found.reason else None
    what = {
        "completed": "is completed",
        "failed": "has failed",
        "ignored": "waits on: the answer was ignored",
    }
    return _answered(
        call,
        found.job,
        what[found.outcome] + (f" ({reason})" if reason else ""),
        outcome=found.outcome,
        payload=document(shown(found.job.kind, "payload", found.payload)),
        reason=reason,
    )


@verb(
    "callback heartbeat",
    "Give the waiting job more time; it counts from now.",
    states="waiting_external jobs",
    arguments=(
        _ID,
        argument(
            "--timeout",
            type=duration,
            default=timedelta(hours=1),
            metavar="SPAN",
            help="so long from now, such as 2h; 0 makes it due at once; default 1h",
        ),
        _LEASE,
    ),
    examples=("callback heartbeat 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e --timeout 2h",),
    changes=True,
)
def heartbeat(call: Call) -> Answer:
    job = callbacks.heartbeat(call["id"], call["timeout"], run_lease=call["run_lease"], using=call.using)
    return _answered(call, job, "waits on", timeout_seconds=call["timeout"].total_seconds())


def _secret() -> bytes:
    secrets = get_settings().callback_secrets
    if not secrets:
        raise usage("AWA['CALLBACK_SECRETS'] is empty: there is nothing to sign with")
    return secrets[0]


@verb(
    "callback sign",
    "Print the signature that a receiver asks for; made with the first secret.",
    arguments=(_ID,),
    needs="nothing",
    examples=("callback sign 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e",),
)
def sign_id(call: Call) -> Answer:
    callbacks.callback_uuid(call["id"])  # refuses what no receiver would take; the spelling itself is signed
    signature = sign(call["id"], _secret())
    return Answer(
        {"callback_id": call["id"], "header": SIGNATURE_HEADER, "signature": signature},
        lambda screen: screen.say(signature),
    )


@verb(
    "callback url",
    "Print the address of a callback.",
    arguments=(
        _ID,
        argument("action", choices=("complete", "fail", "heartbeat"), help="complete, fail or heartbeat"),
        argument(
            "--base", required=True, metavar="URL", help="where the receiver is, such as https://shop.example"
        ),
        argument(
            "--prefix",
            default=DEFAULT_PATH_PREFIX,
            metavar="PATH",
            help=f"the path before the id; default {DEFAULT_PATH_PREFIX}",
        ),
    ),
    needs="nothing",
    examples=("callback url 0e3cd8a4-1c5b-4f0a-9a53-6c6c0f3a2f7e complete --base https://shop.example",),
)
def url(call: Call) -> Answer:
    callbacks.callback_uuid(call["id"])
    address = build_callback_url(call["base"], call["prefix"], call["id"], call["action"])
    return Answer({"callback_id": call["id"], "url": address}, lambda screen: screen.say(address))
