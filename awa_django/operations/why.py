"""Why a job is not running: the one reason that counts now, and what can be done about it.

The reasons are asked in the order in which they would keep a worker from the job, so the first that applies is the
answer. What workers say about themselves is up to one of their snapshot intervals old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from awa_django.conf import get_settings
from awa_django.errors import JobNotFound
from awa_django.jobs import UNKNOWN_KIND_KEY
from awa_django.operations.activity import activity
from awa_django.operations.case import (
    Case,
    Why,
    WhyReason,
    absent,
    case_of,
    claims,
    free_slots,
    is_ours,
    rate_limit,
)
from awa_django.operations.desk import Desk, one_look
from awa_django.operations.reading import JobRecord, load_job
from awa_django.operations.runtimes import Runtime
from awa_django.operations.words import count, last_error, listed, moment, span, word
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = ["Why", "WhyReason", "why"]

#: Jobs ahead that are counted; as many or more are "at least" this many.
COUNT_UP_TO = 10_000
#: Minutes from which the speed of a queue is estimated.
RECENT_MINUTES = 10
#: A due job that nobody made available for so long says that nobody looks.
PROMOTION_GRACE = timedelta(seconds=10)


def why(job_id: int, *, using: str | None = None) -> Why:
    """Why the job with this id is not running; takes no locks. Raises ``JobNotFound``.

    Reads small tables and the job's lane up to ten thousand jobs ahead of it.
    """
    with one_look(using) as at:
        try:
            record = load_job(job_id, using=using)
        except JobNotFound as error:
            raise absent(at, job_id) from error
        if record.dead_letter is not None or record.job.state.is_terminal:
            return _ended(record)
        case = case_of(at, record, using)
        match record.job.state:
            case JobState.SCHEDULED | JobState.RETRYABLE:
                return _deferred(case)
            case JobState.RUNNING:
                return _running(case)
            case JobState.WAITING_EXTERNAL:
                return _parked(case)
        return _blocked(case) or _queued(at, case, using)


# Ends


def _ended(record: JobRecord) -> Why:
    job, dead = record.job, record.dead_letter
    error = last_error(record.job)
    facts = {
        "plane": record.plane,
        "state": job.state.value,
        "finalized_at": job.finalized_at,
        "last_error": error,
    }
    if dead is not None:
        reason = f" ({dead.reason})" if dead.reason else ""
        return Why(
            record,
            WhyReason.DEAD_LETTERED,
            f"It failed and became a dead letter at {moment(dead.at)}{reason}{_because(error)}.",
            f"Have it run again with `manage.py awa dlq retry {job.id}`.",
            {**facts, "dlq_reason": dead.reason, "dlq_at": dead.at},
        )
    ended = f"It {_ENDS[job.state]} at {moment(job.finalized_at)}"
    if job.state is JobState.COMPLETED:
        return Why(record, WhyReason.FINISHED, f"{ended}.", "", facts)
    tries = f" in attempt {job.attempt} of {job.max_attempts}" if job.state is JobState.FAILED else ""
    return Why(
        record,
        WhyReason.FINISHED,
        f"{ended}{tries}{_because(error)}.",
        f"Have it run again with `manage.py awa job retry {job.id}`.",
        facts,
    )


_ENDS = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}


# Waiting for a time


def _deferred(case: Case) -> Why:
    record, job = case.record, case.record.job
    mark = job.metadata.get(UNKNOWN_KIND_KEY)
    error = last_error(record.job)
    facts: dict[str, Any] = {"run_at": job.run_at, "attempt": job.attempt, "max_attempts": job.max_attempts}
    if job.run_at > case.now:
        if job.state is JobState.SCHEDULED and isinstance(mark, Mapping):
            return _unknown(case, mark, facts)
        due = f"at {moment(job.run_at)}, in {span(job.run_at - case.now)}"
        hurry = f"Have it run at once with `manage.py awa job run {job.id}`."
        if case.paused:
            due += f"; queue {job.queue} is paused besides"
            hurry = f"Let the queue work again with `manage.py awa queue resume {word(job.queue)}`."
        if job.state is JobState.RETRYABLE:
            return case.answer(
                WhyReason.RETRYING,
                f"Attempt {job.attempt} of {job.max_attempts} failed{_because(error)}; the next one is due {due}.",
                hurry,
                last_error=error,
                **facts,
            )
        return case.answer(WhyReason.NOT_DUE, f"It is not due before {due[3:]}.", hurry, **facts)
    if case.paused and record.plane == "queue_storage":
        return _paused(case)
    since = case.now - job.run_at
    if not case.leads:
        return case.answer(
            WhyReason.NOT_PROMOTED,
            f"It has been due for {span(since)}, but no worker leads, so nobody makes due jobs available.",
            "Start a worker, without --no-maintenance, on a connection that no pooler shares.",
            leader=False,
            **facts,
        )
    late = since > PROMOTION_GRACE
    return case.answer(
        WhyReason.NOT_PROMOTED,
        f"It has been due for {span(since)}; the leader makes due jobs available"
        + (", but has not come to this one." if late else " within a second."),
        "`manage.py awa doctor` looks for what holds the leader up." if late else "",
        leader=True,
        **facts,
    )


def _unknown(case: Case, mark: Mapping[str, Any], facts: Mapping[str, Any]) -> Why:
    job = case.record.job
    times, since = mark.get("times"), _marked(mark.get("since"))
    known = [runtime for runtime, _ in case.serving if job.kind in runtime.kinds]
    back = f"It is put off until {moment(job.run_at)}, in {span(job.run_at - case.now)}"
    counted = f" {times} times" if isinstance(times, int) and times > 1 else ""
    return case.answer(
        WhyReason.UNKNOWN_KIND,
        f"Workers that do not know kind {job.kind!r} handed it back{counted} since {moment(since)}. {back}.",
        f"A worker knows the kind now; `manage.py awa job run {job.id}` has it run at once."
        if known
        else f"Deploy a worker that registers kind {job.kind!r}; see `manage.py awa kinds`.",
        since=since,
        times=times,
        known_by=[runtime.name for runtime in known],
        **facts,
    )


def _marked(text: Any) -> datetime | None:
    """The time of a mark, which another release may have written otherwise."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


