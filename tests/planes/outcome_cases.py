"""The recorded cases of ``vectors/outcomes.json``, played on a plane: enqueue, claim, act as the handler did, settle.

What a handler does between its claim and its end is a list of operations. Those that concern a plane are carried out
here; a case with any other, such as a callback, is for the tests of a whole worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from awa_django.jobs import Attempt, JobInsert
from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    OperatorCancel,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
)
from awa_django.planes.base import Due, Ids
from awa_django.states import JobState
from awa_django.transitions import land_one, promote
from tests.planes.world import World
from tests.vectors import load

QUEUE = "cases"
#: The deadline that the recording worker's queues had.
DEADLINE = timedelta(seconds=300)
RECORDED = load("outcomes")

_PLAYABLE = {
    "set_progress", "update_metadata", "flush", "admin_cancel", "sleep", "if_attempt", "if_run", "return", "raise",
}  # fmt: skip
_RAISED = {
    "exception": ("ValueError", Failed),
    "terminal": ("TerminalError", Terminal),
    "cancelled_error": ("CancelledError", Failed),
}


def is_playable(case: Mapping[str, Any]) -> bool:
    """Whether everything that the handler of a case does can be done to a plane."""

    def known(operations: Sequence[Mapping[str, Any]]) -> bool:
        return all(
            step["op"] in _PLAYABLE
            and known(step.get("then", ()))
            and step.get("outcome") != "wait_for_callback"
            for step in operations
        )

    # The merging of progress is the job context's, whatever the plane.
    return known(case["handler"]) and case["id"] != "progress_merge"


def playable_cases() -> list[dict[str, Any]]:
    """The cases that :func:`play` can play."""
    return [case for case in RECORDED["cases"] if is_playable(case)]


def expected(case: Mapping[str, Any], plane: str) -> dict[str, Any]:
    """What a case leaves on a plane (``canonical`` or ``queue``), with the decisions of this product."""
    return {**case["expect"][plane], **case.get("product", {}).get(plane, {})}


@dataclass
class _Run:
    """One execution of a handler."""

    world: World
    attempt: Attempt
    number: int
    progress: dict[str, Any] | None = None
    outcome: Outcome = field(default_factory=Completed)

    def perform(self, operations: Sequence[Mapping[str, Any]]) -> bool:
        """Carry operations out; True once the handler has ended."""
        for step in operations:
            match step["op"]:
                case "set_progress":
                    self.progress = {"percent": min(step["percent"], 100)} | (
                        {} if step["message"] is None else {"message": step["message"]}
                    )
                case "update_metadata":
                    self.progress = {**(self.progress or {}), "metadata": step["updates"]}
                case "flush":
                    self.world.beat(self.attempt, self.progress)
                case "admin_cancel":
                    cancel(self.world, self.attempt.job_id)
                case "if_attempt" if self.attempt.attempt == step["attempt"]:
                    if self.perform(step["then"]):
                        return True
                case "if_run" if self.number == step["run"]:
                    if self.perform(step["then"]):
                        return True
                case "return":
                    self.outcome = _returned(step)
                    return True
                case "raise":
                    name, outcome = _RAISED[step["error"]]
                    self.outcome = outcome(f"{name}: {step['message']}\nTraceback ...")
                    return True
        return False


def _returned(step: Mapping[str, Any]) -> Outcome:
    match step["outcome"]:
        case "retry_after":
            return RetryAfter(step["seconds"])
        case "snooze":
            return Snooze(step["seconds"])
        case "cancel":
            return Cancel(step["reason"])
    return Completed()


def cancel(world: World, job_id: int) -> None:
    """What an operator's cancel does to a job that has not finished."""

    def work(cursor: Any) -> None:
        taken = world.plane.take(cursor, Ids([job_id], list(JobState)))
        world.plane.place(cursor, [land_one(job, OperatorCancel()) for job in taken])

    world.within(work)


def promote_due(world: World) -> int:
    """Make deferred jobs available whose time has come; returns how many."""

    def work(cursor: Any) -> int:
        taken = [
            job
            for state in (JobState.SCHEDULED, JobState.RETRYABLE)
            for job in world.plane.take(cursor, Due(state))
        ]
        return len(world.plane.place(cursor, [promote(job) for job in taken]))

    return world.within(work)


def play(world: World, case: Mapping[str, Any], *, deferred: str) -> int:
    """Play a case as long as the recording observed it, waits cut short; returns the job's id.

    ``deferred`` is the table in which jobs of the plane wait for their time.
    """
    spec = {"kind": "k", "args": {}, **case.get("job", {})}
    world.enqueue(
        JobInsert(
            **{**spec, "queue": QUEUE, "kind": case.get("kind", "k"), "tags": tuple(spec.get("tags", ()))}
        )
    )
    millis = case.get("queue_config", {}).get("deadline_duration_ms")
    deadline = DEADLINE if millis is None else timedelta(milliseconds=millis)
    left = float(case["settle_s"])
    number, job_id = 0, None
    while attempts := world.claim(QUEUE, 1, deadline=deadline):
        (attempt,) = attempts
        number, job_id = number + 1, attempt.job_id
        run = _Run(world, attempt, number)
        if "kind" in case:
            run.outcome = Terminal(f"unknown job kind: {case['kind']}")
        elif spec.get("args"):
            run.outcome = Terminal("TypeError: unexpected argument")
        else:
            run.perform(case["handler"])
        world.end([attempt], run.outcome, progress=run.progress)
        # From the end on, where it is stored: until it is looked at, any time may pass.
        for wait in world.rows(
            "SELECT extract(epoch FROM run_at - coalesce(finalized_at, now()))::float AS seconds"
            f" FROM awa.{deferred}"
        ):
            if wait["seconds"] <= left:
                left -= max(wait["seconds"], 0)
                world.run(f"UPDATE awa.{deferred} SET run_at = now()")
        promote_due(world)
    assert job_id is not None, "nothing was claimed"
    return job_id


def differences(row: Mapping[str, Any], expect: Mapping[str, Any]) -> list[str]:
    """In what a stored job differs from what is expected; ``row`` has the columns of the job tables."""
    found = []
    for key, wanted in expect.items():
        match key:
            case "errors":
                agrees = _errors_agree(row["errors"] or [], wanted)
                value = row["errors"]
            case "run_at_minus_finalized_at":
                value = (row["run_at"] - row["finalized_at"]).total_seconds()
                low, high = wanted if isinstance(wanted, list) else (wanted - 0.01, wanted + 0.01)
                agrees = low <= value <= high
            case "callback":
                value = row["callback_id"]
                agrees = (value is not None) is wanted
            case _:
                value = row[key]
                agrees = value is not None if wanted == "set" else value == wanted
        if not agrees:
            found.append(f"{key}: {value!r}, not {wanted!r}")
    return found


def _errors_agree(errors: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    return len(errors) == len(wanted) and all(
        entry["attempt"] == expect["attempt"]
        and entry.get("terminal") == expect.get("terminal")
        and "at" in entry
        and (
            entry["error"] == expect["error"]
            if "error" in expect
            else entry["error"].startswith(expect["error_starts"])
        )
        for entry, expect in zip(errors, wanted, strict=True)
    )
