"""Text that a terminal can be trusted with: one line, of known width, in people's units."""

from __future__ import annotations

import unicodedata
from datetime import datetime

from awa_django.operations.words import count, moment, span

__all__ = ["ago", "clip", "count", "harmless", "instant", "length", "pad", "plain", "short", "span"]

#: Joins letters in some scripts and has no width; harmless, unlike other invisible characters.
_JOINERS = "\u200c\u200d"
#: Controls, formats, surrogates, what no font has, and what ends a line.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
_NO_WIDTH = frozenset({"Mn", "Me"})
_ELLIPSIS = "…"


def plain(value: object) -> str:
    """A value as text in which nothing moves a cursor, turns the direction of writing or hides.

    What jobs carry, such as the text of an error, comes from anywhere.
    """
    text = str(value)
    if text.isprintable() and text.isascii():
        return text
    return "".join(map(_visible, text))


def harmless(document: str) -> str:
    """JSON of the same meaning, with the characters that :func:`plain` shows written as escapes of JSON's own."""
    if document.isascii() and "\x7f" not in document:
        return document  # JSON has escaped the other controls
    return "".join(
        character if character == "\n" or not _is_invisible(character) else _escaped(character)
        for character in document
    )


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE and character not in _JOINERS


def _visible(character: str) -> str:
    if not _is_invisible(character):
        return character
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or (
        f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
    )


def length(text: str) -> int:
    """The columns that a text takes; East Asian characters take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if character in _JOINERS or unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, columns: int) -> str:
    """A text in at most so many columns, its end cut off behind ``…`` if it is longer."""
    if length(text) <= columns:
        return text
    kept: list[str] = []
    left = columns - 1
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + _ELLIPSIS if columns > 0 else ""


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """A text in exactly so many columns, or as it is if it takes more."""
    spaces = " " * (columns - length(text))
    return spaces + text if right else text + spaces


def short(number: int) -> str:
    """A number in at most seven columns: whole up to 99,999, then in thousands or millions."""
    for limit, unit, name in ((100_000, 1, ""), (10_000_000, 1_000, "k"), (10**13, 10**6, "M")):
        if abs(number) < limit:
            return f"{number // unit:,}{name}"
    return f"{number:.1e}"


def ago(at: datetime | None, now: datetime) -> str:
    """When something was or will be, seen from now, such as ``3 min ago`` or ``in 2 h``; a dash for never."""
    if at is None:
        return "-"
    apart = (now - at).total_seconds()
    if abs(apart) < 1:
        return "now"
    return f"{span(apart)} ago" if apart > 0 else f"in {span(apart)}"


def instant(at: datetime | None, now: datetime) -> str:
    """A moment exactly, in UTC, and seen from now."""
    return "-" if at is None else f"{moment(at)} ({ago(at, now)})"
