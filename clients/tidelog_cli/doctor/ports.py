"""Checks of the configured ports of a node and a gateway: free, or in use by one of them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.wrong_port import speaks_http
from tidelog_cli.doctor.configuration import Settings
from tidelog_cli.doctor.findings import Finding


class Port(NamedTuple):
    """A port in the settings of a node or a gateway: its use, its address and its number."""

    what: str
    host: str
    number: int
    is_udp: bool = False


def ports_of(node: Settings, gateway: Settings) -> list[Port]:
    """Return the configured ports, except 0, for which the system chooses a port.

    Raises:
        CommandFailed: a setting is not a port.
    """
    native, gossip = _number(node, "port"), _number(node, "gossip_port" if node.get("gossip_port") else "port")
    ports = [
        Port("native protocol", str(node["host"]), native),
        Port("gossip", str(node["host"]), gossip, is_udp=True),
        Port("management", str(node["management_host"]), _number(node, "management_port")),
        Port("gateway", str(gateway["host"]), _number(gateway, "http_port")),
    ]
    return [port for port in ports if port.number]


def _number(settings: Settings, key: str) -> int:
    text = str(settings[key])
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise CommandFailed(f"the setting {key} must be a port from 0 to 65535, got {text!r}", EXIT_USAGE)
    return int(text)


async def check_ports(ports: list[Port]) -> AsyncIterator[Finding]:
    """Check whether each port is free, or used as it should be: a process on an HTTP port must answer HTTP."""
    for port in ports:
        where = f"{port.host}:{port.number}{' (UDP)' if port.is_udp else ''}"
        fault = await asyncio.to_thread(_bind_fault, port)
        if fault is None:
            yield Finding(f"port {port.number}", "ok", f"{port.what}: {where} is free")
        elif fault.errno != errno.EADDRINUSE:
            fact = f"{port.what}: cannot listen on {where}: {fault.strerror}"
            yield Finding(
                f"port {port.number}", "failure", fact, "choose an address of this machine and a port above 1023"
            )
        elif port.is_udp or port.what == "native protocol" or await speaks_http(_target(port.host), port.number):
            yield Finding(
                f"port {port.number}", "ok", f"{port.what}: {where} is in use, as expected while the process runs"
            )
        else:
            fact = f"{port.what}: {where} is in use by a process that does not answer HTTP"
            yield Finding(f"port {port.number}", "warning", fact, "stop that process, or choose another port")


def _bind_fault(port: Port) -> OSError | None:
    try:
        family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM if port.is_udp else socket.SOCK_STREAM) as tried:
            if not port.is_udp:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((port.host, port.number))
    except OSError as error:
        return error
    return None


def _target(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - a listen address is not a connect address
