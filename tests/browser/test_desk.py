"""What an operator does at the desk, with a mouse and a keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from awa_django.outcomes import Failed
from tests.browser.conftest import Visitor
from tests.planes.world import job
from tests.workers import worker

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

#: One process has the server and the browser.
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

#: Jobs of each test lie on a queue of its own.
DONE = "SELECT count(*) FROM awa.jobs WHERE queue = %s AND state::text = %s"
LOGGED = "SELECT count(*) FROM django_admin_log WHERE change_message LIKE %s"


def failed_on(visitor: Visitor, queue: str, count: int = 1) -> list[int]:
    """Jobs of a queue that were tried for the last time."""
    attempts = visitor.site.world.running(
        *(job(kind="send_invoice", queue=queue, max_attempts=1, args={"order": n}) for n in range(count))
    )
    visitor.site.world.end(attempts, Failed("SMTPServerDisconnected: please run connect() first"))
    return [attempt.job_id for attempt in attempts]


def waiting_on(visitor: Visitor, queue: str, count: int) -> None:
    """Jobs of a queue that nobody serves."""
    visitor.site.world.enqueue(
        *(job(kind="send_newsletter", queue=queue, args={"n": n}) for n in range(count))
    )


def confirm(page: Page, label: str) -> None:
    """Answer the question that a verb asks."""
    page.locator("form.awa-confirm button[type=submit]", has_text=label).click()


def messages(page: Page) -> str:
    """What the last action said."""
    return page.locator("ul.messagelist").inner_text()


def rows(page: Page) -> Locator:
    return page.locator("#awa-jobs tbody tr")


def test_an_operator_logs_in_and_sees_how_the_queue_is(visiting: Callable[..., Visitor]) -> None:
    visitor = visiting(None)
    visitor.page.goto(visitor.site.at("job/"))
    assert "/admin/login/" in visitor.page.url, "strangers are asked who they are"
    visitor.log_in("maria")
    page = visitor.page
    stats = {
        stat.locator(".awa-stat-name").inner_text().strip(): stat.locator(".awa-stat-figure").inner_text()
        for stat in page.locator(".awa-stat").all()
    }
    assert list(stats) == [
        "Available",
        "Running",
        "Failed",
        "Scheduled",
        "Waiting for callback",
        "Completed, last hour",
    ]
    assert stats["Running"] == "4"
    assert stats["Scheduled"] == "8"
    assert page.locator("#awa-workers").is_visible()
    assert "worker-1" in page.locator(".awa-table", has_text="Process").inner_text()
    assert page.locator("section", has_text="Latest failures").locator("tbody tr").count() == 10
    page.locator(".awa-stat", has_text="Running").click()
    page.wait_for_url("**/job/?state=running")
    assert rows(page).count() == 4


#: The navigation, and what pictures of its pages are called.
PAGES = {
    "Dashboard": "dashboard",
    "Jobs": "jobs",
    "Dead letters": "dead-letters",
    "Callbacks": "callbacks",
    "Queues": "queues",
    "Kinds": "kinds",
    "Schedules": "schedules",
    "Workers": "workers",
    "Batch operations": "batches",
    "Storage": "storage",
}


def test_every_page_of_the_navigation_opens_and_can_be_read(
    maria: Visitor, picture: Callable[[Page, str], None]
) -> None:
    page = maria.page
    names = page.locator(".awa-nav a").all_inner_texts()
    assert [re.sub(r"\s*\d+\+?$", "", name) for name in names] == list(PAGES)
    for number, name in enumerate(PAGES.values()):
        link = page.locator(".awa-nav a").nth(number)
        path = link.get_attribute("href")
        assert path is not None
        link.click()
        page.wait_for_url(f"**{path}")
        assert page.locator(".awa-nav a[aria-current=page]").get_attribute("href") == path
        assert page.locator("h1").last.inner_text()
        contrast(page)
        picture(page, f"{name}-light")


def test_a_job_shows_what_went_wrong_the_newest_first(
    maria: Visitor, picture: Callable[[Page, str], None]
) -> None:
    page = maria.page
    maria.go(f"job/{maria.site.troubled}/change/")
    said = page.locator("#awa-job").inner_text()
    assert said.index("unexpectedly closed") < said.index("Connection refused")
    assert "PDF rendered, sending" in said
    contrast(page)
    picture(page, "job-light")


def test_a_queue_shows_its_workers_and_what_they_were_told(
    maria: Visitor, picture: Callable[[Page, str], None]
) -> None:
    page = maria.page
    maria.go("queuemeta/mail/change/")
    said = page.locator("#content-main").inner_text()
    for fact in ("Everything that goes out by mail.", "worker-1", "50", "20"):
        assert fact in said, fact
    contrast(page)
    picture(page, "queue-light")


@pytest.mark.parametrize("path", ["", "job/", "queuemeta/", "job/{troubled}/change/"])
def test_it_is_dark_where_the_system_is(
    visiting: Callable[..., Visitor], picture: Callable[[Page, str], None], path: str
) -> None:
    visitor = visiting("maria", color_scheme="dark")
    visitor.go(path.format(troubled=visitor.site.troubled))
    assert is_dark(visitor.page)
    contrast(visitor.page)
    name = {"": "dashboard", "job/": "jobs", "queuemeta/": "queues"}.get(path, "job")
    picture(visitor.page, f"{name}-dark")


def test_jobs_are_found_by_state_queue_kind_and_number(maria: Visitor) -> None:
    wanted = maria.site.troubled
    page = maria.page
    maria.go("job/")
    page.locator(".awa-pills a", has_text="failed").click()
    page.wait_for_url("**state=failed")
    assert {text.strip() for text in page.locator("#awa-jobs tbody .awa-badge").all_inner_texts()} <= {
        "failed",
        "dead letter",
    }
    page.fill("#awa-queue", "invoices")
    page.locator("form.awa-filters button", has_text="Filter").click()
    page.wait_for_url("**queue=invoices**")
    assert "state=failed" in page.url, "a filter is added to those there are"
    assert rows(page).count() == 1
    page.fill("#awa-q", "kind:send_newsletter")
    page.keyboard.press("Enter")
    page.wait_for_url("**kind=send_newsletter**")
    assert page.locator("#awa-jobs").get_by_text("No job matches").is_visible()
    maria.go("job/")
    page.fill("#awa-q", str(wanted))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"id={wanted}|job/{wanted}/"))
    assert f"#{wanted}" in page.locator("#content-main").inner_text()


def test_a_failed_job_is_opened_and_retried(maria: Visitor) -> None:
    (job_id,) = failed_on(maria, "retried")
    page = maria.page
    maria.go(f"job/{job_id}/change/")
    assert "SMTPServerDisconnected" in page.locator("#awa-job").inner_text()
    page.locator(".awa-verbs button", has_text="Retry").click()
    confirm(page, "Retry")
    page.wait_for_url(f"**/job/{job_id}/change/")
    assert messages(page).strip() == "1 job will run again."
    assert page.locator(".awa-head .awa-badge").inner_text().strip() == "available"
    assert maria.site.count(DONE, "retried", "available") == 1
    assert maria.site.count(LOGGED, "Retry: 1 job will run again.%") == 1


def test_two_of_three_selected_jobs_are_cancelled(maria: Visitor) -> None:
    waiting_on(maria, "cancelled", 3)
    page = maria.page
    maria.go("job/?queue=cancelled")
    button = page.locator(".awa-selection button", has_text="Cancel").first
    assert button.is_disabled(), "nothing is selected"
    boxes = page.locator("#awa-jobs tbody input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(2).check()
    assert page.locator("[data-awa-count]").inner_text() == "2 selected"
    button.click()
    assert "2 jobs" in page.locator("form.awa-confirm").inner_text()
    confirm(page, "Cancel")
    page.wait_for_url("**/job/?queue=cancelled")
    assert messages(page).strip() == "2 jobs cancelled."
    assert maria.site.count(DONE, "cancelled", "cancelled") == 2
    assert maria.site.count(DONE, "cancelled", "available") == 1


def test_a_dead_letter_is_redriven_to_another_queue(maria: Visitor) -> None:
    letter = maria.site.seeded.dead[0]
    page = maria.page
    maria.go("dlqentry/")
    page.locator(f"a[href$='/dlqentry/{letter}/change/']").click()
    page.locator(".awa-verbs button", has_text="Redrive").click()
    page.fill("form.awa-confirm input[name$=queue]", "redriven")
    confirm(page, "Redrive")
    page.wait_for_load_state()
    assert "1 dead letter will run again." in messages(page)
    assert maria.site.count(DONE, "redriven", "available") == 1
    assert maria.site.count("SELECT count(*) FROM awa.dlq_entries WHERE job_id = %s", letter) == 0


def test_a_callback_is_answered_with_a_payload_once_it_is_json(maria: Visitor) -> None:
    page = maria.page
    maria.go("waitingcallback/")
    page.locator("#content-main tbody a.awa-mono").first.click()
    heading = page.locator("h1", has_text="Callback of").inner_text()
    job_id = int(heading.rpartition("#")[2])
    page.locator(".awa-choice button", has_text="Resume").click()
    field = page.locator("form.awa-confirm textarea")
    field.fill('{"paid": true')
    confirm(page, "Resume")
    fault = page.locator(".awa-field.is-error").inner_text()
    assert "Line 1, column 14: this is not JSON" in fault
    assert field.input_value() == '{"paid": true', "what was typed is kept"
    field.fill('{"paid": true}')
    confirm(page, "Resume")
    page.wait_for_url(f"**/job/{job_id}/change/")
    assert f"Job {job_id} is running." in messages(page)
    stored = (
        "SELECT count(*) FROM awa.attempt_state WHERE job_id = %s AND callback_result = '{\"paid\": true}'"
    )
    assert maria.site.count(stored, job_id) == 1


def test_a_queue_is_paused_and_goes_on(maria: Visitor) -> None:
    waiting_on(maria, "halted", 2)
    page = maria.page
    maria.go("queuemeta/halted/change/")
    page.locator(".awa-verbs button", has_text="Pause").click()
    confirm(page, "Pause")
    assert messages(page).strip() == "1 queue paused."
    paused = "SELECT count(*) FROM awa.queue_meta WHERE queue = 'halted' AND paused AND paused_by = 'maria'"
    assert maria.site.count(paused) == 1
    maria.go("job/?queue=halted")
    banner = page.locator(".awa-banner.is-warning").inner_text()
    assert "is paused" in banner
    assert "by maria" in banner
    page.locator(".awa-banner button", has_text="Resume").click()
    confirm(page, "Resume")
    page.wait_for_url("**/job/?queue=halted")
    assert maria.site.count(paused) == 0


def test_a_schedule_is_triggered_and_leads_to_its_job(maria: Visitor) -> None:
    page = maria.page
    maria.go("cronjob/")
    page.get_by_role("link", name="nightly_report").click()
    page.locator(".awa-verbs button", has_text="Trigger").click()
    confirm(page, "Trigger")
    page.wait_for_url(re.compile(r"/job/\d+/change/"))
    assert page.locator("h1", has_text="build_report").is_visible()
    newest = int(page.url.rstrip("/").split("/")[-2])
    assert maria.site.count("SELECT count(*) FROM awa.jobs WHERE id = %s AND queue = 'reports'", newest) == 1


def test_all_that_match_are_cancelled_in_the_background_while_one_watches(
    maria: Visitor, picture: Callable[[Page, str], None]
) -> None:
    waiting_on(maria, "crowded", 700)
    page = maria.page
    maria.go("job/?queue=crowded&state=available")
    page.locator(".awa-selection-all summary").click()
    page.locator(".awa-selection-all button", has_text="Cancel").click()
    asked = page.locator("form.awa-confirm").inner_text()
    assert "700 jobs" in asked
    picture(page, "confirm-light")
    confirm(page, "Cancel")
    page.wait_for_url("**/batchoperation/*/change/")
    assert "Submitted" in messages(page)
    assert page.locator(".awa-head", has_text="pending").is_visible()
    with worker(maria.site.database, "--maintenance-only"):
        # The page itself finds out; nobody loads it again.
        page.locator(".awa-head", has_text="completed").wait_for(timeout=60_000)
        assert "700 of 700" in page.locator("#awa-batch").inner_text()
    picture(page, "batch-light")
    assert maria.site.count(DONE, "crowded", "cancelled") == 700
    entries = maria.site.count("SELECT count(*) FROM django_admin_log WHERE object_repr = 'all that match'")
    assert entries == 1, "one entry for all"


def test_it_is_dark_where_the_user_wants_it(maria: Visitor) -> None:
    page = maria.page
    assert not is_dark(page)
    for _ in range(3):
        page.locator("button.theme-toggle").first.click()
        if page.evaluate("document.documentElement.dataset.theme") == "dark":
            break
    page.evaluate("Promise.all(document.getAnimations().map((change) => change.finished))")
    assert is_dark(page)
    contrast(page)


def test_text_that_cannot_be_read_would_be_noticed(maria: Visitor) -> None:
    maria.page.evaluate("document.querySelector('.awa-stat-figure').style.color = 'rgb(200 200 200)'")
    assert len(unreadable(maria.page)) == 1


def is_dark(page: Page) -> bool:
    """Whether the page and its cards are."""
    brightest: float = page.evaluate(
        f"{COLOURS} ['body', '.awa-card, .awa-stat'].map((name) =>"
        " Math.max(...behind(document.querySelector(name)))).reduce((a, b) => Math.max(a, b))"
    )
    return brightest < 80  # of 255


def unreadable(page: Page) -> list[str]:
    """Texts with less than 4.5 to 1 against what is behind them, which WCAG's AA asks for."""
    found: list[str] = page.evaluate(COLOURS + CONTRAST)
    return found


