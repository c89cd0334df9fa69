"""The page of the storage transition, and its steps."""

from __future__ import annotations

import pytest

from awa_django import storage
from tests import stored
from tests.admin.asking import (
    action_url,
    client,
    detail_url,
    list_url,
    messages_of,
    superuser,
    text_of,
    words,
    worker,
)

pytestmark = pytest.mark.django_db

URL = "storagetransitionstate"


def not_begun() -> None:
    """Have jobs in the canonical tables, with a move not begun."""
    stored.run("DELETE FROM awa.runtime_storage_backends")
    stored.run(
        """
        UPDATE awa.storage_transition_state
        SET current_engine = 'canonical', prepared_engine = NULL, state = 'canonical', details = '{}',
            finalized_at = NULL
        """
    )


@pytest.fixture
def canonical() -> None:
    not_begun()


def take(step: str) -> list[str]:
    """Take a step as somebody who may; what the next page says."""
    browser = client(f"view_{URL}", "manage_storage")
    return messages_of(browser.post(action_url(URL, "storage", step), {"confirmed": "1"}, follow=True))


def test_at_the_end_of_the_way_nothing_can_be_done() -> None:
    browser = superuser()
    answer = browser.get(list_url(URL))
    page = text_of(answer)
    assert "All jobs are in queue storage. Nothing is left to be done." in page
    assert all(step.offer is None and step.blockers for step in answer.context["steps"])
    assert "there is no way back from queue storage" in page
    assert browser.get(detail_url(URL, "storage"))["Location"] == list_url(URL)


def test_canonical_jobs_that_were_left_behind_are_no_happy_end() -> None:
    stored.run("INSERT INTO awa.jobs_hot (kind, queue) VALUES ('k', 'q')")
    page = words(superuser(), list_url(URL))
    assert "1 canonical job has not finished" in page
    assert "manage.py awa_worker --role canonical_drain" in page
    assert "Nothing is left to be done." not in page


def test_a_step_that_is_not_due_is_refused_with_the_reason() -> None:
    (said,) = take("prepare")
    assert "queue storage is in force already" in said
    assert storage.status().state == "active"


def test_the_way_from_the_canonical_tables_to_queue_storage(canonical: None) -> None:
    browser = superuser()
    begun = browser.get(list_url(URL))
    assert "Jobs are stored in the canonical tables. Nothing has been prepared." in text_of(begun)
    assert [step.action.name for step in begun.context["steps"] if step.offer] == ["prepare"]
    asked = client(f"view_{URL}", "manage_storage").post(action_url(URL, "storage", "prepare"))
    assert "Nothing changes for jobs yet" in text_of(asked)
    assert storage.status().state == "canonical"
    assert take("prepare") == ["Done: the storage transition is now prepared."]
    blocked = browser.get(list_url(URL))
    assert "no live worker has the role queue_storage_target" in text_of(blocked)
    assert [step.action.name for step in blocked.context["steps"] if step.offer] == ["abort"]
    assert "no live worker has the role" in take("enter-mixed")[0]
    worker("q", transition_role="queue_storage_target")
    assert take("enter-mixed") == ["Done: the storage transition is now mixed."]
    stored.run("INSERT INTO awa.jobs_hot (kind, queue, state) VALUES ('k', 'q', 'available')")
    page = words(browser, list_url(URL))
    assert "Canonical backlog 1" in page
    assert "Not now: not finished yet: 1 canonical job" in page
    assert "not finished yet" in take("finalize")[0]
    stored.run("DELETE FROM awa.jobs_hot")
    assert take("finalize") == ["Done: the storage transition is now complete."]
    assert storage.status().state == "active"
    history = superuser().get(detail_url(URL, "storage").replace("/change/", "/history/"))
    assert "Finalize: Done: the storage transition is now complete." in text_of(history)


def test_a_move_can_be_given_up(canonical: None) -> None:
    storage.prepare()
    assert take("abort") == ["Done: the storage transition is now not begun."]
    assert storage.status().state == "canonical"
