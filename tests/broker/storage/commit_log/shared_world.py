"""Stores that share a commit log on a simulated disk, with a model of what each of them must have after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.broker.storage.build import HOME, TOPIC_ID, append, batch, read_all, stamp
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.commit_log.commit_log import CommitLog, Sizes
from tidelog_broker.storage.commit_log.shared_engine import SharedEngine
from tidelog_broker.storage.engine.store import SHARED, STAGED_BYTES, EpochStart, EpochStore, StagedBatch, padded
from tidelog_broker.storage.engines.stores import create_store, open_store, remove_store
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import KIB

LOG_DIR = HOME / "commit-log"
SEGMENT_BYTES = 4096
SIZES = Sizes(file_bytes=4 * KIB, chunk_bytes=2 * KIB, log_bytes_min=8 * KIB, tail_bytes_max=2 * KIB)


@dataclass
class Model:
    """The contents that a store must have.

    Attributes:
        written: all batches that were appended and not truncated.
        floor: how many of them are durable.
        exists: whether the creation of the store was completed.
        is_removed: whether its removal has begun.
        ended: the end offset of the epoch, once it is sealed.
    """

    written: list[bytes] = field(default_factory=list)
    floor: int = 0
    exists: bool = False
    is_removed: bool = False
    ended: int | None = None


class SharedWorld:
    """Stores on one disk, opened by one engine."""

    def __init__(self, sim: SimDisk, models: dict[int, Model] | None = None, *, sizes: Sizes = SIZES) -> None:
        self.sim = sim
        self.disk = Disk(fs=sim, commit_log_dir=LOG_DIR)
        self.sizes = sizes
        self.disk.engines[SHARED] = SharedEngine(self.disk, LOG_DIR, sizes)
        self.models = models if models is not None else {}
        self.stores: dict[int, EpochStore] = {}

    @property
    def log(self) -> CommitLog:
        """The commit log."""
        engine = self.disk.engines[SHARED]
        assert isinstance(engine, SharedEngine)
        return engine.log

    @staticmethod
    def directory(number: int) -> Path:
        """Return the path of a store's directory."""
        return HOME / f"epoch-{number:08d}"

    def create(self, number: int) -> EpochStore:
        """Create a store."""
        self.models[number] = Model()
        start = EpochStart(TOPIC_ID, number, 0, 0)
        self.stores[number] = create_store(
            self.disk, self.directory(number), start, engine=SHARED, segment_bytes=SEGMENT_BYTES
        )
        self.models[number].exists = True
        return self.stores[number]

    def open(self, number: int) -> EpochStore:
        """Open a store."""
        store = open_store(
            self.disk,
            self.directory(number),
            segment_bytes=SEGMENT_BYTES,
            sealed_end_offset=self.models[number].ended,
        )
        assert store is not None
        self.stores[number] = store
        return store

    def append(self, number: int, sizes: list[int], mark: bytes = b"x") -> None:
        """Append a group of batches with bodies of these sizes."""
        model = self.models[number]
        store = self.stores[number]
        before = len(model.written)
        group = [batch(mark * size, timestamp_us=before + at) for at, size in enumerate(sizes)]
        stamped: list[bytes] = []
        try:
            stamped = append(store, group)
        except DiskFullError:
            return
        except PowerCutError:
            model.written += [bytes(one) for one in group]  # Any part of the group may be stored.
            raise
        model.written += stamped

    def append_together(self, numbers: Sequence[int], size: int, mark: bytes = b"x") -> None:
        """Append a batch to each of several stores with one write, or to none of them if that needs the disk."""
        staged: list[StagedBatch] = []
        batches: dict[int, bytearray] = {}
        for number in numbers:
            store, model = self.stores[number], self.models[number]
            one = batch(mark * size, timestamp_us=len(model.written))
            needed_bytes = padded(len(one))
            if store.state != "active" or not store.may_stage(needed_bytes):
                continue
            if not self.log.has_room(needed_bytes + STAGED_BYTES):
                break
            stamp([one], offset=store.end_offset, digest=store.end_digest)
            staged.append(store.stage(one, unpack_header(one)))
            batches[number] = one
        try:
            self.log.append_staged(staged)
        finally:  # After a power cut any part of each batch may be stored.
            for number, one in batches.items():
                self.models[number].written.append(bytes(one))

    def sync(self, number: int) -> None:
        """Sync one store, and with it all others."""
        counts = {one: len(self.models[one].written) for one in self.stores}
        group = self.stores[number].sync_group
        if group is not None:
            group.sync()
        self.stores[number].sync()
        for one, count in counts.items():
            model = self.models[one]
            if one == number or (group is not None and self.stores[one].sync_group is group):
                model.floor = max(model.floor, count)

    def truncate(self, number: int, count: int) -> None:
        """Truncate a store to a number of batches."""
        model = self.models[number]
        end = unpack_header(model.written[count]).base_offset
        kept, model.floor = model.written[:count], min(model.floor, count)
        self.stores[number].truncate(end)
        model.written, model.floor, model.ended = kept, count, None

    def seal(self, number: int) -> None:
        """Seal a store, and open it again as an epoch that has ended."""
        model, store = self.models[number], self.stores[number]
        end_offset = store.end_offset
        with suppress(DiskFullError):
            store.seal()
            model.floor, model.ended = len(model.written), end_offset

    def remove(self, number: int) -> None:
        """Remove a store."""
        self.models[number].is_removed = True
        self.stores.pop(number).close(sync=False)
        remove_store(self.disk, self.directory(number))
        del self.models[number]

    def close(self, number: int) -> None:
        """Close a store and open it again."""
        model = self.models[number]
        self.stores[number].close()
        model.floor = len(model.written)
        self.open(number)

    def after_crash(self, random: Random, *, power: bool) -> SharedWorld:
        """Return the world after a crash: the rest of the disk, and models of the stores that must exist."""
        sim = self.sim.power_cut(random) if power else self.sim.restart()
        models = {
            number: replace(model, written=[*model.written])
            for number, model in self.models.items()
            if model.exists and not model.is_removed
        }
        return SharedWorld(sim, models, sizes=self.sizes)

    def check_recovered(self) -> None:
        """Open all stores; each has a prefix of what was written that contains everything durable (S1)."""
        for number, model in self.models.items():
            store = self.open(number)
            assert store.damage is None, (number, store.damage)
            found = read_all(store)
            assert found == model.written[: len(found)], f"store {number} has other batches than were written"
            assert len(found) >= model.floor, f"store {number} has {len(found)} batches, {model.floor} were durable"
            model.written = found
            model.floor = len(found)

    def check(self) -> None:
        """Each open store has exactly what was written."""
        for number, store in self.stores.items():
            assert read_all(store) == self.models[number].written


def random_steps(world: SharedWorld, random: Random, count: int, *, stores: int = 4) -> None:
    """Carry out random operations."""
    for _ in range(count):
        number = random.randrange(stores)
        if number not in world.models:
            world.create(number)
            continue
        model, store = world.models[number], world.stores[number]
        if store.state != "active":
            world.remove(number)
            continue
        match random.choice(["append"] * 12 + ["sync"] * 4 + ["truncate", "close", "roll", "seal", "remove", "delete"]):
            case "append" if len(model.written) % 3 == 1:
                world.append_together(sorted(world.stores, key=lambda one: (one != number, one)), len(model.written))
            case "append":
                world.append(number, [random.choice([0, 10, 100, 700]) for _ in range(random.randint(1, 3))])
            case "sync":
                world.sync(number)
            case "truncate" if model.written and store.start_offset == 0:
                world.truncate(number, random.randrange(len(model.written)))
            case "close":
                world.close(number)
            case "roll":
                with suppress(DiskFullError):
                    store.roll()
            case "seal" if random.random() < 0.5:
                world.seal(number)
            case "remove" if random.random() < 0.3:
                world.remove(number)
            case _:
                pass
