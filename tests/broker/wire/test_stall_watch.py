from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import pytest
import uvloop
from tests.broker.linked import Ear, Eye, ack, identity, join, make_links
from tests.broker.stand import Stand

from tidelog_broker.wire import stall_watch
from tidelog_broker.wire.stall_watch import LOOKS, Options, Progress, StallWatch, progress_of

Watch = Callable[["Told"], tuple[StallWatch, asyncio.Event]]


class Told:
    """Results of a scripted kernel, look after look; the last one is repeated."""

    def __init__(self, words: Iterable[Progress | None]) -> None:
        self._words: Iterator[Progress | None] = iter(words)
        self._last: Progress | None = None
        self.looks = 0

    def __call__(self, _: Options) -> Progress | None:
        self.looks += 1
        self._last = next(self._words, self._last)
        return self._last

    async def looked(self, times: int) -> None:
        async with asyncio.timeout(20):
            while self.looks < times:  # noqa: ASYNC110 - the kernel's part has no event loop
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_watch, "LOOK_S", 0.001)


@pytest.fixture
def some_socket() -> Iterator[socket.socket]:
    with socket.socket() as opened:
        yield opened


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, some_socket: socket.socket) -> Watch:
    def watching(told: Told) -> tuple[StallWatch, asyncio.Event]:
        monkeypatch.setattr(stall_watch, "progress_of", told)
        stalled = asyncio.Event()
        return StallWatch(some_socket, stalled.set), stalled

    return watching


async def test_unacknowledged_data_closes_the_connection_once(watch: Watch) -> None:
    told = Told([Progress(3, 100)])
    _, stalled = watch(told)
    async with asyncio.timeout(20):
        await stalled.wait()
    assert told.looks == LOOKS + 1
    await asyncio.sleep(0.02)
    assert told.looks == LOOKS + 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([Progress(0, 100)], id="nothing is under way"),
        pytest.param([Progress(5, at) for at in range(10_000)], id="slow but going on"),
        pytest.param([Progress(5, at // (LOOKS - 1)) for at in range(10_000)], id="very slow"),
        pytest.param([Progress(at % LOOKS, 7) for at in range(10_000)], id="all was acknowledged in between"),
    ],
)
async def test_slow_or_idle_connection_is_kept(watch: Watch, words: list[Progress]) -> None:
    told = Told(words)
    watching, stalled = watch(told)
    await told.looked(5 * LOOKS)
    assert not stalled.is_set()
    watching.stop()


async def test_connection_without_tcp_info_is_kept(watch: Watch) -> None:
    told = Told([None])
    _, stalled = watch(told)
    await told.looked(1)
    await asyncio.sleep(0.02)
    assert told.looks == 1
    assert not stalled.is_set()


async def test_stopped_watch_does_not_check(watch: Watch) -> None:
    told = Told([Progress(3, 100)])
    watching, stalled = watch(told)
    watching.stop()
    watching.stop()
    await asyncio.sleep(0.02)
    assert not told.looks
    assert not stalled.is_set()


def test_progress_is_read_from_the_kernel() -> None:
    if not hasattr(socket, "TCP_INFO"):
        pytest.skip("this platform does not tell")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as one,
        listening.accept()[0] as other,
    ):
        before = progress_of(one)
        assert before is not None
        one.sendall(b"x" * 1000)
        assert len(other.recv(1000, socket.MSG_WAITALL)) == 1000
        other.sendall(b"y")
        assert one.recv(1) == b"y"  # it carries the acknowledgement
        after = progress_of(one)
    assert after is not None
    assert after.acked_bytes - before.acked_bytes == 1000
    assert after.unacked == 0


def test_other_sockets_have_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert progress_of(one) is None
        monkeypatch.delattr(socket, "TCP_INFO", raising=False)
        assert progress_of(one) is None


def test_closed_connection_has_no_progress() -> None:
    async def told() -> list[Progress | None]:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            transport, _ = await loop.create_connection(asyncio.Protocol, *listening.getsockname())
            connection = transport.get_extra_info("socket")
            before = progress_of(connection)
            transport.abort()
            await asyncio.sleep(0.01)
            return [before, progress_of(connection)]

    for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            before, after = runner.run(told())
        assert before is not None
        assert after is None


@pytest.mark.parametrize("stalls_at", ["the caller", "the node that was called"])
async def test_stalled_link_is_reestablished(stand: Stand, monkeypatch: pytest.MonkeyPatch, stalls_at: str) -> None:
    """As when a slow link's queue is dropped: the kernel may wait for a quarter of a minute before it sends again."""
    ear, eye = Ear(), Eye()
    node = await stand.start()
    join(node, ear, identity("b"))

    def nothing_comes_back(connection: Options) -> Progress | None:
        is_callers = cast("socket.socket", connection).getsockname()[1] != node.port
        return Progress(1 if is_callers == (stalls_at == "the caller") else 0, 100)

    monkeypatch.setattr(stall_watch, "progress_of", nothing_comes_back)
    links = make_links(events=eye)
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    await eye.saw("lost b")
    monkeypatch.setattr(stall_watch, "progress_of", progress_of)
    await eye.saw("established b", 2)
    links.send(["b"], ack(7))
    assert [message for _, message, _ in await ear.heard(1)] == [ack(7)]
    await links.close()
