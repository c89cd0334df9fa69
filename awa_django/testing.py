"""For the tests of projects that use awa_django.

Django's ``TestCase`` needs nothing: jobs that a test enqueues go with its transaction. A
``TransactionTestCase``, or pytest-django's ``transactional_db``, empties the tables of a project's own
models and no others, so jobs would leak into the next test. Reset the queue after each::

    class CheckoutTests(TransactionTestCase):
        def tearDown(self):
            reset_queue()

    @pytest.fixture
    def queue(transactional_db):
        yield
        reset_queue()
"""

from __future__ import annotations

from django.db import OperationalError, transaction

from awa_django.db import postgres
from awa_django.enqueue import queue_alias
from awa_django.sql import statement

__all__ = ["reset_queue"]


def reset_queue(using: str | None = None) -> None:
    """Make the queue of a test database as it was after ``migrate``: empty, on queue storage.

    Removes every job, schedule, setting and runtime, whoever made it. Commits. Job ids go on counting, so
    an id of one test never means a job of the next. ``using`` is the queue's database unless given. The role must own
    the schema. Raises ``OperationalError`` when a session has kept one of the tables locked for ten seconds.
    """
    using = queue_alias(using)
    connection = postgres(using)
    try:
        with transaction.atomic(using=using), connection.cursor() as cursor:
            cursor.execute(statement("testing", "limit_wait"), {})
            cursor.execute(statement("testing", "reset"), {})
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != "55P03":
            raise
        raise OperationalError(
            f"the queue of database {connection.settings_dict['NAME']!r} could not be reset within ten "
            "seconds: a worker or an open transaction of the test still uses it; end that first"
        ) from error
