"""Detection of a dead node behind an open connection: a stopped process, a cut cable.

A slow answer does not prove that the node is dead: waiting for a quorum, a long poll or a large read takes time. When
an answer has been due for `PROBE_AFTER_S` and the node has sent no byte in the meantime, the client sends a probe that
a node answers immediately. If no byte arrives within the client's time-out for unreachable nodes, the pending requests
fail. The connection stays open, and the client uses the node again after its first byte. Bytes that are still being
sent to the node count as a sign of life, because the probe is queued after them.

Rejected: closing the connection, which would end the subscriptions and publishes of a node that was only slow.
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
PROBE_CHECK_INTERVAL_S: Final = 0.1
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
"""Requests that change nothing, so that their outcome at a silent node is irrelevant."""


def unsent_in_kernel(sock: socket.socket | None) -> int:
    """Return how many written bytes the peer's kernel has not acknowledged; 0 if the system cannot report it."""
    if sock is not None:
        with contextlib.suppress(OSError, ValueError):
            return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0


class Probed(Protocol):
    """The interface that `Liveness` requires of the connection that it monitors."""

    @property
    def name(self) -> str:
        """The node as HOST:PORT."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection is closed or closing."""
        ...

    @property
    def quiet_s(self) -> float:
        """Seconds since the last byte was received."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the peer's kernel has not acknowledged."""
        ...

    def request(self, envelope: pb.Envelope, *, timeout_s: float) -> asyncio.Future[Frame]:
        """Write a request immediately."""
        ...


class Liveness:
    """Detects that the node of one open connection is dead, and then fails the pending requests.

    Args:
        timeout_s: how long the node may be silent after a probe.
    """

    def __init__(self, peer: Probed, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._peer = peer
        self._loop = loop
        self._timeout_s = timeout_s
        self._probed_at: float | None = None
        self._unsent_bytes = 0
        self._watched: dict[asyncio.Future[Frame], tuple[str, float]] = {}
        """Kind of each pending request, and the loop time from which its answer is overdue."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether the node has been silent for `timeout_s` since it was probed."""
        return self._silent_since_probe_s() >= self._timeout_s

    async def watch(self, kind: str, answer: asyncio.Future[Frame], *, wait_s: float) -> Frame:
        """Return the answer to a request, or fail when the node is lost.

        Args:
            answer: future of the answer.
            wait_s: how long the node was asked to hold the answer back.

        Raises:
            NodeUnreachableError, ConnectionLostError: the node is lost; the second if the request may have changed
                something.
            TidelogError: the node's error, or the reason why the connection ended.
        """
        overdue_at = self._loop.time() + wait_s + PROBE_AFTER_S
        self._watched[answer] = kind, overdue_at
        if self._timer is None or overdue_at < self._timer_at:
            self._arm(overdue_at)
        try:
            return await answer
        finally:
            del self._watched[answer]

    def _arm(self, at: float) -> None:
        """Schedule a check of the pending requests. One timer serves all, as one per request would cost too much."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._check_pending), at

    def _check_pending(self) -> None:
        self._timer = None
        now = max(self._timer_at, self._loop.time())
        waiting = {answer: about for answer, about in self._watched.items() if not answer.done()}
        overdue = [answer for answer, (_, overdue_at) in waiting.items() if overdue_at <= now]
        if overdue and self.check():
            for answer in overdue:
                settle(answer, self._lost(waiting.pop(answer)[0]))
            overdue.clear()
        if waiting:
            next_at = min(overdue_at for _, overdue_at in waiting.values())
            self._arm(now + PROBE_CHECK_INTERVAL_S if overdue else next_at)

    def check(self) -> bool:
        """Probe the node if it is quiet; return whether it is lost. Called while a watched answer is overdue."""
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
        text = f"{self._peer.name} does not respond: no answer to {kind}, and none to a probe for {self._timeout_s:g} s"
        return NodeUnreachableError(text) if kind in READS else ConnectionLostError(text)
