"""Ports for servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]

#: Below those that systems hand out by themselves: nobody gets one of them before the server has it.
_PORTS = iter(random.sample(range(15_000, 30_000), 1000))


def free_port() -> int:
    """A port where nobody listens, another one with each call."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
