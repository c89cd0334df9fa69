"""Callback expressions as tokens, and what string literals say (contract: api/cel section 3)."""

from __future__ import annotations

import re
from typing import NamedTuple

from awa_django.cel.faults import SyntaxFault

__all__ = ["Token", "bytes_of", "text_of", "tokens"]

_ESCAPE = r"""\\(?:[abfnrtv"'\\?`]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
_STRING = "|".join(
    (
        r'[rR](?:"""(?s:.*?)"""' + r"|'''(?s:.*?)'''" + r"""|"[^"\n\r]*"|'[^'\n\r]*')""",
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        rf'"(?:{_ESCAPE}|[^"\\\n\r])*"',
        rf"'(?:{_ESCAPE}|[^'\\\n\r])*'",
    )
)
_TOKEN = re.compile(
    rf"""
      (?P<space>  [ \t\r\n\f]+ | //[^\n]* )
    | (?P<bytes>  [bB](?:{_STRING}) )
    | (?P<string> {_STRING} )
    | (?P<uint>   (?:0x[0-9a-fA-F]+|[0-9]+)[uU] )
    | (?P<hex>    0x[0-9a-fA-F]+ )
    | (?P<float>  (?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<int>    [0-9]+ )
    | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
    | (?P<quoted> `[A-Za-z0-9_.\-/\ ]+` )
    | (?P<sign>   == | != | <= | >= | && | \|\| | [-+*/%<>!?:.,()\[\]{{}}] )
    """,
    re.VERBOSE,
)

_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "?": "?", "`": "`",
}  # fmt: skip
_BYTE_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-3][0-7]{2}))|\\|[^\\]+")


class Token(NamedTuple):
    """``kind`` is a group of the pattern above, or "end"; ``at`` the place of its first character, from 0."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """The tokens of an expression and one for its end. Raises ``SyntaxFault`` for characters that are none."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            what = "an unfinished or badly escaped string" if text[at] in "\"'" else f"{text[at]!r}"
            raise SyntaxFault(f"{what} at character {at + 1}")
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(Token("sign" if match[0] == "in" else kind, match[0], at))
        at = match.end()
    found.append(Token("end", "", len(text)))
    return found


def text_of(literal: str) -> str:
    """What a string literal says.

    A quote of the delimiting kind ends and reopens the text, so of three quotes two say nothing, and between
    a closing and an opening one nothing may stand. An escaped quote of the other kind keeps its backslash.
    """
    raw = literal[0] in "rR"
    body = literal[1:] if raw else literal
    delimiter = body[0]
    parts: list[str] = []
    inside = False
    at = 0
    while at < len(body):
        letter = body[at]
        at += 1
        if letter == delimiter:
            inside = not inside
        elif not inside:
            raise SyntaxFault(f"{literal[:40]} holds a bare {delimiter}; escape it")
        elif letter != "\\":
            parts.append(letter)
        elif raw:
            parts.append(delimiter if body[at] == delimiter else letter)
            at += body[at] == delimiter
        else:
            value, at = _escaped(body, at, delimiter)
            parts.append(value)
    return "".join(parts)


def _escaped(body: str, at: int, delimiter: str) -> tuple[str, int]:
    """What the escape after a backslash stands for, and where it ends."""
    letter = body[at]
    if letter in "\"'":
        return (letter if letter == delimiter else "\\" + letter), at + 1
    if letter in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[letter], at + 1
    if letter.isdigit():
        return chr(int(body[at : at + 3], 8)), at + 3
    end = at + 1 + {"x": 2, "u": 4, "U": 8}[letter]
    point = int(body[at + 1 : end], 16)
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise SyntaxFault(f"\\{body[at:end]} is no character")
    return chr(point), end


def bytes_of(literal: str) -> bytes:
    """What a byte literal says: all between the first two and the last character, with two kinds of escape."""
    parts: list[bytes] = []
    for match in _BYTE_ESCAPE.finditer(literal[2:-1]):
        if match[1] or match[2]:
            parts.append(bytes([int(match[1], 16) if match[1] else int(match[2], 8)]))
        elif match[0] == "\\":
            raise SyntaxFault(f"{literal[:40]}: byte strings know the escapes \\xHH and \\ooo only")
        else:
            parts.append(match[0].encode())
    return b"".join(parts)
