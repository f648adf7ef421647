"""A network of nodes that can be cut: a namespace for each node, joined by a router in the run's own.

    node i, eth0 10.77.i.2  <-- veth -->  10.77.i.1 (for clients), 10.77.i.254 (the way to other nodes)

The place after the last node is a gateway's, and the one after it a group member's. For nodes they are clients: cuts of
clients apply to them.

Every cut has one direction and is silent, like a broken switch: packets are lost without an error.

- from node to node: a policy rule of the router, `ip rule add from A to B blackhole`;
- from a node to the clients: the node's neighbour entry for 10.77.i.1 becomes an address that no card has, and rules
  of the router keep the gateway and the member from it;
- from all to a node: the router's neighbour entry for 10.77.i.2 becomes one.

A node's packets can also be delayed in a queue for seconds (tbf). Healing drops the packets in the queue.

Cutting needs no packet filter and no kernel module beyond veth. Rejected: taking links down (both directions, and the
stack sees it at once), blackhole routes in a node (its own sockets get errors), netem (not in every kernel).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_NOBODY: Final = "02:00:00:00:de:ad"
_RULE_PRIORITY: Final = 100
_SQUEEZE: Final = ("tbf", "rate", "100kbit", "burst", "5k", "latency", "10s")


class Network:
    """Nodes are numbered from 1. Made inside namespaces of the run's own, see `namespaces.py`."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.gateway = nodes + 1
        self.member = nodes + 2
        self._rules: set[tuple[int, int]] = set()
        self._deaf: set[int] = set()
        self._mute: set[int] = set()
        self._squeezed: set[int] = set()
        self.can_squeeze = False
        """Whether the kernel supports it; known after it was built."""

    def build(self) -> None:
        """Make namespaces and links, for the gateway and the member as for nodes."""
        _run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/run")
        _run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for node in range(1, self.member + 1):
            _run("ip", "netns", "add", f"n{node}")
            _run("ip", "link", "add", f"to{node}", "type", "veth", "peer", "name", "eth0", "netns", f"n{node}")
            _run("ip", "address", "add", f"10.77.{node}.1/24", "dev", f"to{node}")
            _run("ip", "address", "add", f"10.77.{node}.254/24", "dev", f"to{node}")
            _run("ip", "link", "set", f"to{node}", "up")
            inside = ("ip", "-n", f"n{node}")
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "address", "add", f"10.77.{node}.2/24", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "route", "add", "default", "via", f"10.77.{node}.254")
        try:
            self.squeeze(1)
        except (OSError, subprocess.CalledProcessError):
            return
        self.heal()
        self.can_squeeze = True

    @staticmethod
    def address(node: int) -> str:
        """Return the address of a node, the gateway or the member."""
        return f"10.77.{node}.2"

    @staticmethod
    def command(node: int) -> tuple[str, ...]:
        """Return what runs a command in a node's place."""
        return ("nsenter", f"--net=/run/netns/n{node}")

    def cut(self, source: int, target: int) -> None:
        """Let nothing from one node reach another one any more."""
        if (source, target) not in self._rules:
            self._rules.add((source, target))
            _run("ip", "rule", "add", *self._rule(source, target))

    def cut_to(self, node: int) -> None:
        """Let nothing reach a node, neither from nodes nor from clients."""
        self._deaf.add(node)
        self._misdirect((), f"10.77.{node}.2", f"to{node}")

    def cut_from(self, node: int) -> None:
        """Drop all packets from a node, to nodes and to clients."""
        for other in range(1, self.nodes + 1):
            if other != node:
                self.cut(node, other)
        self.cut_replies(node)

    def cut_replies(self, node: int) -> None:
        """Drop packets from a node to clients; packets from clients still reach it."""
        self._mute.add(node)
        for client in (self.gateway, self.member):
            if client != node:
                self.cut(node, client)
        self._misdirect(("-n", f"n{node}"), f"10.77.{node}.1", "eth0")

    def isolate(self, node: int) -> None:
        """Cut a node off the other nodes, in both directions; clients still reach it."""
        for other in range(1, self.nodes + 1):
            if other != node:
                self.cut(node, other)
                self.cut(other, node)

    def squeeze(self, node: int) -> None:
        """Delay the packets of a node, to nodes and to clients, in a long queue: round trips take seconds."""
        _run("tc", "-n", f"n{node}", "qdisc", "add", "dev", "eth0", "root", *_SQUEEZE)
        self._squeezed.add(node)

    def cut_off(self, node: int) -> None:
        """Cut a node, or the member, off from all nodes and clients, in both directions."""
        self.cut_to(node)
        self.cut_from(node)

    def heal(self) -> None:
        """Undo everything."""
        for node in self._squeezed:
            _run("tc", "-n", f"n{node}", "qdisc", "del", "dev", "eth0", "root")
        for source, target in self._rules:
            _run("ip", "rule", "del", *self._rule(source, target))
        for node in self._deaf:
            _run("ip", "neigh", "del", f"10.77.{node}.2", "dev", f"to{node}")
        for node in self._mute:
            _run("ip", "-n", f"n{node}", "neigh", "del", f"10.77.{node}.1", "dev", "eth0")
        self._rules.clear()
        self._deaf.clear()
        self._mute.clear()
        self._squeezed.clear()

    def _rule(self, source: int, target: int) -> tuple[str, ...]:
        places = ("from", self.address(source), "to", self.address(target))
        return (*places, "blackhole", "priority", str(_RULE_PRIORITY))

    @staticmethod
    def _misdirect(where: tuple[str, ...], address: str, device: str) -> None:
        _run("ip", *where, "neigh", "replace", address, "lladdr", _NOBODY, "nud", "permanent", "dev", device)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
