"""Named SQL statements, read from the files beside this module.

A file holds several statements, each under a line ``-- name: take_stale``. The name stays in
the text that is sent, so ``pg_stat_activity`` and the server's log show it. Files run as they
are in psql, save that values are written ``%(name)s``.

A *slot* names a ring child: ``awa.done_entries/*_ready*/`` is the parent table as written and
``awa.done_entries_3`` once rendered with ``ready=3``. A plan over one child starts several times faster than one over
a parent with sixteen. Rendered texts are cached, so the driver can keep them prepared.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

__all__ = ["statement", "statements"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(subject: str) -> dict[str, LiteralString]:
    """Every statement of one file, by name; ``subject`` is its path without ``.sql``."""
    text = files(__package__).joinpath(f"{subject}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    found: dict[str, LiteralString] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in found:
            raise ValueError(f"sql/{subject}.sql names {name!r} twice")
        found[name] = f"-- name: {name}\n{body.strip().rstrip(';')}"
    return found


@cache
def statement(subject: str, name: str, **slots: int) -> LiteralString:
    """One statement, with its ring children filled in where ``slots`` says which."""
    text = statements(subject)[name]
    for ring, slot in slots.items():
        text = text.replace(f"/*_{ring}*/", f"_{slot:d}")
    return text