def contrast(page: Page) -> None:
    """Fail for text that one cannot read."""
    assert unreadable(page) == []


#: What a colour is in red, green and blue up to 255, and what lies behind an element.
COLOURS = """
    const parse = (text) => {
        const parts = (text.match(/[\\d.]+(?:e-?\\d+)?/g) || []).map(Number);
        const whole = text.startsWith("color(") ? 255 : 1;
        return [...parts.slice(0, 3).map((part) => part * whole), parts.length > 3 ? parts[3] : 1];
    };
    const behind = (item) => {
        const layers = [];
        for (let at = item; at; at = at.parentElement) {
            layers.push(parse(getComputedStyle(at).backgroundColor));
            if (layers.at(-1)[3] === 1) break;
        }
        return layers.reverse().reduce(
            (below, [r, g, b, alpha]) => [r, g, b].map((part, n) => part * alpha + below[n] * (1 - alpha)),
            [255, 255, 255],
        );
    };
"""
CONTRAST = """
    const light = (colour) => {
        const [r, g, b] = colour.map((part) => {
            const share = part / 255;
            return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    [...document.querySelectorAll("#content-main *")].flatMap((item) => {
        const own = [...item.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        const box = item.getBoundingClientRect();
        if (!own || box.width < 2 || item.closest(".awa-hidden-text, [disabled], svg")) return [];
        const front = light(parse(getComputedStyle(item).color).slice(0, 3));
        const back = light(behind(item));
        const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        return ratio < 4.5 ? [`${item.className} "${item.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`] : [];
    })
"""


