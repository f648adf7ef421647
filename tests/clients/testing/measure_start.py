"""Measure the start and stop of a node for tests, and the share of imports.

    python -m tests.clients.testing.measure_start

Rounds alternate and medians are printed, so that other load on the machine affects all figures equally.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import psutil

from tidelog import testing

ROUNDS = 10
IMPORTS = "import tidelog_cli.main, tidelog_broker.cli.commands"


def main() -> None:
    """Print the medians."""
    starts, processor, imports, ends = [], [], [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with testing.node() as node:
            starts.append(time.perf_counter() - began)
            times = psutil.Process(node.pid).cpu_times()
            processor.append(times.user + times.system)
            began = time.perf_counter()
        ends.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", IMPORTS], check=True)
        imports.append(time.perf_counter() - began)
    for name, times_s in (("start", starts), ("of the processor", processor), ("imports", imports), ("end", ends)):
        print(f"{name:17} {statistics.median(times_s):.2f} s, {min(times_s):.2f} to {max(times_s):.2f}")


if __name__ == "__main__":
    main()
