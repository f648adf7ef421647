"""Parameters of a seed: size of the cluster, quality of the network, possible faults.

Budgets keep the world inside what the protocol promises: data may be lost on at most `ack_quorum - 1` machines in all
(wiped, rotten, and while the newest epoch's flush is not ALWAYS also powered off), because a record counts as safe on
`ack_quorum`. Everything else, crashes, cuts and pauses of every node at once, is allowed at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import MEMORY_ASYNC

MIXTURES: Final[dict[str, tuple[str, ...]]] = {
    "reboots": ("power off", "power off", "kill", "kill", "isolate"),
    "wipes": ("wipe", "isolate", "kill", "halves"),
    "plans": ("roll over", "roll over", "isolate", "one way", "old messages", "loss"),
    "lags": ("loss", "one way", "isolate", "pause", "roll over"),
    "rot": ("rot", "rot", "isolate", "kill", "halves"),
    "copies": ("join", "lie", "lie", "lie", "wipe", "roll over", "roll over", "kill"),
    "failed syncs": ("disk fails", "disk fails", "disk fails", "power off", "kill", "isolate", "roll over"),
    "owners": ("kill", "crash in write", "old messages", "isolate"),
}
"""Kinds of faults that bring out something together."""

FURTHER_MIXTURES: Final[dict[str, tuple[str, ...]]] = {
    "deleted and lost": ("lost directory", "lost directory", "reset"),
    "lost segments": (
        *("lost segment", "lost segment", "lost segment"),
        *("roll over", "roll over", "kill", "isolate"),
    ),
    "memory": (
        *("kill", "kill", "kill", "crash in write", "isolate", "halves", "one way", "pause"),
        *("roll over", "old messages", "loss", "everybody down", "reset"),
    ),
    "memory async": (
        *("kill", "kill", "power off", "crash in write", "isolate", "halves", "one way", "pause"),
        *("roll over", "old messages", "loss", "everybody down", "everybody down", "reset"),
    ),
    "shared files": (
        *("kill", "kill", "crash in write", "crash in write", "power off", "disk fails", "rot", "rot"),
        *("isolate", "halves", "roll over", "roll over", "pause", "everybody down"),
    ),
    "sole shared files": (
        *("kill", "kill", "crash in write", "crash in write", "crash in write", "power off"),
        *("isolate", "roll over", "roll over", "pause", "everybody down"),
    ),
}
"""Such as only come when they are asked for."""

LIGHTS_OUT: Final = "lights out"
"""The one script that cuts the power of all machines at once under a flush other than ALWAYS, see `scripts`: with one
partition, so that no other one loses what it may lose then, and no machine lost for good, since all must answer."""

UNSAFE: Final = "unsafe recover"
"""The one script that loses a quorum: with one partition, and no further machine that may lose anything. It happens in
its own mixture only, as it gives up the machines that budgets protect."""

SCRIPTS: Final = (
    *("stale tail", "crossing", "late seal", "late cut", "slow fetch", "slow catch-up", "cut entry"),
    *("wiped holder", "rotten holder", "emptied holder", "rebooted holder", "rebooted follower", "reboot cut short"),
    LIGHTS_OUT,
    UNSAFE,
)
"""Sequences of faults, see `scripts`; each is a mixture of its own, without other faults."""

RESTARTED_OWNER: Final = "restarted owner"
"""A script that comes in seeds of its own, not among other faults; half of them have a flush other than ALWAYS."""

RESTARTS: Final = 0.04
"""In how many of the worlds it is so."""

UNSAFE_MS: Final = 6000
"""How much longer it lasts than other scripts."""

REBOOTS: Final = {"rebooted holder", "rebooted follower", "reboot cut short"}
"""Scripts in which flush is not ALWAYS."""
FEW: Final = [1, 1, 1, 1, 1, 2, 3]
MANY: Final = [2, 2, 3]
"""Of how many partitions a topic may be."""

CHANGES: Final = 0.3
"""Share of the mixed worlds in which the topic's settings change."""

WISHES: Final = "wishes"
"""A mixture of all kinds in which the topic's settings always change."""

RETENTION: Final = "retention"
"""A mixture of all kinds in which the owner always deletes old records."""

DELETED_AND_LOST: Final = "deleted and lost"
"""A mixture of a few kinds of faults in which the owner deletes old records, and others lose newer ones."""

LOST_SEGMENTS: Final = "lost segments"
"""A mixture in which the first segment files of ended epochs are lost; half of the owners delete old records."""

IN_MEMORY: Final = "memory"
"""A mixture in which records are in memory, so that each end of a process loses the copies of its node."""

IN_MEMORY_ASYNC: Final = "memory async"
"""The same with `flush=async`: a node that starts again finds a prefix of what its copies were."""
SHARED_FILES: Final = "shared files"
"""A mixture in which the newest records of all partitions of a node are in one commit log, which is small."""

