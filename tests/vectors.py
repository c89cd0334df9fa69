"""The contract's recorded vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "contract" / "vectors"


def load(name: str) -> dict[str, Any]:
    """One vector file; ``name`` is its path without ``.json``."""
    found: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found
