"""Detection of a silent node with open connections, which slow nodes do not trigger."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
import weakref
from collections.abc import Callable

import pytest

from tidelog.cluster.liveness import PROBE_AFTER_S, Liveness, unsent_in_kernel
from tidelog.errors import ConnectionLostError, NodeUnreachableError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame

TIMEOUT_S = 0.3


class Quiet:
    """A connection whose received and sent bytes the test controls."""

    def __init__(self) -> None:
        self.name, self.closed = "node:7400", False
        self.loop = asyncio.get_running_loop()
        self.heard_at = self.loop.time() - 60
        self.probes: list[pb.Envelope] = []
        self.unsent: Callable[[], int] = lambda: 0

    @property
    def quiet_s(self) -> float:
        return self.loop.time() - self.heard_at

    @property
    def unsent_bytes(self) -> int:
        return self.unsent()

    def request(self, envelope: pb.Envelope, *, timeout_s: float) -> asyncio.Future[Frame]:
        assert timeout_s > 0
        self.probes.append(envelope)
        return self.loop.create_future()

    def hear(self) -> None:
        self.heard_at = self.loop.time()


async def outcome(
    quiet: Quiet,
    kind: str,
    *,
    wait_s: float = 0.0,
    during: Callable[[float], None] = lambda _: None,
    retry_after_s: float = 1.6,
) -> tuple[BaseException | None, float]:
    """Watch a request for some time; return its error, if any, and when it failed."""
    liveness, answer = Liveness(quiet, quiet.loop, TIMEOUT_S), quiet.loop.create_future()
    began = quiet.loop.time()
    task = asyncio.create_task(liveness.watch(kind, answer, wait_s=wait_s))
    while not task.done() and quiet.loop.time() - began < retry_after_s:
        during(quiet.loop.time() - began)
        await asyncio.sleep(0.02)
    took_s = quiet.loop.time() - began
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None, took_s
    assert liveness.is_lost
    return task.exception(), took_s


@pytest.mark.parametrize(("kind", "error"), [("fetch", NodeUnreachableError), ("topic_create", ConnectionLostError)])
async def test_a_request_to_a_silent_node_fails_once_a_probe_has_no_answer(kind: str, error: type[Exception]) -> None:
    quiet = Quiet()
    failure, took_s = await outcome(quiet, kind)
    assert isinstance(failure, error)
    assert "node:7400 does not respond" in str(failure)
    assert took_s >= PROBE_AFTER_S + TIMEOUT_S
    assert [probe.WhichOneof("kind") for probe in quiet.probes] == ["metadata"], "one probe for several checks"


async def test_slow_node_that_answers_probes_is_waited_for() -> None:
    quiet = Quiet()

    def answers_probes(_: float) -> None:
        if len(quiet.probes) > heard[0]:
            heard[0] = len(quiet.probes)
            quiet.hear()

    heard = [0]
    failure, _ = await outcome(quiet, "fetch", during=answers_probes, retry_after_s=3.0)
    assert failure is None
    assert len(quiet.probes) >= 2, "probed again after each quiet period"


async def test_a_node_that_sends_anything_is_not_probed() -> None:
    quiet = Quiet()
    quiet.heard_at = math.inf  # also while this process is stopped
    failure, _ = await outcome(quiet, "fetch")
    assert failure is None
    assert not quiet.probes


async def test_bytes_being_sent_are_a_sign_of_life_and_stalled_ones_are_not() -> None:
    quiet = Quiet()
    left = [10_000_000]

    def leaving() -> int:
        left[0] -= 1000
        return left[0]

    quiet.unsent = leaving
    assert (await outcome(quiet, "fetch"))[0] is None
    quiet = Quiet()
    quiet.unsent = lambda: 4096
    assert (await outcome(quiet, "fetch"))[0] is not None
    quiet = Quiet()
    grown = [0]

    def growing() -> int:
        grown[0] += 1000
        return grown[0]

    quiet.unsent = growing
    assert (await outcome(quiet, "fetch"))[0] is not None, "newly written bytes are not a sign of life"


async def test_long_poll_is_not_probed_before_its_answer_is_due() -> None:
    quiet = Quiet()
    assert (await outcome(quiet, "fetch", wait_s=5.0))[0] is None
    assert not quiet.probes


async def test_answer_is_returned_and_returned_node_is_not_lost() -> None:
    quiet = Quiet()
    liveness, answer = Liveness(quiet, quiet.loop, TIMEOUT_S), quiet.loop.create_future()
    quiet.loop.call_later(0.05, answer.set_result, Frame(pb.Envelope(correlation_id=7), memoryview(b"")))
    assert (await liveness.watch("fetch", answer, wait_s=0)).envelope.correlation_id == 7
    with pytest.raises(NodeUnreachableError):
        await liveness.watch("fetch", quiet.loop.create_future(), wait_s=0)
    assert liveness.is_lost
    quiet.hear()
    assert not liveness.is_lost


def test_unacknowledged_bytes_are_counted() -> None:
    assert unsent_in_kernel(None) == 0
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sock:
        assert unsent_in_kernel(sock) == 0
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(1 << 16))
        assert unsent_in_kernel(sock) > 0
    assert unsent_in_kernel(sock) == 0, "the socket is closed"


async def test_answer_is_freed_without_garbage_collection() -> None:
    quiet = Quiet()
    liveness, answer = Liveness(quiet, quiet.loop, TIMEOUT_S), quiet.loop.create_future()
    dropped = weakref.ref(answer)
    answer.set_result(None)
    gc.collect()
    gc.disable()
    try:
        await liveness.watch("fetch", answer, wait_s=0.0)
        del answer
        assert dropped() is None
    finally:
        gc.enable()
