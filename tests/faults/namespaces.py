"""Runs in network, mount and process namespaces of its own, if permitted.

Inside, the run may cut networks and fill file systems as it likes: nothing of the machine is touched, nothing is left
over, and when the run ends, however it ends, the kernel ends every process in there. Outside of them (containers
without the rights) a run has the faults of processes only, and says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

INSIDE: Final = "--inside-namespaces"
_KINDS: Final = ("--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
_WAYS: Final = (("unshare", *_KINDS), ("unshare", "--user", "--map-root-user", *_KINDS))
"""Works as root, and for all users if they may create namespaces."""

_PROBE: Final = """
set -e
mount -t tmpfs -o size=1m tmpfs /run
ip link set lo up
ip netns add probe
ip link add outer type veth peer name inner netns probe
ip rule add from 10.77.1.2 to 10.77.2.2 blackhole
echo 1 > /proc/sys/net/ipv4/ip_forward
"""
"""Everything that `network.py` needs."""


def way_in() -> tuple[tuple[str, ...], str]:
    """Return the command that runs another one inside; or an empty one and the reason."""
    reason = ""
    for way in _WAYS:
        try:
            tried = subprocess.run([*way, "sh", "-c", _PROBE], capture_output=True, text=True, check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            continue
        if tried.returncode == 0:
            return way, ""
        reason = (tried.stderr.strip().splitlines() or [f"{way[0]} ended with {tried.returncode}"])[-1]
    return (), reason


def run_inside(way: Sequence[str], module: str, arguments: Sequence[str]) -> int:
    """Run `python -m module *arguments INSIDE` inside; return its exit code."""
    command = [*way, sys.executable, "-m", module, *arguments, INSIDE]
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait()  # the terminal has told the run as well, and it cleans up
