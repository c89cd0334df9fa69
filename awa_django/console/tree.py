"""The verbs of ``manage.py awa`` as data, and the parser that is made of them.

A verb is a function that takes a :class:`Call` and returns an :class:`~awa_django.console.screen.Answer`. Everything
else about it, its place in the tree, its arguments, what it teaches, stands beside it in :func:`verb`.
"""

from __future__ import annotations

import argparse
import getpass
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError, CommandParser

from awa_django.console.exits import EXIT_CODES, Exit
from awa_django.console.screen import Answer, Screen

__all__ = [
    "GROUPS",
    "VERBS",
    "Argument",
    "Call",
    "Verb",
    "add_verbs",
    "argument",
    "overview",
    "refusal",
    "usage",
    "verb",
]

#: What the groups are about, in the order in which they are shown.
GROUPS = {
    "": "the whole queue",
    "job": "jobs",
    "dlq": "dead letters",
    "queue": "queues",
    "cron": "schedules",
    "callback": "callbacks that jobs wait for",
    "batch": "batch operations",
    "storage": "the move to queue storage",
}
#: What the command line of awa calls them.
_GROUP_ALIASES = {"batch": ("batch-ops",), "callback": ("callbacks",)}


@dataclass(frozen=True)
class Call:
    """One use of a verb: its options by name, where the answer goes, and the database alias, None for the queue's."""

    options: Mapping[str, Any]
    screen: Screen
    using: str | None = None

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    @property
    def by(self) -> str:
        """Who does it: ``--by``, else the name of the login."""
        given = self.options.get("by")
        if given:
            return str(given)
        try:
            return getpass.getuser()
        except (KeyError, OSError, ImportError):  # a container may run under a number that nobody named
            return "django"

    def confirm(self, what: str) -> None:
        """Ask before something that cannot be undone, unless ``--yes`` was said; without a terminal that must be."""
        if self.options.get("yes"):
            return
        if not self.screen.is_interactive:
            raise usage(f"this would {what}; nobody is here to be asked, so say --yes if that is meant")
        if not self.screen.ask(f"This will {what}. Go on?"):
            raise CommandError("nothing was changed", returncode=Exit.FAILED)


def usage(message: str) -> CommandError:
    """An error of whoever typed the command."""
    return CommandError(message, returncode=Exit.USAGE)


def refusal(message: str) -> CommandError:
    """An error about something that does not exist or is in no state for it."""
    return CommandError(message, returncode=Exit.NOT_CHANGED)


@dataclass(frozen=True)
class Argument:
    """One argument of a verb, as ``argparse`` takes it."""

    flags: tuple[str, ...]
    options: Mapping[str, Any]


def argument(*flags: str, **options: Any) -> Argument:
    """An argument, spelled as in ``add_argument``."""
    return Argument(flags, options)


@dataclass(frozen=True)
class Verb:
    """Something that can be asked for or done.

    ``path`` is how it is called, ``summary`` one sentence, ``states`` what it applies to where that is not everything,
    ``examples`` what follows ``manage.py awa``. ``changes`` says that the setting ``READ_ONLY`` forbids it.
    """

    path: str
    summary: str
    run: Callable[[Call], Answer]
    arguments: Sequence[Argument] = ()
    examples: Sequence[str] = ()
    states: str = ""
    changes: bool = False
    aliases: Sequence[str] = ()

    @property
    def group(self) -> str:
        """The first word of a path of two."""
        return self.path.rpartition(" ")[0]

    @property
    def name(self) -> str:
        """The last word of its path."""
        return self.path.rpartition(" ")[2]

    @property
    def description(self) -> str:
        """What its help says above the arguments."""
        parts = [self.summary, *([f"Applies to: {self.states}."] if self.states else [])]
        return "\n\n".join(textwrap.fill(part, 78) for part in parts)


VERBS: dict[str, Verb] = {}


def verb(
    path: str, summary: str, **about: Any
) -> Callable[[Callable[[Call], Answer]], Callable[[Call], Answer]]:
    """Put a function into the tree; ``about`` are the other fields of :class:`Verb`."""

    def declare(run: Callable[[Call], Answer]) -> Callable[[Call], Answer]:
        VERBS[path] = Verb(path, summary, run, **about)
        return run

    return declare


_COMMON = (
    argument("--json", action="store_true", dest="as_json", help="print one JSON document"),
    argument("--database", metavar="ALIAS", help="a database alias; default: the queue's, AWA['DATABASE']"),
    argument("--no-color", action="store_true", default=argparse.SUPPRESS, help="print no colours"),
)
_COMMON_CHANGES = (
    argument("--yes", "-y", action="store_true", help="ask nothing; needed where nobody can be asked"),
)


def add_verbs(parser: CommandParser) -> None:
    """Give the parser of the command its tree."""
    places: dict[str, Any] = {"": _subparsers(parser)}
    for found in VERBS.values():
        group = found.group
        if group not in places:
            below = places[""].add_parser(
                group,
                help=GROUPS[group],
                description=overview(group),
                aliases=_GROUP_ALIASES.get(group, ()),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            below.set_defaults(verb=None, group=group)
            places[group] = _subparsers(below)
        _add(places[group], found)
    parser.set_defaults(verb=None, group="")


def _subparsers(parser: argparse.ArgumentParser) -> Any:
    # The overview in the description names them already.
    return parser.add_subparsers(metavar="VERB", help=argparse.SUPPRESS)


def _add(place: Any, found: Verb) -> None:
    leaf = place.add_parser(
        found.name,
        help=found.summary,
        description=found.description,
        epilog="\n".join(
            ["Examples:", *(f"  manage.py awa {example}" for example in found.examples), "", EXIT_CODES]
        ),
        aliases=list(found.aliases),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for item in (*found.arguments, *(_COMMON_CHANGES if found.changes else ()), *_COMMON):
        leaf.add_argument(*item.flags, **item.options)
    leaf.set_defaults(verb=found, group=found.group)


def overview(group: str = "") -> str:
    """What there is, a line for each verb; of one group or of all."""
    names = [name for name in GROUPS if not group or name == group]
    widest = max(len(found.path) for found in VERBS.values())
    lines = []
    for name in names:
        members = [found for found in VERBS.values() if found.group == name]
        lines.append(f"{GROUPS[name].capitalize()}:")
        lines += [f"  {found.path:<{widest}}  {_brief(found.summary, 76 - widest)}" for found in members]
        lines.append("")
    lines.append("Say `manage.py awa VERB --help` for its options and an example.")
    return "\n".join(lines)


def _brief(sentence: str, columns: int) -> str:
    """The beginning of a sentence, up to where it goes into details."""
    text = sentence.split(";")[0].split(":")[0].rstrip(".")
    return text if len(text) <= columns else text[: columns - 1] + "…"
