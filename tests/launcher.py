"""Processes that begin with Django imported.

A Python process needs half a second of CPU to import Django and the app, more than most of what it is started for
here. A *launcher* imports them once and forks for each command. What it forks is a process as the shell would start
one: with the folder, the environment and the three streams it is given, and Django not set up yet.

``Launcher`` is for the parent; ``python -m tests.launcher`` is the process itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
#: What commands of a project import, as far as that needs no settings.
PRELOADED = (
    "django.contrib.admin.options",
    "django.contrib.staticfiles.handlers",
    "django.core.management.commands.makemigrations",
    "django.core.management.commands.migrate",
    "django.core.management.commands.shell",
    "django.core.management.commands.test",
    "django.db.backends.postgresql.base",
    "django.test",
    "awa_django.console.run",
    "awa_django.management.commands.awa",
    "awa_django.management.commands.awa_worker",
    "awa_django.management.commands.awa_sql",
    "awa_django.operations",
    "tests.documents",
)


class Process:
    """A process of a launcher, with the part of ``subprocess.Popen`` that the tests of documents use."""

    def __init__(self, reports: socket.socket) -> None:
        self._reports = reports
        self._lines = reports.makefile("r")
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float) -> int:
        """The exit code, negative for a signal; ``TimeoutExpired`` when it runs on after so many seconds."""
        if self.returncode is None:
            # A read that timed out spoils the file, so the socket says first whether there is something.
            self._reports.settimeout(timeout or 0.000_001)
            try:
                self._reports.recv(1, socket.MSG_PEEK)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a process of the launcher", timeout) from None
            self._reports.settimeout(None)
            self.returncode = os.waitstatus_to_exitcode(int(self._lines.readline()))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait(30)
        self._lines.close()
        self._reports.close()


class Launcher:
    """The process that forks; ends with :meth:`close`, or with the process that made it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.launcher", str(theirs.fileno())],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        folder: Path,
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> Process:
        """Call ``main()`` of a module in a process of its own; ``streams`` are the descriptors of 0, 1 and 2."""
        request = {
            "module": module,
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
        }
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        return Process(ours)

    def close(self) -> None:
        """End it, once; what it started runs on."""
        self._requests.close()
        self._process.wait(30)


def serve(requests: socket.socket) -> None:
    """Fork for each request until the other end is closed."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # what is there is not looked at, and so not copied, in each of the processes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those who wait for the commands are not waited for
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not text:
            return
        *streams, reports = descriptors
        if os.fork() == 0:
            requests.close()
            attend(json.loads(text), streams, reports)
        for descriptor in descriptors:
            os.close(descriptor)


def attend(request: dict[str, object], streams: list[int], reports: int) -> None:
    """Fork for the command, report its process id and its end, and end too. The command returns with an exception."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = os.fork()
    if command == 0:
        os.close(reports)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        run(**request)  # type: ignore[arg-type]
    for descriptor in streams:
        os.close(descriptor)
    os.write(reports, f"{command}\n".encode())
    _, status = os.waitpid(command, 0)
    os.write(reports, f"{status}\n".encode())
    os._exit(0)


def run(module: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Call ``main()`` as in a new process of that folder and environment; ends with SystemExit, or what it raises."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[:1] = [folder, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv[:] = [f"{module}.py", *arguments]
    importlib.invalidate_caches()
    sys.exit(importlib.import_module(module).main())


if __name__ == "__main__":
    try:
        with socket.socket(fileno=int(sys.argv[1])) as given:
            serve(given)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
