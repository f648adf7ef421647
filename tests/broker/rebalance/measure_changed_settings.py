"""Measures the processor time of an owner of 100,000 partitions after changes of settings.

    python -m tests.broker.rebalance.measure_changed_settings

The partitions are held in memory, and their epochs end at once: the figures are the processor time of
`ChangedSettings` alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tests.broker.rebalance.test_changed_settings import Trial

from tidelog_broker.rebalance.changed_settings import EXAMINED_MAX, SETTINGS_AGAIN_MS_MAX, SETTINGS_PERIOD_S
from tidelog_proto import broker_pb2 as pb

PARTITIONS = 100_000


def took_s(work: Callable[[], object]) -> float:
    """Return how much processor time some work takes, in seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print the figures."""
    logging.disable(logging.CRITICAL)
    trial = Trial(partitions=PARTITIONS)
    steps = PARTITIONS // EXAMINED_MAX
    idle_s = min(took_s(trial.settings.step) for _ in range(5))
    print(f"a step without reported partitions: {idle_s * 1e6:.1f} us; none happens before one is reported")
    trial.alter(flush=pb.ALWAYS, retention_ms=1)
    seconds = sum(took_s(trial.settings.step) for _ in range(steps))
    print(
        f"{PARTITIONS:,} partitions after a change of another setting: {seconds / PARTITIONS * 1e6:.2f} us each, "
        f"{seconds / steps * 1000:.1f} ms a step, over {steps * SETTINGS_PERIOD_S:.0f} s"
    )
    trial.alter(engine="rocks", flush=pb.NEVER)
    seconds = sum(took_s(trial.settings.step) for _ in range(steps))
    print(f"the same with an engine that a node lacks, for the first time: {seconds / PARTITIONS * 1e6:.2f} us each")
    for _ in range(8):
        trial.now_ms += SETTINGS_AGAIN_MS_MAX
        for _ in range(steps):
            trial.settings.step()
    trial.now_ms += SETTINGS_AGAIN_MS_MAX
    seconds = sum(took_s(trial.settings.step) for _ in range(steps + 1))
    share = seconds * 1000 / SETTINGS_AGAIN_MS_MAX
    print(f"and later: {seconds:.2f} s every {SETTINGS_AGAIN_MS_MAX // 1000} s, {share:.2%} of a core")


if __name__ == "__main__":
    main()
