"""A world of stores that share a commit log on a simulated disk: crashes at any step, and damage of records.

S1: after a crash each store has a prefix of what was written that contains everything that was synced, also if the
snapshots of the log are lost.
S2: when the name of a file of the log is removed, a power cut at this moment costs no store anything.
S3: damage in one record costs the store of this record at most: after a clean stop it is whole or in LIMBO.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.broker.storage.build import read_all
from tests.broker.storage.commit_log.shared_world import LOG_DIR, Model, SharedWorld, random_steps
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk
from tests.simulation.truth import ViolationError

from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    FoundRecord,
    Kind,
    records_in,
    unpack_file_header,
)
from tidelog_broker.storage.commit_log.snapshot import SNAPSHOT_SUFFIX
from tidelog_broker.storage.commit_log.store_identity import FILE_NAME, read_identity
from tidelog_broker.storage.io.errors import StorageError, StorageFailedError

LIVES = 4
STEPS = 70
FAILED_SYNCS = 0.2
"""In how many of the lives a sync of the log fails."""
CRASHES = 0.6
"""How many of the lives may end in the middle of a write; others end between two operations."""
CLEAN = 0.6
"""How many of the lives that end so end with a clean stop, after which records are damaged, one at a time."""
DAMAGED = 4
"""How many records are damaged then."""


@contextmanager
def checking(invariant: str) -> Iterator[None]:
    """Report a failed assertion of the block, or an error of the code, as a violation."""
    try:
        yield
    except PowerCutError:
        raise
    except (AssertionError, StorageError, LookupError, ValueError) as error:
        raise ViolationError(invariant, f"{type(error).__name__}: {error}") from error


class FilesWorld:
    """One seed. `run` raises ViolationError if a property does not hold."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"files {seed}")
        self.world = SharedWorld(new_disk())
        self.events = 0

    def run(self) -> None:
        """Let the stores live several times, each life ending with a crash or a clean stop."""
        for _ in range(LIVES):
            self._live()

    # ------------------------------------------------------------------------------------------ a life

    def _live(self) -> None:
        random, world = self.random, self.world
        world.sim.fail = self._look_at_deletions
        if random.random() < FAILED_SYNCS:
            world.sim.fail = self._failing_sync(random.randrange(1, 40))
        world.sim.cut_at = world.sim.steps + random.randrange(300) if random.random() < CRASHES else None
        is_clean, is_failed = False, False
        try:
            with checking("crash"):
                try:
                    random_steps(world, random, STEPS)
                    is_clean = random.random() < CLEAN and self._stop()
                    if not is_clean:
                        self._append_without_sync()
                except StorageFailedError:
                    is_failed = world.sim.any_lost
                    assert is_failed, "the log has failed, and the disk has not"
        except PowerCutError:
            pass
        self.events += world.sim.steps
        power = random.random() < 0.6 and not is_failed
        self.world = world.after_crash(random, power=power)
        for number in [one for one in self.world.models if not self._exists(one)]:
            del self.world.models[number]
        with checking("S1"):
            _without_snapshots(self.world).check_recovered()
        for _ in range(DAMAGED if is_clean else 0):
            self._damage_a_record()
        with checking("S1"):
            self.world.check_recovered()
            self.world.check()

    def _exists(self, number: int) -> bool:
        return self.world.sim.exists(self.world.directory(number))

    def _stop(self) -> bool:
        """Stop cleanly, after a few truncations, whose records are rare otherwise."""
        world, random = self.world, self.random
        for number, store in list(world.stores.items()):
            count = len(world.models[number].written)
            if store.state == "active" and store.start_offset == 0 and count > 1 and random.random() < 0.4:
                world.truncate(number, count - 1)
                if random.random() < 0.5:
                    world.append(number, [20])
        for number, store in list(world.stores.items()):
            store.close()
            world.models[number].floor = len(world.models[number].written)
        return True

    def _append_without_sync(self) -> None:
        """Append groups of several sectors, so that a power cut leaves later ones and tears earlier ones."""
        active = [number for number, store in self.world.stores.items() if store.state == "active"]
        for number in self.random.sample(active, min(2, len(active))):
            for _ in range(2):
                self.world.append(number, [400, 400, 400])

    def _failing_sync(self, number: int) -> Callable[[str, Path], OSError | None]:
        syncs = 0

        def fail(operation: str, path: Path) -> OSError | None:
            nonlocal syncs
            is_sync = operation == "sync" and path.parent == LOG_DIR
            syncs += is_sync
            return OSError(errno.EIO, "the simulated disk fails") if is_sync and syncs == number else None

        return fail

    # ------------------------------------------------------------------------------------------ S2

    def _look_at_deletions(self, operation: str, path: Path) -> OSError | None:
        """Cut the power of a copy of the disk when a file of the log is deleted."""
        if operation == "unlink" and path.suffix == FILE_SUFFIX:
            names = self.world.sim.directory(LOG_DIR).names
            gone = names.pop(path.name)
            cut = self.world.sim.power_cut(self.random)
            names[path.name] = gone
            with checking("S2"):
                SharedWorld(cut, _models(self.world)).check_recovered()
        return None

    # ------------------------------------------------------------------------------------------ S3

    def _damage_a_record(self) -> None:
        """Damage a record of a log that was closed; only its store may notice."""
        random = self.random
        world = _without_snapshots(self.world)
        found = list(_records(world.sim))
        owners = {
            number: read_identity(world.sim, world.directory(number)).store
            for number in world.models
            if world.sim.exists(world.directory(number) / FILE_NAME)
        }
        if not found:
            return
        owned = [one for one in found if one[1].store in owners.values()] or found
        kind = random.choice(sorted({one[1].kind for one in owned}))  # Cuts are as likely as the many batches.
        path, record = random.choice([one for one in owned if one[1].kind == kind])
        _change(world.sim, path, record, random)
        with checking("S3"):
            for number, model in world.models.items():
                store = world.open(number)
                kept = read_all(store)
                assert kept == model.written[: len(kept)], f"store {number} has other batches than were written"
                is_whole = kept == model.written and store.damage is None
                is_owner = owners.get(number) == record.store and record.store != 0
                assert is_whole or (is_owner and store.state == "limbo"), (
                    f"damage of a record {Kind(record.kind).name} of store {record.store:#x}: store {number} has "
                    f"{len(kept)} of {len(model.written)} batches, and is {store.state}"
                )
            for number, store in world.stores.items():
                if store.state == "active":
                    world.append(number, [30])
                    assert read_all(store) == world.models[number].written


