from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from awa_django.conf import QueueConfig, RateLimit, Settings, get_settings, setting_faults
from awa_django.errors import ConfigurationError


@override_settings(AWA={})
def test_without_a_setting_everything_has_its_default() -> None:
    assert get_settings() == Settings()
    assert setting_faults() == []
    settings = get_settings()
    assert settings.database == "default"
    assert settings.queues == {"default": QueueConfig("default")}
    assert settings.heartbeat_interval == timedelta(seconds=30)
    assert settings.stale_after >= 3 * settings.heartbeat_interval


def test_settings_are_read_once_and_again_when_they_change() -> None:
    with override_settings(AWA={"POLL_INTERVAL": 1}):
        first = get_settings()
        assert first is get_settings()
        assert first.poll_interval == timedelta(seconds=1)
        with override_settings(AWA={"POLL_INTERVAL": timedelta(minutes=1)}):
            assert get_settings().poll_interval == timedelta(minutes=1)
        assert get_settings().poll_interval == timedelta(seconds=1)
    with pytest.raises(FrozenInstanceError):
        first.listen = False  # type: ignore[misc]


@override_settings(
    AWA={
        "QUEUES": {
            "default": 10,
            "mail": {"max_workers": 5, "rate_limit": {"max_rate": 2.5}, "deadline": 60, "dlq_enabled": True},
            "bulk": QueueConfig("bulk", max_workers=1),
            "slow": {"rate_limit": RateLimit(1, burst=7)},
        },
        "DLQ_ENABLED": False,
    }
)
def test_queues_are_numbers_dicts_or_configurations() -> None:
    settings = get_settings()
    assert settings.queue("default").max_workers == 10
    mail = settings.queue("mail")
    assert (mail.max_workers, mail.deadline, mail.rate_limit) == (5, timedelta(seconds=60), RateLimit(2.5))
    assert mail.rate_limit is not None
    assert mail.rate_limit.capacity == 3
    slow = settings.queue("slow").rate_limit
    assert slow is not None
    assert slow.capacity == 7
    assert settings.queue("bulk").max_workers == 1
    assert settings.queue("unnamed") == QueueConfig("unnamed")
    assert settings.dead_letters("mail")
    assert not settings.dead_letters("bulk")


WRONG: list[tuple[Any, str]] = [
    ([], "AWA: a dict is needed"),
    ({"POL_INTERVAL": 1}, "AWA['POL_INTERVAL']: unknown key; did you mean 'POLL_INTERVAL'?"),
    ({"poll_interval": 1}, "unknown key"),
    ({"ZZZZ": 1}, "known are ADMIN, ADMIN_STATEMENT_TIMEOUT, AUTODISCOVER"),
    ({"POLL_INTERVAL": 0}, "above zero"),
    ({"POLL_INTERVAL": -1}, "above zero"),
    ({"POLL_INTERVAL": "1s"}, "timedelta or a number of seconds"),
    ({"POLL_INTERVAL": True}, "timedelta or a number of seconds"),
    ({"POLL_INTERVAL": float("inf")}, "no usable duration"),
    ({"LISTEN": "yes"}, "True or False"),
    ({"UNKNOWN_KIND": "ignore"}, "'defer' or 'fail'"),
    ({"TRANSITION_ROLE": "leader"}, "one of 'auto', 'canonical_drain', 'queue_storage_target'"),
    ({"HISTORY_MAX_ROWS": 0}, "at least 1"),
    ({"SETTLE_BATCH_SIZE": 1.5}, "whole number"),
    ({"DATABASE": ""}, "text is needed"),
    ({"DATABASE": None}, "text is needed"),
    ({"AUTODISCOVER": "jobs"}, "list of module names"),
    ({"QUEUES": {}}, "dict from queue name"),
    ({"QUEUES": ["default"]}, "dict from queue name"),
    ({"QUEUES": {"q" * 60: 1}}, "at most 59"),
    ({"QUEUES": {"cancel": 1}}, "cancellations"),
    ({"QUEUES": {3: 1}}, "a queue name is text"),
    ({"QUEUES": {"a": "many"}}, "dict or a number of workers"),
    ({"QUEUES": {"a": {"workers": 3}}}, "did you mean 'max_workers'?"),
    ({"QUEUES": {"a": -1}}, "at least 0"),
    ({"QUEUES": {"a": {"rate_limit": 5}}}, "rate limit is a dict"),
    ({"QUEUES": {"a": {"rate_limit": {"rate": 5}}}}, "did you mean 'max_rate'?"),
    ({"QUEUES": {"a": {"rate_limit": {"max_rate": 0}}}}, "above zero"),
    ({"QUEUES": {"a": {"claimers": 0}}}, "at least 1"),
    ({"QUEUES": {"a": {"claim_batch_size": 0}}}, "at least 1"),
    ({"QUEUES": {"a": {"min_workers": -1}}}, "at least 0"),
    ({"QUEUES": {"a": {"weight": 0}}}, "at least 1"),
    ({"QUEUES": {"a": {"weight": 1.5}}}, "whole number"),
    ({"GLOBAL_MAX_WORKERS": 0}, "at least 1"),
    ({"GLOBAL_MAX_WORKERS": True}, "whole number"),
    ({"MAX_CLAIMERS_PER_QUEUE": -1}, "at least 0"),
    (
        {"GLOBAL_MAX_WORKERS": 5, "QUEUES": {"a": {"min_workers": 3}, "b": {"min_workers": 3}, "c": {}}},
        "5 is less than the 6 jobs at once that min_workers guarantees (a 3, b 3)",
    ),
    ({"CALLBACK_SECRETS": "07" * 32}, "AWA['CALLBACK_SECRETS']: a list of secrets is needed, not str"),
    ({"CALLBACK_SECRETS": ["07" * 32, "x" * 64]}, "AWA['CALLBACK_SECRETS'][1]: 64 hex digits"),
    ({"CALLBACK_SECRETS": [b"short"]}, "[0]: 32 bytes, or their 64 hex digits, are needed, not bytes of 5"),
    ({"CALLBACK_SECRETS": [None]}, "are needed, not NoneType"),
    ({"CALLBACK_UNSIGNED": 1}, "True or False"),
    ({"READ_ONLY": "no"}, "AWA['READ_ONLY']: True or False"),
    ({"ADMIN": None}, "AWA['ADMIN']: True or False"),
    ({"ADMIN_STATEMENT_TIMEOUT": 0}, "above zero"),
    ({"REDACTED_NAMES": "password"}, "AWA['REDACTED_NAMES']: a list of parts of keys"),
    ({"REDACTED_NAMES": [1]}, "list of parts of keys"),
    ({"REDACT": "redact"}, "AWA['REDACT']: a function or its dotted path is needed, not 'redact'"),
    ({"REDACT": 5}, "function or its dotted path"),
    ({"HEALTH_ADDR": "8080"}, "'HOST:PORT' is needed, such as '0.0.0.0:8080', not '8080'"),
    ({"HEALTH_ADDR": "localhost:http"}, "'HOST:PORT'"),
    ({"HEALTH_ADDR": "localhost:65536"}, "'HOST:PORT'"),
    ({"HEALTH_ADDR": 8080}, "'HOST:PORT'"),
    ({"STALE_AFTER": 89}, "under three heartbeats"),
    ({"HEARTBEAT_INTERVAL": 31}, "under three heartbeats"),
]


