"""Running handlers: what they may leave behind for each other, and what ends an attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import Queue
from typing import Any

import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.registry import JobKind
from awa_django.worker.attendant import Attendant
from awa_django.worker.executor import Executor, error_text, outcome_of_result
from awa_django.worker.flights import Flight

NOW = datetime(2026, 1, 1, tzinfo=UTC)
language: ContextVar[str] = ContextVar("language", default="none")


class NoDispatcher:
    def release(self) -> None:
        raise AssertionError("nothing here was handed back")


def flight(number: int, kind: str) -> Flight:
    attempt = Attempt(
        job_id=number, run_lease=1, kind=kind, queue="q", args={"n": number}, attempt=1, max_attempts=25,
        priority=2, lane_priority=2, ready_slot=0, ready_generation=0, lane_seq=number, enqueue_shard=0,
        claim_slot=0, receipt_id=number, batch_id=1, batch_index=number, run_at=NOW, deadline_at=None,
        attempted_at=None, created_at=NOW, unique_key=None, unique_states=None, payload=None,
    )  # fmt: skip
    return Flight(attempt, NoDispatcher())  # type: ignore[arg-type]


class Running:
    """An executor that knows one handler; runs of it, and their outcomes in the order they came."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.kind: JobKind[Any, Any] = JobKind(handler, kind="k")
        self.outcomes: Queue[tuple[int, Outcome]] = Queue()
        self.executor = Executor(
            {"k": self.kind}.get,
            finish=self.finish,
            unknown=lambda flight: Terminal("unknown"),
            attendant=Attendant(plane=None, connect=None, flush=lambda flight: None),  # type: ignore[arg-type]
            threads=4,
        )

    def finish(self, flight: Flight, outcome: Outcome, *, returned: bool = True) -> None:
        self.outcomes.put((flight.attempt.job_id, outcome))

    def run(self, count: int) -> dict[int, Outcome]:
        self.executor.submit([flight(number, "k") for number in range(1, count + 1)])
        return dict(self.outcomes.get(timeout=10) for _ in range(count))


@pytest.fixture
def running() -> Iterator[Callable[[Callable[..., Any]], Running]]:
    made: list[Running] = []

    def make(handler: Callable[..., Any]) -> Running:
        made.append(Running(handler))
        return made[-1]

    yield make
    for item in made:
        item.executor.close()


def test_a_handler_does_not_see_the_context_that_another_left(running: Callable[..., Running]) -> None:
    seen = []

    def handler(n: int) -> None:
        seen.append(language.get())
        language.set("de")

    running(handler).run(20)
    assert seen == ["none"] * 20


def test_a_coroutine_does_not_see_the_context_that_another_left(running: Callable[..., Running]) -> None:
    seen = []

    async def handler(n: int) -> None:
        seen.append(language.get())
        language.set("de")
        if n % 2:
            await asyncio.sleep(0)

    running(handler).run(20)
    assert seen == ["none"] * 20


def test_coroutines_that_wait_run_beside_each_other(running: Callable[..., Running]) -> None:
    together = asyncio.Barrier(30)

    async def handler(n: int) -> None:
        await together.wait()

    assert set(map(type, running(handler).run(30).values())) == {Completed}


def test_a_coroutine_that_cancels_its_task_ends_only_itself(running: Callable[..., Running]) -> None:
    async def handler(n: int) -> None:
        if n == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)

    outcomes = running(handler).run(4)
    assert {number: type(outcome) for number, outcome in outcomes.items()} == {
        1: Completed,
        2: Failed,
        3: Completed,
        4: Completed,
    }


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), ValueError("no")])
def test_no_exception_ends_a_thread(running: Callable[..., Running], error: BaseException) -> None:
    def handler(n: int) -> None:
        raise error

    outcomes = running(handler).run(10)
    assert all(isinstance(outcome, Failed) for outcome in outcomes.values())
    assert len(outcomes) == 10


def test_arguments_that_do_not_fit_are_final(running: Callable[..., Running]) -> None:
    def handler(other: int) -> None:
        raise AssertionError("not called")

    (outcome,) = running(handler).run(1).values()
    assert isinstance(outcome, Terminal)
    assert "other" in outcome.error


def test_a_thread_pool_runs_blocking_handlers_at_once(running: Callable[..., Running]) -> None:
    together = threading.Barrier(4)

    def handler(n: int) -> None:
        together.wait(5)

    assert set(map(type, running(handler).run(4).values())) == {Completed}


@pytest.mark.parametrize(
    ("result", "kept", "outcome"),
    [
        (None, False, Completed()),
        (7, False, Completed()),
        (7, True, Completed(7)),
        (Snooze(1), False, Snooze(1)),
        (RetryAfter(1), True, RetryAfter(1)),
        (Cancel("why"), False, Cancel("why")),
        (WaitForCallback("token"), True, WaitForCallback("token")),
    ],
)
def test_what_a_handler_returns(result: Any, kept: bool, outcome: Outcome) -> None:
    def handler() -> None: ...

    assert outcome_of_result(JobKind(handler, keep_result=kept), result) == outcome


def test_an_error_keeps_its_first_line_and_the_end_of_its_traceback() -> None:
    try:
        raise ValueError("x" * 50_000 + " the end")
    except ValueError as error:
        text = error_text(error)
    assert text.startswith("ValueError: xxx")
    assert text.endswith("the end")
    assert len(text.encode()) <= 32 * 1024


def test_an_error_that_cannot_be_printed_is_an_error_all_the_same() -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_text(Shy()).startswith("Shy: its message cannot be printed")
