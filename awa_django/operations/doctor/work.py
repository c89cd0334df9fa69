"""Work that should have been done by now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from awa_django.conf import get_settings
from awa_django.operations.batch import BatchState, batch_operations
from awa_django.operations.doctor.finding import Level, Patient, Said
from awa_django.operations.waiting import waiting_callbacks
from awa_django.operations.words import count, listed, moment, span, word
from awa_django.planes.queue_storage.rings import look
from awa_django.schedule import InvalidSchedule, Schedule
from awa_django.sql import statement

__all__ = ["batches", "callbacks", "promotion", "schedules"]

#: Beyond this, something that the leader does at once is overdue.
LATE = timedelta(seconds=30)
#: A fire is taken within this time, whoever leads.
FIRE_LATE = timedelta(minutes=2)
#: A batch operation moves on within this time.
STILL = timedelta(minutes=5)


def promotion(patient: Patient) -> Iterator[Said]:
    """Due jobs that nobody makes available."""
    seen = look(patient.at.cursor)
    late = [
        due for due in (seen.due_in, seen.canonical_due_in) if due is not None and due < -LATE.total_seconds()
    ]
    if late:
        yield Said(
            Level.ERROR,
            f"A scheduled or retryable job has been due for {span(min(late))}, and nobody has made it available.",
            "Look at the leader and its log; an open transaction may hold the job or its lane.",
        )
    else:
        yield Said(Level.OK, "No due job waits to be made available.")


def schedules(patient: Patient) -> Iterator[Said]:
    """Schedules whose fire was missed, and those that can never fire."""
    patient.at.cursor.execute(statement("control/cron", "look"), {})
    rows = patient.at.cursor.fetchall()
    overdue: list[tuple[datetime, str]] = []
    well = True
    for name, expression, zone, _, last, created, paused, metadata_type, now in rows:
        if metadata_type != "object":
            well = False
            yield Said(
                Level.ERROR,
                f"Schedule {name} never fires: its metadata are no JSON object.",
                "Declare it anew, or correct awa.cron_jobs.",
            )
            continue
        try:
            schedule = Schedule.parse(expression, zone)
            since = datetime.fromisoformat(last or created)
        except (InvalidSchedule, ValueError) as error:
            well = False
            yield Said(
                Level.ERROR,
                f"Schedule {name} never fires: {error}",
                f"Correct it in code, or remove it: manage.py awa cron delete {word(name)}",
            )
            continue
        due = schedule.next_after(since)
        if not paused and due is not None and now - due > FIRE_LATE:
            overdue.append((due, name))
    if overdue:
        well = False
        oldest, name = min(overdue)
        yield Said(
            Level.ERROR,
            f"{count(len(overdue), 'schedule')} should have fired: {listed([name for _, name in sorted(overdue)])}, "
            f"the first at {moment(oldest)}.",
            "Look at the leader and its log; fires are made up by policy once it works.",
        )
    if well:
        yield Said(Level.OK, f"{count(len(rows), 'schedule')}, none overdue.")


def callbacks(patient: Patient) -> Iterator[Said]:
    """Callbacks that nobody can answer, or whose time is up."""
    page = waiting_callbacks(limit=1, using=patient.alias)
    settings = get_settings()
    if not page.items:
        yield Said(Level.OK, "No job waits for a callback.")
        return
    job = page.items[0].record.job
    well = True
    now = datetime.now(UTC)
    if page.items[0].overdue and job.callback_timeout_at is not None:
        late = now - job.callback_timeout_at
        if late > 2 * settings.rescue_interval:
            well = False
            yield Said(
                Level.ERROR,
                f"The callback of job {job.id} timed out {span(late)} ago, and nobody has taken the job away.",
                "Look at the leader and its log.",
            )
    if not settings.callback_secrets and not settings.callback_unsigned:
        well = False
        yield Said(
            Level.WARNING,
            "Jobs wait for callbacks, and AWA['CALLBACK_SECRETS'] is empty: the receiver of awa_django.urls refuses "
            "every answer.",
            "Set a secret (openssl rand -hex 32). Where answers come in through views of your own this does no harm.",
        )
    if well:
        yield Said(Level.OK, "Jobs wait for callbacks, none of them overdue.")


def batches(patient: Patient) -> Iterator[Said]:
    """Batch operations that do not move on: those of every client, which the leader runs, and ours."""
    open_ = [
        each
        for state in BatchState
        if not state.is_over
        for each in batch_operations(state, limit=1000, using=patient.alias)
    ]
    now = datetime.now(UTC)
    well = True
    for is_wire, who in ((True, "the leader"), (False, "the workers that take part in maintenance")):
        mine = [each for each in open_ if each.is_wire is is_wire]
        still = [each for each in mine if now - each.updated_at > STILL]
        # One runs after the other, so some may wait for long.
        moving = len(still) < len(mine)
        if not still or (moving and all(each.state is BatchState.PENDING for each in still)):
            continue
        well = False
        oldest = min(still, key=lambda each: each.submitted_at)
        yield Said(
            Level.ERROR,
            f"Batch operation {oldest.id} is {oldest.state} and has not moved for {span(now - oldest.updated_at)}"
            + (f": {oldest.last_error}" if oldest.last_error else "."),
            f"Look at {who} and the log, or stop it: manage.py awa batch cancel {oldest.id}",
        )
    if well:
        yield Said(Level.OK, f"{count(len(open_), 'batch operation')} under way.")
