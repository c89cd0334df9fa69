"""The README and the pages of ``docs/`` do what they say."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.documents import ROOT, Project, blocks

README = ROOT / "README.md"

pytestmark = [pytest.mark.worker]


def test_every_block_of_the_readme_runs_in_a_new_project(empty_database: str, tmp_path: Path) -> None:
    page = blocks(README)
    assert page
    assert all(block.runs for block in page), [block.where for block in page if not block.runs]
    project = Project(tmp_path, empty_database, queue=False)
    project.take_files(page)
    made = project.manage("makemigrations", "shop", "--verbosity", "0")
    assert made.returncode == 0, made.stderr
    project.run(page)
    with psycopg.connect(empty_database) as connection:
        jobs = connection.execute("SELECT kind, state::text, attempt FROM awa.jobs").fetchall()
    assert jobs == [("send_receipt", "completed", 1)]
    [mail] = (tmp_path / "sent").iterdir()
    assert "To: ada@example.com" in mail.read_text()
