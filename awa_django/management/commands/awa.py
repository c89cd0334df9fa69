"""``manage.py awa``: the operator's verbs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, SystemCheckError
from django.core.management.color import no_style

from awa_django.console import add_verbs, overview, run
from awa_django.console.exits import EXIT_CODES, Exit
from awa_django.console.screen import Screen

INTRODUCTION = """\
Watch and steer the queue: what waits, who works, and what is in the way.

"""


class Command(BaseCommand):
    """Parses a verb, has it carried out, and answers with its exit code."""

    help = INTRODUCTION + overview()
    requires_system_checks = ["awa"]
    stealth_options = ("stdin",)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name,
            subcommand,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser)

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as error:
            error.returncode = Exit.USAGE
            raise

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            code = self._carry_out(options)
            self.stdout.flush()
        except BrokenPipeError:
            # Whoever reads, such as head, has enough. Python would complain again when it closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        if code:
            sys.exit(code)

    def _carry_out(self, options: dict[str, Any]) -> int:
        verb = options["verb"]
        if verb is None:
            self.stdout.write(INTRODUCTION + overview(options["group"]))
            return Exit.DONE
        plain = options["no_color"] or not (self.stdout.isatty() or options["force_color"])
        screen = Screen(
            out=self.stdout,
            err=self.stderr,
            style=no_style() if plain else self.style,
            as_json=options["as_json"],
            stdin=options.get("stdin") or sys.stdin,
        )
        return run(verb, options, screen)
