"""How the processes of `make test` share the tests: in units of a part of a file, in an order that mixes the folders.

Some folders compute, others wait for nodes, timeouts and the network. In the order of their names all processes compute
at the same time, and wait at the same time. A unit is run by one process, so a fixture of a module is made once for it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

from xdist.scheduler import LoadGroupScheduling

UNIT_TESTS_MAX: Final = 25
"""Maximum number of tests of a unit, for tests that are not in a group of `pytest.mark.xdist_group`."""

FIRST: Final = (
    "tests/broker/storage/commit_log/test_log_recovery.py",
    "tests/clients/test_poison_model.py",
    "tests/e2e/test_cluster.py",
    "tests/e2e/test_late_interrupts.py",
    "tests/gateway/subscriptions/test_feed_reader.py",
    "tests/simulation/",
)
"""Folders and files, from the top of the repository, whose units take longest.

They start first: at the end of a run the other processes would have nothing to do beside them.
"""


class UnitScheduling(LoadGroupScheduling):  # type: ignore[misc] # xdist has no types
    """Give a process that has almost finished its tests the next unit, in the order of collection."""

    def schedule(self) -> None:
        """Divide the collected tests into units, when all processes have collected them, and assign them."""
        self._units = units_of(next(iter(self.registered_collections.values())))
        self.config.option.loadscopereorder = False
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]


def units_of(names: Iterable[str]) -> dict[str, str]:
    """Return the unit of each test: its group, or up to `UNIT_TESTS_MAX` successive tests of its file.

    Args:
        names: ids of tests; those of a group end with `@` and the name of the group.
    """
    counts: Counter[str] = Counter()
    units = {}
    for name in names:
        if name.rfind("@") > name.rfind("]"):
            units[name] = name.rpartition("@")[2]
            continue
        path = name.partition("::")[0]
        units[name] = f"{path} {counts[path] // UNIT_TESTS_MAX}"
        counts[path] += 1
    return units


def order_of(path: str) -> tuple[bool, int]:
    """Return the key by which files of tests are sorted: those in `FIRST`, then the others, by a hash.

    The hash is the same in all processes and runs.

    Args:
        path: from the top of the repository.
    """
    return not path.startswith(FIRST), zlib.crc32(path.encode())