# Waiting for a worker


def _paused(case: Case) -> Why:
    job = case.record.job
    by = f" by {case.paused_by}" if case.paused_by else ""
    besides = "" if case.serving else " No live worker serves it besides."
    since = (
        f" since {moment(case.paused_at)}, for {span(case.now - case.paused_at)}" if case.paused_at else ""
    )
    return case.answer(
        WhyReason.PAUSED,
        f"Queue {job.queue} is paused{by}{since}.{besides}",
        f"Let it work again with `manage.py awa queue resume {word(job.queue)}`.",
        queue=job.queue,
        paused_by=case.paused_by,
        paused_at=case.paused_at,
    )


def _blocked(case: Case) -> Why | None:
    """What keeps every worker from an available job, whatever else waits."""
    job = case.record.job
    if case.paused:
        return _paused(case)
    if not case.serving:
        return _unserved(case)
    if not any(claims(runtime) for runtime, _ in case.serving):
        unwell = [runtime for runtime, _ in case.serving]
        said = "; ".join(f"{each.name} {' and '.join(each.troubles)}" for each in unwell[:3])
        return case.answer(
            WhyReason.NO_WORKER_FOR_QUEUE,
            f"No worker of queue {job.queue} looks for jobs: {said}.",
            "Look at its log, and start it again."
            if len(unwell) == 1
            else "Look at their logs, and start them again.",
            queue=job.queue,
            live_workers=len(unwell),
            unwell=[each.name for each in unwell],
        )
    if not any(job.kind in runtime.kinds for runtime, _ in case.serving):
        names = listed([runtime.name for runtime, _ in case.serving])
        able = [runtime for runtime in case.others if job.kind in runtime.kinds]
        elsewhere = [runtime.name for runtime in able]
        there = next((queue.queue for runtime in able for queue in runtime.queues), None)
        foreign = [runtime.name for runtime, _ in case.serving if not is_ours(runtime)]
        fate = (
            f"fails it for good if it is {listed(foreign)}, and else puts it off"
            if foreign
            else "puts it off"
        )
        if foreign:
            until = f"Until then `manage.py awa queue pause {word(job.queue)}` keeps it."
        else:
            until = "See `manage.py awa kinds`."
        return case.answer(
            WhyReason.NO_WORKER_FOR_KIND,
            f"No live worker of queue {job.queue} ({names}) knows kind {job.kind!r}; whoever claims it {fate}.",
            f"Workers of other queues know the kind ({listed(elsewhere)}): `manage.py awa job move --to {word(there)} "
            f"{job.id}`, or have one of them serve {job.queue}."
            if there is not None
            else f"Deploy a worker that registers kind {job.kind!r}. {until}",
            kind=job.kind,
            workers=[runtime.name for runtime, _ in case.serving],
            known_by=elsewhere,
        )
    knowing = [(runtime, queue) for runtime, queue in case.serving if job.kind in runtime.kinds]
    slots = [(free_slots(runtime, queue), runtime, queue) for runtime, queue in knowing]
    if any(free is None or free > 0 for free, _, _ in slots):
        return None
    running = sum(queue.in_flight for _, _, queue in slots)
    number = len(slots)
    idle = not running and all(queue.config.get("max_workers") == 0 for _, _, queue in slots)
    return case.answer(
        WhyReason.AT_CAPACITY,
        f"The workers of queue {job.queue} claim nothing: their max_workers is 0."
        if idle
        else f"{'The worker' if number == 1 else f'All {number} workers'} of queue {job.queue} "
        f"{'has' if number == 1 else 'have'} no free slot: {running} of its jobs run.{case.doubt}",
        "Give the queue max_workers above 0."
        if idle
        else "Wait, start another worker, or raise max_workers (GLOBAL_MAX_WORKERS where queues share slots).",
        in_flight=running,
        workers=[runtime.name for _, runtime, _ in slots],
    )


