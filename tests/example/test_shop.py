"""What ``make serve`` offers in the admin: the bank is asked and answers, dead letters are redriven."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.example.conftest import Manage

pytestmark = [pytest.mark.worker, pytest.mark.xdist_group("example")]

#: A logged-in client of the site, and one order.
OPEN = """
import json
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from example_project.shop.checkout import place_order, stock_shelves
from example_project.shop.models import Order, Payment
from awa_django import operations
from awa_django.operations import JobFilter

user, _ = get_user_model().objects.get_or_create(username="ann", is_staff=True, is_superuser=True)
site = Client(SERVER_NAME="localhost")
site.force_login(user)

def order():
    return Order.objects.get(reference="desk-1")

def states(kind):
    return [record.job.state.value for record in operations.list_jobs(JobFilter(kind=kind, tag="desk")).jobs]
"""
ASK = """
place_order("desk-1", "a@example.com", {stock_shelves()["MUG-02"]: 2}, source="desk")
said = [
    site.post(
        reverse("admin:shop_order_changelist"), {"action": action, "_selected_action": [order().pk]}
    ).status_code
    for action in ("ask_the_bank", "book_a_courier")
]
print(json.dumps(said))
"""
ANSWER = """
before = {kind: states(kind) for kind in ("take_payment", "book_pickup", "ship_order")}
page = site.get(reverse("admin:shop_payment_change", args=[order().payment.pk])).content.decode()
bank = Client(SERVER_NAME="localhost")
url = f"/payments/{order().payment.callback_id}/complete"
import re
found = re.search(r"X-Awa-Signature: ([0-9a-f]{64})&#x27; http://shop\\.example(\\S+/complete)", page)
answers = [
    bank.get(found[2]).status_code,
    bank.post(found[2]).status_code,
    bank.post(found[2], headers={"X-Awa-Signature": "0" * 64}).status_code,
    bank.post(found[2].replace("/payments/", "/awa/callbacks/"), headers={"X-Awa-Signature": found[1]}).status_code,
    bank.post(found[2], headers={"X-Awa-Signature": found[1]}).status_code,
    bank.post(found[2], headers={"X-Awa-Signature": found[1]}).status_code,
    bank.post("/payments/not-an-id/complete", headers={"X-Awa-Signature": found[1]}).status_code,
]
form = {"reference": "desk-1", "email": "a@example.com", "source": "desk", "address": "1 Harbour Street"}
form |= {f"lines-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL", "MIN_NUM", "MAX_NUM")}
saved = site.post(reverse("admin:shop_order_change", args=[order().pk]), form).status_code
after = {kind: states(kind) for kind in ("take_payment", "book_pickup", "ship_order")}
print(json.dumps([before, answers, found[2] == url, saved, after]))
"""
LOOK = """
ended = {kind: states(kind) for kind in ("take_payment", "book_pickup", "ship_order")}
well = Client(SERVER_NAME="localhost").get("/awa/health/").status_code
print(json.dumps([ended, order().shipped_at is not None, order().pickup_booked_at is not None, well]))
"""


@pytest.fixture
def shell(manage: Manage) -> Any:
    """Runs a script in the example project; what it printed last, as JSON."""

    def run(script: str) -> Any:
        done = manage("shell", "--verbosity", "0", "--command", OPEN + script)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_the_admin_asks_the_bank_and_redrives_what_died_for_want_of_an_address(
    manage: Manage, shell: Any, shop_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shop_environment, "SHOP_URL", "http://shop.example")
    assert shell(ASK) == [302, 302]
    assert manage("awa_worker", "--drain").returncode == 0
    before, answers, as_routed, saved, after = shell(ANSWER)
    assert before == {"take_payment": ["waiting_external"], "book_pickup": ["failed"], "ship_order": []}
    assert answers == [405, 401, 401, 401, 204, 404, 404], "the bank ends no job but through the shop"
    assert as_routed
    assert saved == 302
    assert after == {"take_payment": ["completed"], "book_pickup": ["available"], "ship_order": ["available"]}
    assert manage("awa_worker", "--drain").returncode == 0
    assert shell(LOOK) == [
        {"take_payment": ["completed"], "book_pickup": ["completed"], "ship_order": ["completed"]},
        True,
        True,
        200,
    ]


def test_a_refused_secret_is_named_and_not_repeated(
    manage: Manage, shop_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shop_environment, "AWA_CALLBACK_HMAC_SECRET", "my-secret")
    done = manage("check")
    assert done.returncode != 0
    assert "AWA_CALLBACK_HMAC_SECRET: 64 hex digits" in done.stderr
    assert "my-secret" not in done.stderr
