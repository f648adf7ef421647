"""Ports of this machine for a node that will be started, and started again.

They lie below those that the kernel gives out by itself (from 32768 on Linux, from 49152 elsewhere): else any
connection could be given a node's port before the node starts, or starts again. A client that tries to reach a node
which is down could even be given the very port that it tries, and so be connected to itself.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack, suppress
from typing import Final

HOST: Final = "127.0.0.1"

CHOSEN_FROM: Final = range(20_000, 32_000)
"""Where they are looked for."""


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that are free for TCP and UDP at the moment.

    Args:
        count: how many.

    Raises:
        OSError: there are not so many.
    """
    ports: list[int] = []
    with ExitStack() as held:
        for port in secrets.SystemRandom().sample(CHOSEN_FROM, len(CHOSEN_FROM)):
            if len(ports) == count:
                break
            with suppress(OSError):
                listener = held.enter_context(socket.create_server((HOST, port)))
                datagrams = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                datagrams.bind(listener.getsockname())
                ports.append(port)
    if len(ports) < count:
        raise OSError(f"fewer than {count} ports from {CHOSEN_FROM[0]} to {CHOSEN_FROM[-1]} are free")
    return ports
