"""Lists that are read whole, found by name and narrowed by pills: queues and kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from django.http import HttpRequest

from awa_django.admin.actions import Text

__all__ = ["Choices", "found_by_name"]

#: Rows of a list; more are found by name.
SHOWN = 500

Row = TypeVar("Row")
#: What to narrow a list to, by the parameter's value: its label, and whether a row belongs to it.
Choices = Mapping[str, tuple[Text, Callable[[Row], bool]]]


def found_by_name(
    request: HttpRequest,
    rows: Sequence[Row],
    names: Callable[[Row], Iterable[str | None]],
    every: Text,
    choices: Choices[Row],
) -> dict[str, Any]:
    """The context of ``includes/find.html`` and ``includes/pills.html``, and the rows that are left.

    ``names`` are those that a row can be found by; ``every`` is the label of the pill that narrows nothing.
    """
    wanted = request.GET.get("q", "").strip()
    show = request.GET.get("show", "")
    show = show if show in choices else ""
    found = [row for row in rows if any(wanted.lower() in name.lower() for name in names(row) if name)]
    pills = [("", every, len(found), not show)]
    for name, (label, applies) in choices.items():
        pills.append((name, label, sum(map(applies, found)), show == name))
    if show:
        found = [row for row in found if choices[show][1](row)]
    return {
        "rows": found[:SHOWN],
        "left_out": max(0, len(found) - SHOWN),
        "any_row": bool(rows),
        "pills": pills,
        "wanted": wanted,
        "show": show,
    }
