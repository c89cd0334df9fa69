"""How the desk looks and behaves where things are long, narrow, slow or read aloud."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import Failed
from awa_django.planes.base import Cursor, Due
from awa_django.states import JobState
from awa_django.transitions import promote
from tests.browser.conftest import Visitor
from tests.browser.test_desk import asked_for_live_parts, rows
from tests.planes.world import job
from tests.workers import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: One process has the server and the browser.
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

#: What nobody would call anything, and somebody will.
LONG_KIND = "shop.campaigns." + "SendTheVeryPersonalisedNewsletter" * 4
LONG_QUEUE = "tenant-" + "9f8e7d6c" * 6
ZONE = "America/Argentina/ComodRivadavia"
#: Widths of screens: with the admin's own navigation and without it, of a phone, and of what is zoomed to 400 %.
WIDTHS = (1440, 1240, 1120, 1024, 768, 390, 320)

#: How many pixels the page is wider than the screen, or something on it wider than the page.
EXCESS = """() => {
    const end = document.querySelector("#content-main").getBoundingClientRect().right;
    const parts = [...document.querySelectorAll("#content-main :is(table, section, form, dl, .awa-tags)")];
    return Math.max(
        document.documentElement.scrollWidth - window.innerWidth,
        ...parts.map((part) => Math.floor(part.getBoundingClientRect().right - end)),
    );
}"""


def test_names_of_any_length_stay_on_the_page_at_any_width(maria: Visitor) -> None:
    world = maria.site.world
    (attempt,) = world.running(
        job(
            kind=LONG_KIND,
            queue=LONG_QUEUE,
            max_attempts=1,
            tags=["t" * 60, "<b>", "x"],
            args={"k" * 90: "v" * 900},
        )
    )
    world.end([attempt], Failed("<b>no</b> " + "x" * 900))
    world.run(
        "INSERT INTO awa.cron_jobs (name, cron_expr, timezone, kind, queue) VALUES (%s, '0 3 * * *', %s, %s, %s)",
        "schedule_" * 12,
        ZONE,
        LONG_KIND,
        LONG_QUEUE,
    )
    page = maria.page
    found: list[str] = []
    for path in (
        "",
        "job/?state=failed",
        f"job/{attempt.job_id}/change/",
        "waitingcallback/",
        "queuemeta/",
        f"queuemeta/{LONG_QUEUE}/change/",
        "kinddescriptor/",
        "cronjob/",
        "batchoperation/",
    ):
        maria.go(path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            if (excess := page.evaluate(EXCESS)) > 0:
                found.append(f"{path or 'the dashboard'} at {width}: {excess} pixels")
    assert found == []
    # Where the admin's language runs from right to left, code still runs from left to right.
    maria.go(f"job/{attempt.job_id}/change/")
    page.evaluate("document.documentElement.dir = 'rtl'")
    assert page.locator("#awa-args").evaluate("(item) => getComputedStyle(item).direction") == "ltr"
    assert page.evaluate(EXCESS) <= 0


def test_a_menu_on_a_phone_opens_within_the_screen(visiting: Callable[..., Visitor]) -> None:
    visitor = visiting("maria", viewport={"width": 375, "height": 800})
    visitor.go("queuemeta/")
    visitor.page.locator("details.awa-menu summary").first.click()
    box = visitor.page.locator("details.awa-menu[open] .awa-menu-items").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375


def test_an_id_from_a_log_leads_from_any_page_to_the_job_or_the_callback(maria: Visitor) -> None:
    page, seeded = maria.page, maria.site.seeded
    maria.go("storagetransitionstate/")
    page.keyboard.press("/")
    page.keyboard.type(str(seeded.failed[0]))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/job/{seeded.failed[0]}/change/")
    maria.go("waitingcallback/")
    token = page.locator("#content-main tbody a.awa-mono").first.inner_text()
    maria.go("")
    page.get_by_role("searchbox", name="Job or callback id").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/waitingcallback/?q={token}")
    assert rows_of_callbacks(page) == [token]


def rows_of_callbacks(page: Page) -> list[str]:
    return page.locator("#content-main tbody a.awa-mono").all_inner_texts()


# What keeps itself up to date ----------------------------------------------------------------------------------


def seconds(page: Page, number: int) -> None:
    """Let time pass for the page, until what it asked for has come."""
    with page.expect_response(lambda answer: bool(answer.request.headers.get("x-awa-live"))):
        page.clock.run_for(number * 1000)


def troubled(visitor: Visitor, queue: str) -> Attempt:
    """A job that runs again after it failed with more than its page shows at a time."""
    world = visitor.site.world
    (attempt,) = world.running(job(kind="send_invoice", queue=queue))
    world.end([attempt], Failed("\n".join(f"line {number}" for number in range(200))))
    world.run("UPDATE awa.deferred_jobs SET run_at = now() WHERE job_id = %s", attempt.job_id)

    def promote_due(cursor: Cursor) -> None:
        due = world.plane.take(cursor, Due(JobState.RETRYABLE))
        world.plane.place(cursor, [promote(item) for item in due])

    world.within(promote_due)
    (again,) = world.claim(queue, 1)
    return again


def test_an_update_leaves_the_reader_where_they_were_and_tells_only_what_is_new(maria: Visitor) -> None:
    attempt = troubled(maria, "read")
    page = maria.page
    page.clock.install()
    maria.go(f"job/{attempt.job_id}/change/")
    page.locator("#awa-error-1").evaluate(
        "(item) => { item.scrollTop = 500; item.focus({preventScroll: true}); }"
    )
    page.locator("#awa-job-head h1").evaluate("(item) => item.classList.add('the-same')")
    maria.site.world.beat(attempt, {"percent": 42, "message": "half of it"})
    seconds(page, 6)
    page.get_by_text("half of it").wait_for()
    assert page.locator("#awa-error-1").evaluate("(item) => item.scrollTop") == 500
    assert page.evaluate("document.activeElement.id") == "awa-error-1"
    assert page.locator("#awa-job-head[aria-live] h1.the-same").count() == 1, (
        "its forms have new tokens, no news"
    )


def test_an_error_that_somebody_has_closed_stays_closed(maria: Visitor) -> None:
    attempt = troubled(maria, "closed")
    page = maria.page
    page.clock.install()
    maria.go(f"job/{attempt.job_id}/change/")
    page.locator("details.awa-attempt summary").first.click()
    asked = asked_for_live_parts(page)
    page.clock.run_for(20_000)
    assert asked == []
    assert page.locator("[data-awa-status]").inner_text() == "Updates paused"


def test_the_mark_of_workers_is_as_new_as_the_page(maria: Visitor) -> None:
    page = maria.page
    page.clock.install()
    # One of another test may have ended a moment ago.
    maria.site.world.run("DELETE FROM awa.runtime_instances WHERE hostname NOT IN ('worker-1', 'worker-2')")
    maria.go("job/?state=failed")
    assert "1 live worker" in page.locator(".awa-chip").inner_text()
    maria.site.world.run("UPDATE awa.runtime_instances SET last_seen_at = now() - %s", timedelta(hours=1))
    seconds(page, 6)
    page.locator(".awa-chip.is-error", has_text="No live worker").wait_for()


#: Notes when the page asks for anything, by its own clock.
NOTE_TIMES = """() => {
    const ask = window.fetch;
    window.asked = [];
    window.fetch = (...what) => { window.asked.push(Date.now()); return ask(...what); };
}"""


def test_a_page_that_cannot_be_read_says_since_when_and_tries_less_and_less(maria: Visitor) -> None:
    page = maria.page
    page.clock.install()
    maria.go("job/?state=failed")
    shown = rows(page).count()
    page.context.set_offline(True)
    page.evaluate(NOTE_TIMES)  # not before: until then it may have asked, and been answered

    def asked_thrice() -> list[int] | None:
        page.clock.run_for(1_000)
        asked: list[int] = page.evaluate("window.asked")
        return asked if len(asked) == 3 else None

    first, second, third = wait_until(asked_thrice, seconds=60) or ()
    assert second - first >= 10_000
    assert third - second >= 20_000
    status = page.locator("[data-awa-status].is-error")
    assert re.fullmatch(r"Not updated since \d+:\d\d:\d\d( [AP]M)?", status.inner_text())
    assert rows(page).count() == shown > 0, "what was known stays"
    page.context.set_offline(False)
    seconds(page, 60)
    page.locator("[data-awa-status]:not(.is-error)", has_text="Live").wait_for()
    # The browser tells of each request that failed, when it comes to it.
    maria.faults[:] = [fault for fault in maria.faults if "ERR_INTERNET_DISCONNECTED" not in fault]


def test_who_was_logged_out_comes_to_the_form_by_the_button_that_refreshes(maria: Visitor) -> None:
    page = maria.page
    page.clock.install()
    maria.go("job/?state=failed")
    page.context.clear_cookies()
    seconds(page, 6)
    page.locator("[data-awa-status].is-error").wait_for()
    page.get_by_role("link", name="Refresh").click()
    page.wait_for_url("**/admin/login/?next=**")
