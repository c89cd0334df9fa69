"""Running what the README and the pages of ``docs/`` show.

A page's blocks run in order in a throw-away Django project, against a database of its own; each command and the script
in a process of its own, which ``tests/launcher.py`` forks:

* ``python`` whose first line is a comment with a path, ``# shop/jobs.py``: the block is appended to that file of the
  project. All files of a page are there before anything runs.
* ``python`` without such a line: a piece of one script, all pieces of a page in one namespace.
* ``pycon``: an interactive session in the same namespace, compared with what it shows; ``...`` stands for anything.
* ``console``: each line that begins with ``$`` is a command. ``python manage.py`` commands and ``pytest`` run in the
  project, a worker that does not drain gets TERM once the queue is empty; of ``make`` targets the recipe is checked, of
  ``pip install`` whether this distribution has such extras. A command of any other kind fails the test.
* ``sql``: run in psycopg, committed.

Blocks in other languages are text. ``<!-- not run: reason -->`` on the line before a block leaves it out.
"""

from __future__ import annotations

import atexit
import doctest
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psycopg
from packaging.requirements import Requirement

from tests.launcher import Launcher, Process
from tests.settings import database
from tests.workers import wait_until

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120
RUNNABLE = ("python", "pycon", "console", "sql")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

_FENCE = re.compile(r"^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*\Z")
_PATH = re.compile(r"# (?P<path>[\w./-]+\.py)\n")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    runs: bool = True

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file of the project that the block belongs to."""
        found = _PATH.match(self.text) if self.language == "python" else None
        return found["path"] if found else None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a console block, each with the output that is shown below it."""
        found: list[tuple[str, str]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].partition("  #")[0].strip(), ""))
            elif found:
                found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
            else:
                raise AssertionError(f"{self.where}: output before the first command")
        return found


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """Every fenced block of a page, in order; ``text`` stands for what is in the file."""
    text = page.read_text(encoding="utf-8") if text is None else text
    name = str(page.relative_to(ROOT))
    return [
        Block(
            name,
            text.count("\n", 0, found.start()) + 1,
            found["language"],
            found["text"],
            found["language"] in RUNNABLE and not _NOT_RUN.search(text, 0, found.start()),
        )
        for found in _FENCE.finditer(text)
    ]


SETTINGS = '''\
"""A project that has no queue yet."""
from pathlib import Path

SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "shop"]
DATABASES = {"default": {}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = str(Path(__file__).parent / "sent")
TIME_ZONE = "UTC"
USE_TZ = True
'''

MANAGE = """\
import os
import sys

from django.core.management import execute_from_command_line


def main():
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
"""

MODELS = '''\
"""What the examples are about."""
from django.db import models


class Order(models.Model):
    email = models.EmailField()
    total = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    paid = models.BooleanField(default=False)


class Customer(models.Model):
    email = models.EmailField()
'''

APP = """\
from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
"""


