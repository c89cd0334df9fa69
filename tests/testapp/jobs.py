"""Jobs that the tests enqueue; found by autodiscovery, so every process of a test project knows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from awa_django import job


@dataclass
class ProcessPayment:
    """Arguments shared with clients in other languages."""

    order_id: int
    due: datetime | None = None
    currency: str = "NZD"


@job
def note(ctx: Any, order_id: int, note: Any = None) -> None:
    """The plainest job."""


@job(args=ProcessPayment)
async def pay(ctx: Any, args: ProcessPayment) -> None:
    """A job with a dataclass for its arguments."""
