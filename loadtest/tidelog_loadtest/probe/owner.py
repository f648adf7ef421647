"""The limit probe of a replicated publish: the process in the role of a partition's owner.

The owner is `server` with followers, which are probe servers themselves. A frame is received and its CRC32C verified;
its bytes are forwarded to every follower from the receive buffer and written locally (and synced, with flush=always).
The sender gets its reply as soon as a quorum of the copies has stored the frame; the quorum need not include the local
copy.
That is the topology of the product's publish with minimal code: no epochs, digests, watermarks, promises or catch-up.

A buffer is reused when the slowest copy has stored its frame. When few are left, the owner stops reading from the
sender until more are free: this bounds memory and is the only reaction to a slow follower. All replies are sent in the
order of the frames, so one counter per copy is enough.
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
"""Reply with position 0: the sender ignores the position, and a quorum may have stored the frame before it is stored
locally."""


def frames_held(window: int, frame_bytes: int) -> int:
    """Return the maximum number of frames that an owner holds, and so has pending at a follower.

    Three windows for a slow follower, one for the sender, and the frames of one read right after the sender was paused.
    """
    return 4 * window + _arriving_at_once(frame_bytes)


def _arriving_at_once(frame_bytes: int) -> int:
    return FIRST_READ_BYTES // (REQUEST.size + frame_bytes) + 2


class FollowerLink(asyncio.Protocol):
    """The connection to one follower; `stored` is the number of frames that it has acknowledged."""

    def __init__(self, progressed: Callable[[], None], lost: Callable[[], None]) -> None:
        self._progressed = progressed
        self._lost = lost
        self._received_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    @property
    def stored(self) -> int:
        """The number of frames that the follower has stored."""
        return self._received_bytes // REPLY.size

    def send(self, frame: memoryview) -> None:
        """Forward a frame; it must not change until its reply."""
        assert self._transport is not None
        self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        """Count the replies."""
        self._received_bytes += len(data)
        self._progressed()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Report that the follower will store no more frames."""
        self._lost()

    def close(self) -> None:
        """Close the connection."""
        self._lost = lambda: None
        if self._transport is not None:
            self._transport.close()


class OwnerServer(ProbeServer):
    """State shared by the connections of one owner: its file, its followers, and the progress of each copy.

    Args:
        directory: existing directory for the file.
        sync: whether the local copy syncs; the followers have their own option.
        frame_bytes_max: maximum size of a payload.
        window: maximum number of payloads that the sender has in flight.
        quorum: number of copies, including the local one, required for a reply.
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
        self._frames: deque[tuple[OwnerProtocol, memoryview]] = deque()
        self._sender: asyncio.Transport | None = None
        self._stored = self._answered = self._released = 0

    async def follow(self, ports: Sequence[int]) -> None:
        """Connect to the followers.

        Raises:
            OSError: a follower does not accept the connection.
        """
        assert 1 <= self._quorum <= len(ports) + 1, "a quorum has at most as many copies as exist"
        loop = asyncio.get_running_loop()
        for port in ports:
            _, link = await loop.create_connection(
                lambda: FollowerLink(self._progressed, self._lost), "127.0.0.1", port
            )
            self._links.append(link)

    def answer_to(self, sender: asyncio.Transport) -> None:
        """Send replies to this sender from now on; there is one sender at a time."""
        self._sender = sender

    def pass_on(self, protocol: OwnerProtocol, frame: memoryview, end: int) -> None:
        """Forward a complete frame to every follower, and keep its buffer until all copies have stored it."""
        self._frames.append((protocol, frame))
        for link in self._links:
            link.send(frame[:end])

    def stored_here(self, count: int) -> None:
        """Count frames stored in the local copy."""
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
            protocol, frame = self._frames.popleft()
            protocol.take_back(frame)

    def _lost(self) -> None:
        print("limit probe: a follower closed its connection", file=sys.stderr)  # noqa: T201 - output of a child process for its parent
        if self._sender is not None:
            self._sender.abort()


class OwnerProtocol(ProbeProtocol):
    """The connection of the sender: receives frames, forwards and writes them, and sends replies."""

    def __init__(self, server: OwnerServer) -> None:
        super().__init__(server)
        self._owner = server
        self._waiting_for_room = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; replies go to it from now on."""
        super().connection_made(transport)
        self._owner.answer_to(cast("asyncio.Transport", transport))

    def take_back(self, frame: memoryview) -> None:
        """Reuse a buffer that every copy has stored."""
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
    """Connect to the followers, then listen like `server`."""
    await server.follow(followers)
    await serve(server, lambda: OwnerProtocol(server))


def main() -> None:
    """Run the owner as a separate process."""
    parser = parser_of("The limit probe's server with followers")
    parser.add_argument("--follower", type=int, action="append", default=[], help="port of a follower; repeatable")
    parser.add_argument("--quorum", type=int, required=True, help="number of copies required for a reply")
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