def _models(world: SharedWorld) -> dict[int, Model]:
    """Return copies of the models of stores whose creation was completed and whose removal has not begun."""
    return {
        number: replace(model, written=list(model.written))
        for number, model in world.models.items()
        if model.exists and not model.is_removed and world.sim.exists(world.directory(number))
    }


def _without_snapshots(world: SharedWorld) -> SharedWorld:
    sim = world.sim.copy()
    for path in sim.files(LOG_DIR, SNAPSHOT_SUFFIX) if sim.exists(LOG_DIR) else ():
        sim.unlink(path)
    return SharedWorld(sim, _models(world))


def _records(sim: SimDisk) -> Iterator[tuple[Path, FoundRecord]]:
    for path in sim.files(LOG_DIR, FILE_SUFFIX) if sim.exists(LOG_DIR) else ():
        data = bytes(sim.node(path).current)
        header = unpack_file_header(data)
        for found in records_in(data, FILE_HEADER_BYTES, nonce=header.nonce, base=header.base):
            if found.kind:
                yield path, found


def _change(sim: SimDisk, path: Path, record: FoundRecord, random: Random) -> None:
    """Flip a bit of a record, or zero it."""
    node = sim.node(path)
    content = bytearray(node.current)
    if random.random() < 0.5:
        content[record.at + random.randrange(record.size_bytes)] ^= 1 << random.randrange(8)
    else:
        content[record.at : record.at + record.size_bytes] = bytes(record.size_bytes)
    node.current, node.durable = content, bytes(content)
