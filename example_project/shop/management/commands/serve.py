"""``manage.py serve``: the web server and a worker side by side, until Ctrl-C."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import time
from argparse import ArgumentParser
from types import FrameType
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from example_project.shop.checkout import stock_shelves
from example_project.shop.demo import processes

USER = PASSWORD = "demo"
#: What there is to try, for the reader.
OFFERED = (
    "A new order enqueues its receipt. The list of orders has two actions:",
    "  Ask the bank for the money   the payment's page has commands that play the bank",
    "  Book a courier               a dead letter until the order has an address",
    "Every 2 s a schedule puts what sells best into the shop window.",
)
#: What ends it.
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds until the web server must answer.
PATIENCE = 60


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Stop(Exception):
    """Somebody asked for the end."""


class Command(BaseCommand):
    """Ends with 0 after Ctrl-C or SIGTERM, with 1 when one of the two processes ends by itself."""

    help = "Run the web server and a worker together; Ctrl-C stops both."
    requires_migrations_checks = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--bind", default="127.0.0.1:8000", metavar="HOST:PORT", help="(127.0.0.1:8000)")

    def handle(self, *args: Any, bind: str, **options: Any) -> None:
        host, port = self.parse(bind)
        self.refuse_taken_port(host, port)
        stock_shelves()
        hint = self.superuser(host)
        for number in ENDINGS:
            signal.signal(number, self.on_signal)
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            # Where the bank reaches the shop, unless somebody says otherwise.
            site = {"SHOP_URL": os.environ.get("SHOP_URL", f"http://{host}:{port}")}
            with processes.undisturbed(*ENDINGS):
                running["web server"] = processes.start(
                    "runserver", "--noreload", f"{host}:{port}", environment=site
                )
                running["worker"] = processes.start("awa_worker")
            self.wait_for_web_server(running, host, port)
            self.stdout.write(f"\nThe admin:  http://{host}:{port}/admin/  {hint}")
            self.stdout.write(f"Its health: http://{host}:{port}/awa/health/?require=workers,leader")
            for line in OFFERED:
                self.stdout.write(f"  {line}")
            self.stdout.write("Ctrl-C stops everything.\n\n")
            while True:
                self.complain_about_ended(running)
                time.sleep(0.2)
        except Stop:
            self.stdout.write("\nstopping; the worker finishes what it has begun ...")
        finally:
            for number in ENDINGS:
                signal.signal(number, signal.SIG_IGN)
            for process in running.values():
                if process.poll() is None:
                    process.terminate()
            for process in running.values():
                processes.wait(process, patience=40)

    @staticmethod
    def parse(bind: str) -> tuple[str, int]:
        host, colon, port = bind.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            raise CommandError(f"--bind: HOST:PORT is needed, such as 127.0.0.1:8000, not {bind!r}")
        return host, int(port)

    @staticmethod
    def refuse_taken_port(host: str, port: int) -> None:
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            raise CommandError(
                f"cannot listen on {host}:{port}: {error.strerror}; try SERVE_ARGS='--bind {host}:{port + 1}'"
            ) from error

    @staticmethod
    def superuser(host: str) -> str:
        """Make the demo's superuser if only this machine can use its password; what to tell the reader."""
        user = get_user_model().objects.filter(username=USER).first()
        if is_loopback(host):
            if user is None:
                get_user_model().objects.create_superuser(USER, "demo@example.com", PASSWORD)
            elif not user.check_password(PASSWORD):
                return f"user {USER}, with the password that you gave it"
            return f"user {USER}, password {PASSWORD}"
        if user is not None and user.check_password(PASSWORD):
            raise CommandError(
                f"whoever reaches {host} could log in as {USER}/{PASSWORD}; first change that password: "
                f".venv/bin/python example_project/manage.py changepassword {USER}"
            )
        return "(make a user with: manage.py createsuperuser)"

    def wait_for_web_server(self, running: dict[str, subprocess.Popen[bytes]], host: str, port: int) -> None:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            self.complain_about_ended(running)
            try:
                socket.create_connection((host, port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise CommandError(f"the web server does not answer on {host}:{port} after {PATIENCE} s")

    @staticmethod
    def complain_about_ended(running: dict[str, subprocess.Popen[bytes]]) -> None:
        for name, process in running.items():
            if (code := process.poll()) is not None:
                raise CommandError(f"the {name} ended with exit code {code}; its output is above")

    @staticmethod
    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Stop
