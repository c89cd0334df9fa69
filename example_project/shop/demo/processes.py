"""Django commands of this project as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
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


def wait(process: subprocess.Popen[bytes], patience: float) -> int:
    """The exit code of a process that was asked to end; after ``patience`` seconds it is killed."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
