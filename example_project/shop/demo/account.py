"""What a run of the demo should come to, beside what the database says; values only, no database."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

WIDTH = 79


@dataclass(frozen=True)
class Line:
    """Jobs of one kind that ended in one state with one number of attempts."""

    kind: str
    state: str
    attempts: int


#: How the jobs of each line go, for the reader.
STORY = {
    Line("send_receipt", "completed", 1): "enqueued by a model signal",
    Line("charge_card", "completed", 2): "raised once, then worked",
    Line("add_loyalty_points", "completed", 2): "asked for a retry in 0.5 s",
    Line("track_parcel", "completed", 1): "snoozed; that costs no try",
    Line("notify_warehouse", "completed", 1): "an async handler",
    Line("ask_for_review", "completed", 1): "scheduled 4 s ahead",
    Line("rebuild_sales_report", "completed", 1): "unique: enqueued twice",
    Line("send_newsletter", "completed", 1): "enqueued in bulk",
    Line("call_customer", "cancelled", 1): "cancelled by its handler",
    Line("export_to_supplier", "failed", 1): "failed for good at once",
    Line("print_label", "failed", 2): "failed in its last try",
    Line("take_payment", "completed", 1): "waited for the bank's call",
    Line("take_payment", "failed", 1): "the bank declined it",
    Line("ship_order", "completed", 1): "a follow-up of the payment",
    Line("book_pickup", "completed", 1): "a dead letter, redriven",
    Line("dress_window", "completed", 1): "cron, every 2 s",
}
#: The job that is not there before the bank has called.
FOLLOW_UP = Line("ship_order", "completed", 1)
#: A tick of the schedule, which knows nothing of the run; there may be any number of them.
TICK = Line("dress_window", "completed", 1)
#: What the bank and somebody else tell the shop, and the status that each call should be answered with.
CALLS = {
    "somebody else says that the money came": 401,
    "the bank says that the money came": 204,
    "the bank says so once more": 404,
    "the bank declines the other transfer": 204,
}


@dataclass(frozen=True)
class Check:
    """One thing that must hold after the run."""

    what: str
    expected: int | bool
    found: int | bool

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.expected == self.found


@dataclass(frozen=True)
class Account:
    """What was found: jobs by line with the first line of their last error, and everything else."""

    jobs: dict[Line, tuple[int, str | None]]
    expected_jobs: Counter[Line]
    checks: list[Check]

    @property
    def differences(self) -> list[str]:
        """What is not as expected, a line for each; empty when all is well."""
        faults = []
        for line in sorted({*self.jobs, *self.expected_jobs}, key=str):
            found = self.jobs.get(line, (0, None))[0]
            if found != self.expected_jobs[line]:
                faults.append(
                    f"{line.kind}, {line.state} after {line.attempts}: "
                    f"{self.expected_jobs[line]} expected, {found} found"
                )
        faults.extend(
            f"{check.what}: {_shown(check.expected)} expected, {_shown(check.found)} found"
            for check in self.checks
            if not check.holds
        )
        return faults

    def table(self) -> list[str]:
        """The account as lines of at most 79 characters."""
        rule = "  " + "-" * (WIDTH - 2)
        lines = [f"  {'job':<21}{'ended as':<11}{'jobs':>5}{'tries':>7}   how it went", rule]
        known = [line for line in STORY if line in self.jobs or self.expected_jobs[line]]
        for line in known + [line for line in self.jobs if line not in STORY]:
            count, _ = self.jobs.get(line, (0, None))
            mark = "ok" if count == self.expected_jobs[line] else "!!"
            story = STORY.get(line, "not expected")
            lines.append(
                f"  {line.kind:<21}{line.state:<11}{count:>5}{line.attempts:>7}   {story:<28}{mark:>2}"
            )
        lines += ["", f"  {'what became of the orders':<54}{'expected':>9}{'found':>9}", rule]
        lines.extend(
            f"  {check.what:<54}{_shown(check.expected):>9}{_shown(check.found):>9}"
            f"{'ok' if check.holds else '!!':>5}"
            for check in self.checks
        )
        return lines

    def errors(self) -> list[str]:
        """What the failed and the cancelled jobs say about it, in lines of at most 79 characters."""
        return [
            f"  {line.kind}: {error}"[:WIDTH]
            for line, (_, error) in self.jobs.items()
            if error and line.state in ("failed", "cancelled")
        ]


def _shown(value: int | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
