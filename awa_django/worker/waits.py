"""A handler that waits in place for the answer to a callback (contract: runtime/attempt section 5).

The same steps for handlers that block and for coroutines: begin, look now and then, and give up if the
handler wants no longer. Each is one short transaction.
"""

from __future__ import annotations

import logging
from uuid import UUID

import psycopg

from awa_django.callbacks import CallbackToken, callback_uuid
from awa_django.errors import CallbackRefused, said
from awa_django.jobs import JsonValue
from awa_django.states import JobState
from awa_django.transitions import Standing
from awa_django.worker.attendant import Attendant
from awa_django.worker.flights import Flight

__all__ = ["POLL_SECONDS", "Wait"]

logger = logging.getLogger("awa_django.worker")

#: Between two looks for the answer.
POLL_SECONDS = 0.2

#: What the end of the connection looks like; the job waits meanwhile, so the handler may too.
_CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


class Wait:
    """One wait of an attempt for one token. ``answers`` keeps an answer that comes while the wait is given up.

    The database's answers decide, not what this object remembers: a step may have been done although its
    result was lost with the connection.
    """

    def __init__(
        self,
        flight: Flight,
        attendant: Attendant,
        token: CallbackToken | UUID | str,
        answers: dict[UUID, JsonValue],
    ) -> None:
        self._flight = flight
        self._attendant = attendant
        self._token = callback_uuid(token)
        self._answers = answers
        self._begun = False

    def begin(self) -> None:
        """Have the job wait, unless the answer is there already; what the job is instead, the first look says."""
        if self._token not in self._answers:
            self._begun = True
            self._attendant.begin_wait(self._flight, self._token)

    def look(self) -> bool:
        """Whether the answer has come. Raises ``CallbackRefused`` when none can come any more."""
        if self._token in self._answers:
            return True
        flight = self._flight
        try:
            standing = self._attendant.look(flight)
        except _CONNECTION_LOST as error:
            self._check_flags()
            logger.warning(
                "job %s waits for a callback and could not look for it: %s",
                flight.attempt.job_id,
                said(error),
            )
            return False
        if standing is not None and standing.run_lease == flight.attempt.run_lease and standing.resumed:
            self._answers[self._token] = standing.result
            return True
        self._check_flags()
        self._check(standing)
        return False

    def give_up(self) -> None:
        """Have the job run again if it waits for this token, so that the handler's outcome counts (DEC-20)."""
        if not self._begun:
            return
        try:
            self._attendant.end_wait(self._flight, self._token)
        except _CONNECTION_LOST as error:
            logger.warning(
                "job %s gave up waiting for a callback and could not say so; its outcome will come too late: %s",
                self._flight.attempt.job_id,
                said(error),
            )

    def answer(self) -> JsonValue:
        """What came. Once."""
        return self._answers.pop(self._token)

    def _check_flags(self) -> None:
        flight = self._flight
        if flight.done:
            raise CallbackRefused(f"job {flight.attempt.job_id}: this attempt is over")
        if flight.cancelled:
            raise CallbackRefused(
                f"job {flight.attempt.job_id} was asked to stop while it waited for a callback"
            )

    def _check(self, standing: Standing | None) -> None:
        """Nothing if the job waits for this token."""
        job_id, run_lease = self._flight.pair
        if standing is None:
            raise CallbackRefused(f"job {job_id}: the job is gone")
        if standing.run_lease != run_lease:
            raise CallbackRefused(
                f"job {job_id}: this attempt was taken away; the job is {standing.state} under run lease "
                f"{standing.run_lease}"
            )
        if standing.callback_id is not None and standing.callback_id != self._token:
            raise CallbackRefused(
                f"job {job_id}: stale token {self._token}; callback {standing.callback_id} was registered since"
            )
        if standing.state is not JobState.WAITING_EXTERNAL:
            registered = "" if standing.callback_id is not None else ", without a callback"
            raise CallbackRefused(
                f"job {job_id}: cannot wait for callback {self._token}; the job is {standing.state}{registered}"
            )
