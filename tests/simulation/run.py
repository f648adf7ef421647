"""Runs seeds: `python -m tests.simulation.run --seeds 1000`, or `--seed 7` for one with its trace.

A seed is a whole cluster's life of a few virtual seconds. A seed that fails prints the invariant, what broke it, and
the newest events; running it again gives the same events, which the checksum at the end proves.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from random import Random
from unittest.mock import patch

from tests.simulation import forks
from tests.simulation.scenario import scenario_of
from tests.simulation.show import show
from tests.simulation.truth import ViolationError
from tests.simulation.watching import watched
from tests.simulation.world import World

from tidelog_broker.core.replication import fence
from tidelog_broker.partition import producer_snapshots
from tidelog_broker.storage.node import journal, typed_journal
from tidelog_broker.storage.segment import reading

JOURNAL_RESERVE_BYTES = 4096
COMPACT_AFTER_BYTES = 700
SNAPSHOT_BATCHES = 5
CEILING_STEP_MIN, CEILING_STEP_MAX = 4, 20
SILENT = (
    "partition.deduplication",
    "partition.pipeline",
    "partition.producer_snapshots",
    "partition.retention",
    "partition.compaction",
    "partition.compacted_versions",
    "replication.driver",
    "base.group_commit",
    "replication.replica_log",
    "replication.takeover_log",
    "replication.log_writer",
    "replication.logged_producers",
    "partition.unsafe_recovery",
)
"""Modules that log a lot in simulations."""
BROKEN = (TypeError, AttributeError, NameError)
"""Exceptions of code that does not fit together; no invariant was violated then."""
TRACE_SHOWN = 150


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a seed. `invariant` is empty without a violation; "crash": an exception; "broken": one of BROKEN."""

    seed: int
    invariant: str
    message: str
    checksum: int
    events: int
    acked: int
    epochs: int
    recoveries: int
    """How many were decided without a quorum."""
    losses: int = 0
    """How many decisions report lost records."""
    trace: str = ""
    mixture: str | None = None
    """The mixture that was run instead of the seed's own."""


def _silent() -> logging.Logger:
    """Return a logger for the node's code, which logs a lot in simulations."""
    logger = logging.getLogger("simulated")
    logger.disabled = True
    return logger


@contextmanager
def small_and_repeatable(seed: int) -> Iterator[None]:
    """Make journals small, snapshots frequent, and the nonces of files a function of the seed."""
    random = Random(f"nonces {seed}")
    with (
        ExitStack() as stack,
        patch.object(journal, "RESERVE_BYTES", JOURNAL_RESERVE_BYTES),
        patch.object(typed_journal, "COMPACT_AFTER_BYTES", COMPACT_AFTER_BYTES),
        patch.object(producer_snapshots, "PRODUCER_SNAPSHOT_BATCHES", SNAPSHOT_BATCHES),
        patch.object(reading, "MAPPED_BYTES_MIN", 1),
        patch.object(reading, "MAPPED_BATCH_BYTES_MIN", 1),
        patch.object(secrets, "randbits", random.getrandbits),
        patch.object(fence, "CEILING_STEP_MIN", CEILING_STEP_MIN),
        patch.object(fence, "CEILING_STEP_MAX", CEILING_STEP_MAX),
    ):
        for name in SILENT:
            stack.enter_context(patch.object(import_module(f"tidelog_broker.{name}"), "log", _silent()))
        yield


def run_seed(seed: int, *, trace: int = TRACE_SHOWN, mixture: str | None = None) -> Result:
    """Run one seed, perhaps with another mixture of faults than its own."""
    world = World(scenario_of(seed, mixture))
    invariant = message = ""
    with small_and_repeatable(seed), watched(world):
        try:
            world.run()
        except ViolationError as error:
            invariant, message = error.invariant, str(error)
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding
            invariant = "broken" if isinstance(error, BROKEN) else "crash"
            message = traceback.format_exc(limit=-8)
    return Result(
        seed,
        invariant,
        message,
        world.clock.checksum,
        world.clock.events,
        world.history.acked(),
        sum(len(forks.newest(truth).chosen) for truth in world.checks.truths.values()),
        sum(len(list(forks.past(forks.newest(truth)))) for truth in world.checks.truths.values()),
        sum(bool(one.value.lost_until) for truth in world.checks.truths.values() for one in truth.chosen.values()),
        "\n".join(show(event) for event in world.clock.trace(trace)) if invariant else "",
        mixture,
    )


def report(result: Result) -> str:
    """Return a failure as text."""
    again = f"make simulate SEED={result.seed}"
    if result.mixture is not None:
        again = f"python -m tests.simulation.run --seed {result.seed} --mixture {result.mixture!r}"
    return f"{result.trace}\nseed {result.seed}: {result.message}\n(again: {again})"


def _many(first: int, count: int, processes: int, mixture: str | None) -> int:
    began = time.monotonic()
    done = acked = epochs = events = 0
    failed: list[Result] = []
    context = get_context("fork")
    with context.Pool(processes) as pool:
        for result in pool.imap_unordered(partial(run_seed, mixture=mixture), range(first, first + count), chunksize=4):
            done += 1
            acked += result.acked
            epochs += result.epochs
            events += result.events
            if result.invariant:
                failed.append(result)
                print(f"\r\033[Kseed {result.seed}: {result.message.splitlines()[-1][:300]}", flush=True)
            if sys.stdout.isatty() or done % 200 == 0:
                rate = done / (time.monotonic() - began)
                print(f"\r\033[K{done} of {count} seeds, {len(failed)} failed, {rate:.1f} a second", end="", flush=True)
    seconds = time.monotonic() - began
    print(
        f"\r\033[K{done} seeds in {seconds:.0f} s ({done / seconds:.1f} a second): {events} events, "
        f"{acked} publishes acknowledged, {epochs} epochs decided, {len(failed)} seeds failed"
    )
    if failed:
        print(report(min(failed, key=lambda result: result.events)))
    return len(failed)


def main() -> int:
    """Run with the arguments of the command line; the exit code is 1 if a seed failed."""
    parser = argparse.ArgumentParser(description="Run the cluster's core in a simulated world.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--mixture", help="all of them of this mixture of faults, or this script")
    parser.add_argument("--trace", type=int, default=TRACE_SHOWN, help="how many events a failure shows")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.seed is None:
        return 1 if _many(arguments.first, arguments.seeds, arguments.processes, arguments.mixture) else 0
    result = run_seed(arguments.seed, trace=arguments.trace, mixture=arguments.mixture)
    print(report(result) if result.invariant else f"seed {result.seed}: every invariant held")
    print(
        f"{result.events} events, {result.acked} publishes acknowledged, {result.epochs} epochs decided, "
        f"checksum {result.checksum:#010x}"
    )
    return 1 if result.invariant else 0


if __name__ == "__main__":
    sys.exit(main())
