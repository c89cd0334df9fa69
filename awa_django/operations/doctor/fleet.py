"""The workers: who leads, who is there, and whether they serve what waits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from awa_django.operations.case import is_ours, serves
from awa_django.operations.doctor.finding import Level, Patient, Said
from awa_django.operations.leading import leader_session
from awa_django.operations.orphans import orphan_kinds
from awa_django.operations.queues import QueueOverview
from awa_django.operations.words import count, listed, moment, span, word
from awa_django.sql import statement

__all__ = ["kinds", "leader", "queues", "storage", "workers"]

#: A queue whose oldest job has been due for so long, though workers serve it, is worth a word.
LONG_LAG = timedelta(minutes=15)


def leader(patient: Patient) -> Iterator[Said]:
    """Whether exactly one process leads, and reports so."""
    session = leader_session(patient.at.cursor)
    reporting = [each for each in patient.runtimes.instances if each.live and each.leader]
    if session is None:
        yield Said(
            Level.ERROR,
            "Nobody leads: due jobs stay scheduled, lost ones are not rescued, schedules do not fire.",
            ("If no worker takes the lead within half a minute, start" if patient.working else "Start")
            + " one without --no-maintenance, on a connection to the server itself: a pooler that hands out a session "
            "for each transaction takes the lead away.",
        )
        return
    who = f"session {session.pid}" + (f" ({session.application})" if session.application else "")
    match reporting:
        case [only]:
            theirs = "" if is_ours(only) else " (a worker of awa's own: finished jobs stay for seconds)"
            yield Said(Level.OK, f"{only.name} leads{theirs}, with {who}.")
        case []:
            yield Said(
                Level.WARNING,
                f"{who[:1].upper()}{who[1:]} holds the leader's lock, but no live worker says that it leads.",
                f"If this stays so for a minute, its worker hangs: SELECT pg_terminate_backend({session.pid}).",
            )
        case several:
            yield Said(
                Level.WARNING,
                f"{listed([each.name for each in several])} say that they lead; only {who} does.",
                "Look again in half a minute: who lost the lead notices then.",
            )


def workers(patient: Patient) -> Iterator[Said]:
    """Whether workers are there and well."""
    found = patient.runtimes
    waiting = sum(_available(queue) for queue in patient.queues)
    if not patient.working:
        yield Said(
            Level.ERROR if waiting else Level.WARNING,
            "No worker is running"
            + (f", and {count(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}." if waiting else "."),
            "Start one: manage.py awa_worker.",
        )
    well = bool(patient.working)
    for each in found.instances:
        if each.live and not each.healthy and not each.shutting_down:
            well = False
            yield Said(
                Level.WARNING, f"Worker {each.name} {' and '.join(each.troubles)}.", "Look at its log."
            )
        if each.stale and not each.shutting_down:
            well = False
            yield Said(
                Level.WARNING,
                f"Worker {each.name} has been silent since {moment(each.last_seen_at)}: it was killed, or is cut off.",
                "Its jobs are rescued; start another one if it is missed. The row goes after INSTANCE_RETENTION.",
            )
    for queue in found.queues:
        if queue.live and queue.config_mismatch:
            well = False
            yield Said(
                Level.WARNING,
                f"Workers of queue {queue.queue} are configured differently.",
                "Give them the same settings; during a deployment this passes.",
            )
    if well:
        yield Said(
            Level.OK,
            f"{count(len(patient.working), 'worker process reports', 'worker processes report')}, all well.",
        )


def _available(queue: QueueOverview) -> int:
    """Jobs that wait to be claimed. Where the oldest one is not found, the quick figure counts ended ones."""
    return 0 if queue.lag_seconds is None else max(queue.counts.available, 1)


def queues(patient: Patient) -> Iterator[Said]:
    """Queues with jobs that nobody claims."""
    served: dict[str, bool] = {}
    for runtime in patient.working:
        for queue in runtime.queues:
            idle = queue.config.get("max_workers") == 0 and queue.config.get("mode") != "weighted"
            served[queue.queue] = served.get(queue.queue, False) or not idle
    well = True
    for found in patient.queues:
        name, waiting = found.queue, _available(found)
        if found.paused and (waiting or found.counts.scheduled or found.counts.retryable):
            well = False
            by = f" by {found.paused_by}" if found.paused_by else ""
            yield Said(
                Level.WARNING,
                f"Queue {name} is paused{by} since {moment(found.paused_at)}, with {count(waiting, 'waiting job')}.",
                f"manage.py awa queue resume {word(name)}",
            )
        elif waiting and patient.working and not served.get(name):
            well = False
            nothing = (
                "; those that name it claim nothing, as their max_workers is 0" if name in served else ""
            )
            yield Said(
                Level.ERROR,
                f"Nobody serves queue {name}, in which {count(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}"
                f"{nothing}.",
                f"Start `manage.py awa_worker --queue {word(name)}`, or add it to AWA['QUEUES'].",
            )
        elif waiting and found.lag_seconds is not None and found.lag_seconds > LONG_LAG.total_seconds():
            well = False
            yield Said(
                Level.WARNING,
                f"The oldest job of queue {name} has been due for {span(found.lag_seconds)}.",
                "Start more workers, or look at one with `manage.py awa why`.",
            )
    if well:
        yield Said(Level.OK, "Every queue with jobs is served.")


def kinds(patient: Patient) -> Iterator[Said]:
    """Kinds of waiting jobs that no worker handles."""
    if not patient.working:
        yield Said(Level.SKIPPED, "Needs a live worker.")
        return
    known = {kind for runtime in patient.working for kind in runtime.kinds}
    orphans = orphan_kinds(known, using=patient.alias)
    if not orphans:
        yield Said(Level.OK, "Every kind that waits is handled by a live worker.")
        return
    names = [f"{kind} ({number:,})" for kind, number in orphans.items()]
    yield Said(
        Level.ERROR,
        f"No live worker handles {count(len(orphans), 'kind')} of waiting jobs: {listed(names, 5)}.",
        "Deploy a worker that registers them, or cancel the jobs: manage.py awa job cancel --kind ...",
    )


def storage(patient: Patient) -> Iterator[Said]:
    """Whether a move to queue storage goes on."""
    patient.at.cursor.execute(statement("control/storage", "report"), {})
    row = patient.at.cursor.fetchone()
    if row is None:
        yield Said(
            Level.ERROR,
            "awa.storage_transition_state has no row, so nobody can tell which storage is in force.",
            "Restore it from a backup.",
        )
        return
    found = dict(zip((column[0] for column in patient.at.cursor.description or ()), row, strict=True))
    state, backlog = found["state"], found["backlog"]
    routing = patient.at.planes[0].name
    if routing == "queue_storage" and backlog:
        draining = [each for each in patient.working if serves(each, "canonical", routing)]
        jobs = f"{count(backlog, 'canonical job')} {'is' if backlog == 1 else 'are'} not finished"
        if draining:
            yield Said(
                Level.OK,
                f"The move to queue storage is {state.replace('_', ' ')}: {jobs}, and workers drain them.",
            )
        else:
            yield Said(
                Level.ERROR,
                f"New jobs go to queue storage, {jobs}, and nobody drains them.",
                "Start `manage.py awa_worker --role canonical_drain`; see `manage.py awa storage status`.",
            )
    elif state == "active":
        yield Said(Level.OK, "Queue storage is in force.")
    elif state == "mixed_transition":
        yield Said(
            Level.WARNING,
            "Every canonical job is finished, but the move to queue storage is not ended.",
            "manage.py awa storage finalize",
        )
    else:
        yield Said(
            Level.OK,
            "The canonical tables are in force"
            + (", and queue storage is prepared." if state == "prepared" else ".")
            + " Queue storage is faster: docs/storage.md.",
        )
