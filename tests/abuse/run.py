"""Send the largest request of every kind to a real node, and judge its cost for other callers.

    python -m tests.abuse.run [--only TEXT] [--seconds 4] [--connections 4] [--json]

Two stages for each kind. **Alone**: one request on a quiet node; its longest turn of the event loop is measured inside
the node, in processor time of the loop's thread, so that other work on the machine does not count. **Flood**: one
principal sends that request over several connections as fast as it is answered, and another publishes a record now and
then, in a process of its own, during it and before it.

A kind that breaks a bound is measured again and fails if it breaks one in all of `TRIES` measurements, because a write
that the disk delays, or another process, may break a bound by chance.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import uvloop
from tests.abuse import gateway_run, handshakes, stops
from tests.abuse.known_costs import known_us
from tests.abuse.measured import COUNTED, LONG_S, Measured, kept, own_cpu_s, settled, watched
from tests.abuse.node_requests import GREETINGS, LARGEST, UNMEASURED
from tests.abuse.polite import Polite, polite
from tests.abuse.probe import Probe
from tests.abuse.stand import NODE_BUDGET_BYTES, Stand, node

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.wire.frames import FrameDecoder, encode_frame

ALONE_TIMEOUT_S: Final = 120.0
IN_FLIGHT: Final = 4


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
        """Connect and greet as a principal."""
        return await cls.greet(stand.port, stand.keys[principal])

    @classmethod
    async def greet(cls, port: int, key: str) -> Sender:
        """Connect and greet with an API key; "" if the node requires none."""
        sender = cls(*await asyncio.open_connection("127.0.0.1", port))
        hello = pb.Hello(version=PROTOCOL_VERSION, client_id="abuse")
        if key:
            hello.credentials.api_key = key
        sender.writer.write(encode_frame(pb.Envelope(correlation_id=1, hello=hello)))
        await sender.answer()
        return sender

    @classmethod
    async def opened(cls, stand: Stand, kind: str) -> Sender:
        """Connect for requests of a kind: those that a connection begins with are the first on theirs."""
        if kind.partition(":")[0] in GREETINGS:
            return cls(*await asyncio.open_connection("127.0.0.1", stand.port))
        return await cls.connect(stand, "flood")

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

    async def send(self, frames: Iterator[bytes], count: int) -> None:
        """Send some frames, one after the other."""
        for _ in range(count):
            self.writer.write(next(frames))
            await self.answer()

    async def flood(self, frames: Iterator[bytes]) -> None:
        """Send until the connection or the task ends."""
        for _ in range(IN_FLIGHT):
            self.writer.write(next(frames))
        while await self.answer() is not None:
            self.writer.write(next(frames))
            await self.writer.drain()


async def alone(stand: Stand, kind: str, frames: Iterator[bytes], found: Measured) -> None:
    """Measure one request on a quiet node: some after a first one, which opens connections."""
    probe = _probe(stand)
    before_it, after_it = UNMEASURED.get(kind, (0, 0))
    for number in range(1 + COUNTED):
        sender = await Sender.opened(stand, kind)
        await sender.send(frames, before_it)
        idle = await settled(probe)
        before, began_s = probe.read(), time.monotonic()
        async with watched(probe) as peak:
            sender.writer.write(next(frames))
            if kind.startswith("credit"):
                sender.writer.write(encode_frame(pb.Envelope(correlation_id=9, access_test=pb.AccessTest())))
            async with asyncio.timeout(ALONE_TIMEOUT_S):
                await sender.answer()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(0.05)
        after = probe.read()
        cpu_s = await own_cpu_s(probe, after.cpu_s - before.cpu_s, time.monotonic() - began_s, idle)
        if number:
            found.note_alone(took_s, cpu_s, after, peak.grown_bytes)
        found.errors = ",".join(sender.errors)
        await sender.send(frames, after_it)
        sender.writer.close()
        if number and took_s > LONG_S:
            break


async def _greeting(stand: Stand, kind: str, frames: Iterator[bytes], found: Measured) -> None:
    """Open one connection after the other, each with a request of a kind that it begins with."""
    while True:
        sender = await Sender.opened(stand, kind)
        await sender.send(frames, 1)
        found.answered += 1
        sender.writer.transport.abort()


async def flooded(
    stand: Stand,
    beside: Polite,
    kind: str,
    frames: Iterator[bytes],
    found: Measured,
    *,
    seconds: float,
    connections: int,
) -> None:
    """Measure the polite principal alone, then during a flood."""
    found.quiet_s, found.failed = await beside.measure(seconds / 2)
    senders = [await Sender.connect(stand, "flood") for _ in range(connections)]
    probe = _probe(stand)
    probe.reset()
    if kind.partition(":")[0] in GREETINGS:
        floods = [asyncio.create_task(_greeting(stand, kind, frames, found)) for _ in senders]
    else:
        floods = [asyncio.create_task(sender.flood(frames)) for sender in senders]
    try:
        async with watched(probe) as peak:
            found.flooded_s, failed = await beside.measure(seconds)
        found.failed += failed
        found.flood_stall_s, found.flood_bytes = probe.read().stall_s, peak.grown_bytes
    finally:
        for task, sender in zip(floods, senders, strict=True):
            task.cancel()
            sender.writer.transport.abort()
        await asyncio.gather(*floods, return_exceptions=True)
    found.answered += sum(sender.answered - 1 for sender in senders)
    found.errors = ",".join(sorted({name for sender in senders for name in sender.errors}))


async def _flood(stand: Stand, frames: Iterator[bytes]) -> None:
    await (await Sender.connect(stand, "flood")).flood(frames)


async def _flood_port(port: int, frames: Iterator[bytes]) -> None:
    await (await Sender.greet(port, "")).flood(frames)


def _probe(stand: Stand) -> Probe:
    assert stand.probe is not None, "the node is measured"
    return stand.probe


def _wants(arguments: argparse.Namespace, name: str) -> bool:
    return not arguments.only or any(text in name for text in arguments.only)


async def _measured(stand: Stand, beside: Polite, kind: str, arguments: argparse.Namespace) -> Measured:
    """Measure one kind of request alone, and in a flood."""
    found = Measured(kind, budget_bytes=NODE_BUDGET_BYTES)
    frames = LARGEST[kind](stand)
    found.known_s = known_us(kind, next(frames)) / 1e6
    try:
        await alone(stand, kind, frames, found)
        if arguments.seconds:
            bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
            await flooded(stand, beside, kind, frames, found, **bounds)
    except TimeoutError:
        found.late.append("was not answered in time")
    return found


async def _run(arguments: argparse.Namespace) -> int:
    faults = 0
    with tempfile.TemporaryDirectory(prefix="tidelog-abuse-") as directory:
        async with node(Path(directory)) as stand, polite("node", stand.port, stand.keys["quiet"]) as beside:
            for kind in LARGEST if arguments.side != "gateway" else ():
                if not _wants(arguments, kind):
                    continue
                is_kept = await kept(partial(_measured, stand, beside, kind, arguments), as_json=arguments.json)
                faults += not is_kept
            if arguments.side != "gateway" and arguments.seconds and _wants(arguments, handshakes.NAME):
                bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
                faults += await handshakes.judged(Path(directory), as_json=arguments.json, **bounds)
            if arguments.side != "node":
                bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
                faults += await gateway_run.judged(
                    Path(directory), stand, arguments.only or [], as_json=arguments.json, **bounds
                )
            if arguments.side != "gateway" and _wants(arguments, stops.NODE):
                faults += await stops.node_stopped(stand, partial(_flood, stand), as_json=arguments.json)
        if arguments.side != "gateway" and arguments.seconds and _wants(arguments, stops.CLUSTER):
            faults += await stops.cluster_stopped(
                Path(directory), _flood_port, seconds=arguments.seconds, as_json=arguments.json
            )
    return 1 if faults else 0


def main() -> int:
    """Read the arguments, measure and judge; return the exit code."""
    parser = argparse.ArgumentParser(description="Judge the cost of the largest requests for other callers.")
    parser.add_argument("--only", action="append", help="only kinds whose names contain this text")
    parser.add_argument("--side", choices=("node", "gateway", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each flood; 0: no floods")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    return uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