SOLE_SHARED_FILES: Final = "sole shared files"
"""The same with one copy of each partition, whose batches a node writes together with those of other partitions."""

WITH_MANY: Final = {"reboot cut short", SHARED_FILES, SOLE_SHARED_FILES}
"""Mixtures and scripts with several partitions."""

COMPACTS: Final = 0.1
"""In how many of the worlds the topic is compacted."""

COMPACTION: Final = "compaction"
"""A mixture of some of everything in which the topic keeps the latest record of each key."""

COMPACTED_AND_DELETED: Final = "compacted and deleted"
"""A mixture of some of everything in which the topic keeps the latest record of each key, but only up to its bytes."""

SCRUBBED: Final = "scrubbed"
"""A mixture of some of everything in which sealed segments rot under nodes that run, and are read again."""

SCRUBS: Final = 0.1
"""In how many of the worlds with some of everything that is so."""

INDEXED: Final = "indexed"
"""A mixture of all kinds in which records have keys, the topic has an index of them, and a client searches."""

SEARCHES: Final = 0.2
"""In how many of the worlds with some of everything that is so."""

DEDUPLICATED: Final = "deduplicated"
"""A mixture of all kinds in which the topic drops duplicates, and half of the published records are duplicates."""

SHARED_IDS: Final = "shared ids"
"""A mixture of some of everything in which producers of a partition become copies of each other, with one id."""

KEYED_REQUESTS: Final = "keyed requests"
"""A mixture of all kinds in which each batch of a producer is a request with an idempotency key of its own."""

AGES: Final = "ages"
"""A mixture of all kinds in which records are deleted by age and on request, the topic is
held now and then, and clocks jump."""

AGED: Final = 0.15
"""In how many of the worlds with some of everything it is so."""

DELETES: Final = 0.2
"""Share of the mixed worlds in which the owner deletes old records."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a run that is drawn before it starts. Times in virtual milliseconds."""

    seed: int
    mixture: str
    """One of `MIXTURES`, one of `SCRIPTS`, or empty: some of everything."""
    machines: int
    """At the start; `joins` more come later."""
    joins: int
    partitions: int
    replication_factor: int
    ack_quorum: int
    flush: pb.Flush
    producers: int
    consumers: int
    loss: float
    duplication: float
    delay_ms: float
    """Mean delay of a message; a few take a hundred times as long."""
    fifo: bool
    """Messages between two nodes keep their order, as on a connection."""
    peer_fetch_bytes: int
    """How much is fetched at a time, and ..."""
    window_bytes: int
    """... kept for those who lag: little, so that tiny logs are fetched in many steps."""
    write_ms: float
    """Mean duration of a write."""
    fault_ms: int
    """Duration of faults."""
    fault_gap_ms: int
    """Mean time between two faults."""
    bad_machines: int
    """How many machines may lose data that they called durable, or never come back."""
    wrong_suspicions: float
    """How often the failure detector suspects a node that is well."""
    retention_bytes: int = 0
    """How much of its log an owner keeps; 0: everything."""
    indexed: bool = False
    """Records have keys, and are looked for by them."""
    retention_ms: int = 0
    """How long an owner keeps records; 0: for ever. Otherwise a client also requests deletions, and holds the topic."""
    changes: bool = False
    """The topic's settings change during the run: copies, ack quorum, flush. Then no machine loses data."""
    compacts: bool = False
    """The topic is compacted."""
    deduplicates: bool = False
    """The topic drops duplicates."""
    shares_ids: bool = False
    """Producers become copies of each other."""
    keys_requests: bool = False
    """Each batch of a producer with an id is a request with an idempotency key."""
    scrubs: bool = False
    """Nodes scrub sealed epochs, which get bit rot."""

    @property
    def in_memory(self) -> bool:
        """Whether records are in memory."""
        return self.mixture in {IN_MEMORY, IN_MEMORY_ASYNC}

    @property
    def engine(self) -> str:
        """Engine of the topic, as in `pb.EpochDescriptor`."""
        if self.mixture == IN_MEMORY_ASYNC:
            return MEMORY_ASYNC
        if self.mixture in {SHARED_FILES, SOLE_SHARED_FILES}:
            return "segment-shared"
        return "memory" if self.in_memory else ""

    @property
    def is_keyed(self) -> bool:
        """Whether records have keys."""
        return self.compacts or self.indexed

    @property
    def cleanup(self) -> pb.Cleanup:
        """Handling of old records."""
        if not self.compacts:
            return pb.DELETE
        return pb.COMPACT_AND_DELETE if self.deletes else pb.COMPACT

    @property
    def deletes(self) -> bool:
        """Whether anything is deleted."""
        return bool(self.retention_bytes or self.retention_ms)


