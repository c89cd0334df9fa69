"""Act three: no worker runs, and the world outside goes on. The bank answers, and somebody notes an address."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings

from awa_django import operations
from awa_django.operations import JobFilter
from awa_django.signatures import SIGNATURE_HEADER, sign
from example_project.shop.checkout import note_address
from example_project.shop.demo.account import CALLS
from example_project.shop.demo.customers import Day
from example_project.shop.demo.website import shop_on_the_web
from example_project.shop.models import Payment

#: Seconds until the site must have answered.
PATIENCE = 30


@dataclass(frozen=True)
class Afternoon:
    """What was found and done while no worker ran."""

    #: Payments that waited for the bank.
    waiting: int
    #: What the site answered, by what was said.
    answers: dict[str, int]
    #: Shipments that were enqueued once the payment was there.
    shipments: int
    #: Dead letters, and how many of them were sent back to work.
    dead: int
    redriven: int

    @property
    def answered_as_expected(self) -> int:
        """How many calls the site answered as it should."""
        return sum(self.answers[said] == status for said, status in CALLS.items())


def afternoon(day: Day, say: Callable[[str], None]) -> Afternoon:
    """Let the bank call and redrive what is dead, telling ``say`` about it."""
    waiting = count(day, "take_payment", state="waiting_external")
    say(f"   {waiting} payments wait for the bank, which now calls the shop over HTTP:")
    answers = bank_calls(day)
    for said, status in answers.items():
        say(f"     {said:<42}{status:>5}")
    shipments = count(day, "ship_order")
    say(f"   Its answer stored {shipments} follow-up in the same transaction: ship_order.")
    letters = operations.dead_letters(JobFilter(kind="book_pickup", tag=day.source))
    redriven = 0
    for letter in letters:
        error = letter.job.errors[-1]["error"].partition("\n")[0]
        say(f"   A dead letter: {letter.job.kind}")
        say(f"     {error}")
        redriven += note_address(day.orders[0], "1 Harbour Street")
    say(f"   The address is noted, and operations.retry_dead() redrives {redriven} job.")
    return Afternoon(waiting, answers, shipments, len(letters), redriven)


def count(day: Day, kind: str, state: str | None = None) -> int:
    """How many jobs of a kind the day has, in one state or in any."""
    return len(operations.list_jobs(JobFilter(kind=kind, tag=day.source, state=state)).jobs)


def bank_calls(day: Day) -> dict[str, int]:
    """What the site answers to each of ``CALLS``."""
    secret = settings.CALLBACK_SECRETS[0]
    nobodys = bytes(len(secret))
    paid, declined = (Payment.objects.get(order=order) for order in day.by_bank)
    with shop_on_the_web() as shop:
        statuses = [
            post(paid.answer_url(shop, paid=True), sign(str(paid.callback_id), nobodys)),
            post(paid.answer_url(shop, paid=True), sign(str(paid.callback_id), secret)),
            post(paid.answer_url(shop, paid=True), sign(str(paid.callback_id), secret)),
            post(declined.answer_url(shop, paid=False), sign(str(declined.callback_id), secret)),
        ]
    return dict(zip(CALLS, statuses, strict=True))


def post(url: str, signature: str) -> int:
    """Call an address with a signature; the status of the answer. Proxies of the environment are not for this."""
    request = urllib.request.Request(url, data=b"", headers={SIGNATURE_HEADER: signature}, method="POST")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
