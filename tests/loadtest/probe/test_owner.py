from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidelog_loadtest.measure.runs import Budget
from tidelog_loadtest.probe.client import append_run
from tidelog_loadtest.probe.owner import OwnerProtocol, OwnerServer, frames_held
from tidelog_loadtest.probe.server import ProbeProtocol, ProbeServer
from tidelog_loadtest.probe.wire import REPLY, aligned
from tidelog_loadtest.stand.payloads import encoded, value_batches

PAYLOADS = encoded(value_batches(100, 50, count=3))
FRAME_BYTES = PAYLOADS[0].length_bytes
WINDOW = 4


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the probe has no events to wait for
        await asyncio.sleep(0.001)


class Gate(ProbeProtocol):
    """A follower that sends no replies, and stores nothing, while the gate is closed."""

    shut = False
    kept = 0

    def _append(self, frame: memoryview, end: int) -> None:
        if not Gate.shut:
            super()._append(frame, end)
            return
        self._pool.append(frame)
        Gate.kept += 1

    @staticmethod
    def open(protocols: list[Gate]) -> None:
        Gate.shut = False
        for protocol in protocols:
            transport = protocol._transport
            assert transport is not None
            transport.write(bytes(REPLY.size) * Gate.kept)
        Gate.kept = 0


@dataclass
class Probe:
    port: int
    owner: OwnerServer
    followers: list[ProbeServer]
    gates: list[Gate]


async def _listen(stack: contextlib.AsyncExitStack, make: type[ProbeProtocol], server: ProbeServer) -> int:
    def protocol() -> ProbeProtocol:
        return make(server)

    listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    stack.callback(listener.close)
    return int(listener.sockets[0].getsockname()[1])


@pytest.fixture(params=[False, True], ids=["never", "always"])
async def probe(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Probe]:
    """An owner and two followers, the second of which is a gate."""
    gates: list[Gate] = []

    class Kept(Gate):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            gates.append(self)

    Gate.shut, Gate.kept = False, 0
    async with contextlib.AsyncExitStack() as stack:
        followers: list[ProbeServer] = []
        ports: list[int] = []
        for name, make in (("a", ProbeProtocol), ("b", Kept)):
            (tmp_path / name).mkdir()
            follower = ProbeServer(
                tmp_path / name,
                sync=request.param,
                frame_bytes_max=FRAME_BYTES,
                window=frames_held(WINDOW, FRAME_BYTES),
            )
            stack.callback(follower.close)
            stack.push_async_callback(follower.disconnect)
            followers.append(follower)
            ports.append(await _listen(stack, make, follower))
        owner = OwnerServer(tmp_path, sync=request.param, frame_bytes_max=FRAME_BYTES, window=WINDOW, quorum=2)
        stack.callback(owner.close)
        stack.push_async_callback(owner.disconnect)
        await owner.follow(ports)
        yield Probe(await _listen(stack, OwnerProtocol, owner), owner, followers, gates)


def _stored(server: ProbeServer) -> bytes:
    return server.file.path.read_bytes()[: server.file.end]


async def test_every_copy_holds_the_same_bytes_in_the_order_of_sending(probe: Probe) -> None:
    run = await append_run(probe.port, PAYLOADS, Budget(batches=20), window=WINDOW)
    assert run.records == 20 * 50
    servers = (probe.owner, *probe.followers)
    await _until(lambda: all(server.file.end == 20 * aligned(FRAME_BYTES) for server in servers))
    expected = b"".join(
        b"".join(map(bytes, PAYLOADS[at % 3].parts)).ljust(aligned(FRAME_BYTES), b"\0") for at in range(20)
    )
    assert [_stored(server) for server in servers] == [expected] * 3


async def test_two_of_three_copies_are_enough_for_a_reply(probe: Probe) -> None:
    Gate.shut = True
    run = await append_run(probe.port, PAYLOADS, Budget(batches=8), window=WINDOW)
    assert run.batches == 8
    assert len(probe.gates) == 1


async def test_a_follower_without_replies_stops_the_sender_at_the_limit(probe: Probe) -> None:
    Gate.shut = True
    bound = frames_held(WINDOW, FRAME_BYTES)
    sending = asyncio.create_task(append_run(probe.port, PAYLOADS, Budget(batches=3 * bound), window=WINDOW))
    room = bound - probe.owner.spare_frames
    await _until(lambda: Gate.kept >= room)
    done, _ = await asyncio.wait([sending], timeout=0.05)
    assert not done
    assert room <= Gate.kept <= bound
    Gate.open(probe.gates)
    assert (await sending).batches == 3 * bound


async def test_a_second_sender_follows_the_first(probe: Probe) -> None:
    for _ in range(2):
        assert (await append_run(probe.port, PAYLOADS, Budget(batches=5), window=WINDOW)).batches == 5


async def test_a_lost_follower_ends_the_run(probe: Probe, capfd: pytest.CaptureFixture[str]) -> None:
    Gate.shut = True
    sending = asyncio.create_task(append_run(probe.port, PAYLOADS, Budget(seconds=60), window=WINDOW))
    await _until(lambda: Gate.kept > 0)
    transport = probe.gates[0]._transport
    assert transport is not None
    transport.abort()
    with pytest.raises(Exception, match="closed the connection"):
        await sending
    assert "a follower closed its connection" in capfd.readouterr().err
