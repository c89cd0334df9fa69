"""Array parameters.

The driver types a list of integers by its largest value, so one statement would be prepared again for
each combination of sizes. Integers are therefore sent as array literals, whose type the cast in the
statement decides, and JSON as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from awa_django.unreadable import Unreadable

__all__ = ["dump_json", "ints", "jsons"]


def ints(values: Iterable[int | None]) -> str:
    """An array literal of integers and NULLs."""
    text = ",".join(map(str, values))
    return "{" + (text.replace("None", "NULL") if "N" in text else text) + "}"


def dump_json(value: Any) -> str:
    """JSON text; the value was validated when it came in, so anything odd is a bug and raises."""
    if type(value) is Unreadable:
        return value.text
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def jsons(values: Iterable[Any]) -> list[str | None]:
    """JSON texts for a ``jsonb[]``; None stays SQL NULL."""
    return [None if value is None else dump_json(value) for value in values]