@pytest.mark.parametrize(("awa", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_named(awa: Any, words: str) -> None:
    with override_settings(AWA=awa):
        (fault,) = setting_faults()
        assert words in fault
        with pytest.raises(ConfigurationError) as refusal:
            get_settings()
        assert str(refusal.value) == fault


@override_settings(AWA={"LISTEN": 1, "POLL_INTERVAL": 0, "QUEUES": {"a": {"x": 1}}})
def test_every_wrong_setting_is_reported_at_once() -> None:
    assert [fault.partition(":")[0] for fault in setting_faults()] == [
        "AWA['LISTEN']",
        "AWA['POLL_INTERVAL']",
        "AWA['QUEUES']['a']['x']",
    ]


@override_settings(
    AWA={
        "GLOBAL_MAX_WORKERS": 5,
        "MAX_CLAIMERS_PER_QUEUE": 0,
        "QUEUES": {"a": {"min_workers": 5, "weight": 2, "claimers": 3}, "b": {}},
    }
)
def test_queues_may_share_the_slots_of_a_process() -> None:
    settings = get_settings()
    assert (settings.global_max_workers, settings.max_claimers_per_queue) == (5, 0)
    shared = settings.queue("a")
    assert (shared.min_workers, shared.weight, shared.claimers) == (5, 2, 3)
    assert (settings.queue("b").min_workers, settings.queue("b").weight) == (0, 1)


@override_settings(AWA={"GLOBAL_MAX_WORKERS": None})
def test_no_global_maximum_may_be_said_aloud() -> None:
    assert get_settings() == Settings()


@override_settings(AWA={"HEARTBEAT_INTERVAL": 1, "STALE_AFTER": 3, "FAILED_RETENTION": 0})
def test_limits_themselves_are_taken() -> None:
    assert setting_faults() == []
    assert get_settings().failed_retention == timedelta(0)


@override_settings(
    AWA={
        "CALLBACK_SECRETS": ["07" * 32, b"\x08" * 32],
        "REDACTED_NAMES": ["iban"],
        "REDACT": len,
        "HEALTH_ADDR": "[::1]:8080",
        "ADMIN_STATEMENT_TIMEOUT": 2.5,
    }
)
def test_settings_of_the_desk_are_read() -> None:
    settings = get_settings()
    assert settings.callback_secrets == (b"\x07" * 32, b"\x08" * 32)
    assert (settings.redacted_names, settings.redact) == (("iban",), len)
    assert settings.health_addr == "[::1]:8080"
    assert settings.admin_statement_timeout == timedelta(seconds=2.5)
    assert (settings.callback_unsigned, settings.read_only, settings.admin) == (False, False, True)


@override_settings(AWA={"REDACT": None, "HEALTH_ADDR": None, "REDACTED_NAMES": [], "CALLBACK_SECRETS": []})
def test_nothing_to_hide_and_nowhere_to_answer_may_be_said_aloud() -> None:
    settings = get_settings()
    assert (settings.redact, settings.health_addr, settings.redacted_names) == (None, None, ())


SPOKEN = "topsecret" * 7


@pytest.mark.parametrize(
    "secrets", [SPOKEN, [SPOKEN], [SPOKEN.encode()], ["07" * 32, SPOKEN + "0"], {"secret": SPOKEN}], ids=repr
)
def test_a_secret_is_never_repeated(secrets: Any) -> None:
    with override_settings(AWA={"CALLBACK_SECRETS": secrets}):
        assert "topsecret" not in "".join(setting_faults())
        with pytest.raises(ConfigurationError) as refusal:
            get_settings()
    assert "topsecret" not in repr(refusal.value)


@override_settings(
    AWA={
        "CALLBACK_SECRETS": [b"topsecret" + bytes(23)],
        "HTTP_JOBS": {"k": {"url": "https://u:topsecret@f.example", "headers": {"X-Key": "topsecret"}}},
    }
)
def test_settings_may_be_printed() -> None:
    assert "topsecret" not in repr(get_settings())
