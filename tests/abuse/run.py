"""Send the largest request of every kind to a real node, and judge what it costs whom.

    python -m tests.abuse.run [--only TEXT] [--seconds 4] [--connections 4] [--json]

Two stages for each kind. **Alone**: one request on a quiet node; its longest turn of the event loop is measured inside
the node, in processor time of the loop's thread, so that other work on the machine does not count. **Flood**: one
principal sends that request over several connections as fast as it is answered, and another publishes a record now and
then, in a process of its own, beside it and before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvloop
from tests.abuse import gateway_run, handshakes
from tests.abuse.measured import Measured, settled, tell, watched
from tests.abuse.node_requests import LARGEST
from tests.abuse.polite import Polite, polite
from tests.abuse.stand import STOP_TIMEOUT_S, Stand, node

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.frames import FrameDecoder, encode_frame
from tidelog_proto.limits import PROTOCOL_VERSION

ALONE_TIMEOUT_S: Final = 120.0
IN_FLIGHT: Final = 4
STOP: Final = "SIGTERM in the middle of 16 requests by time"
STOP_MORE_S: Final = 5.0
"""For the end of the process itself, on a busy machine."""


class Sender:
    """A connection that sends the frames of one kind, so many at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self.errors: dict[str, int] = {}
        self.answered = 0

    @classmethod
    async def connect(cls, stand: Stand, principal: str) -> Sender:
        """Connect and greet."""
        sender = cls(*await asyncio.open_connection("127.0.0.1", stand.port))
        hello = pb.Hello(version=PROTOCOL_VERSION, client_id="abuse")
        hello.credentials.api_key = stand.keys[principal]
        sender.writer.write(encode_frame(pb.Envelope(correlation_id=1, hello=hello)))
        await sender.answer()
        return sender

    async def answer(self) -> pb.Envelope | None:
        """Return the next answer; None at the end of the stream."""
        while data := await self._reader.read(1 << 20):
            for frame in self._decoder.feed(data):
                if frame.envelope.correlation_id:
                    self.answered += 1
                    if frame.envelope.HasField("error"):
                        name = pb.ErrorCode.Name(frame.envelope.error.code)
                        self.errors[name] = self.errors.get(name, 0) + 1
                    return frame.envelope
        return None

    async def flood(self, frames: Iterator[bytes]) -> None:
        """Send until the connection or the task ends."""
        for _ in range(IN_FLIGHT):
            self.writer.write(next(frames))
        while await self.answer() is not None:
            self.writer.write(next(frames))
            await self.writer.drain()


async def alone(stand: Stand, kind: str, frames: Iterator[bytes], found: Measured) -> None:
    """Measure one request on a quiet node: the second of two, since the first one opens what is still closed."""
    for _ in range(2):
        sender = await Sender.connect(stand, "flood")
        await settled(stand.probe)
        before, began_s = stand.probe.read(), time.monotonic()
        async with watched(stand.probe) as peak:
            sender.writer.write(next(frames))
            if kind.startswith("credit"):
                sender.writer.write(encode_frame(pb.Envelope(correlation_id=9, access_test=pb.AccessTest())))
            async with asyncio.timeout(ALONE_TIMEOUT_S):
                await sender.answer()
            found.alone_s = time.monotonic() - began_s
            await asyncio.sleep(0.05)
        after = stand.probe.read()
        found.cpu_s, found.stall_s, found.wall_s = after.cpu_s - before.cpu_s, after.stall_s, after.wall_s
        found.memory_bytes = peak.grown_bytes
        found.errors = ",".join(sender.errors)
        sender.writer.close()


async def flooded(
    stand: Stand, beside: Polite, frames: Iterator[bytes], found: Measured, *, seconds: float, connections: int
) -> None:
    """Measure the polite principal alone, then beside a flood."""
    found.quiet_s, found.failed = await beside.measure(seconds / 2)
    senders = [await Sender.connect(stand, "flood") for _ in range(connections)]
    stand.probe.reset()
    floods = [asyncio.create_task(sender.flood(frames)) for sender in senders]
    try:
        async with watched(stand.probe) as peak:
            found.flooded_s, failed = await beside.measure(seconds)
        found.failed += failed
        found.flood_stall_s, found.flood_bytes = stand.probe.read().stall_s, peak.grown_bytes
    finally:
        for task, sender in zip(floods, senders, strict=True):
            task.cancel()
            sender.writer.transport.abort()
        await asyncio.gather(*floods, return_exceptions=True)
    found.answered = sum(sender.answered - 1 for sender in senders)
    found.errors = ",".join(sorted({name for sender in senders for name in sender.errors}))


async def _stopped(stand: Stand, *, as_json: bool) -> int:
    """Stop the node while it works on the longest requests there are; return 1 if that takes longer than it may."""
    found = Measured(STOP)
    frames = LARGEST["list_offsets: 4,096 by time"](stand)
    floods = [asyncio.create_task((await Sender.connect(stand, "flood")).flood(frames)) for _ in range(4)]
    await asyncio.sleep(1.0)
    began_s = time.monotonic()
    stand.child.process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 * STOP_TIMEOUT_S):
            await stand.child.process.wait()
    found.alone_s = time.monotonic() - began_s
    found.failed = int(found.alone_s > STOP_TIMEOUT_S + STOP_MORE_S or stand.child.process.returncode != 0)
    await asyncio.gather(*floods, return_exceptions=True)
    tell(found, as_json=as_json)
    return bool(found.failed)


def _wants(arguments: argparse.Namespace, name: str) -> bool:
    return not arguments.only or any(text in name for text in arguments.only)


async def _run(arguments: argparse.Namespace) -> int:
    faults = 0
    with tempfile.TemporaryDirectory(prefix="tidelog-abuse-") as directory:
        async with node(Path(directory)) as stand, polite("node", stand.port, stand.keys["quiet"]) as beside:
            for kind, largest in LARGEST.items() if arguments.side != "gateway" else ():
                if not _wants(arguments, kind):
                    continue
                found = Measured(kind)
                frames = largest(stand)
                try:
                    await alone(stand, kind, frames, found)
                    if arguments.seconds:
                        bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
                        await flooded(stand, beside, frames, found, **bounds)
                except TimeoutError:
                    found.failed += 1
                faults += bool(found.faults())
                tell(found, as_json=arguments.json)
            if arguments.side != "gateway" and arguments.seconds and _wants(arguments, handshakes.NAME):
                bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
                faults += await handshakes.judged(Path(directory), as_json=arguments.json, **bounds)
            if arguments.side != "node":
                bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
                faults += await gateway_run.judged(
                    Path(directory), stand, arguments.only or [], as_json=arguments.json, **bounds
                )
            if _wants(arguments, STOP):
                faults += await _stopped(stand, as_json=arguments.json)
    return 1 if faults else 0


def main() -> int:
    """Read the arguments, measure and judge; return the exit code."""
    parser = argparse.ArgumentParser(description="Judge what the largest requests cost others.")
    parser.add_argument("--only", action="append", help="kinds whose names contain this")
    parser.add_argument("--side", choices=("node", "gateway", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each flood; 0: none")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    return uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
