"""The project that the tests run in.

``DATABASE_URL`` is any address that libpq takes. Without it the address is that of the embedded server,
which ``tests/conftest.py`` starts: type checkers and linters import this module too, and need no server.
"""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

from example_project import embedded

#: Where the tests make their databases. libpq's form, which the awa command line reads as well.
SERVER_URL = os.environ.get("DATABASE_URL") or embedded.server_for(durable=False).dsn("postgres")


def database(url: str) -> dict[str, object]:
    """The ``DATABASES`` entry of one address."""
    found = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found.pop("dbname", "postgres"),
        "USER": found.pop("user", ""),
        "PASSWORD": found.pop("password", ""),
        "HOST": found.pop("host", ""),
        "PORT": found.pop("port", ""),
        "OPTIONS": found,
    }


DATABASES = {"default": database(SERVER_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "awa_django",
    "tests.testapp",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "tests.urls"
SECRET_KEY = "only for tests"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TIME_ZONE = "UTC"
USE_TZ = True
