"""Which queue names can be stored and woken (contract: runtime/validation section 1, D1)."""

from __future__ import annotations

__all__ = ["MAX_QUEUE_BYTES", "channel", "queue_name_fault"]

#: PostgreSQL's channel names hold 63 bytes, and ours begin with ``awa:``.
MAX_QUEUE_BYTES = 59


def queue_name_fault(name: str) -> str | None:
    """Why a name cannot be a queue, or None."""
    if not name:
        return "a queue needs a name"
    if name == "cancel":
        return "'cancel' would share its wake-up channel with cancellations; choose another name"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return f"{name!r} holds a lone surrogate, which is not text"
    if size > MAX_QUEUE_BYTES:
        return f"{size} bytes in UTF-8, at most {MAX_QUEUE_BYTES} can be woken by NOTIFY: {name!r}"
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return f"{name!r} holds a control character"
    return None


def channel(queue: str) -> str:
    """The notification channel of a queue."""
    return f"awa:{queue}"
