"""JSON that the database holds and Python does not.

A ``jsonb`` number may have 130 000 digits, and lists may be nested some thousand deep: other clients can store
both. Such a value travels as its text, so that its job can be ended and stored elsewhere unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Unreadable", "finite"]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A JSON document that cannot be read, and why."""

    text: str
    reason: str

    def __repr__(self) -> str:
        return f"JSON that Python cannot hold ({self.reason})"


def finite(text: str) -> float:
    """A JSON number with a fraction. Raises ``ValueError`` for one that would become infinite."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"a number of {len(text)} digits is beyond a float")
    return number
