"""How an expression goes wrong."""

from __future__ import annotations

__all__ = ["CelFault", "SyntaxFault"]


class CelFault(Exception):
    """An evaluation that has no result. The text names types and names of the expression, never a value."""


class SyntaxFault(Exception):
    """An expression that is none; the text says where and why."""
