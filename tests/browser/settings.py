"""The project that the browser suite visits: the tests' own, with static files and a strict security policy.

``AWA_TEST_UNFOLD`` puts django-unfold in front of the admin, without the policy, which it does not keep.
"""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS
from tests.settings import MIDDLEWARE as _MIDDLEWARE

_unfold = bool(os.environ.get("AWA_TEST_UNFOLD"))

INSTALLED_APPS = [
    *(["unfold"] if _unfold else []),
    "django.contrib.staticfiles",
    *_APPS,
    "tests.workerapp",
]
MIDDLEWARE = [*([] if _unfold else ["tests.browser.policy.strict"]), *_MIDDLEWARE]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
USE_TZ = True
