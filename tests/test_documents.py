"""The runner of documentation blocks notices what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT, Block, Project, blocks, check_requirements


def block(language: str, text: str) -> Block:
    return Block("page.md", 1, language, text)


@pytest.fixture
def project(emptied_database: str, tmp_path: Path) -> Project:
    project = Project(tmp_path, emptied_database)
    project.take_files([block("python", "# shop/extra.py\nANSWER = 42\n")])
    return project


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param(
            block("python", "from shop.extra import QUESTION\n"), "ImportError", id="code that raises"
        ),
        pytest.param(block("python", "raise SystemExit(0)\n"), "SystemExit", id="code that ends"),
        pytest.param(block("pycon", ">>> 6 * 7\n41\n"), "Expected:", id="another result"),
        pytest.param(
            block("console", "$ python manage.py chekc\n"), "Unknown command", id="a command that fails"
        ),
        pytest.param(
            block("console", "$ python manage.py check\nall is well\n"), "is to print", id="other output"
        ),
        pytest.param(block("console", "$ rm -rf /\n"), "nobody knows", id="a command of another kind"),
        pytest.param(block("console", "loose\n$ make test\n"), "before the first", id="output of nothing"),
    ],
)
def test_a_block_that_does_not_do_what_it_says_fails(project: Project, wrong: Block, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        project.run([wrong])


def test_blocks_of_a_page_share_their_names(project: Project) -> None:
    project.run(
        [
            block("python", "from shop.extra import ANSWER\n"),
            block("pycon", ">>> ANSWER // 2\n21\n>>> half = ANSWER // 2\n"),
            block("python", "assert half == 21\n"),
        ]
    )


def test_a_requirement_that_this_project_cannot_meet_is_noticed() -> None:
    check_requirements(["awa-django[binary,pool]"])
    with pytest.raises(AssertionError, match="no such extra"):
        check_requirements(["awa-django[turbo]"])
    with pytest.raises(AssertionError, match="this project is awa-django"):
        check_requirements(["django-awa"])


def test_blocks_are_found_with_their_lines_and_may_be_left_out() -> None:
    page = ROOT / "page-that-is-not-there.md"
    text = (
        "# Page\n\n```sql\nSELECT 1;\n```\n\n"
        "<!-- not run: it waits -->\n```console\n$ make demo\n```\n\n```text\nwords\n```\n"
    )
    assert [(item.line, item.language, item.runs) for item in blocks(page, text)] == [
        (3, "sql", True),
        (8, "console", False),
        (12, "text", False),
    ]


def test_a_process_of_the_project_is_waited_for_as_long_as_is_said_and_takes_signals(
    project: Project,
) -> None:
    with open(os.devnull) as nothing:
        sleeper = ("shell", "--verbosity=0", "--command=import time; time.sleep(60)")
        with project.start("manage", *sleeper, streams=(nothing.fileno(),) * 3) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == -signal.SIGTERM
            assert process.poll() == -signal.SIGTERM