def test_the_slash_key_goes_to_the_search_field(maria: Visitor) -> None:
    page = maria.page
    maria.go("job/")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "awa-q"
    page.keyboard.type("queue:a/b")
    assert page.locator("#awa-q").input_value() == "queue:a/b", "typed there, it is a letter"


def asked_for_live_parts(page: Page) -> list[str]:
    """Addresses of requests for what changes, as they are made."""
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.url) if request.headers.get("x-awa-live") else None
    )
    return asked


def hide(page: Page, hidden: bool) -> None:
    """What the browser does to a tab that goes behind another."""
    page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def test_a_page_keeps_itself_up_to_date_as_long_as_somebody_can_see_it(maria: Visitor) -> None:
    page = maria.page
    page.clock.install()
    waiting_on(maria, "lively", 1)
    maria.go("job/?queue=lively")
    asked = asked_for_live_parts(page)
    assert rows(page).count() == 1
    waiting_on(maria, "lively", 1)
    with page.expect_response(lambda answer: bool(answer.request.headers.get("x-awa-live"))):
        page.clock.run_for(6_000)
    rows(page).nth(1).wait_for()
    hide(page, True)
    before = len(asked)
    page.clock.run_for(600_000)
    assert len(asked) == before, "a hidden tab asks for nothing"
    with page.expect_response(lambda answer: bool(answer.request.headers.get("x-awa-live"))):
        hide(page, False)


