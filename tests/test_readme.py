"""The README and the pages of ``docs/`` do what they say."""

from __future__ import annotations

import ast
import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.core.management.base import BaseCommand

from awa_django import conf
from awa_django.management.commands.awa_sql import WRITER
from awa_django.management.commands.awa_worker import Command
from awa_django.worker.exit_codes import Exit
from tests.documents import ROOT, Project, blocks

README = ROOT / "README.md"

pytestmark = [pytest.mark.worker]


def test_every_block_of_the_readme_runs_in_a_new_project(empty_database: str, tmp_path: Path) -> None:
    page = blocks(README)
    assert page
    assert all(block.runs for block in page), [block.where for block in page if not block.runs]
    project = Project(tmp_path, empty_database, queue=False)
    project.take_files(page)
    project.prepare(migrate=False)
    project.run(page)
    with psycopg.connect(empty_database) as connection:
        jobs = connection.execute("SELECT kind, state::text, attempt FROM awa.jobs").fetchall()
    assert jobs == [("send_receipt", "completed", 1)]
    [mail] = (tmp_path / "sent").iterdir()
    assert "To: ada@example.com" in mail.read_text()


PAGES = sorted((ROOT / "docs").glob("*.md"))
#: Pages of prose and tables.
WITHOUT_BLOCKS = ("checks.md",)
TEXTS = [README, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
TEXTS += [*PAGES, *sorted((ROOT / "docs" / "adr").glob("*.md"))]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in WITHOUT_BLOCKS], ids=_name)
def test_every_block_of_a_page_runs(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shown = blocks(page)
    assert shown, f"{_name(page)} has no blocks"
    installs = any("INSTALLED_APPS" in block.text for block in shown)
    url = request.getfixturevalue("empty_database" if installs else "awa_database")
    project = Project(tmp_path, url, queue=not installs)
    project.take_files(shown)
    project.prepare(migrate=not installs)
    project.run(shown)


@pytest.mark.parametrize("page", TEXTS, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{_name(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{_name(page)} links to {target}; there is {sorted(anchors)}"


@pytest.mark.parametrize("page", TEXTS, ids=_name)
def test_every_file_and_test_that_is_named_exists(page: Path) -> None:
    everything = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`([^`\n]+)`", page.read_text()):
        if re.fullmatch(r"(?:tests|awa_django|example_project|benchmarks|docs)/[\w./-]*", name):
            assert (ROOT / name).exists(), f"{_name(page)} names {name}"
        elif re.fullmatch(r"test_\w+", name):
            assert f"def {name}(" in everything, f"{_name(page)} names {name}"


def test_decisions_are_numbered_listed_and_found_by_those_who_cite_them() -> None:
    folder = ROOT / "docs" / "adr"
    files = sorted(file.name for file in folder.glob("[0-9]*.md"))
    assert [int(name[:3]) for name in files] == list(range(1, len(files) + 1))
    listed = re.findall(r"\]\((\d{3}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == files
    for file in (ROOT / "awa_django").rglob("*"):
        if file.suffix in (".py", ".sql"):
            for number in re.findall(r"ADR-(\d{3})", file.read_text()):
                assert any(name.startswith(number) for name in files), f"{_name(file)} cites ADR-{number}"


# Tables that repeat what the code says

_UNITS = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "days": "days"}


def _rows(page: str, section: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by their first cell."""
    text = (ROOT / "docs" / page).read_text()
    [body] = re.findall(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in body.splitlines()
        if line[:3] == "| `"
    ]
    assert found
    return {cells[0].strip("`"): cells[1:] for cells in found}


def _value(text: str) -> object:
    """A default as it is written in a table."""
    if found := re.fullmatch(r"(\d+) (ms|s|min|h|days)", text):
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    if text == "off":
        return timedelta(0)
    return ast.literal_eval(text.strip("`"))


def test_the_settings_page_has_every_key_with_its_default() -> None:
    shown = {name.lower(): _value(cells[0]) for name, cells in _rows("settings.md", "Keys").items()}
    shown["queues"] = conf._value("", "queues", shown["queues"])
    assert shown == {
        field.name: getattr(conf.Settings(), field.name) for field in dataclasses.fields(conf.Settings)
    }


def test_the_settings_page_has_every_option_of_a_queue_with_its_default() -> None:
    shown = {name: _value(cells[0]) for name, cells in _rows("settings.md", "Options of a queue").items()}
    queue = conf.QueueConfig("default")
    options = [field.name for field in dataclasses.fields(queue) if field.name != "name"]
    assert shown == {name: getattr(queue, name) for name in options}


def test_the_checks_page_has_every_check() -> None:
    text = (ROOT / "docs" / "checks.md").read_text()
    source = (ROOT / "awa_django" / "checks.py").read_text()
    shown = re.findall(r"^## (awa\.[EW]\d{3})", text, re.MULTILINE)
    assert shown == sorted(set(re.findall(r'id="(awa\.[EW]\d{3})"', source)))


def test_the_workers_page_has_every_option_and_exit_code() -> None:
    parser = Command().create_parser("manage.py", "awa_worker")
    own = {action.option_strings[0] for action in parser._actions if action.option_strings}
    django = {action.option_strings[0] for action in BaseCommand().create_parser("", "")._actions}
    shown = {name.split()[0].rstrip(",") for name in _rows("workers.md", "The command")}
    assert shown == own - django
    codes = {int(name) for name in _rows("workers.md", "Exit codes")}
    assert codes == set(Exit)


def test_the_schema_page_shows_the_grants_that_are_printed() -> None:
    [shown] = [block.text for block in blocks(ROOT / "docs" / "schema.md") if block.language == "text"]
    assert shown == "".join(
        f"{line}\n" for line in WRITER.format(role='"site"').splitlines() if line.startswith("GRANT")
    )
