"""``manage.py awa_worker``: run jobs."""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    SystemCheckError,
)
from django.db import OperationalError

from awa_django import __version__, telemetry
from awa_django.conf import TRANSITION_ROLES, QueueConfig, Settings, get_settings
from awa_django.enqueue import queue_alias
from awa_django.errors import AwaError, ConfigurationError
from awa_django.queue_names import queue_name_fault
from awa_django.worker.exit_codes import Exit
from awa_django.worker.health import tcp_socket, unix_socket
from awa_django.worker.process import Worker
from awa_django.worker.supervisor import CHILD_VARIABLE, HEALTH_VARIABLE, Supervisor, supervisor_is_gone

#: Between two looks of a child at whether its supervisor lives.
SUPERVISOR_LOOK_SECONDS = 1.0
#: The address of /healthz and /readyz, where no option gives one.
HEALTH_ADDRESS_VARIABLE = "AWA_HEALTH_ADDR"


HELP = """\
Run jobs: those of the queues named here, or else of AWA['QUEUES'].

One TERM or INT stops claiming, lets running jobs finish within the grace time
and hands the rest back, their attempts not counted; a second one ends at once.

Examples:
  manage.py awa_worker
  manage.py awa_worker --queue mail:20 --queue reports:2 --processes 2
  manage.py awa_worker --queue mail --drain
  manage.py awa_worker --maintenance-only --health-port 8001
"""
EXIT_CODES = """\
Exit codes:
  0  stopped, and every job was finished or handed back
  1  it broke down
  2  wrong options, settings or schema
  3  attempts were left behind; they run again once they are stale
  4  the database could not be reached at the start
"""


class _Formatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Texts as they are written, the command's own options before those of every command."""