def test_a_selection_is_not_taken_away_by_an_update(maria: Visitor) -> None:
    page = maria.page
    page.clock.install()
    waiting_on(maria, "selected", 2)
    maria.go("job/?queue=selected")
    page.locator("#awa-jobs tbody input[type=checkbox]").first.check()
    asked = asked_for_live_parts(page)
    page.clock.run_for(60_000)
    assert asked == []
    assert page.locator("[data-awa-status]").inner_text() == "Updates paused"
    assert page.locator("#awa-jobs tbody input:checked").count() == 1


def test_it_all_works_without_javascript(visiting: Callable[..., Visitor]) -> None:
    visitor = visiting("maria", java_script_enabled=False)
    first, second = failed_on(visitor, "scriptless", 2)
    page = visitor.page
    visitor.go("job/")
    page.fill("#awa-queue", "scriptless")
    page.locator("form.awa-filters button", has_text="Filter").click()
    page.wait_for_url("**queue=scriptless**")
    assert rows(page).count() == 2
    page.locator(f"#awa-jobs input[value='{first}']").check()
    page.locator(".awa-selection button", has_text="Retry").first.click()
    confirm(page, "Retry")
    assert messages(page).strip() == "1 job will run again."
    assert visitor.site.count(DONE, "scriptless", "available") == 1
    page.locator(f"a[href*='/job/{second}/change/']").click()
    page.locator(".awa-verbs button", has_text="Discard").click()
    confirm(page, "Discard")
    assert "1 job discarded." in messages(page)
    assert visitor.site.count(DONE, "scriptless", "failed") == 0


