from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.planes.conftest import world, world_database

__all__ = ["awa_pg_worker", "connecting", "world", "world_database"]

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 30


@pytest.fixture
def connecting() -> Callable[[str], Callable[[], psycopg.Connection[Any]]]:
    """For services: what opens a session of a database, as ``awa_django.db.connect`` does for an alias."""

    def to(url: str) -> Callable[[], psycopg.Connection[Any]]:
        return lambda: psycopg.connect(url, autocommit=True, application_name="awa test service")

    return to


@pytest.fixture
def awa_pg_worker() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that starts a real awa-pg worker and waits until it serves; ended with the test."""
    with contextlib.ExitStack() as running:

        def start(url: str) -> subprocess.Popen[str]:
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.worker.awa_pg_worker", url],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            running.callback(process.kill)
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                if line.strip() == "started":
                    return process
                said.append(line)
            raise AssertionError(f"the awa-pg worker did not start:\n{''.join(said)}")

        yield start
