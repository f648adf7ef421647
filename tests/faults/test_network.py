"""Network cuts drop the packets of their direction only, and healing undoes them."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.faults.disks import SmallDisk
from tests.faults.namespaces import way_in
from tests.faults.network import Network

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PORT = 5000
CLIENT = 0
CLIENT_ADDRESS = "10.77.{}.1"
TIMEOUT_S = 10


def socket_in(network: Network, node: int) -> socket.socket:
    """Open a datagram socket in a node's place; this process stays in its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, there = (os.open(path, os.O_RDONLY) for path in ("/proc/self/ns/net", f"/run/netns/n{node}"))
    assert libc.setns(there, 0) == 0, os.strerror(ctypes.get_errno())
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((network.address(node), PORT))
    assert libc.setns(here, 0) == 0
    return opened


class Places:
    """A socket everywhere: 0 is the clients', the last two are the gateway's and the member's, the others nodes'."""

    def __init__(self, network: Network) -> None:
        self.sockets = {node: socket_in(network, node) for node in range(1, network.member + 1)}
        self.sockets[CLIENT] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sockets[CLIENT].bind(("0.0.0.0", PORT))
        for opened in self.sockets.values():
            opened.settimeout(TIMEOUT_S)
        self.network = network

    def arrives(self, source: int, target: int) -> bool:
        """Send a datagram, and after it another one that the target sends itself: is it alone?"""
        receiving = self.sockets[target]
        address = self.network.address(target) if target else CLIENT_ADDRESS.format(source)
        own = self.network.address(target) if target else "127.0.0.1"
        self.sockets[source].sendto(b"sent", (address, PORT))
        receiving.sendto(b"mark", (own, PORT))
        first = receiving.recv(10)
        return first == b"sent" and receiving.recv(10) == b"mark"

    def pairs(self) -> set[tuple[int, int]]:
        """Return from where to where datagrams come through."""
        everybody = sorted(self.sockets)
        return {(a, b) for a in everybody for b in everybody if a != b and self.arrives(a, b)}

    def meet(self) -> None:
        """Let all nodes resolve all addresses, so that this delays nothing later."""
        for source, opened in self.sockets.items():
            for target, receiving in self.sockets.items():
                if source != target:
                    address = self.network.address(target) if target else CLIENT_ADDRESS.format(source)
                    opened.sendto(b"hi", (address, PORT))
                    assert receiving.recv(10) == b"hi"


def inside() -> None:
    """Commands that run in the namespaces."""
    network = Network(3)
    network.build()
    places = Places(network)
    places.meet()
    everything = {(a, b) for a in range(6) for b in range(6) if a != b}
    assert places.pairs() == everything
    cuts: list[tuple[Callable[[], None], set[tuple[int, int]]]] = [
        (partial(network.cut, 1, 2), {(1, 2)}),
        (partial(network.isolate, 3), {(1, 3), (2, 3), (3, 1), (3, 2)}),
        (partial(network.cut_to, 2), {(0, 2), (1, 2), (3, 2), (4, 2), (5, 2)}),
        (partial(network.cut_from, 2), {(2, 0), (2, 1), (2, 3), (2, 4), (2, 5)}),
        (partial(network.cut_replies, 1), {(1, 0), (1, 4), (1, 5)}),
        (partial(network.cut_off, 3), {pair for pair in everything if 3 in pair}),
        (partial(network.cut_off, network.member), {pair for pair in everything if network.member in pair}),
    ]
    for cut, missing in cuts:
        cut()
        assert places.pairs() == everything - missing, missing
        network.heal()
        places.meet()
        assert places.pairs() == everything
    if network.can_squeeze:
        network.squeeze(2)
        assert places.pairs() == everything
        network.heal()
        network.squeeze(2)
        network.heal()


def inside_small(path: str) -> None:
    """The same for the disk."""
    disk = SmallDisk(Path(path), 1)
    (disk.path / "file").write_bytes(b"before")
    disk.fill()
    assert disk.free_bytes == 0
    with pytest.raises(OSError, match="No space left"), (disk.path / "other").open("wb") as file:
        file.write(b"x" * 5000)
    disk.free()
    assert disk.free_bytes > 900_000
    assert (disk.path / "file").read_bytes() == b"before"


@pytest.mark.parametrize("call", ["inside()", "inside_small({!r})"])
def test_in_namespaces(call: str, tmp_path: Path) -> None:
    way, reason = way_in()
    if not way:
        pytest.skip(f"namespaces are not permitted here: {reason}")
    code = f"from tests.faults import test_network; test_network.{call.format(str(tmp_path / 'disk'))}"
    ended = subprocess.run([*way, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
