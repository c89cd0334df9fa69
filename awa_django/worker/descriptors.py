"""What code says about its queues and kinds, for the people who operate them (contract: runtime/instances section 2).

Descriptions are compared by a hash that every client computes alike; two live runtimes with different hashes for
one name have drifted apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from awa_django.errors import ConfigurationError
from awa_django.jobs import JsonValue
from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = ["Descriptor", "hashes", "sync"]

#: Rows of one statement, as every client of the fleet sends them.
BATCH = 5_000
#: Greatest lengths in characters; the tables check them too.
LIMITS = {"display_name": 200, "owner": 200, "description": 2000, "docs_url": 2048}
MOST_TAGS = 20

_EXPONENT = re.compile(r"e([+-])0*(\d)")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A description of a queue or a kind; everything is optional.

    Raises ``ConfigurationError`` for a text or a list that the database would refuse.
    """

    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    docs_url: str | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            text = getattr(self, name)
            if text is not None and len(text) > limit:
                raise ConfigurationError(
                    f"{name} of a description has {len(text)} characters; at most {limit} fit"
                )
        if len(self.tags) > MOST_TAGS:
            raise ConfigurationError(f"a description has {len(self.tags)} tags; at most {MOST_TAGS} fit")

    @property
    def hash(self) -> str:
        """BLAKE3 of the description as compact JSON, in hex."""
        parts: dict[str, JsonValue] = {
            "description": self.description,
            "display_name": self.display_name,
            "docs_url": self.docs_url,
            "extra": dict(self.extra),
            "owner": self.owner,
            "tags": list(self.tags),
        }
        return blake3(canonical(parts).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with sorted keys, no blanks, text unescaped where it may be, and floats as the other clients write them."""
    match value:
        case dict():
            return (
                "{"
                + ",".join(f"{canonical(str(key))}:{canonical(value[key])}" for key in sorted(value))
                + "}"
            )
        case list() | tuple():
            return "[" + ",".join(canonical(item) for item in value) + "]"
        case float():
            # Python writes at least two digits of an exponent.
            return _EXPONENT.sub(r"e\1\2", json.dumps(value, allow_nan=False))
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)


def hashes(descriptors: Mapping[str, Descriptor]) -> dict[str, str]:
    """The hash of each description, by name."""
    return {name: descriptor.hash for name, descriptor in sorted(descriptors.items())}


def sync(cursor: Cursor, subject: str, descriptors: Mapping[str, Descriptor], interval_ms: int) -> None:
    """Declare the queues or kinds (``subject`` is "queues" or "kinds") that this process knows.

    Every one gets a row, described or not. Rows are written in name order, so that two workers that start together
    cannot deadlock. Runs in the caller's transaction.
    """
    names = sorted(descriptors)
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        known = [descriptors[name] for name in batch]
        cursor.execute(
            statement("control/instance", f"describe_{subject}"),
            {
                "interval_ms": interval_ms,
                "names": batch,
                "display_names": [item.display_name for item in known],
                "descriptions": [item.description for item in known],
                "owners": [item.owner for item in known],
                "docs_urls": [item.docs_url for item in known],
                "tags": [canonical(list(item.tags)) for item in known],
                "extras": [canonical(dict(item.extra)) for item in known],
                "hashes": [item.hash for item in known],
            },
        )
