"""The project that worker processes of the tests run in: short times, and handlers that leave a trace.

``AWA_TEST_SETTINGS``, a JSON object, adds to or replaces keys of ``AWA``. ``AWA_TEST_WITHOUT_JOBS`` leaves the
handlers out.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES as _DATABASES
from tests.settings import INSTALLED_APPS as _APPS

#: Handlers keep their connections from job to job, as a project that cares for speed has it.
DATABASES = {"default": {**_DATABASES["default"], "CONN_MAX_AGE": 60}}

INSTALLED_APPS = list(_APPS) if os.environ.get("AWA_TEST_WITHOUT_JOBS") else [*_APPS, "tests.workerapp"]

AWA: dict[str, Any] = {
    "HEARTBEAT_INTERVAL": 0.5,
    "STALE_AFTER": 2,
    "RESCUE_INTERVAL": 0.5,
    "LISTEN_POLL_INTERVAL": 1,
    "DRAIN_TIMEOUT": 3,
    "LEADER_ELECTION_INTERVAL": 0.5,
    "SNAPSHOT_INTERVAL": 1,
    **json.loads(os.environ.get("AWA_TEST_SETTINGS", "{}")),
}
