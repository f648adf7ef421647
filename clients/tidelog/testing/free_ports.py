"""Free ports for a node that will be started and restarted.

The ports are below the ephemeral ports of the kernel (from 32768 on Linux, from 49152 elsewhere): otherwise another
connection could get a node's port before the node starts or restarts, and a client that tries to reach a stopped node
could get the node's port as its own and connect to itself.
"""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

HOST: Final = "127.0.0.1"

PORT_RANGE: Final = range(20_000, 32_000)
"""The range of candidate ports."""


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that are free for TCP and UDP.

    Args:
        count: number of ports.

    Raises:
        OSError: fewer ports are free.
    """
    ports: list[int] = []
    with ExitStack() as held:
        for port in in_random_order(PORT_RANGE):
            if len(ports) == count:
                break
            with suppress(OSError):
                listener = held.enter_context(socket.create_server((HOST, port)))
                datagrams = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                datagrams.bind(listener.getsockname())
                ports.append(port)
    if len(ports) < count:
        raise OSError(
            f"fewer than {count} ports from {PORT_RANGE[0]} to {PORT_RANGE[-1]} are free; end other processes that "
            "listen there"
        )
    return ports


def in_random_order(ports: range) -> Iterator[int]:
    """Return each port once: from a random one on, in steps of a random size. Shuffling all ports would take 15 ms."""
    count = len(ports)
    start, step = secrets.randbelow(count), 0
    while math.gcd(step, count) != 1:
        step = secrets.randbelow(count) + 1
    return (ports[(start + at * step) % count] for at in range(count))
