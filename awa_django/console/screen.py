"""Where answers go: one JSON document or a page for people on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from awa_django.console.documents import document
from awa_django.console.text import clip, harmless, length, pad, plain

__all__ = ["Answer", "Column", "Screen", "done", "table"]

#: A page is as wide as this where nobody says how wide the terminal is.
WIDTH = 80
NARROWEST = 40
_GAP = 2
#: The narrowest that a column of text becomes.
_FLOOR = 6


class Column(NamedTuple):
    """A column of a table. Text gives way where a table is too wide; figures (``right``) never do."""

    title: str
    right: bool = False
    #: A text that matters more than others gives way later.
    floor: int = _FLOOR


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], width: int = WIDTH) -> list[str]:
    """The lines of a table that is at most ``width`` columns wide, its titles first."""
    cells = [[plain(value) for value in row] for row in rows]
    widths = [
        max([length(column.title), *(length(row[index]) for row in cells)])
        for index, column in enumerate(columns)
    ]
    spare = width - _GAP * (len(columns) - 1) - sum(widths)
    while spare < 0:
        # The widest of those that can give way, one column at a time: what is short stays whole.
        giving = [
            index
            for index, column in enumerate(columns)
            if not column.right and widths[index] > max(column.floor, 1)
        ]
        if not giving:
            break
        widest = max(giving, key=lambda index: widths[index])
        widths[widest] -= 1
        spare += 1
    lines = []
    for row in [[column.title for column in columns], *cells]:
        parts = [
            pad(clip(text, size), size, right=column.right)
            for text, size, column in zip(row, widths, columns, strict=True)
        ]
        lines.append(clip((" " * _GAP).join(parts).rstrip(), width))
    return lines


@dataclass
class Screen:
    """One run's output. ``now`` is the moment that relative times are seen from."""

    out: OutputWrapper
    err: OutputWrapper
    style: Style
    as_json: bool = False
    #: None where standard input is closed.
    stdin: TextIO | None = field(default_factory=lambda: sys.stdin)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def width(self) -> int:
        """The columns of a page; the variable ``COLUMNS`` decides, also where there is no terminal."""
        if not (self.out.isatty() or os.environ.get("COLUMNS")):
            return WIDTH
        return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)

    # What people see

    def say(self, text: str = "", paint: Callable[[str], str] | None = None) -> None:
        """A line of the answer."""
        line = plain(text)
        self.out.write(paint(line) if paint else line)

    def wrap(self, text: str, indent: str = "") -> None:
        """A sentence of the answer, broken between words where the page ends."""
        for line in self.wrapped(text, indent):
            self.out.write(line)

    def wrapped(self, text: str, indent: str = "") -> list[str]:
        """The lines of a sentence, broken between words where the page ends; a word that is longer is broken too."""
        lines: list[str] = []
        line = indent
        for word in plain(text).split(" "):
            if line.strip() and length(line) + 1 + length(word) > self.width:
                lines.append(line)
                line = indent
            line = f"{line} {word}" if line.strip() else indent + word
            while length(line) > self.width:
                kept = clip(line, self.width + 1)[:-1]
                lines.append(kept)
                line = indent + line[len(kept) :]
        return [*lines, line]

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """A table, its titles marked."""
        titles, *lines = table(columns, rows, self.width)
        self.out.write(self.style.MIGRATE_HEADING(titles))
        for line in lines:
            self.out.write(line)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Names and values, one to a line; what is None is left out."""
        shown = {name: value for name, value in facts.items() if value is not None}
        widest = max((length(name) for name in shown), default=0)
        for name, value in shown.items():
            self.out.write(clip(f"{pad(name, widest)}  {plain(value)}", self.width))

    def block(self, title: str, value: object) -> None:
        """A value of many lines, as JSON, below its name."""
        self.say(title, self.style.MIGRATE_HEADING)
        text = json.dumps(document(value), ensure_ascii=False, indent=2)
        for line in text.splitlines():
            self.out.write(f"  {plain(line)}")

    # What programs see

    def dump(self, value: Any) -> None:
        """The one document of the answer."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        is_unicode = encoding.lower().replace("-", "").startswith("utf")
        self.out.write(harmless(json.dumps(document(value), ensure_ascii=not is_unicode, indent=2)))

    def hang_up(self) -> None:
        """Let nothing more go to standard output, which nobody takes; Python would complain when it closes it."""
        if getattr(self.out, "_out", None) is sys.__stdout__ is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())

    # Beside the answer

    def note(self, text: str, paint: Callable[[str], str] | None = None) -> None:
        """A line for people on standard error."""
        line = plain(text)
        # Errors are red there by default, and this is none.
        self.err.write(paint(line) if paint else line, style_func=str)

    def more(self, place: str | None) -> None:
        """Say how to go on after a page; nothing at the end."""
        if place is not None:
            self.note(f"There is more: add --after {place}")

    @property
    def is_interactive(self) -> bool:
        """Whether somebody is there who can be asked."""
        return self.stdin is not None and self.stdin.isatty()

    def ask(self, question: str) -> bool:
        """Whether the operator says yes; anything but ``y`` and ``yes`` is a no."""
        self.err.write(f"{plain(question)} [y/N] ", style_func=str, ending="")
        self.err.flush()
        assert self.stdin is not None, "nobody is there to be asked"
        try:
            return self.stdin.readline().strip().lower() in ("y", "yes")
        except KeyboardInterrupt:
            self.note("")
            return False


@dataclass(frozen=True)
class Answer:
    """What a verb found or did: a document, how people are shown it, and the exit code."""

    document: Any
    show: Callable[[Screen], None]
    exit: int = 0


def done(document: Any, sentence: str) -> Answer:
    """The answer of a verb that did what it was asked: a document, and a sentence for people."""
    return Answer(document, lambda screen: screen.say(sentence, screen.style.SUCCESS))
