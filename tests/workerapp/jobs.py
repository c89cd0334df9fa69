"""Handlers for tests of real workers. Each run is noted in table ``probe``, outside any transaction of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, transaction

from awa_django import Cancel, Job, JobContext, RetryAfter, Snooze, TerminalError, job
from awa_django.jobs import JobInsert

PROBE = "INSERT INTO probe (label, job_id, attempt, pid) VALUES (%s, %s, %s, %s)"


def note(ctx: JobContext, label: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(PROBE, [label, ctx.job.id, ctx.attempt, os.getpid()])


@job
def noop(ctx: JobContext, n: int = 0) -> None:
    note(ctx, "noop")


@job
async def async_noop(ctx: JobContext, n: int = 0) -> None:
    await asyncio.sleep(0)
    await sync_to_async(note)(ctx, "async_noop")


@job
def sleeper(ctx: JobContext, seconds: float, stubborn: bool = False) -> None:
    note(ctx, "sleeper")
    until = time.monotonic() + seconds
    while time.monotonic() < until and (stubborn or not ctx.is_cancelled()):
        time.sleep(0.02)


@job
def stepping(ctx: JobContext, left: int) -> None:
    time.sleep(0.05)


@stepping.on_completed
def next_step(done: Job) -> JobInsert | None:
    left = done.args["left"]
    return stepping.request(left=left - 1) if left else None


@job
def slowly_failing(ctx: JobContext) -> None:
    time.sleep(0.05)
    raise ValueError("again")


@job
def flaky(ctx: JobContext, failures: int) -> None:
    note(ctx, "flaky")
    if ctx.attempt <= failures:
        raise RuntimeError(f"failure {ctx.attempt}")


@job
def hopeless(ctx: JobContext) -> None:
    note(ctx, "hopeless")
    raise TerminalError("there is no way")


@job(max_attempts=2)
def exhausting(ctx: JobContext) -> None:
    note(ctx, "exhausting")
    raise ValueError("every time")


@job
def cancelling(ctx: JobContext) -> Cancel:
    note(ctx, "cancelling")
    return Cancel("no longer wanted")


@job
def snoozing(ctx: JobContext, times: int) -> Snooze | None:
    note(ctx, "snoozing")
    progress = ctx.progress or {}
    done = int(progress.get("metadata", {}).get("snoozes", 0))
    if done < times:
        ctx.update_metadata({"snoozes": done + 1})
        return Snooze(0.1)
    return None


@job(max_attempts=4)
def juggling(ctx: JobContext, snoozes: int, failures: int) -> Snooze | None:
    """Snoozes first, then fails, then succeeds."""
    note(ctx, "juggling")
    done = (ctx.progress or {}).get("metadata", {})
    if done.get("snoozes", 0) < snoozes:
        ctx.update_metadata({"snoozes": done.get("snoozes", 0) + 1})
        return Snooze(0)
    if ctx.attempt <= failures:
        raise RuntimeError(f"failure {ctx.attempt}")
    return None


@job
def insisting(ctx: JobContext) -> RetryAfter:
    note(ctx, "insisting")
    return RetryAfter(0)


@job
def progressing(ctx: JobContext) -> None:
    """Notes what it finds of the attempt before, and leaves something when it fails."""
    note(ctx, json.dumps(ctx.progress, sort_keys=True))
    if ctx.attempt == 1:
        ctx.set_progress(30, "under way")
        ctx.update_metadata({"page": 7})
        raise RuntimeError("interrupted")


@job
def beating(ctx: JobContext, seconds: float) -> None:
    """Sets progress without storing it, and goes on."""
    note(ctx, "beating")
    ctx.set_progress(50)
    time.sleep(seconds)


@job
def spell(ctx: JobContext, seconds: float) -> None:
    note(ctx, "start")
    time.sleep(seconds)
    note(ctx, "end")


@job
def echo(ctx: JobContext, **args: Any) -> None:
    """Notes its arguments."""
    note(ctx, json.dumps(args, sort_keys=True))


@job
def quitter(ctx: JobContext, seconds: float) -> None:
    """Gives up for good when it is told to stop."""
    note(ctx, "quitter")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ctx.is_cancelled():
            raise TerminalError("interrupted")
        time.sleep(0.02)


@job
def slow_at_first(ctx: JobContext, seconds: float) -> None:
    """Waits in its first attempt, unless it is told to stop."""
    note(ctx, "slow_at_first")
    until = time.monotonic() + (seconds if ctx.attempt == 1 else 0)
    while time.monotonic() < until:
        if ctx.is_cancelled():
            note(ctx, "told to stop")
            return
        time.sleep(0.02)


@job
def later(ctx: JobContext) -> RetryAfter | None:
    note(ctx, "later")
    return RetryAfter(0.2) if ctx.attempt == 1 else None


@job
def leaving(ctx: JobContext) -> None:
    note(ctx, "leaving")
    raise SystemExit(3)


@job
def typed(ctx: JobContext, number: int) -> None:
    note(ctx, "typed")


@job
def dirty(ctx: JobContext) -> None:
    """Returns inside a transaction."""
    note(ctx, "dirty")
    transaction.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute(PROBE, ["never committed", ctx.job.id, ctx.attempt, 0])


@job
def entering(ctx: JobContext) -> None:
    """Returns inside an atomic block."""
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute(PROBE, ["never committed", ctx.job.id, ctx.attempt, 0])


@job
def closing(ctx: JobContext) -> None:
    """Closes its connection."""
    note(ctx, "closing")
    connection.close()


@job
def breaking(ctx: JobContext) -> None:
    """Loses its connection to somebody else, and does not look after it."""
    note(ctx, "breaking")
    with connection.cursor() as cursor, contextlib.suppress(OperationalError):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@job(keep_result=True)
def boasting(ctx: JobContext, size: int) -> str:
    return "x" * size


@job
def cursed(ctx: JobContext) -> None:
    """Raises what cannot even be printed, with a character that no text of PostgreSQL holds."""

    class Curse(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    note(ctx, "cursed")
    raise Curse("a\0b" * 20_000)


@job
def mumbling(ctx: JobContext) -> None:
    note(ctx, "mumbling")
    raise ValueError("nul \0 and surrogate \udc80 " + "long " * 20_000)


@job(keep_result=True)
def answering(ctx: JobContext, n: int) -> dict[str, int]:
    return {"answer": n * 2}


@job(timeout=0.5)
def slow(ctx: JobContext) -> None:
    note(ctx, "slow")
    time.sleep(2)


@job(timeout=0.5)
async def async_slow(ctx: JobContext) -> None:
    await sync_to_async(note)(ctx, "async_slow")
    await asyncio.sleep(30)


@job(max_attempts=10)
def wandering(ctx: JobContext, n: int, snoozes: int = 0, retries: int = 0) -> Snooze | RetryAfter | None:
    """Comes back so often by a snooze, then by a RetryAfter. Notes its number when it is done."""
    done = int((ctx.progress or {}).get("metadata", {}).get("snoozes", 0))
    if done < snoozes:
        ctx.update_metadata({"snoozes": done + 1})
        return Snooze(0.3)
    if ctx.attempt <= retries:
        return RetryAfter(0.3)
    note(ctx, f"done {n}")
    return None
