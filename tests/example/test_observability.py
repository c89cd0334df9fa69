"""OpenTelemetry in the example project: off by default, and a trace from one process to the other when it is on."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from example_project import observability
from example_project.embedded import ROOT
from tests.example.conftest import Manage

pytestmark = [pytest.mark.worker, pytest.mark.xdist_group("example")]

ENQUEUE = """
from example_project.shop.jobs import rebuild_sales_report
rebuild_sales_report.enqueue(source="test")
"""


def traced(environment: dict[str, str], *arguments: str) -> list[dict[str, Any]]:
    """Run ``manage.py`` with the console's exporter; the spans that it printed before it ended."""
    done = subprocess.run(
        [sys.executable, "example_project/manage.py", *arguments],
        cwd=ROOT,
        env=environment | {"OTEL_TRACES_EXPORTER": "console"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    spans, end = [], 0
    decoder = json.JSONDecoder()
    # What the command itself says may come between two batches of spans.
    while (begin := done.stdout.find("{", end)) >= 0:
        span, end = decoder.raw_decode(done.stdout, begin)
        spans.append(span)
    return spans


def test_a_trace_goes_from_one_process_to_the_other(manage: Manage, shop_environment: dict[str, str]) -> None:
    manage("migrate", "--verbosity", "0")
    producer = traced(shop_environment, "shell", "--verbosity", "0", "--command", ENQUEUE)
    worker = traced(shop_environment, "awa_worker", "--drain")
    (sent,) = [span for span in producer if span["name"] == "enqueue rebuild_sales_report"]
    (run,) = [span for span in worker if span["name"] == "job.execute rebuild_sales_report"]
    assert run["parent_id"] == sent["context"]["span_id"]
    assert run["context"]["trace_id"] == sent["context"]["trace_id"]
    below = [span for span in worker if span["parent_id"] == run["context"]["span_id"]]
    assert any("db.statement" in span["attributes"] for span in below), "what the handler asks the database"
    assert all(span["resource"]["attributes"]["service.name"] == "awa-shop" for span in worker)


@pytest.mark.parametrize(
    ("environment", "traces", "metrics"),
    [
        ({}, None, None),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console", None),
        ({"OTEL_METRICS_EXPORTER": "console"}, None, "console"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, "otlp", "otlp"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_METRICS_EXPORTER": "none"},
            "otlp",
            None,
        ),
    ],
)
def test_the_standard_variables_switch_it_on(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], traces: str | None, metrics: str | None
) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (observability.exporter_of("traces"), observability.exporter_of("metrics")) == (traces, metrics)


def test_an_exporter_that_is_not_installed_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop under test")
    with pytest.raises(RuntimeError, match=r"'carrier-pigeon' for traces.*OTEL_TRACES_EXPORTER=console"):
        observability.configure()
