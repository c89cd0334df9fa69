"""Several worker processes under one supervisor (design: ``--processes N``).

The children are started afresh, never forked: a forked child would share its parent's database sessions.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from django.utils.autoreload import get_child_arguments

from awa_django.worker.exit_codes import Exit
from awa_django.worker.health import HealthListener, readiness_of_children

__all__ = ["CHILD_VARIABLE", "HEALTH_VARIABLE", "Supervisor", "supervisor_is_gone"]

logger = logging.getLogger("awa_django.worker")

#: Set in a child's environment to its number; a child runs the jobs itself whatever ``--processes`` says.
CHILD_VARIABLE = "AWA_WORKER_CHILD"
#: And this to the process number of its supervisor.
SUPERVISOR_VARIABLE = "AWA_WORKER_SUPERVISOR"
#: And this to the path of the socket where the supervisor asks how it does, if anybody asks the supervisor.
HEALTH_VARIABLE = "AWA_WORKER_HEALTH_SOCKET"

#: Between two looks at the children.
WATCH_SECONDS = 0.2
#: A child that dies is started again after this, doubling; living longer than the second starts over.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
#: A child that ends with one of these is not started again: the next one would do the same.
_HOPELESS = (Exit.USAGE, Exit.UNREACHABLE)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def supervisor_is_gone() -> bool:
    """Whether this process is a child whose supervisor died without telling it."""
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    return supervisor is not None and supervisor != str(os.getppid())


class Child:
    """One worker process and its restarts."""

    def __init__(self, number: int, command: Sequence[str], health: Path | None = None) -> None:
        self.number = number
        self._command = command
        self._health = health
        self._pause = FIRST_PAUSE
        self._started = 0.0
        self.again_at: float | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None

    def start(self) -> None:
        """Start the process in a group of its own, so that the terminal's Ctrl-C reaches it through us only."""
        environment = {
            **os.environ,
            CHILD_VARIABLE: str(self.number),
            SUPERVISOR_VARIABLE: str(os.getpid()),
        }
        if self._health is not None:
            environment[HEALTH_VARIABLE] = str(self._health)
        self.process = subprocess.Popen(self._command, env=environment, start_new_session=True)
        self._started = time.monotonic()
        self.again_at = None

    def poll(self) -> int | None:
        """The exit code once the process has ended, else None."""
        return None if self.process is None else self.process.poll()

    def plan_restart(self) -> float:
        """Note when to start again; returns the pause in seconds."""
        lived = time.monotonic() - self._started
        self._pause = FIRST_PAUSE if lived > LONGEST_PAUSE else min(self._pause * 2, LONGEST_PAUSE)
        self.again_at = time.monotonic() + self._pause
        self.process = None
        return self._pause

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on, if the process lives."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class Supervisor:
    """Starts children, starts them again when they die, passes signals on, and sums up how they ended.

    ``listening`` is the socket at which it says how they do, if it is asked to.
    """

    def __init__(self, count: int, *, drain: bool, listening: socket.socket | None = None) -> None:
        command = get_child_arguments()
        numbers = range(1, count + 1)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._health: HealthListener | None = None
        sockets: list[Path | None] = [None for _ in numbers]
        if listening is not None:
            self._folder = tempfile.TemporaryDirectory(prefix="awa-worker-")
            paths = [Path(self._folder.name, f"{number}.sock") for number in numbers]
            self._health = HealthListener(listening, readiness_of_children(paths))
            sockets = [*paths]
        self._children = [Child(number, command, path) for number, path in zip(numbers, sockets, strict=True)]
        self._drain = drain
        self._stopping = threading.Event()

    def signal(self, number: signal.Signals) -> None:
        """Pass a stop signal on; from the first one on nothing is started again."""
        self._stopping.set()
        for child in self._children:
            child.send(number)

    def run(self) -> int:
        """Supervise until all children have ended; returns the worst of their exit codes."""
        if self._health is not None:
            self._health.start()
        try:
            for child in self._children:
                self._start(child)
            while any(child.code is None for child in self._children):
                for child in self._children:
                    if child.code is None:
                        self._look_after(child)
                time.sleep(WATCH_SECONDS)
        finally:
            if self._health is not None:
                self._health.stop()
                self._health.join(WATCH_SECONDS)
            if self._folder is not None:
                self._folder.cleanup()
        return max(child.code or 0 for child in self._children)

    def _start(self, child: Child) -> None:
        if self._stopping.is_set():
            child.code = Exit.OK
            return
        child.start()
        if self._stopping.is_set():
            # The signal came while the process was being made, and missed it.
            child.send(signal.SIGTERM)

    def _look_after(self, child: Child) -> None:
        if child.process is None:
            if self._stopping.is_set():
                child.code = Exit.OK
            elif child.again_at is not None and time.monotonic() >= child.again_at:
                self._start(child)
            return
        code = child.poll()
        if code is None:
            return
        if self._stopping.is_set() or code in _HOPELESS or (self._drain and code == Exit.OK):
            # A child that TERM or INT killed had not got as far as to handle it, and so held no jobs.
            child.code = code if code >= 0 else Exit.OK if -code in _STOP_SIGNALS else Exit.ERROR
            if code in _HOPELESS:
                self.signal(signal.SIGTERM)
            return
        pause = child.plan_restart()
        how = f"signal {-code}" if code < 0 else f"code {code}"
        logger.error("worker process %d ended with %s; again in %.0f s", child.number, how, pause)
