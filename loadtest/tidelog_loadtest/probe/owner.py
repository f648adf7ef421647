"""The limit probe of a replicated publish: the process that stands where a partition's owner does.

It is `probe_server` with followers, which are plain probe servers themselves. A frame is received, its CRC32C checked,
the same bytes are passed on to every follower from the buffer that they came in, then they are written here (and
synced, with flush=always); the sender has its answer as soon as a quorum of the copies, this one among them or not, has
stored the frame. That is the topology of the product's publish with the barest code: no epochs, digests, watermarks,
promises or catching up.

A buffer comes back when the slowest copy has stored it. When few are left the sender is not read from until one comes
back: the bound on memory, and the only thing that is done about a slow follower. Everything is answered in the order
in which it was sent, so one count a copy is all that must be kept.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import uvloop

from tidelog_loadtest.probe.server import FIRST_READ_BYTES, ProbeProtocol, ProbeServer, parser_of, serve
from tidelog_loadtest.probe.wire import APPEND, REPLY, REQUEST

_REPLY = REPLY.pack(APPEND, 0, 0)
"""The position is 0: the sender does not look at it, and a quorum may answer before it is known here."""


def frames_held(window: int, frame_bytes: int) -> int:
    """Return how many frames an owner holds at most, and so has under way to a follower.

    Three windows for a follower that is slow, one for the sender, and what may arrive in one read when the sender has
    just been told to wait.
    """
    return 4 * window + _arriving_at_once(frame_bytes)


def _arriving_at_once(frame_bytes: int) -> int:
    return FIRST_READ_BYTES // (REQUEST.size + frame_bytes) + 2


class FollowerLink(asyncio.Protocol):
    """The connection to one follower; `stored` counts the frames that it has answered for."""

    def __init__(self, progressed: Callable[[], None], lost: Callable[[], None]) -> None:
        self._progressed = progressed
        self._lost = lost
        self._received_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    @property
    def stored(self) -> int:
        """How many frames the follower has stored."""
        return self._received_bytes // REPLY.size

    def send(self, frame: memoryview) -> None:
        """Pass a frame on; it must not change until it is answered."""
        assert self._transport is not None
        self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """Count."""
        self._received_bytes += len(data)
        self._progressed()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Say so: nothing will be stored there any more."""
        self._lost()

    def close(self) -> None:
        """Close the connection."""
        self._lost = lambda: None
        if self._transport is not None:
            self._transport.close()


class OwnerServer(ProbeServer):
    """What the connections of one owner share: its file, its followers, and how far each copy has come.

    Args:
        directory: an existing one for the file.
        sync: whether the own copy syncs; the followers are told by themselves.
        frame_bytes_max: the largest payload.
        window: the most payloads that a sender has in flight.
        quorum: how many copies, this one included, make an answer.
        keep_bytes: see `ProbeServer`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        sync: bool,
        frame_bytes_max: int,
        window: int,
        quorum: int,
        keep_bytes: int | None = None,
    ) -> None:
        held = frames_held(window, frame_bytes_max)
        super().__init__(directory, sync=sync, frame_bytes_max=frame_bytes_max, window=held, keep_bytes=keep_bytes)
        self.spare_frames = _arriving_at_once(frame_bytes_max)
        self._quorum = quorum
        self._links: list[FollowerLink] = []
        self._held: deque[tuple[OwnerProtocol, memoryview]] = deque()
        self._sender: asyncio.Transport | None = None
        self._stored = self._answered = self._released = 0

    async def follow(self, ports: Sequence[int]) -> None:
        """Connect to the followers.

        Raises:
            OSError: one is not there.
        """
        assert 1 <= self._quorum <= len(ports) + 1, "a quorum of the copies"
        loop = asyncio.get_running_loop()
        for port in ports:
            _, link = await loop.create_connection(
                lambda: FollowerLink(self._progressed, self._lost), "127.0.0.1", port
            )
            self._links.append(link)

    def answer_to(self, sender: asyncio.Transport) -> None:
        """Answer to this sender from now on; there is one at a time."""
        self._sender = sender

    def pass_on(self, protocol: OwnerProtocol, frame: memoryview, end: int) -> None:
        """Send a whole frame to every follower, and keep its buffer until all copies have stored it."""
        self._held.append((protocol, frame))
        for link in self._links:
            link.send(frame[:end])

    def stored_here(self, count: int) -> None:
        """Count frames that the own copy has stored."""
        self._stored += count
        self._progressed()

    def close(self) -> None:
        """Close the links and the file."""
        for link in self._links:
            link.close()
        super().close()

    def _progressed(self) -> None:
        counts = sorted((self._stored, *(link.stored for link in self._links)), reverse=True)
        agreed, everywhere = counts[self._quorum - 1], counts[-1]
        if agreed > self._answered:
            assert self._sender is not None
            self._sender.write(_REPLY * (agreed - self._answered))
            self._answered = agreed
        while self._released < everywhere:
            self._released += 1
            protocol, frame = self._held.popleft()
            protocol.take_back(frame)

    def _lost(self) -> None:
        print("limit probe: a follower is gone", file=sys.stderr)  # noqa: T201 - a child says it to its parent
        if self._sender is not None:
            self._sender.abort()


class OwnerProtocol(ProbeProtocol):
    """The connection of the sender: frames in, on to the followers and into the file, answers out."""

    def __init__(self, server: OwnerServer) -> None:
        super().__init__(server)
        self._owner = server
        self._waiting_for_room = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; answers go here from now on."""
        super().connection_made(transport)
        self._owner.answer_to(cast("asyncio.Transport", transport))

    def take_back(self, frame: memoryview) -> None:
        """Use a buffer again that every copy has stored."""
        self._pool.append(frame)
        if self._waiting_for_room and len(self._pool) > self._owner.spare_frames:
            self._waiting_for_room = False
            assert self._transport is not None
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _append(self, frame: memoryview, end: int) -> None:
        assert self._transport is not None
        self._owner.pass_on(self, frame, end)
        if self._owner.sync:
            self._write_soon(frame, end)
        else:
            self._owner.file.append([frame[REQUEST.size : end]], sync=False)
            self._owner.stored_here(1)
        if len(self._pool) <= self._owner.spare_frames and not self._waiting_for_room:
            self._waiting_for_room = True
            self._transport.pause_reading()

    def _answer(self, frames: list[memoryview], positions: list[int]) -> None:  # noqa: ARG002 - see _REPLY
        self._owner.stored_here(len(frames))


async def run(server: OwnerServer, followers: Sequence[int]) -> None:
    """Connect to the followers, then listen as `probe_server` does."""
    await server.follow(followers)
    await serve(server, lambda: OwnerProtocol(server))


def main() -> None:
    """Run the owner as a process of its own."""
    parser = parser_of("The limit probe's server with followers")
    parser.add_argument("--follower", type=int, action="append", default=[], help="a follower's port; once for each")
    parser.add_argument("--quorum", type=int, required=True, help="how many copies make an answer")
    arguments = parser.parse_args()
    server = OwnerServer(
        arguments.data,
        sync=arguments.sync,
        frame_bytes_max=arguments.frame_bytes,
        window=arguments.window,
        quorum=arguments.quorum,
        keep_bytes=arguments.keep_bytes,
    )
    uvloop.run(run(server, arguments.follower))


if __name__ == "__main__":
    main()
