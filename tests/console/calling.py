"""Running ``manage.py awa`` in the test's own process."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


@dataclass
class Said:
    """What a run printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on standard output."""
        return json.loads(self.out)


def awa(*words: object, typed: str | None = None) -> Said:
    """Run one command line; ``typed`` is what somebody at a terminal answers, None for nobody there."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    stdin = io.StringIO() if typed is None else Terminal(typed)
    try:
        call_command("awa", *map(str, words), stdout=out, stderr=err, stdin=stdin)
    except SystemExit as end:
        code = int(end.code or 0)
    except CommandError as error:
        code = error.returncode
        err.write(str(error))
    return Said(code, out.getvalue(), err.getvalue())


def document(*words: object) -> Any:
    """The document that a command line prints with ``--json``; its exit code is 0 and nothing else was said."""
    said = awa(*words, "--json")
    assert said.code == 0, said
    assert said.err == ""
    return said.json
