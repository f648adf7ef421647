"""The limit probe's server: a node's work for a publish or a fetch, with minimal code.

One process, one uvloop, one file. A payload is received directly into a buffer of a fixed pool, its CRC32C is verified,
and it is written with `pwrite` into space allocated by `posix_fallocate`; 24 bytes of request header get 16 bytes of
reply. With `--keep-bytes` the file wraps around at that length, like a log with retention that reuses its oldest files.
With flush=always a group (all payloads that arrived during the last sync) is written and synced with `fdatasync` on one
worker thread, because no server may block its loop for a disk; with flush=never the write goes to the page cache on the
loop itself. Reads send slices of a mapping of the file.

The server deliberately omits envelopes, offsets, topics, validation of columns, sequences, indexes, limits per client
and recovery. Rejected: writing on the loop and syncing on the thread with flush=always, which stalls the loop on pages
under writeback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import signal
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast

import uvloop
from crc32c import crc32c

from tidelog_loadtest.probe.wire import APPEND, READ, REPLY, REQUEST, aligned
from tidelog_proto.tls.reloaded_files import TlsFiles, server_context

PREALLOCATE_BYTES: Final = 64 * 1024 * 1024
"""Bytes that are allocated at once ahead of the writes."""

FIRST_READ_BYTES: Final = 4096
"""Bytes that are received together with a header, so that a small frame arrives in one call, and little of a large one
is copied."""


class ProbeFile:
    """A preallocated file of payloads. Positions and lengths are in bytes.

    Args:
        path: the file, which is created or truncated.
        keep_bytes: length at which the file wraps around; None: it grows.
    """

    def __init__(self, path: Path, *, keep_bytes: int | None = None) -> None:
        self.path = path
        self._keep_bytes = keep_bytes
        self.end = 0
        self._allocated = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._mapping: mmap.mmap | None = None

    def append(self, payloads: list[memoryview], *, sync: bool) -> list[int]:
        """Write the payloads back to back (each aligned), sync if `sync` is set, and return their positions."""
        positions: list[int] = []
        for payload in payloads:
            if self._keep_bytes is not None and self.end + aligned(len(payload)) > self._keep_bytes:
                self.end = 0
            if self.end + aligned(len(payload)) > self._allocated:
                os.posix_fallocate(self._fd, self._allocated, PREALLOCATE_BYTES)
                self._allocated += PREALLOCATE_BYTES
            written = os.pwrite(self._fd, payload, self.end)
            assert written == len(payload), "a regular file with allocated space accepts a complete write"
            positions.append(self.end)
            self.end += aligned(len(payload))
        if sync:
            os.fdatasync(self._fd)
        return positions

    def read(self, position: int, length_bytes: int) -> memoryview:
        """Return a view of at most `length_bytes` stored bytes from `position` on; empty at the end."""
        length_bytes = max(0, min(length_bytes, self.end - position))
        if length_bytes == 0:
            return memoryview(b"")
        if self._mapping is None or len(self._mapping) < position + length_bytes:
            self._mapping = mmap.mmap(self._fd, self._allocated, prot=mmap.PROT_READ)
        return memoryview(self._mapping)[position : position + length_bytes]

    def close(self) -> None:
        """Close and delete the file; views that `read` has returned remain valid."""
        os.close(self._fd)
        self.path.unlink()


class ProbeServer:
    """State shared by the connections of one probe: the file and the worker that syncs it.

    Args:
        directory: existing directory for the file.
        sync: whether every group of payloads is synced before its replies.
        frame_bytes_max: maximum size of a payload.
        window: maximum number of payloads in flight.
        keep_bytes: length at which the file wraps around; None: it grows.
    """

    def __init__(
        self, directory: Path, *, sync: bool, frame_bytes_max: int, window: int, keep_bytes: int | None = None
    ) -> None:
        self.sync = sync
        self.frame_bytes_max = frame_bytes_max
        self.window = window
        self.worker = ThreadPoolExecutor(1, "probe-io")
        self.file = ProbeFile(directory / f"probe-{os.getpid()}.seg", keep_bytes=keep_bytes)
        self.connected: dict[ProbeProtocol, asyncio.Transport] = {}

    async def disconnect(self) -> None:
        """Abort all connections and wait until they are closed."""
        for transport in self.connected.values():
            transport.abort()
        while self.connected:  # noqa: ASYNC110 - the loop calls `connection_lost` in its next iterations
            await asyncio.sleep(0)

    def close(self) -> None:
        """Stop the worker and delete the file."""
        self.worker.shutdown()
        self.file.close()


class ProbeProtocol(asyncio.BufferedProtocol):
    """One connection: receives frames into pooled buffers, writes groups of them to the file, and sends replies.

    The pool holds one buffer more than the sender may have in flight; a sender that exceeds its window is disconnected.
    """

    def __init__(self, server: ProbeServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        size_bytes = REQUEST.size + server.frame_bytes_max + FIRST_READ_BYTES
        self._pool = [memoryview(bytearray(size_bytes)) for _ in range(server.window + 1)]
        self._buffer = self._pool.pop()
        self._have = 0
        self._end = 0
        self._header = (0, 0, 0, 0, 0)
        self._waiting: list[tuple[memoryview, int]] = []
        self._syncing = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = self._server.connected[self] = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Remove the transport."""
        del self._server.connected[self]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame says how much, not the hint
        """Return the rest of the arriving frame, or space for a header and a little more."""
        if self._end:
            return self._buffer[self._have : self._end]
        return self._buffer[self._have : REQUEST.size + FIRST_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes and answer every complete frame."""
        self._have += nbytes
        while self._have >= (self._end or REQUEST.size):
            if not self._end:
                self._header = REQUEST.unpack_from(self._buffer)
                kind, length = self._header[:2]
                self._end = REQUEST.size + (length if kind == APPEND else 0)
                if self._end > REQUEST.size + self._server.frame_bytes_max:
                    self._abort(f"a payload has {length} bytes, more than --frame-bytes of this probe")
                    return
                continue
            frame, end, have = self._buffer, self._end, self._have
            if not self._pool:
                self._abort("the client has more payloads in flight than --window of this probe")
                return
            self._buffer = self._pool.pop()
            self._buffer[: have - end] = frame[end:have]
            self._have, self._end = have - end, 0
            self._handle(frame, end)

    def _handle(self, frame: memoryview, end: int) -> None:
        kind, length, crc, _, position = self._header
        if kind == APPEND:
            if crc32c(frame[REQUEST.size : end]) != crc:
                self._abort("the CRC32C of a payload does not match")
                return
            self._append(frame, end)
            return
        self._pool.append(frame)
        assert self._transport is not None
        if kind == READ:
            payload = self._server.file.read(position, length)
            self._transport.writelines([REPLY.pack(READ, len(payload), position), payload])
        else:
            self._abort(f"unknown request kind {kind}")

    def _append(self, frame: memoryview, end: int) -> None:
        assert self._transport is not None
        if not self._server.sync:
            (position,) = self._server.file.append([frame[REQUEST.size : end]], sync=False)
            self._pool.append(frame)
            self._transport.write(REPLY.pack(APPEND, 0, position))
            return
        self._write_soon(frame, end)

    def _write_soon(self, frame: memoryview, end: int) -> None:
        """Write and sync a frame on the worker, with all frames that have arrived by then; then call `_answer`."""
        self._waiting.append((frame, end))
        if not self._syncing:
            self._sync_group()

    def _sync_group(self) -> None:
        group, self._waiting = self._waiting, []
        payloads = [frame[REQUEST.size : end] for frame, end in group]
        self._syncing = True
        done = self._loop.run_in_executor(self._server.worker, self._write_and_sync, payloads)
        done.add_done_callback(lambda future: self._synced([frame for frame, _ in group], future))

    def _write_and_sync(self, payloads: list[memoryview]) -> list[int]:
        return self._server.file.append(payloads, sync=True)

    def _synced(self, frames: list[memoryview], done: asyncio.Future[list[int]]) -> None:
        positions = done.result()
        self._syncing = False
        self._answer(frames, positions)
        if self._waiting:
            self._sync_group()

    def _answer(self, frames: list[memoryview], positions: list[int]) -> None:
        assert self._transport is not None
        self._pool.extend(frames)
        self._transport.write(b"".join([REPLY.pack(APPEND, 0, position) for position in positions]))

    def _abort(self, why: str) -> None:
        print(f"limit probe: connection closed: {why}", file=sys.stderr)  # noqa: T201 - output of a child process for its parent
        assert self._transport is not None
        self._transport.abort()


async def serve(server: ProbeServer, make: Callable[[], ProbeProtocol], tls: ssl.SSLContext | None = None) -> None:
    """Listen on a free loopback port, print a ready line, and run until SIGTERM or SIGINT; then close `server`.

    Args:
        server: shared state of the connections.
        make: creates the protocol of a new connection.
        tls: settings of TLS; None for unencrypted connections.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = await loop.create_server(make, "127.0.0.1", 0, ssl=tls)
    port: int = listener.sockets[0].getsockname()[1]
    print(json.dumps({"event": "ready", "port": port}), flush=True)  # noqa: T201 - the parent reads this line
    await stop.wait()
    listener.close()
    await server.disconnect()
    server.close()


def parser_of(description: str) -> argparse.ArgumentParser:
    """Return the command-line parser of a probe's server; an owner with followers extends it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="existing directory for the probe's file")
    parser.add_argument("--sync", action="store_true", help="call fdatasync for every group before its reply")
    parser.add_argument("--frame-bytes", type=int, required=True, help="the largest payload")
    parser.add_argument("--window", type=int, required=True, help="maximum number of payloads in flight")
    parser.add_argument("--keep-bytes", type=int, help="length at which the file wraps around")
    return parser


def main() -> None:
    """Run the probe as a separate process."""
    parser = parser_of("The limit probe's server")
    parser.add_argument("--tls-cert", type=Path, help="certificate for TLS, which the event loop implements")
    parser.add_argument("--tls-key", type=Path, help="private key of the certificate")
    arguments = parser.parse_args()
    tls = server_context(TlsFiles(arguments.tls_cert, arguments.tls_key)) if arguments.tls_cert else None
    server = ProbeServer(
        arguments.data,
        sync=arguments.sync,
        frame_bytes_max=arguments.frame_bytes,
        window=arguments.window,
        keep_bytes=arguments.keep_bytes,
    )
    uvloop.run(serve(server, lambda: ProbeProtocol(server), tls))


if __name__ == "__main__":
    main()
