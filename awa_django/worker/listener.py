"""Notifications: new jobs, cancellations, batch operations (contract: runtime/dispatcher 3, runtime/attempt 2)."""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import sql

from awa_django.queue_names import channel
from awa_django.worker.service import Service

__all__ = ["CANCEL_CHANNEL", "Listener"]

logger = logging.getLogger("awa_django.worker")

CANCEL_CHANNEL = "awa:cancel"


class Listener(Service):
    """One session that listens for all queues of this process and for cancellations.

    ``notices`` are further channels, by name, and what to call. After a reconnect everything is called once, since
    notifications were missed. While it is not alive the dispatchers poll.
    """

    def __init__(
        self,
        wake: Mapping[str, Callable[[], None]],
        *,
        cancel: Callable[[int, int], None],
        connect: Callable[[], psycopg.Connection[Any]],
        notices: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        super().__init__("listener")
        self._wake = {channel(queue): call for queue, call in wake.items()} | dict(notices or {})
        self._cancel = cancel
        self._connect = connect
        #: What stopping is told through, while the thread runs; both ends are closed when it ends.
        self._stop_reader: socket.socket
        self._stop_writer: socket.socket

    def start(self) -> None:
        self._stop_reader, self._stop_writer = socket.socketpair()
        super().start()

    def stop(self) -> None:
        super().stop()
        with contextlib.suppress(OSError):  # the thread may have ended by itself just now
            self._stop_writer.send(b"\0")

    def ended(self) -> None:
        self._stop_reader.close()
        self._stop_writer.close()

    def run(self) -> None:
        connection = self._connect()
        try:
            for name in (CANCEL_CHANNEL, *self._wake):
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
            self.alive = True
            for call in self._wake.values():
                call()
            with selectors.DefaultSelector() as selector:
                selector.register(connection.fileno(), selectors.EVENT_READ)
                selector.register(self._stop_reader, selectors.EVENT_READ)
                while not self.stopping.is_set():
                    selector.select()
                    if not self.stopping.is_set():
                        self._receive(connection)
        finally:
            connection.close()

    def _receive(self, connection: psycopg.Connection[Any]) -> None:
        connection.pgconn.consume_input()
        while (notice := connection.pgconn.notifies()) is not None:
            name = notice.relname.decode()
            if name == CANCEL_CHANNEL:
                self._receive_cancel(notice.extra)
            elif call := self._wake.get(name):
                call()

    def _receive_cancel(self, payload: bytes) -> None:
        if not payload:
            return  # a queue called "cancel" shares this channel
        try:
            message = json.loads(payload)
            job_id, run_lease = int(message["job_id"]), int(message["run_lease"])
        except (ValueError, TypeError, KeyError, RecursionError):
            logger.warning("a cancellation that nobody can read: %.200r", payload)
            return
        self._cancel(job_id, run_lease)
