"""What workers and descriptors say about queues and kinds, in words for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from django.utils.translation import gettext as _

__all__ = ["config_facts", "link_of"]


class _Described(Protocol):
    @property
    def docs_url(self) -> str | None: ...


def link_of(descriptor: _Described | None) -> str:
    """Where a descriptor's documentation is, if that is a web page; whoever writes rows could write anything there."""
    url = (descriptor is not None and descriptor.docs_url) or ""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return ""
    return url if scheme in ("http", "https") else ""


def config_facts(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a process runs a queue, as names and values; what this release does not know stays as it was written.

    (contract: runtime/instances section 1)
    """
    facts = [
        (label, said(config[key]))
        for key, label, said in _facts()
        if config.get(key) is not None or key in _SAID_WHEN_NULL & config.keys()
    ]
    known = {key for key, _label, _said in _facts()}
    return facts + [
        (str(key), str(value)) for key, value in config.items() if key not in known and value is not None
    ]


#: Nothing is a value of these: no limit, no deadline.
_SAID_WHEN_NULL = {"rate_limit", "deadline_duration_secs"}


def _facts() -> list[tuple[str, str, Callable[[Any], str]]]:
    return [
        ("mode", _("Slots"), _mode),
        ("max_workers", _("At once"), str),
        ("min_workers", _("Guaranteed"), str),
        ("weight", _("Weight"), str),
        ("global_max_workers", _("At once in the process"), str),
        ("rate_limit", _("Rate limit"), _rate),
        ("deadline_duration_secs", _("Deadline"), lambda value: _("%s s") % value if value else _("none")),
        (
            "priority_aging_interval_secs",
            _("Priority rises every"),
            lambda value: _("%s s") % value if value else _("never"),
        ),
        ("dlq_enabled", _("Final failures"), lambda value: _("dead letters") if value else _("stay failed")),
        ("claimers", _("Claimers"), str),
        ("claim_batch_size", _("Claimed at a time"), str),
        ("poll_interval_ms", _("Looks every"), lambda value: _("%s ms") % value),
    ]


def _mode(value: object) -> str:
    match value:
        case "hard_reserved":
            return _("of its own")
        case "weighted":
            return _("shared by weight")
    return str(value)


def _rate(value: object) -> str:
    match value:
        case None:
            return _("none")
        case {"max_rate": rate, "burst": burst}:
            text = str(_("%s a second") % rate)
            return text + str(_(", bursts of %s") % burst) if burst else text
    return str(value)
