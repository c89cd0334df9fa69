"""Kinds of waiting jobs that somebody does not know: a release that is to be deployed, or the workers there are."""

from __future__ import annotations

from collections.abc import Collection

from awa_django.operations.queues import waiting_kinds

__all__ = ["orphan_kinds"]


def orphan_kinds(known: Collection[str], *, using: str | None = None) -> dict[str, int]:
    """How many jobs of each kind that is not ``known`` have not started, most first."""
    return {kind: number for kind, number in waiting_kinds(using=using).items() if kind not in known}
