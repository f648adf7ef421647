"""Detection of a node that is gone while its connection stays open: a stopped process, a cut cable.

A slow answer is no proof: a quorum, a long poll or a large read may take its time. When an answer has been due for
`PROBE_AFTER_S` and the node has sent no byte meanwhile, the client sends a probe that a node answers at once. If no
byte comes for the time that the client grants an unreachable node, the pending requests fail, and the connection stays
open: the client uses the node again after its first byte. Bytes that still leave for the node count as a sign of life,
since the probe waits for them.

Rejected: closing the connection, which would end subscriptions and publishes of a node that was only slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final, Protocol

from tidelog.errors import ConnectionLostError, NodeUnreachableError, TidelogError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import META_TOPIC
from tidelog_proto.wire.frames import Frame
from tidelog_proto.wire.pending_requests import settle

PROBE_AFTER_S: Final = 0.5
PROBE_LOOK_S: Final = 0.1
PROBE_TIMEOUT_S: Final = 30.0

READS: Final = frozenset({
    "metadata",
    "fetch",
    "list_offsets",
    "committed",
    "group_describe",
    "group_list",
    "topic_describe",
    "topic_list",
    "cluster_status",
    "security_list",
    "access_test",
    "identify",
})  # fmt: skip
"""Requests that change nothing, so that it does not matter whether a silent node has carried them out."""


def unsent_in_kernel(sock: socket.socket | None) -> int:
    """Return how many written bytes the other side's kernel has not acknowledged; 0 where the system does not tell."""
    if sock is not None:
        with contextlib.suppress(OSError, ValueError):
            return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0


class Probed(Protocol):
    """The connection that is watched."""

    @property
    def name(self) -> str:
        """Its node, as HOST:PORT."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection is gone or going."""
        ...

    @property
    def quiet_s(self) -> float:
        """For how long nothing at all has come, in seconds."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How much was written that the other side's kernel has not taken."""
        ...

    def request(self, envelope: pb.Envelope, *, timeout_s: float) -> asyncio.Future[Frame]:
        """Write a request now."""
        ...


class Liveness:
    """Of one connection.

    Args:
        peer: the connection.
        loop: its event loop.
        timeout_s: how long the node may be silent once it was probed.
    """

    def __init__(self, peer: Probed, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._peer = peer
        self._loop = loop
        self._timeout_s = timeout_s
        self._probed_at: float | None = None
        self._unsent_bytes = 0
        self._watched: dict[asyncio.Future[Frame], tuple[str, float]] = {}
        """The kind of each request, and the loop time from which on its answer is doubted."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether the node was probed and has been silent for the whole time since."""
        return self._silent_since_probe_s() >= self._timeout_s

    async def watch(self, kind: str, answer: asyncio.Future[Frame], *, wait_s: float) -> Frame:
        """Return the answer to a request of a kind, unless the node is lost meanwhile.

        Args:
            kind: of the request.
            answer: of the connection.
            wait_s: how long the node was asked to hold it back.

        Raises:
            NodeUnreachableError, ConnectionLostError: the node is lost; the second where it may have changed something.
            TidelogError: what the node answered, or what became of the connection.
        """
        doubted_at = self._loop.time() + wait_s + PROBE_AFTER_S
        self._watched[answer] = kind, doubted_at
        if self._timer is None or doubted_at < self._timer_at:
            self._arm(doubted_at)
        try:
            return await answer
        finally:
            del self._watched[answer]

    def _arm(self, at: float) -> None:
        """Look at the requests at `at`; one timer serves all, as a timer for each costs more than its answer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look_at_all), at

    def _look_at_all(self) -> None:
        self._timer = None
        now = max(self._timer_at, self._loop.time())
        waiting = {answer: about for answer, about in self._watched.items() if not answer.done()}
        doubted = [answer for answer, (_, doubted_at) in waiting.items() if doubted_at <= now]
        if doubted and self.look():
            for answer in doubted:
                settle(answer, self._lost(waiting.pop(answer)[0]))
            doubted.clear()
        if waiting:
            next_at = min(doubted_at for _, doubted_at in waiting.values())
            self._arm(now + PROBE_LOOK_S if doubted else next_at)

    def look(self) -> bool:
        """Probe the node if need be; return whether it is lost. For who waits for an answer that is due."""
        silent_s = self._silent_since_probe_s()
        unsent_bytes, before = self._peer.unsent_bytes, self._unsent_bytes
        self._unsent_bytes = unsent_bytes
        if self._probed_at is None:
            if self._peer.quiet_s >= PROBE_AFTER_S and not self._peer.closed:
                self._probed_at = self._loop.time()
                probe = pb.Envelope(metadata=pb.Metadata(topics=[META_TOPIC]))
                self._peer.request(probe, timeout_s=PROBE_TIMEOUT_S)
            return False
        if unsent_bytes < before:
            self._probed_at = self._loop.time()
            return False
        return silent_s >= self._timeout_s

    def _silent_since_probe_s(self) -> float:
        if self._probed_at is None:
            return 0.0
        since_s = self._loop.time() - self._probed_at
        if self._peer.quiet_s < since_s:
            self._probed_at = None
            return 0.0
        return since_s

    def _lost(self, kind: str) -> TidelogError:
        text = f"{self._peer.name} is silent: {kind} has no answer, nor has a probe for {self._timeout_s:g} s"
        return NodeUnreachableError(text) if kind in READS else ConnectionLostError(text)
