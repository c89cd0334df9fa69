"""One database with a little of everything, one web server, one browser, for all tests of this folder.

Without a Chromium they are skipped, and say what to install; ``AWA_REQUIRE_BROWSER=1`` makes that a failure.
``AWA_SCREENSHOTS=1`` has them write the pictures of the documentation to ``docs/images``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from awa_django.outcomes import Failed
from awa_django.planes.base import Cursor, Due
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.transitions import promote
from tests import databases
from tests.planes.world import World, job
from tests.scenarios.seeding import Seeded, Size, seed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "docs" / "images"
#: Milliseconds that anything on a page may take before it counts as missing.
PATIENCE = 30_000
SIZE = Size(finished=4_000, waiting=600, failed=40, dead=16, scheduled=8, retryable=8, callbacks=4, running=4)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "no Chromium: apt-get install chromium on Debian, .venv/bin/playwright install chromium elsewhere"


def _absent() -> None:
    if os.environ.get("AWA_REQUIRE_BROWSER"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)


@dataclass
class Site:
    """A running web server on a database."""

    url: str
    database: str
    seeded: Seeded
    world: World
    #: A job that failed twice, with something to read.
    troubled: int
    #: The cookies of those who have logged in.
    cookies: dict[str, Any] = field(default_factory=dict)

    def at(self, path: str) -> str:
        """An address below the queue's pages, such as ``job/``."""
        return f"{self.url}/admin/awa_django/{path}"

    def keep_alive(self) -> None:
        """Have the worker that was seeded go on reporting."""
        self.world.run("UPDATE awa.runtime_instances SET last_seen_at = now() WHERE hostname = 'worker-1'")

    def count(self, query: str, *values: Any) -> int:
        """The number that a query answers with."""
        row = self.world.connection.execute(query, values or None).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return int(row[0])


@pytest.fixture(scope="package")
def site(server_url: str, awa_template: str) -> Iterator[Site]:
    """The web server, on a database with jobs of every sort."""
    if _program() is None:
        _absent()
    with databases.scratch(server_url, "browser", template=awa_template) as url:
        seeded = seed(url, SIZE)
        with (
            serving(url) as address,
            psycopg.connect(url, autocommit=True) as connection,
        ):
            world = World(connection, QueueStoragePlane())
            yield Site(address, url, seeded, world, _trouble(world))


TRACEBACK = """\
SMTPServerDisconnected: Connection unexpectedly closed
Traceback (most recent call last):
  File "/srv/shop/mail/jobs.py", line 42, in send_invoice
    connection.send_messages([message])
  File "/srv/shop/mail/backends.py", line 117, in send_messages
    self.connection.sendmail(sender, recipients, message.as_bytes())
  File "/usr/lib/python3.12/smtplib.py", line 876, in sendmail
    self.ehlo_or_helo_if_needed()
smtplib.SMTPServerDisconnected: Connection unexpectedly closed"""


def _trouble(world: World) -> int:
    wanted = job(
        kind="send_invoice",
        queue="invoices",
        args={
            "order_id": 8841,
            "to": "ada@example.com",
            "lines": [{"sku": "TEA-01", "count": 2}],
            "locale": "en",
        },
        tags=["tenant-3", "eu"],
        metadata={"tenant": 3, "requested_by": "checkout"},
        max_attempts=2,
    )
    (attempt,) = world.running(wanted)
    world.end([attempt], Failed("ConnectionRefusedError: [Errno 111] Connection refused"))
    world.run("UPDATE awa.deferred_jobs SET run_at = now() WHERE job_id = %s", attempt.job_id)

    def promote_due(cursor: Cursor) -> None:
        due = world.plane.take(cursor, Due(JobState.RETRYABLE))
        world.plane.place(cursor, [promote(item) for item in due])

    world.within(promote_due)
    (again,) = world.claim("invoices", 1)
    world.beat(again, {"percent": 60, "message": "PDF rendered, sending"})
    world.end([again], Failed(TRACEBACK))
    return again.job_id


@contextmanager
def serving(database: str) -> Iterator[str]:
    """A web server on a database, for the length of the block; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.site"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": database,
            "DJANGO_SETTINGS_MODULE": "tests.browser.settings",
            "PYTHONPATH": str(ROOT),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdecimal(), "the web server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.communicate(timeout=60)  # it ends with its input


def _program() -> str | None:
    """A Chromium of the machine or of Playwright's own."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    own = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    kept = [*own.glob("chromium-*/chrome-linux*/chrome"), *own.glob("chromium-*/chrome-mac*/**/Chromium")]
    return str(sorted(kept)[-1]) if kept else None


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser. It ends with this folder's tests: while it runs, Django refuses to use a database in its thread."""
    program = _program()
    if program is None:
        _absent()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Somebody with a browser of their own, and what went wrong on the pages that they saw."""

    site: Site
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Note errors of scripts, violations of the security policy, and answers of the server that are errors."""
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on(
            "console", lambda message: self._note(message.type, message.location["url"], message.text)
        )
        self.page.on("response", lambda answer: self._note(answer.status, answer.url, answer.status_text))

    def _note(self, level: str | int, url: str, text: str) -> None:
        # Browsers ask for an icon that the tests' project has not.
        if (
            level not in ("log", "debug", "info")
            and level not in range(400)
            and not url.endswith("favicon.ico")
        ):
            self.faults.append(f"{level} at {url}: {text}")

    def log_in(self, name: str) -> None:
        """Through the form, as everybody does."""
        self.page.goto(f"{self.site.url}/admin/login/?next=/admin/awa_django/")
        self.page.fill("#id_username", name)
        self.page.fill("#id_password", name)
        self.page.click("input[type=submit]")
        self.page.wait_for_url("**/admin/awa_django/")
        self.site.cookies[name] = self.context.storage_state()

    def go(self, path: str) -> None:
        """Go to a page of the queue."""
        self.page.goto(self.site.at(path))


@pytest.fixture
def visiting(site: Site, browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """A function that makes a visitor, logged in unless told otherwise; fails the test for faults of their pages."""
    made: list[Visitor] = []

    def visit(name: str | None = "maria", **options: Any) -> Visitor:
        site.keep_alive()
        known = site.cookies.get(name or "")
        options = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options}
        context = browser.new_context(storage_state=known, **options)
        context.set_default_timeout(PATIENCE)
        visitor = Visitor(site, context, context.new_page())
        visitor.watch()
        made.append(visitor)
        if known is not None:
            visitor.go("")
        elif name is not None:
            visitor.log_in(name)
        return visitor

    yield visit
    for visitor in made:
        visitor.context.close()
    assert [fault for visitor in made for fault in visitor.faults] == []


@pytest.fixture
def maria(visiting: Callable[..., Visitor]) -> Visitor:
    """An operator who may do everything."""
    return visiting("maria")


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Page, str], None]:
    """A function that takes a picture: for the documentation when asked, else to see that it can be taken."""

    def take(page: Page, name: str) -> None:
        target = (IMAGES if os.environ.get("AWA_SCREENSHOTS") else tmp_path) / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=target, animations="disabled")
        assert 5_000 < target.stat().st_size < 150_000, "neither empty nor too large for the repository"

    return take
