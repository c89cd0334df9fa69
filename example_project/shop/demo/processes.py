"""Django commands of this project as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


def start(
    *arguments: str, output: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``manage.py`` with some arguments; ``environment`` adds to that of this process.

    In a session of its own: Ctrl-C in the terminal reaches only the caller, who then asks each process to
    stop, once. A worker that is asked twice stops at once and hands its jobs back.
    """
    return subprocess.Popen(
        [sys.executable, str(MANAGE), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        # runserver's advice about production is for sites that others reach.
        env={**os.environ, "DJANGO_RUNSERVER_HIDE_WARNING": "true", **(environment or {})},
        start_new_session=True,
    )


@contextmanager
def undisturbed(*signals: signal.Signals) -> Iterator[None]:
    """A block that signals do not break off; those that came meanwhile are delivered at its end.

    Start processes inside it, and note them there: one that was started and never noted would run on for ever.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def wait(process: subprocess.Popen[bytes], patience: float) -> int:
    """The exit code of a process that was asked to end; after ``patience`` seconds it is killed."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
