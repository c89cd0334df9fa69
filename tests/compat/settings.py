"""Settings that need nothing but Django, psycopg and this package."""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

_FOUND = {key: str(value) for key, value in conninfo_to_dict(os.environ["DATABASE_URL"]).items()}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _FOUND.pop("dbname"),
        "USER": _FOUND.pop("user", ""),
        "PASSWORD": _FOUND.pop("password", ""),
        "HOST": _FOUND.pop("host", ""),
        "PORT": _FOUND.pop("port", ""),
        "OPTIONS": _FOUND,
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "awa_django",
    "tests.workerapp",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
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
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
ALLOWED_HOSTS = ["testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for tests"
USE_TZ = True
AWA = {"LEADER_ELECTION_INTERVAL": 0.5}