def scenario_of(seed: int, mixture: str | None = None) -> Scenario:
    """Draw a scenario, perhaps with a given mixture of faults."""
    random = Random(f"scenario {seed}")
    if mixture is None:
        mixture = random.choice([*[""] * 7, *MIXTURES, *SCRIPTS])
        if Random(f"compaction {seed}").random() < COMPACTS:
            mixture = COMPACTION
        if Random(f"restarted owner {seed}").random() < RESTARTS:
            mixture = RESTARTED_OWNER
    scripted = mixture in {*SCRIPTS, RESTARTED_OWNER}
    alone = mixture in {LIGHTS_OUT, UNSAFE}
    machines = random.choice([3, 3, 3, 3, 4, 5])
    factor = random.choice([3, 3, 3, 3, 3, 3, 3 if scripted else 2, min(4, machines), machines])
    later = Random(f"later {seed}")
    if mixture == UNSAFE:  # with more than three there may be two that are left
        machines = later.choice([3, 3, 4, 5, 5])
        factor = later.choice([3, machines, machines])
    majority = factor // 2 + 1
    changes = mixture == WISHES or (not mixture and later.random() < CHANGES)
    unsynced = later.choice([pb.NEVER, pb.NEVER, pb.INTERVAL])
    deletes = (
        mixture in {RETENTION, DELETED_AND_LOST, COMPACTED_AND_DELETED}
        or (mixture == LOST_SEGMENTS and seed % 2 == 0)
        or (not mixture and later.random() < DELETES)
    )
    aged = Random(f"aged {seed}")
    ages = mixture == AGES or (not mixture and aged.random() < AGED)
    ack_quorum = random.choice([majority, majority, majority, majority, factor, max(2, majority - 1)])
    if mixture == SOLE_SHARED_FILES:
        factor = ack_quorum = 1
    loses_unsynced = mixture in {"reboots", LIGHTS_OUT, *REBOOTS} or (mixture == RESTARTED_OWNER and seed % 2 == 0)
    return Scenario(
        seed=seed,
        mixture=mixture,
        machines=machines,
        joins=random.choice([0, 0, 1, 1, 2]),
        partitions=random.choice(MANY if mixture in WITH_MANY else FEW) if not alone else 1,
        replication_factor=factor,
        ack_quorum=ack_quorum,
        flush=_flush(mixture, unsynced, random, loses_unsynced=loses_unsynced),
        producers=random.choice([1, 2, 2]) if mixture != SHARED_IDS else 2 + seed % 2,
        consumers=1,
        loss=random.choice([0.0, 0.0, 0.01, 0.05, 0.15]),
        duplication=random.choice([0.0, 0.02, 0.1]),
        delay_ms=random.choice([0.3, 1.0, 5.0, 15.0]),
        fifo=random.choice([True, False]),
        peer_fetch_bytes=random.choice([350, 700, 2000]),
        window_bytes=random.choice([350, 1500, 5000]),
        write_ms=random.choice([0.2, 2.0, 10.0]),
        fault_ms=(random.choice([1000, 1500, 3000]) if not scripted else 3000)
        + (UNSAFE_MS if mixture == UNSAFE else 0),
        fault_gap_ms=random.choice([40, 80, 150, 300]) if not scripted else 40,
        bad_machines=min(ack_quorum - 1, factor - ack_quorum)
        if mixture not in {LIGHTS_OUT, UNSAFE, IN_MEMORY, IN_MEMORY_ASYNC} and not changes
        else 0,
        wrong_suspicions=random.choice([0.0, 0.01, 0.05]),
        retention_bytes=later.choice([1000, 3000]) if deletes else 0,
        retention_ms=aged.choice([300, 800, 1500]) if ages else 0,
        changes=changes,
        compacts=mixture in {COMPACTION, COMPACTED_AND_DELETED} or (mixture == SHARED_IDS and seed % 4 == 0),
        deduplicates=mixture == DEDUPLICATED,
        shares_ids=mixture == SHARED_IDS,
        keys_requests=mixture == KEYED_REQUESTS,
        scrubs=mixture == SCRUBBED or (not mixture and Random(f"scrubbed {seed}").random() < SCRUBS),
        indexed=mixture == INDEXED or (not mixture and Random(f"indexed {seed}").random() < SEARCHES),
    )


def _flush(mixture: str, unsynced: pb.Flush, random: Random, *, loses_unsynced: bool) -> pb.Flush:
    if mixture == IN_MEMORY:
        return pb.NEVER
    if mixture == IN_MEMORY_ASYNC:
        return pb.ASYNC
    return unsynced if random.random() < 0.25 or loses_unsynced else pb.ALWAYS
