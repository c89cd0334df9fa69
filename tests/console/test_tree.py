"""The tree of verbs, and the help that teaches it."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import cache

import pytest
from django.core.management.base import BaseCommand

from awa_django import __version__
from awa_django.conf import get_settings
from awa_django.console.exits import EXIT_CODES, Exit
from awa_django.console.text import length
from awa_django.console.tree import GROUPS, VERBS, Verb
from awa_django.errors import ConfigurationError
from awa_django.management.commands import awa_sql, awa_worker
from awa_django.management.commands.awa import Command
from awa_django.operations import WhyReason
from awa_django.operations.doctor import CHECKS
from awa_django.worker.exit_codes import Exit as WorkerExit
from tests.console.calling import awa
from tests.documents import ROOT

paths = pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.path)


@cache
def _parser() -> argparse.ArgumentParser:
    return Command().create_parser("manage.py", "awa")


def leaf(verb: Verb) -> argparse.ArgumentParser:
    """The parser of one verb."""
    parser = _parser()
    for word in verb.path.split():
        (places,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = places.choices[word]
    return parser


def test_a_bare_command_and_a_bare_group_print_what_there_is() -> None:
    everything = awa()
    assert everything.code == 0
    for verb in VERBS.values():
        assert f"  {verb.path} " in everything.out
    some = awa("queue")
    assert "queue drain" in some.out
    assert "job cancel" not in some.out


@pytest.mark.parametrize(
    ("typed", "guess"),
    [
        ("statsu", "there is no verb `statsu`; did you mean `status`?"),
        ("job lst", "there is no verb `job lst`; did you mean `job list`?"),
        ("cancel 5", "did you mean `batch cancel` or `job cancel`?"),
        ("batch-ops submitt", "did you mean `batch submit`?"),
        ("frobnicate", "there is no verb `frobnicate`; `manage.py awa` lists them all"),
    ],
)
def test_a_verb_that_there_is_not_names_the_nearest(typed: str, guess: str) -> None:
    said = awa(*typed.split())
    assert said.code == 1  # 2 as a process, where argparse ends it
    assert guess in said.err


def test_options_of_every_command_are_taken_before_the_verb_and_after_it() -> None:
    before = _parser().parse_args(shlex.split("--json --database other --traceback dlq depth"))
    after = _parser().parse_args(
        shlex.split(
            "dlq depth --json --database other --traceback --settings s --pythonpath p -v 0 --skip-checks"
        )
    )
    for parsed in (before, after):
        assert (parsed.as_json, parsed.database, parsed.traceback) == (True, "other", True)
    assert (after.settings, after.pythonpath, after.verbosity, after.skip_checks) == ("s", "p", 0, True)
    bare = _parser().parse_args(["dlq", "depth"])
    assert (bare.as_json, bare.database, bare.traceback, bare.verbosity) == (False, None, False, 1)


def test_the_overview_fits_the_page_and_cuts_no_sentence() -> None:
    for line in awa().out.splitlines():
        assert length(line) <= 80, line
        assert "…" not in line, line


@paths
def test_every_verb_has_a_sentence_an_example_of_itself_and_the_exit_codes(verb: Verb) -> None:
    assert verb.group in GROUPS
    assert verb.summary.endswith(".")
    assert verb.examples
    parser = leaf(verb)
    text = parser.format_help()
    assert verb.summary in text.replace("\n", " ")
    assert "Exit codes:" in text
    for example in verb.examples:
        assert f"manage.py awa {example}" in text
        assert example.startswith(verb.path)


@paths
def test_every_example_is_understood(verb: Verb) -> None:
    for example in verb.examples:
        words = shlex.split(example.partition(" > ")[0])
        parsed = _parser().parse_args(words)
        assert parsed.verb is verb


@paths
def test_every_argument_is_explained(verb: Verb) -> None:
    for action in leaf(verb)._actions:
        assert action.help, action.dest


@paths
def test_what_changes_something_can_be_agreed_to_beforehand(verb: Verb) -> None:
    options = {flag for action in leaf(verb)._actions for flag in action.option_strings}
    assert {"--json", "--database"} <= options
    assert ("--yes" in options) is verb.changes


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("batch-ops list", "batch list"),
        ("batch-ops submit", "batch submit"),
        ("cron remove x", "cron delete"),
        ("dlq retry-bulk", "dlq retry"),
        ("queue stats", "queue stats"),
        ("storage enter-mixed-transition", "storage enter-mixed"),
        ("job discard --kind k", "job discard"),
        ("storage prepare --engine queue_storage", "storage prepare"),
    ],
)
def test_the_spellings_of_the_awa_command_line_are_understood(theirs: str, ours: str) -> None:
    assert _parser().parse_args(theirs.split()).verb is VERBS[ours]


@paths
def test_help_fits_the_page(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    examples = {f"  manage.py awa {example}" for example in verb.examples}
    for line in leaf(verb).format_help().splitlines():
        assert length(line) <= 80 or line in examples, line


@pytest.mark.parametrize(
    ("command", "name"), [(awa_worker.Command(), "awa_worker"), (awa_sql.Command(), "awa_sql")]
)
def test_help_of_the_other_commands_fits_the_page_too(
    command: BaseCommand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command.create_parser("manage.py", name).format_help()
    assert [line for line in text.splitlines() if length(line) > 80] == []
    assert f"  manage.py {name} --" in text
    assert "default: None" not in text
    assert command.get_version() == __version__


def test_every_exit_code_of_a_worker_is_explained() -> None:
    text = awa_worker.Command().create_parser("manage.py", "awa_worker").format_help()
    assert re.findall(r"^  (\d)  ", text, re.MULTILINE) == [str(int(code)) for code in WorkerExit]


def test_a_queue_with_a_colon_and_no_number_is_not_taken_for_a_name() -> None:
    with pytest.raises(ConfigurationError, match="Say mail:20, or leave the colon out"):
        awa_worker.Command._queues(get_settings(), {"queues": ["mail:"], "threads": None})


def test_the_page_about_the_command_line_has_every_verb_and_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    _, _, table = page.partition("## Verbs")
    table, _, rest = table.partition("## Choosing jobs")
    assert set(re.findall(r"`([a-z -]+)`(?=[^|\n]*\|)", _first_cells(table))) == VERBS.keys()
    _, _, codes = rest.partition("## Exit codes")
    assert {int(code) for code in re.findall(r"^\| `(\d)` \|", codes, re.MULTILINE)} == set(Exit)
    assert set(re.findall(r"^  (\d)  ", EXIT_CODES, re.MULTILINE)) == {str(int(code)) for code in Exit}


def _first_cells(table: str) -> str:
    return "\n".join(f"{line.split('|')[1]}|" for line in table.splitlines() if line.startswith("| `"))


def test_the_page_about_trouble_has_every_reason_and_check() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    reasons, _, checks = page.partition("## The doctor")
    assert set(re.findall(r"^\| `(\w+)` \|", reasons, re.MULTILINE)) == set(WhyReason)
    assert re.findall(r"^\| `(\w+)` \|", checks, re.MULTILINE) == ["schema", *CHECKS]
