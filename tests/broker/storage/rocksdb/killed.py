"""Processes that use the RocksDB engine and kill themselves at a step: `python -m …killed DIRECTORY FIRST LAST STRIDE`.

Step N is the N-th change of a file that the engine or RocksDB makes through the functions below, before or after it.
The process for each step is a fork of this one, which has not opened a database: its threads would not exist in the
child. Each process writes to `DIRECTORY/N/told` what its stores have, before each call.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import rocksdict
from tests.broker.storage.rocksdb.stand import Stand

from tidelog_broker.storage.engines.stores import remove_store
from tidelog_broker.storage.io.filesystem import RealFile, RealFileSystem

PARTITIONS = 2
REMOVED = 9
TOLD = "told"
NODE = "node"


class Steps:
    """Counts steps and kills the process at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with a step before and after it."""

        def counted(*arguments: Any, **named: Any) -> Any:
            self.step()
            result = call(*arguments, **named)
            self.step()
            return result

        return counted


def arm(steps: Steps) -> None:
    """Count the operations on files, and those of the database."""
    for kind, names in (
        (RealFile, ("pwritev", "datasync", "allocate", "truncate")),
        (RealFileSystem, ("make_dir", "rename", "unlink", "remove_dir", "sync_dir")),
    ):
        for name in names:
            setattr(kind, name, steps.around(getattr(kind, name)))
    opened = rocksdict.Rdict

    class Counted:
        """A database whose changes are steps."""

        def __init__(self, *arguments: Any) -> None:
            steps.step()
            self._opened = opened(*arguments)
            steps.step()

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._opened, name)
            return steps.around(found) if name in {"write", "flush_wal", "put", "flush", "close"} else found

    rocksdict.Rdict = Counted  # type: ignore[assignment, misc]


def tell(stand: Stand, path: Path) -> None:
    """Write atomically what each store must have at least, and what it may have."""
    told = {
        partition: (written.start, written.synced, [one.hex() for one in written.batches])
        for partition, written in stand.written.items()
    }
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told))
    os.rename(new, path)  # noqa: PTH104 - the steps do not count `os.rename`


def live(root: Path, seed: int) -> None:
    """Create stores, and change them in every way, with a restart and a removal in between."""
    random = Random(seed)
    told = root / TOLD
    stand = Stand(root / NODE)
    for partition in (*range(PARTITIONS), REMOVED):
        stand.create(partition)
        tell(stand, told)
    for number in range(40):
        if number == 20:
            for partition, store in stand.stores.items():
                store.close()
                stand.written[partition].synced = store.end_offset
            tell(stand, told)
            stand.close()
            stand = reopened(stand)
        if number == 30:
            stand.stores.pop(REMOVED).close()
            del stand.written[REMOVED]
            tell(stand, told)
            remove_store(stand.volume, stand.directory(REMOVED))
        stand.change(random, lambda here=stand: tell(here, told))  # type: ignore[misc]
    os.kill(os.getpid(), signal.SIGTERM)  # The life has ended; Python must not end the database in order.


def reopened(stand: Stand) -> Stand:
    again = Stand(stand.root)
    for partition in stand.stores:
        again.open(partition)
    again.written = stand.written
    return again


def main(directory: str, first: str, last: str, stride: str) -> None:
    """Fork a process for each step; print its number if it was killed."""
    for number in range(int(first), int(last), int(stride)):
        root = Path(directory) / str(number)
        root.mkdir()
        child = os.fork()
        if child == 0:
            arm(Steps(number))
            live(root, number)
        _, status = os.waitpid(child, 0)
        assert status in {signal.SIGTERM, signal.SIGKILL}, status
        if status == signal.SIGTERM:
            return
        print(number)


if __name__ == "__main__":
    main(*sys.argv[1:])
