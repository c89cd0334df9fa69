"""Settings of the example project.

Environment variables, or a file ``.env`` in the repository's root, change them; see ``env(...)`` below.
Without any of them everything works on a PostgreSQL server that the project starts by itself.
"""

from pathlib import Path

import environ

from awa_django.signatures import parse_secret
from example_project import observability

ROOT = Path(__file__).resolve().parent.parent

env = environ.Env()
if (ROOT / ".env").exists():
    env.read_env(ROOT / ".env")  # what the environment already says wins

# This is a shop for your own machine. A site that others reach sets both of these.
DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="only-good-for-a-demo-that-nobody-else-reaches")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "awa_django",
    "example_project.shop",
]

# "embedded" starts a server of the project's own and stops it when its last user leaves.
DATABASE_URL = env.str("DATABASE_URL", default="embedded")
if DATABASE_URL == "embedded":
    from example_project import embedded

    DATABASE_URL = embedded.ensure_started()
DATABASES = {"default": env.db_url_config(DATABASE_URL)}
# Threads of the worker keep their connection from one job to the next.
DATABASES["default"].setdefault("CONN_MAX_AGE", 60)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Everything that has a good default is left out. A worker without --queue serves these.
AWA = {
    "QUEUES": {
        "default": {"max_workers": 20},
        "mail": {"max_workers": 10},
        # What fails for good here is kept as a dead letter, until somebody has looked at it.
        "couriers": {"max_workers": 5, "dlq_enabled": True},
    },
    # OTEL_TRACES_EXPORTER=console, or an endpoint for OTLP, switches OpenTelemetry on (observability.py); a trace then
    # goes on from the request to the job and to what follows it.
    "TRACE_CAPTURE": observability.exporter_of("traces") is not None,
    # What others than the bank sign with, who has secrets of its own and could otherwise end a payment's job without
    # its payment.
    "CALLBACK_SECRETS": env.list("AWA_RECEIVER_SECRETS", default=["a3" * 32]),
}

# Where the bank reaches the shop, and what it signs its calls with; of several secrets the new one comes first.
SHOP_URL = env.str("SHOP_URL", default="http://127.0.0.1:8000")
CALLBACK_SECRETS = [
    parse_secret(text, name="AWA_CALLBACK_HMAC_SECRET")
    for text in env.list("AWA_CALLBACK_HMAC_SECRET", default=["d0" * 32])
]

# Receipts are rendered and "sent", but no mail leaves this machine.
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
DEFAULT_FROM_EMAIL = "shop@example.com"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "example_project.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