def _unserved(case: Case) -> Why:
    record, job = case.record, case.record.job
    facts = {"queue": job.queue, "silent": [runtime.name for runtime in case.silent]}
    if record.plane != case.routing:
        here, there = record.plane.replace("_", " "), case.routing.replace("_", " ")
        role = "canonical_drain" if record.plane == "canonical" else "queue_storage_target"
        return case.answer(
            WhyReason.STORAGE_TRANSITION,
            f"It lies in {here}, while new jobs go to {there}, and no live worker of queue {job.queue} drains {here}.",
            f"Start `manage.py awa_worker --queue {word(job.queue)} --role {role}` until "
            "`manage.py awa storage status` says that nothing is left.",
            routing=case.routing,
            **facts,
        )
    served = sorted({queue.queue for runtime in case.others for queue in runtime.queues})
    lost = ""
    if case.leaving:
        left = listed([runtime.name for runtime, _ in case.leaving])
        lost = f" ({left}, which did, {'is' if len(case.leaving) == 1 else 'are'} shutting down)"
    elif case.silent:
        lost = f" ({case.silent[0].name} did until {moment(case.silent[0].last_seen_at)})"
    if not case.others:
        return case.answer(
            WhyReason.NO_WORKER_FOR_QUEUE,
            f"No worker is running{lost}.",
            f"Start one: `manage.py awa_worker --queue {word(job.queue)}`.",
            live_workers=0,
            **facts,
        )
    return case.answer(
        WhyReason.NO_WORKER_FOR_QUEUE,
        f"No live worker serves queue {job.queue}{lost}; those there are serve {listed(served, 5) or 'none'}.",
        f"Start one: `manage.py awa_worker --queue {word(job.queue)}`, or add it to AWA['QUEUES'].",
        live_workers=len(case.others),
        served=served,
        **facts,
    )