class Project:
    """A Django project in a folder, on a database. ``queue`` False leaves the app to the page itself."""

    def __init__(self, folder: Path, url: str, *, queue: bool = True) -> None:
        self.folder = folder
        self.url = url
        self.environment = {**_environment(), "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(ROOT)}
        for name, text in {
            "settings.py": SETTINGS + ('INSTALLED_APPS += ["awa_django"]\n' if queue else ""),
            "manage.py": MANAGE,
            "shop/__init__.py": "",
            "shop/apps.py": APP,
            "shop/models.py": MODELS,
            "shop/migrations/__init__.py": "",
        }.items():
            self.append(name, text)

    def append(self, name: str, text: str) -> None:
        """Add text to a file of the project, which may be new."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as opened:
            opened.write(text)

    def take_files(self, page: Iterable[Block]) -> None:
        """Write the files that a page shows, and send its database to the test's. Models of its own replace ours."""
        page = list(page)
        if any(block.runs and block.file == "shop/models.py" for block in page):
            (self.folder / "shop" / "models.py").unlink()
        for block in page:
            if block.runs and block.file:
                self.append(block.file, f"\n\n{block.text}")
        self.append("settings.py", f'\nDATABASES["default"] = {database(self.url)!r}\n')

    def start(self, module: str, *arguments: str, streams: tuple[int, int, int]) -> Process:
        """Call ``main()`` of a module in a process of the project."""
        return _launcher().start(
            module, arguments, folder=self.folder, environment=self.environment, streams=streams
        )

    def manage(self, *arguments: str, module: str = "manage") -> subprocess.CompletedProcess[str]:
        """Run a management command, or another module; its result, whatever the exit code."""
        with open(os.devnull) as nothing, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            streams = (nothing.fileno(), out.fileno(), err.fileno())
            with self.start(module, *arguments, streams=streams) as process:
                code = process.wait(PATIENCE)
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def prepare(self, *, migrate: bool) -> None:
        """Write the migration of the models, and make their tables unless the page does."""
        for command in (("makemigrations", "shop"), *([("migrate",)] if migrate else [])):
            done = self.manage(*command, "--verbosity=0")
            assert done.returncode == 0, done.stdout + done.stderr

    def run(self, page: Iterable[Block]) -> None:
        """Run the blocks that are no files, in order; Python in a process of the project."""
        with _Script(self) as script:
            for block in page:
                if not block.runs or block.file:
                    continue
                if block.language == "console":
                    for command, output in block.commands:
                        self.command(block, command, output)
                elif block.language == "sql":
                    with psycopg.connect(self.url) as connection:
                        connection.execute(block.text.encode())
                else:
                    script.run(block)

    def command(self, block: Block, command: str, output: str) -> None:
        """Run or check one command of a console block."""
        words = shlex.split(command)
        match words:
            case ["python", "manage.py", "awa_worker", *options] if "--drain" not in options:
                said = self.work(*options)
            case ["python", "manage.py", *arguments, ">", target]:
                done = self.manage(*arguments)
                assert done.returncode == 0, f"{block.where}: {command}\n{done.stdout}{done.stderr}"
                (self.folder / target).write_text(done.stdout)
                said = ""
            case ["python", "manage.py", *arguments]:
                done = self.manage(*arguments)
                assert done.returncode == 0, f"{block.where}: {command}\n{done.stdout}{done.stderr}"
                said = done.stdout
            case ["pytest", *arguments]:
                done = self.manage(*arguments, module="pytest")
                assert done.returncode == 0, f"{block.where}: {command}\n{done.stdout}{done.stderr}"
                said = done.stdout
            case ["make", *targets]:
                subprocess.run(
                    ["make", "--dry-run", *targets],
                    cwd=ROOT,
                    check=True,
                    capture_output=True,
                    timeout=PATIENCE,
                )
                return
            case ["pip", "install", *requirements]:
                check_requirements(requirements)
                return
            case _:
                raise AssertionError(f"{block.where}: nobody knows how to check {command!r}")
        if output and not doctest.OutputChecker().check_output(output, said, FLAGS):
            raise AssertionError(f"{block.where}: {command} is to print\n{output}\nand printed\n{said}")

    def work(self, *options: str) -> str:
        """Run a worker until nothing is left to do, stop it as an operator does, and return its output."""
        with open(os.devnull) as nothing, TemporaryFile("w+") as out:
            streams = (nothing.fileno(), out.fileno(), out.fileno())
            with self.start("manage", "awa_worker", *options, streams=streams) as worker:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    wait_until(
                        lambda: worker.poll() is not None or _has_worker(connection),
                        seconds=PATIENCE,
                        what="a worker",
                    )
                    wait_until(lambda: not _unfinished(connection), seconds=PATIENCE, what="an empty queue")
                worker.send_signal(signal.SIGTERM)
                code = worker.wait(PATIENCE)
            out.seek(0)
            said = out.read()
        assert code == 0, said
        return said


def _environment() -> dict[str, str]:
    """That of this process, without what its own project needs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "PYTEST_"))}
    return {**kept, "PYTHONWARNINGS": "error::DeprecationWarning:shop"}


@functools.cache
def _launcher() -> Launcher:
    launcher = Launcher(_environment())
    atexit.register(launcher.close)
    return launcher


def _has_worker(connection: psycopg.Connection[Any]) -> bool:
    return bool(connection.execute("SELECT 1 FROM awa.runtime_instances").fetchone())


def _unfinished(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute(
        "SELECT id, kind, state FROM awa.jobs WHERE finalized_at IS NULL AND run_at < now() + interval '1 minute'"
    ).fetchall()


def check_requirements(requirements: Iterable[str]) -> None:
    """Whether this distribution is what is to be installed, and has these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in requirements:
        wanted = Requirement(text)
        assert wanted.name == project["name"], f"pip install {text}: this project is {project['name']}"
        assert wanted.extras <= project["optional-dependencies"].keys(), f"pip install {text}: no such extra"


class _Script:
    """A process of the project that runs Python blocks; started with the first of them."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._process: Process | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Script:
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            if self._process is not None:
                self._blocks.close()  # the process ends with its input
                self._process.wait(PATIENCE)

    def _start(self) -> None:
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        self._blocks = self._stack.enter_context(os.fdopen(ours_in, "w"))
        self._answers = self._stack.enter_context(os.fdopen(ours_out))
        try:
            self._process = self._stack.enter_context(
                self._project.start("tests.documents", streams=(theirs_in, theirs_out, 2))
            )
        finally:
            os.close(theirs_in), os.close(theirs_out)

    def run(self, block: Block) -> None:
        """Run one block; fails with what it said."""
        if self._process is None:
            self._start()
        self._blocks.write(json.dumps(asdict(block)) + "\n")
        self._blocks.flush()
        answer = self._answers.readline()
        assert answer, f"{block.where}: the process ended"
        fault = json.loads(answer)
        assert fault is None, f"{block.where}:\n{fault}"


def main() -> None:
    """Run the blocks that come in, an answer each: None, or what went wrong."""
    import django

    answers, sys.stdout = sys.stdout, sys.stderr
    django.setup()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in iter(sys.stdin.readline, ""):
        fault = _run(Block(**json.loads(line)), namespace)
        print(json.dumps(fault), file=answers, flush=True)


def _run(block: Block, namespace: dict[str, Any]) -> str | None:
    import traceback

    if block.language == "pycon":
        said: list[str] = []
        test = doctest.DocTestParser().get_doctest(block.text, namespace, block.where, block.page, block.line)
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False)
        namespace.update(test.globs)
        return "".join(said) or None
    try:
        exec(compile(block.text, block.where, "exec", dont_inherit=True), namespace)
    except BaseException:
        return traceback.format_exc()
    return None
