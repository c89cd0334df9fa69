"""Single values of settings and declarations, checked (values; no database).

Each function takes the path that a message starts with, such as ``AWA['POLL_INTERVAL']``, and the value as it was
given; it returns the value as it is used, or raises :class:`SettingFault`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import timedelta

from awa_django.errors import ConfigurationError
from awa_django.signatures import SECRET_BYTES, parse_secret

__all__ = ["SettingFault", "as_count", "as_duration", "as_flag", "as_secret", "as_text", "unknown_key"]


class SettingFault(Exception):
    """One wrong setting: the key's path and what is wrong with it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def unknown_key(path: str, key: object, known: Iterable[str]) -> SettingFault:
    """A key that nobody knows, with the nearest known one."""
    names = list(known)
    # The best match, and of equal ones the first in the order of their declaration.
    near = max(names, key=lambda name: difflib.SequenceMatcher(None, name, str(key)).ratio())
    close = difflib.get_close_matches(str(key), [near], cutoff=0.4)
    hint = f"; did you mean {near!r}?" if close else f"; known are {', '.join(sorted(names))}"
    return SettingFault(f"{path}[{key!r}]", f"unknown key{hint}")


def as_duration(path: str, value: object, *, zero: bool = False) -> timedelta:
    """A timedelta, or a number of seconds; above zero, or with ``zero`` zero or more."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise SettingFault(path, f"a duration is a timedelta or a number of seconds, not {value!r}")
    try:
        span = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise SettingFault(path, f"{value!r} seconds is no usable duration") from None
    if span < timedelta(0) or (not span and not zero):
        raise SettingFault(
            path, f"a duration {'of zero or more' if zero else 'above zero'} is needed, not {value!r}"
        )
    return span


def as_count(path: str, value: object, least: int) -> int:
    """A whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingFault(path, f"a whole number of at least {least} is needed, not {value!r}")
    return value


def as_flag(path: str, value: object) -> bool:
    """True or False, and nothing that is merely true or false."""
    if not isinstance(value, bool):
        raise SettingFault(path, f"True or False is needed, not {value!r}")
    return value


def as_text(path: str, value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise SettingFault(path, f"text is needed, not {value!r}")
    return value


def as_secret(path: str, value: object) -> bytes:
    """A secret of callbacks, as bytes or hex digits. What is wrong with one is said without repeating it."""
    if isinstance(value, str):
        try:
            return parse_secret(value, name=path)
        except ConfigurationError as error:
            raise SettingFault(path, str(error).removeprefix(f"{path}: ")) from None
    if not isinstance(value, bytes) or len(value) != SECRET_BYTES:
        size = f" of {len(value)}" if isinstance(value, bytes) else ""
        raise SettingFault(
            path,
            f"{SECRET_BYTES} bytes, or their {2 * SECRET_BYTES} hex digits, are needed, "
            f"not {type(value).__name__}{size}",
        )
    return value