def _queued(at: Desk, case: Case, using: str | None) -> Why:
    """An available job that workers could take: how far from the front it is."""
    record, job = case.record, case.record.job
    config = case.serving[0][1].config
    aging = config.get("priority_aging_interval_secs")
    at.cursor.execute(
        statement(f"{record.plane}/diagnosis", "ahead"),
        {
            "job_id": job.id,
            "aging": float(aging) if isinstance(aging, int | float) else 60.0,
            "count_up_to": COUNT_UP_TO,
        },
        prepare=False,
    )
    (ahead,) = at.cursor.fetchone() or (0,)
    waited = max(case.now - job.run_at, timedelta(0))
    rate = _recent_rate(job.queue, using)
    limits = [rate_limit(queue) for _, queue in case.serving]
    rates = [limit for limit in limits if limit is not None]
    limited = sum(rates) if len(rates) == len(limits) else None
    facts = {
        "ahead": ahead,
        "waited_seconds": waited.total_seconds(),
        "jobs_per_second": rate,
        "max_rate": limited,
    }
    least = "at least " if ahead >= COUNT_UP_TO else ""
    many = f"{least}{count(ahead, 'job')}"
    if not ahead and limited is not None and limited < 1:
        return case.answer(
            WhyReason.RATE_LIMITED,
            f"It is the next of queue {job.queue}, of which workers start one in "
            f"{span(timedelta(seconds=1 / limited))} at most.",
            "Raise the queue's rate_limit.",
            **facts,
        )
    if ahead and limited is not None:
        return case.answer(
            WhyReason.RATE_LIMITED,
            f"Workers start {limited:g} jobs of queue {job.queue} a second at most, and {many} come first: about "
            f"{span(timedelta(seconds=ahead / limited))}.",
            "Raise the queue's rate_limit, or the job's priority with `manage.py awa job priority`.",
            **facts,
        )
    if ahead:
        guess = f": about {least}{span(timedelta(seconds=ahead / rate))} at the present speed" if rate else ""
        return case.answer(
            WhyReason.BEHIND_OTHERS,
            f"{many[:1].upper()}{many[1:]} of queue {job.queue} come first{guess}.",
            "Start more workers, or raise the job's priority with `manage.py awa job priority`.",
            **facts,
        )
    stuck = waited > timedelta(seconds=30)
    return case.answer(
        WhyReason.NEXT,
        f"It is the next of queue {job.queue}: a worker has a free slot and claims it any moment"
        + (f", though it has waited for {span(waited)}." if stuck else ".")
        + case.doubt,
        "Ask again; if it stays, somebody's open transaction may hold its lane, or the worker hangs: "
        "`manage.py awa doctor`."
        if stuck
        else "",
        **facts,
    )


def _recent_rate(queue: str, using: str | None) -> float | None:
    """Jobs of a queue that ended in a second lately; None if none did."""
    minutes = activity(RECENT_MINUTES, queue=queue, using=using).minutes
    ended = sum(minute.completed + minute.failed + minute.cancelled for minute in minutes)
    return round(ended / (60 * len(minutes)), 3) if ended else None


# Taken


