"""``manage.py awa``: the operator's verbs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from django.core import checks
from django.core.management.base import BaseCommand, CommandParser, SystemCheckError
from django.core.management.color import no_style

from awa_django import __version__
from awa_django.console import add_verbs, overview, run
from awa_django.console.exits import EXIT_CODES, Exit
from awa_django.console.screen import Screen

INTRODUCTION = """\
Watch and steer the queue: what waits, who works, and what is in the way.

"""
_CHECKS = "awa"


class Command(BaseCommand):
    """Parses a verb, has it carried out, and answers with its exit code."""

    help = INTRODUCTION + overview()
    requires_system_checks = [_CHECKS]
    stealth_options = ("stdin",)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

    def get_version(self) -> str:
        return __version__

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser)

    def run_from_argv(self, argv: list[str]) -> None:
        if os.environ.get("NO_COLOR"):
            # https://no-color.org; what goes wrong is printed by Django, in red.
            self.style = no_style()
            self.stderr.style_func = None
        try:
            super().run_from_argv(argv)
        except KeyboardInterrupt:
            # A shell that runs this in a loop stops only where the signal itself ended it.
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Refuse settings that are wrong. Warnings are for ``manage.py check``: here they would hide the answer."""
        if not any(
            found.is_serious() and not found.is_silenced() for found in checks.run_checks(tags=[_CHECKS])
        ):
            return
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as error:
            error.returncode = Exit.USAGE
            raise

    def handle(self, *args: Any, **options: Any) -> None:
        plain = options["no_color"] or not (self.stdout.isatty() or options["force_color"])
        screen = Screen(
            out=self.stdout,
            err=self.stderr,
            style=no_style() if plain else self.style,
            as_json=options["as_json"],
            stdin=options.get("stdin") or sys.stdin,
        )
        for stream in (sys.stdout, sys.stderr):
            # Names and errors may have characters that a terminal's encoding lacks.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        code: int = Exit.DONE
        try:
            if options["verb"] is None:
                self.stdout.write(INTRODUCTION + overview(options["group"]))
                self.stdout.flush()
            else:
                code = run(options["verb"], options, screen)
        except BrokenPipeError:
            screen.hang_up()  # whoever reads, such as head, has enough
        if code:
            sys.exit(code)
