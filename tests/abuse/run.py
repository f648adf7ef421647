"""Send the largest request of every kind to a real node, and judge what it costs whom.

    python -m tests.abuse.run [--only TEXT] [--seconds 4] [--connections 4] [--json]

Two stages for each kind. **Alone**: one request on a quiet node; its longest turn of the event loop is measured inside
the node, in processor time of the loop's thread, so that other work on the machine does not count. **Flood**: one
principal sends that request over several connections as fast as it is answered, and another publishes a record now and
then, beside it and before it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop
from tests.abuse.node_requests import LARGEST
from tests.abuse.probe import Probe
from tests.abuse.stand import Stand, node

from tidelog import Client
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.frames import FrameDecoder, encode_frame
from tidelog_proto.limits import MIB, PROTOCOL_VERSION

STALL_MAX_S: Final = 0.050
RATIO_MAX: Final = 3.0
FLOOR_S: Final = 0.030
"""A quiet p99 below this counts as this: what a busy machine does to a process that wants to run."""
PER_S: Final = 50
ALONE_TIMEOUT_S: Final = 60.0
IN_FLIGHT: Final = 4


@dataclass(slots=True)
class Peak:
    """How much memory a process has gained at most."""

    grown_bytes: int = 0


@dataclass(slots=True)
class Measured:
    """What a kind of request has cost.

    Attributes:
        kind: as in `LARGEST`.
        alone_s, cpu_s, stall_s: one request on a quiet node: until it is answered, processor time of the event loop's
            thread, the longest turn of it.
        memory_bytes: what that request has added to the process's anonymous memory.
        quiet_s, flooded_s: p99 of the polite principal, before the flood and in it.
        flood_stall_s: the longest turn of the event loop in the flood.
        answered: requests of the flood that were answered.
    """

    kind: str
    alone_s: float = 0.0
    cpu_s: float = 0.0
    stall_s: float = 0.0
    wall_s: float = 0.0
    memory_bytes: int = 0
    quiet_s: float = 0.0
    flooded_s: float = 0.0
    flood_stall_s: float = 0.0
    flood_bytes: int = 0
    answered: int = 0
    failed: int = 0
    errors: str = ""

    def faults(self) -> list[str]:
        """Return which bounds it has broken."""
        found: list[str] = []
        if self.stall_s > STALL_MAX_S:
            found.append(f"one request stops the event loop for {self.stall_s * 1e3:.0f} ms")
        allowed_s = RATIO_MAX * max(self.quiet_s, FLOOR_S)
        if self.flooded_s > allowed_s:
            found.append(f"p99 beside it {self.flooded_s * 1e3:.0f} ms, quiet {self.quiet_s * 1e3:.0f} ms")
        if self.failed:
            found.append(f"{self.failed} polite requests failed")
        return found


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


@contextlib.asynccontextmanager
async def watched(probe: Probe) -> AsyncIterator[Peak]:
    """Note by how much the process's memory has grown at most meanwhile."""
    before_bytes, peak = probe.read().memory_bytes, Peak()

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.02)
            peak.grown_bytes = max(peak.grown_bytes, probe.read().memory_bytes - before_bytes)

    task = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(probe: Probe) -> None:
    """Wait until the process does nothing, and begin to measure."""
    async with asyncio.timeout(ALONE_TIMEOUT_S):
        while True:
            before = probe.read()
            await asyncio.sleep(0.25)
            if probe.read().cpu_s - before.cpu_s < 0.05:
                probe.reset()
                return


async def polite(stand: Stand, seconds: float, found: Measured) -> float:
    """Publish records when they are due; return the p99 of how long after that each was acknowledged, in seconds."""
    times_s: list[float] = []
    loop = asyncio.get_running_loop()
    async with Client(f"127.0.0.1:{stand.port}", api_key=stand.keys["quiet"]) as client:
        producer = client.producer("quiet")
        await producer.send(b"first")
        began_s = loop.time()

        async def send(due_s: float) -> None:
            try:
                await producer.send(bytes(100))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                found.failed += 1
                sys.stderr.write(f"polite: {error!r}\n")
            times_s.append(loop.time() - due_s)

        async with asyncio.TaskGroup() as group:
            for number in range(int(PER_S * seconds)):
                due_s = began_s + number / PER_S
                await asyncio.sleep(due_s - loop.time())
                group.create_task(send(due_s))
    return sorted(times_s)[len(times_s) * 99 // 100]


async def flooded(stand: Stand, frames: Iterator[bytes], found: Measured, *, seconds: float, connections: int) -> None:
    """Measure the polite principal alone, then beside a flood."""
    found.quiet_s = await polite(stand, seconds / 2, found)
    senders = [await Sender.connect(stand, "flood") for _ in range(connections)]
    stand.probe.reset()
    floods = [asyncio.create_task(sender.flood(frames)) for sender in senders]
    try:
        async with watched(stand.probe) as peak:
            found.flooded_s = await polite(stand, seconds, found)
        found.flood_stall_s, found.flood_bytes = stand.probe.read().stall_s, peak.grown_bytes
    finally:
        for task, sender in zip(floods, senders, strict=True):
            task.cancel()
            sender.writer.transport.abort()
        await asyncio.gather(*floods, return_exceptions=True)
    found.answered = sum(sender.answered - 1 for sender in senders)
    found.errors = ",".join(sorted({name for sender in senders for name in sender.errors}))


async def _run(arguments: argparse.Namespace) -> int:
    faults = 0
    with tempfile.TemporaryDirectory(prefix="tidelog-abuse-") as directory:
        async with node(Path(directory)) as stand:
            for kind, largest in LARGEST.items():
                if arguments.only and not any(text in kind for text in arguments.only):
                    continue
                found = Measured(kind)
                frames = largest(stand)
                try:
                    await alone(stand, kind, frames, found)
                    if arguments.seconds:
                        bounds = {"seconds": arguments.seconds, "connections": arguments.connections}
                        await flooded(stand, frames, found, **bounds)
                except TimeoutError:
                    found.failed += 1
                faults += bool(found.faults())
                _tell(found, as_json=arguments.json)
    return 1 if faults else 0


def _tell(found: Measured, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps(asdict(found) | {"faults": found.faults()})
    else:
        line = (
            f"{found.kind:48}{found.alone_s * 1e3:7.0f}{found.cpu_s * 1e3:7.0f}{found.stall_s * 1e3:7.1f}"
            f"{found.wall_s * 1e3:7.1f}{found.memory_bytes / MIB:6.0f}  |{found.quiet_s * 1e3:6.1f}"
            f"{found.flooded_s * 1e3:8.1f}{found.flood_stall_s * 1e3:7.1f}{found.flood_bytes / MIB:6.0f}"
            f"{found.answered:8}  {found.errors}  {'; '.join(found.faults())}"
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the arguments, measure and judge; return the exit code."""
    parser = argparse.ArgumentParser(description="Judge what the largest requests cost others.")
    parser.add_argument("--only", action="append", help="kinds whose names contain this")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each flood; 0: none")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    return uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
