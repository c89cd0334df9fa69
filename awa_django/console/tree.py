"""The verbs of ``manage.py awa`` as data, and the parser that is made of them.

A verb is a function that takes a :class:`Call` and returns an :class:`~awa_django.console.screen.Answer`. Everything
else about it, its place in the tree, its arguments, what it teaches, stands beside it in :func:`verb`.
"""

from __future__ import annotations

import argparse
import difflib
import getpass
import textwrap
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.core.management.base import CommandError, CommandParser

from awa_django.console.exits import EXIT_CODES, Exit
from awa_django.console.screen import Answer, Screen
from awa_django.console.text import plain

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
    return CommandError(plain(message), returncode=Exit.USAGE)


def refusal(message: str) -> CommandError:
    """An error about something that does not exist or is in no state for it."""
    return CommandError(plain(message), returncode=Exit.NOT_CHANGED)


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
    ``examples`` what follows ``manage.py awa``. ``changes`` says that the setting ``READ_ONLY`` forbids it, ``needs``
    what has to be there: a schema that this release knows, a server whatever is on it, or nothing.
    """

    path: str
    summary: str
    run: Callable[[Call], Answer]
    arguments: Sequence[Argument] = ()
    examples: Sequence[str] = ()
    states: str = ""
    changes: bool = False
    needs: Literal["schema", "server", "nothing"] = "schema"
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


#: Before the verb or after it.
_EVERYWHERE = (
    argument("--json", action="store_true", dest="as_json", help="print one JSON document"),
    argument("--database", metavar="ALIAS", help="a database alias; default: the queue's, AWA['DATABASE']"),
)
_COMMON = (
    *_EVERYWHERE,
    argument("--no-color", action="store_true", help="print no colours"),
    # Django's own, which people are used to write at the end.
    argument("--force-color", action="store_true", help=argparse.SUPPRESS),
    argument("--settings", help=argparse.SUPPRESS),
    argument("--pythonpath", help=argparse.SUPPRESS),
    argument("--traceback", action="store_true", help=argparse.SUPPRESS),
    argument("--skip-checks", action="store_true", help=argparse.SUPPRESS),
    argument("-v", "--verbosity", type=int, choices=range(4), help=argparse.SUPPRESS),
)
_COMMON_CHANGES = (
    argument("--yes", "-y", action="store_true", help="ask nothing; needed where nobody can be asked"),
)


def add_verbs(parser: CommandParser) -> None:
    """Give the parser of the command its tree."""
    for item in _EVERYWHERE:
        parser.add_argument(*item.flags, **item.options)
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
    return parser.add_subparsers(action=_Verbs, metavar="VERB", help=argparse.SUPPRESS)


class _Words(UserDict[str, Any]):
    """The words that may come next. argparse asks it what is allowed, and would refuse by listing them all."""

    def __init__(self, parsers: dict[str, Any]) -> None:
        self.data = parsers

    def __contains__(self, word: object) -> bool:
        return True


class _Verbs(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The next word of a path; of one that is none the nearest are named."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.choices = _Words(self._name_parser_map)  # type: ignore[assignment]

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *rest: Any
    ) -> None:
        if values[0] not in self._name_parser_map:
            raise argparse.ArgumentError(None, self._unknown(parser.prog, values[0]))
        super().__call__(parser, namespace, values, *rest)

    def _unknown(self, prog: str, word: str) -> str:
        group = prog.split()[-1]
        whole = word if group == "awa" else f"{group} {word}"
        near = difflib.get_close_matches(word, self._name_parser_map, 1)
        near = [f"{whole.removesuffix(word)}{each}" for each in near]
        near += [path for path in VERBS if path.split()[-1] == word and path not in near]
        guess = f"did you mean {' or '.join(f'`{each}`' for each in near)}? " if near else ""
        return f"there is no verb `{whole}`; {guess}`manage.py awa` lists them all"


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
    for item in (*found.arguments, *(_COMMON_CHANGES if found.changes else ())):
        leaf.add_argument(*item.flags, **item.options)
    for item in _COMMON:
        # What was said before the verb holds.
        leaf.add_argument(*item.flags, **{**item.options, "default": argparse.SUPPRESS})
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