class Command(BaseCommand):
    """Parses the command line, runs a worker or a supervisor, and answers with an exit code."""

    help = HELP
    requires_migrations_checks = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, formatter_class=_Formatter, epilog=EXIT_CODES, **kwargs
        )

    def get_version(self) -> str:
        return __version__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME[:N]",
            help="serve this queue, with at most N jobs at once; may be given several times",
        )
        parser.add_argument("--processes", type=_count, default=1, metavar="N", help="worker processes (1)")
        parser.add_argument(
            "--threads",
            type=_count,
            metavar="N",
            help="jobs at once in each process and queue, for queues that do not say (setting: max_workers, 50)",
        )
        parser.add_argument(
            "--drain", action="store_true", help="stop as soon as the queues hold nothing that is due"
        )
        parser.add_argument(
            "--drain-ahead",
            type=_seconds,
            default=0.0,
            metavar="SECONDS",
            help="with --drain: also wait for jobs, such as retries, that are due within this time",
        )
        parser.add_argument(
            "--drain-timeout",
            type=_seconds,
            metavar="SECONDS",
            help="grace time after the first signal (setting: DRAIN_TIMEOUT, 30)",
        )
        parser.add_argument(
            "--role",
            choices=TRANSITION_ROLES,
            help="what this worker is for while the fleet moves to queue storage (setting: TRANSITION_ROLE, auto)",
        )
        health = parser.add_mutually_exclusive_group()
        health.add_argument(
            "--health-addr",
            metavar="HOST:PORT",
            help="answer GET /healthz and /readyz there (environment: AWA_HEALTH_ADDR, setting: HEALTH_ADDR)",
        )
        health.add_argument(
            "--health-port",
            type=_port,
            metavar="N",
            help="the same on every IPv4 interface, as probes of a container need it: 0.0.0.0:N",
        )
        maintenance = parser.add_mutually_exclusive_group()
        maintenance.add_argument(
            "--no-maintenance",
            action="store_true",
            help="never lead: leave promotion, rescue and pruning to another worker",
        )
        maintenance.add_argument(
            "--maintenance-only",
            action="store_true",
            help="run no jobs, only compete for leading the maintenance",
        )

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as error:
            error.returncode = Exit.USAGE
            raise

    def handle(self, *args: Any, **options: Any) -> None:
        self._log_to_stderr(options["verbosity"])
        supervises = options["processes"] > 1 and CHILD_VARIABLE not in os.environ
        signals = None if supervises else _Signals()
        try:
            code = self._run(options, signals)
        except (ConfigurationError, AwaError) as error:
            raise CommandError(str(error), returncode=Exit.USAGE) from error
        except OperationalError as error:
            raise CommandError(
                f"cannot reach the database: {str(error).strip()}", returncode=Exit.UNREACHABLE
            ) from error
        except RuntimeError as error:
            raise CommandError(str(error), returncode=Exit.ERROR) from error
        telemetry.current().deliver()
        if threading.active_count() > 1:
            # Threads of handlers that ignore every signal must not hold the process up.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        sys.exit(code)

    def _run(self, options: dict[str, Any], signals: _Signals | None) -> int:
        settings = get_settings()
        # Where routers send the queue's jobs, this worker looks for them.
        settings = replace(settings, database=queue_alias())
        if options["drain_timeout"] is not None:
            settings = replace(settings, drain_timeout=timedelta(seconds=options["drain_timeout"]))
        if options["role"] is not None:
            settings = replace(settings, transition_role=options["role"])
        queues = [] if options["maintenance_only"] else self._queues(settings, options)
        if options["drain"] and options["maintenance_only"]:
            raise ConfigurationError("--drain waits for jobs, --maintenance-only runs none; drop one of them")
        listening = self._listening(settings, options)
        if signals is None:
            return self._supervise(options["processes"], drain=options["drain"], listening=listening)
        worker = Worker(settings, queues, lead=not options["no_maintenance"], listening=listening)
        self.stdout.write(f"awa_worker {__version__}, {worker.prepare()}")
        self.stdout.flush()
        worker.start()
        if options["drain"]:
            worker.wait_idle(timedelta(seconds=options["drain_ahead"]), signals.first)
        else:
            while not signals.first.wait(SUPERVISOR_LOOK_SECONDS):
                if supervisor_is_gone():
                    logging.getLogger("awa_django.worker").error("the supervisor is gone; this worker stops")
                    break
        return int(worker.stop(signals.second))

    @staticmethod
    def _listening(settings: Settings, options: dict[str, Any]) -> socket.socket | None:
        """The socket at which this process says how it does; a child does so for its supervisor alone."""
        if CHILD_VARIABLE in os.environ:
            path = os.environ.get(HEALTH_VARIABLE)
            return None if path is None else unix_socket(Path(path))
        if options["health_port"] is not None:
            return tcp_socket(f"0.0.0.0:{options['health_port']}")
        address = options["health_addr"] or os.environ.get(HEALTH_ADDRESS_VARIABLE) or settings.health_addr
        return None if address is None else tcp_socket(address)

    @staticmethod
    def _supervise(processes: int, *, drain: bool, listening: socket.socket | None) -> int:
        supervisor = Supervisor(processes, drain=drain, listening=listening)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: supervisor.signal(signal.Signals(number)))
        return supervisor.run()

    @staticmethod
    def _queues(settings: Settings, options: dict[str, Any]) -> list[QueueConfig]:
        if settings.global_max_workers is not None and options["threads"]:
            raise ConfigurationError(
                f"--threads {options['threads']}: AWA['GLOBAL_MAX_WORKERS'] already says that a process runs "
                f"{settings.global_max_workers} jobs at once; change that, or drop one of them"
            )
        named: Sequence[str] = options["queues"] or []
        queues: dict[str, QueueConfig] = {}
        for text in named:
            name, colon, number = text.rpartition(":")
            if colon and not number:
                raise ConfigurationError(
                    f"--queue {text}: how many jobs at once? Say {text}20, or leave the colon out"
                )
            if not (colon and number.isdecimal()):
                name, number = text, ""
            if fault := queue_name_fault(name):
                raise ConfigurationError(f"--queue {text}: {fault}")
            if name in queues:
                raise ConfigurationError(f"--queue {name} is given twice")
            queues[name] = settings.queue(name)
            if number and settings.global_max_workers is not None:
                raise ConfigurationError(
                    f"--queue {text}: with AWA['GLOBAL_MAX_WORKERS'] queues share its {settings.global_max_workers} "
                    f"slots by min_workers and weight; say --queue {name}, and set those in AWA['QUEUES']"
                )
            if number:
                queues[name] = replace(queues[name], max_workers=int(number))
            elif options["threads"]:
                queues[name] = replace(queues[name], max_workers=options["threads"])
        if queues:
            return list(queues.values())
        return [
            replace(queue, max_workers=options["threads"]) if options["threads"] else queue
            for queue in settings.queues.values()
        ]

    @staticmethod
    def _log_to_stderr(verbosity: int) -> None:
        """Show the worker's log when the project did not say where logs go."""
        logger = logging.getLogger("awa_django")
        if logger.hasHandlers():
            return
        level = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO}.get(verbosity, logging.DEBUG)
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


class _Flag(threading.Event):
    """An event that a signal handler may set while the thread it interrupts waits for it.

    An ordinary event has a lock. A handler that runs in the instant in which the waiting thread holds it would wait
    for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raised = False
        self._reader, self._writer = os.pipe()

    def is_set(self) -> bool:
        return self._raised

    def set(self) -> None:
        self._raised = True
        os.write(self._writer, b"\0")

    def wait(self, timeout: float | None = None) -> bool:
        if not self._raised:
            select.select([self._reader], [], [], timeout)
        return self._raised


class _Signals:
    """The first TERM or INT asks to stop, the second to hurry, the third ends the process."""

    def __init__(self) -> None:
        self.first = _Flag()
        self.second = _Flag()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: object) -> None:
        if not self.first.is_set():
            self.first.set()
        elif not self.second.is_set():
            self.second.set()
        else:
            os._exit(Exit.LEFT_BEHIND)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"a port from 1 to 65535 is needed, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 10**9:
        raise argparse.ArgumentTypeError(f"a number of seconds is needed, not {text!r}")
    return seconds