def test_a_phone_shows_cards_instead_of_tables(
    visiting: Callable[..., Visitor], picture: Callable[[Page, str], None]
) -> None:
    visitor = visiting("maria", viewport={"width": 390, "height": 844})
    for path in ("", "job/", "queuemeta/", "dlqentry/", f"job/{visitor.site.seeded.failed[0]}/change/"):
        visitor.go(path)
        wide = visitor.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{path or 'the dashboard'} is {wide} pixels too wide"
    visitor.go("job/")
    assert rows(visitor.page).first.evaluate("(row) => getComputedStyle(row).display") != "table-row"
    picture(visitor.page, "jobs-phone")


# Who may not ---------------------------------------------------------------------------------------------------


def test_who_may_only_look_sees_no_verb_and_is_refused(visiting: Callable[..., Visitor]) -> None:
    otto = visiting("otto")
    seeded = otto.site.seeded
    (job_id,) = failed_on(otto, "guarded")
    page = otto.page
    for path in (
        "",
        "job/",
        "job/?state=failed",
        f"job/{job_id}/change/",
        f"job/{seeded.waiting[5]}/change/",
        "dlqentry/",
        f"dlqentry/{seeded.dead[1]}/change/",
        "waitingcallback/",
        "queuemeta/",
        "queuemeta/mail/change/",
        "cronjob/",
        "cronjob/sweep_5Fcarts/change/",
        "batchoperation/",
        f"batchoperation/{seeded.batches[0]}/change/",
        "storagetransitionstate/",
    ):
        otto.go(path)
        assert page.locator("#content-main form[method=post] button").count() == 0, path
        assert page.locator("#content-main button[formaction]").count() == 0, path
        assert "please run connect()" not in page.locator("#content-main").inner_text(), "nor what jobs say"
    assert refusal(otto, f"job/{job_id}/do/retry/") == 403
    assert refusal(otto, "job/do/cancel/", matching="1", state="failed") == 403
    assert refusal(otto, f"dlqentry/{seeded.dead[1]}/do/purge/") == 403
    assert refusal(otto, "queuemeta/mail/do/pause/") == 403
    assert refusal(otto, "cronjob/nightly_5Freport/do/trigger/") == 403
    assert otto.site.count(DONE, "guarded", "failed") == 1


def refusal(visitor: Visitor, path: str, **form: Any) -> int:
    """What is answered to a confirmed action that was posted by hand."""
    token = next(cookie["value"] for cookie in visitor.context.cookies() if cookie["name"] == "csrftoken")
    answer = visitor.context.request.post(
        visitor.site.at(path),
        form={"csrfmiddlewaretoken": token, "confirmed": "1", **form},
        headers={"Referer": visitor.site.at("")},
        max_redirects=0,
    )
    return answer.status


def test_who_may_not_look_sees_nothing(visiting: Callable[..., Visitor]) -> None:
    nora = visiting("nora")
    nora.faults.clear()  # the dashboard said 403 or 404, as it should
    for path in ("job/", "dlqentry/", "queuemeta/", f"job/{nora.site.seeded.failed[0]}/change/"):
        nora.go(path)
        assert [fault for fault in nora.faults if "403" in fault], path
        nora.faults.clear()


# The policy ----------------------------------------------------------------------------------------------------


def test_the_pages_keep_a_policy_that_is_in_force(maria: Visitor) -> None:
    answer = maria.page.goto(maria.site.at("job/"))
    assert answer is not None
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert maria.faults == []
    with maria.page.expect_console_message():
        maria.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">inline</p>')"
        )
    maria.page.wait_for_function("document.querySelector('body > p')")
    assert len(maria.faults) == 1, "a violation is noticed"
    assert "Content Security Policy" in maria.faults.pop()


def test_what_a_job_carries_is_never_a_page(maria: Visitor) -> None:
    text = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
    (attempt,) = maria.site.world.running(
        job(kind="send_invoice", queue="hostile", args={text: text, "long": "x" * 200_000}, tags=[text[:50]])
    )
    maria.site.world.end([attempt], Failed(text))
    for path in ("job/?queue=hostile", f"job/{attempt.job_id}/change/"):
        maria.go(path)
        assert maria.page.title() != "taken"
        assert maria.page.locator("#content-main img").count() == 0
    shown = maria.page.locator("#content-main").inner_text()
    assert "<script>document.title" in shown
    assert len(shown) < 100_000, "a long value is shortened"
