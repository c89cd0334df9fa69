"""What may be shown of a job's values (contract: api/security section 5).

Whoever shows a value to people, in a page, on a terminal, in a dump, asks :func:`shown` first. What is stored and
what a handler gets is never touched.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from awa_django.conf import get_settings
from awa_django.errors import ConfigurationError
from awa_django.unreadable import Unreadable

__all__ = ["MASK", "Part", "redactor", "shown", "shown_text"]

logger = logging.getLogger("awa_django")

#: What stands for a value that is not shown.
MASK = "••••••"

#: What a value is of its job.
Part = Literal["args", "metadata", "errors", "progress", "payload", "expression", "headers"]


def shown(kind: str, part: Part, value: Any) -> Any:
    """What may be shown of ``value``, which is JSON, or text.

    Values under keys that contain one of ``AWA["REDACTED_NAMES"]`` are masked, at any depth; what is left goes through
    the project's own function ``AWA["REDACT"]``, called with the kind, the part and the value. If that fails, nothing
    is shown: an error there must not lay open what it was to hide.
    """
    names = get_settings().redacted_names
    value = _masked(value, tuple(map(_plain, names))) if names else value
    hook = redactor()
    if hook is None:
        return value
    try:
        return hook(kind, part, value)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        # Without its message, which may quote the value.
        logger.error(
            "AWA['REDACT'] failed for %s of kind %r with %s (%s, line %s); nothing of it is shown",
            part, kind, type(error).__name__, where.filename, where.lineno,
        )  # fmt: skip
        return MASK


def shown_text(kind: str, text: str) -> str:
    """What may be shown of the text of an error, in one line of a log or on a span."""
    return str(shown(kind, "errors", text))


def _masked(value: Any, names: tuple[str, ...]) -> Any:
    match value:
        case Mapping():
            return {
                key: MASK if _is_secret(key, names) and item is not None else _masked(item, names)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_masked(item, names) for item in value]
        case Unreadable():
            # Its text cannot be searched by keys, so as little is shown as of a secret.
            return MASK
    return value


def _is_secret(key: object, names: tuple[str, ...]) -> bool:
    spelled = _plain(key)
    return any(name in spelled for name in names)


def _plain(name: object) -> str:
    """A name however it is written: ``privateKey``, ``private-key``, ``Private key`` and ``PRIVATE_KEY`` are one."""
    return "".join(filter(str.isalnum, str(name).lower()))


@cache
def redactor() -> Callable[[str, str, Any], Any] | None:
    """The project's function, imported if the setting is a path. Raises ``ConfigurationError`` for one to nowhere."""
    given = get_settings().redact
    if not isinstance(given, str):
        return given
    try:
        found = import_string(given)
    except ImportError as error:
        raise ConfigurationError(f"AWA['REDACT']: {given!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"AWA['REDACT']: {given!r} is no function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "AWA":
        redactor.cache_clear()


setting_changed.connect(_forget, dispatch_uid="awa_django.redaction")