def _running(case: Case) -> Why:
    record, job = case.record, case.record.job
    settings = get_settings()
    seen = max(filter(None, (record.heartbeat_at, job.attempted_at)), default=None)
    holders = [runtime for runtime, queue in (*case.serving, *case.leaving) if queue.in_flight]
    facts: dict[str, Any] = {
        "attempt": job.attempt,
        "run_lease": job.run_lease,
        "attempted_at": job.attempted_at,
        "heartbeat_at": record.heartbeat_at,
        "deadline_at": job.deadline_at,
        "workers": [runtime.name for runtime in holders],
    }
    taken = f"Attempt {job.attempt} of {job.max_attempts}"
    if job.attempted_at:
        taken += f" was claimed {span(case.now - job.attempted_at)} ago"
    nobody = "" if case.leads else " No worker leads, so nobody will: start one."
    if job.deadline_at is not None and job.deadline_at < case.now:
        return case.answer(
            WhyReason.PAST_DEADLINE,
            f"{taken} and is {span(case.now - job.deadline_at)} past its deadline; the leader takes it away within "
            f"{span(settings.rescue_interval)}.{nobody}",
            "" if case.leads else "Start a worker that may lead.",
            **facts,
        )
    silence = None if seen is None else case.now - seen
    if silence is not None and silence > settings.stale_after:
        lost = (
            f" {case.silent[0].name} is silent since {moment(case.silent[0].last_seen_at)}."
            if case.silent
            else ""
        )
        return case.answer(
            WhyReason.STALE,
            f"{taken}, and its worker has given no sign of life for {span(silence)}; the leader takes it away within "
            f"{span(settings.rescue_interval)} and it runs again.{lost}{nobody}",
            "Look at the log of the worker that held it." if case.leads else "Start a worker that may lead.",
            silent=[runtime.name for runtime in case.silent],
            **facts,
        )
    held = _holder(case, holders)
    if silence is None or record.heartbeat_at is None:
        sign = f"no heartbeat is due before {span(settings.heartbeat_interval)}"
    else:
        sign = f"the last sign of life is {span(silence)} old"
    rescue = ""
    if not holders and seen is not None:
        rescue = (
            f" If that worker is gone, the job is taken away {span(settings.stale_after)} after its last sign of "
            f"life, about {moment(seen + settings.stale_after)}."
        )
    return case.answer(
        WhyReason.RUNNING,
        f"It is running: {taken[0].lower()}{taken[1:]}, {held}; {sign}.{rescue}",
        f"Have it stop with `manage.py awa job cancel {job.id}`.",
        **facts,
    )


def _holder(case: Case, holders: Sequence[Runtime]) -> str:
    """Who may hold a running job: attempts do not say, but workers say what they run."""
    queue = case.record.job.queue
    match [
        runtime.name + (", which is shutting down" if runtime.shutting_down else "") for runtime in holders
    ]:
        case []:
            return f"though no live worker says that it runs jobs of queue {queue}"
        case [only]:
            return f"by {only}"
        case names:
            return f"by one of {listed(names)}"


def _parked(case: Case) -> Why:
    record, job = case.record, case.record.job
    callback = record.callback
    if callback is None or callback.id is None:
        return case.answer(
            WhyReason.WAITING_FOR_CALLBACK,
            "It waits for a callback, but no callback is stored with it, so no answer can arrive.",
            f"Have it run again with `manage.py awa job retry {job.id}`.",
            callback_id=None,
        )
    facts = {"callback_id": str(callback.id), "callback_timeout_at": callback.timeout_at}
    if callback.timeout_at is None:
        until = "for as long as it takes"
    elif callback.timeout_at > case.now:
        until = f"until {moment(callback.timeout_at)}, in {span(callback.timeout_at - case.now)}"
    else:
        nobody = "" if case.leads else ", but no worker leads"
        return case.answer(
            WhyReason.WAITING_FOR_CALLBACK,
            f"Callback {callback.id} did not come in time: its time was up {span(case.now - callback.timeout_at)} ago. "
            f"The leader takes the job away within {span(get_settings().rescue_interval)}{nobody}.",
            "" if case.leads else "Start a worker that may lead.",
            overdue=True,
            **facts,
        )
    return case.answer(
        WhyReason.WAITING_FOR_CALLBACK,
        f"It waits for callback {callback.id}, {until}.",
        "Answer it with `manage.py awa callback complete`, `fail` or `retry`.",
        overdue=False,
        **facts,
    )


# Words


def _because(error: str | None) -> str:
    if not error:
        return ""
    first = error.strip().splitlines()[0] if error.strip() else ""
    return f": {first[:200]}".rstrip(".")
