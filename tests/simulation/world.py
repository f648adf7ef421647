"""The whole simulated cluster: machines, network, clients, faults; a run from the first event to the last check."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.checks import Checks
from tests.simulation.clients import Asker, Consumer, Producer
from tests.simulation.clock import Clock
from tests.simulation.contents import Drawn
from tests.simulation.deleting import Deleter, Holder
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.machine import AGED_ERROR_US, Machine
from tests.simulation.network import Network
from tests.simulation.operator import Operator
from tests.simulation.scenario import IN_MEMORY_ASYNC, Scenario
from tests.simulation.searches import Searcher
from tests.simulation.surroundings import Wishes

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.steady_clock import TOLERANCE_US
from tidelog_broker.core.replication.ports import Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.process import Process

CALM_MS = 40_000
"""How long writes may take to resume and copies to become equal, once faults have stopped."""
POLL_US = 50_000
TOPIC_ID = b"simulated topic!"
FLUSH_INTERVAL_MS = 60
SEGMENT_BYTES = 4096
TOMBSTONE_RETENTION_MS = 15_000
"""Maximum lag of consumers."""
DEDUPLICATE_RECORDS = (5, 20, 1000)
SEGMENT_BYTES_SMALL = 512
"""Where retention is to have something to delete, and indexes something to be made of."""


class World:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.timing = Timing(
            peer_fetch_bytes=scenario.peer_fetch_bytes,
            tail_bytes=3 * scenario.peer_fetch_bytes,
            backfill_bytes=300,
            window_bytes=scenario.window_bytes,
        )
        self.clock = Clock(scenario.seed)
        random = self.clock.random
        self.network = Network(
            self.clock,
            loss=scenario.loss,
            duplication=scenario.duplication,
            delay_ms=scenario.delay_ms,
            fifo=scenario.fifo,
        )
        self.network.receiver = self._process_of
        self.clock_tolerance_us = AGED_ERROR_US * 2 if scenario.retention_ms else TOLERANCE_US
        """How far a wall clock may be put at once."""
        self.began_wrong = False
        """Whether a node has started with a clock that had jumped, if ages are measured."""
        self.history = History()
        self.calm = False
        self.write_ms = scenario.write_ms
        self.publish_gap_us = random.choice([10_000, 50_000, 150_000])
        self.read_gap_us = random.choice([20_000, 200_000])
        self.settings = NodeSettings.model_validate(
            {
                "data": "/",
                "ring_bytes": random.choice([0, 500, 100_000]),
                "group_bytes": random.choice([1, 400, 100_000]),
                "compaction_bytes_per_s": 0,
            }
        ).model_copy(update={"compaction_bytes": 1 << (scenario.seed % 3 * 4 + 5)})
        self.topic = pb.TopicRecord(
            name="simulated",
            topic_id=TOPIC_ID,
            content_key=TOPIC_ID if scenario.deduplicates else b"",
            config=pb.TopicConfig(
                partitions=scenario.partitions,
                segment_bytes=SEGMENT_BYTES_SMALL
                if scenario.retention_bytes or scenario.compacts or scenario.indexed
                else SEGMENT_BYTES,
                retention_bytes=scenario.retention_bytes,
                retention_ms=scenario.retention_ms,
                index_key=scenario.indexed,
                flush=scenario.flush,
                flush_interval_ms=FLUSH_INTERVAL_MS,
                cleanup=scenario.cleanup,
                deduplicate_records=DEDUPLICATE_RECORDS[scenario.seed % 3] if scenario.deduplicates else 0,
                deduplicate_s=scenario.seed % 2 if scenario.deduplicates else 0,
                tombstone_retention_ms=TOMBSTONE_RETENTION_MS,
                dirty_percent=scenario.seed % 3 * 30 + 1 if scenario.compacts else 50,
            ),
        )
        self.machines = [Machine(self, f"n{number}") for number in range(scenario.machines)]
        self.registered = [machine.node_id for machine in self.machines]
        self.genesis = {self._key(number): self._genesis(number) for number in range(scenario.partitions)}
        self.drawn = {key: Drawn(random, key[1]) for key in self.genesis}
        """Published contents, if the topic drops duplicates."""
        self.wishes = Wishes(scenario.replication_factor, scenario.ack_quorum, scenario.flush, scenario.engine)
        self.copies: dict[ReplicaLog, Copy] = {}
        """Of all processes that there ever were."""
        self.checks = Checks(self)
        self.operator = Operator(self)
        self.faults = Faults(self)
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []

    @staticmethod
    def _key(number: int) -> PartitionKey:
        return TOPIC_ID, number

    def _genesis(self, number: int) -> pb.EpochDescriptor:
        machines = self.machines[number % len(self.machines) :] + self.machines[: number % len(self.machines)]
        chosen = machines[: self.scenario.replication_factor]
        quorum = self.scenario.ack_quorum
        if len(chosen) < self.scenario.replication_factor:
            quorum = len(chosen) // 2 + 1
        return pb.EpochDescriptor(
            epoch=0,
            owner=chosen[0].node_id,
            owner_incarnation=self.clock.random.choice([0, chosen[0].next_incarnation]),
            placement=[machine.node_id for machine in chosen],
            ack_quorum=quorum,
            start_offset=0,
            flush=self.scenario.flush,
            engine=self.scenario.engine,
        )

    # ----------------------------------------------------------------------------------------- nodes

    def machine_of(self, node_id: str) -> Machine | None:
        """Return the machine of a node; None when its disk was replaced since."""
        return next((machine for machine in self.machines if machine.node_id == node_id), None)

    def _process_of(self, node_id: str) -> Process | None:
        machine = self.machine_of(node_id)
        return machine.process if machine is not None else None

    def survives_power_cuts(self) -> bool:
        """Whether a power cut loses no more than a kill: the newest epochs are synced, or all that they have is written
        in the background.
        """
        if self.scenario.mixture == IN_MEMORY_ASYNC:
            return True
        return all(truth.flush_of(truth.newest_decided + 1) == pb.ALWAYS for truth in self.checks.truths.values())

    def join(self, machine: Machine) -> None:
        """Register a new node and start it."""
        self.registered = [*self.registered, machine.node_id]
        machine.start()

    def add_machine(self) -> None:
        """Add a machine with an empty disk."""
        machine = Machine(self, f"n{len(self.machines)}")
        self.machines.append(machine)
        self.join(machine)

    def hold(self, hold: bool) -> None:
        """Hold the topic, or release it: running nodes learn it at different times, others at their start."""
        topic = pb.TopicRecord()
        topic.CopyFrom(self.topic)
        topic.config.hold = hold
        topic.revision += 1
        self.topic = topic
        for machine in self.machines:
            if machine.process is not None:
                process = machine.process
                process.after(self.clock.random.randrange(50_000), partial(process.reconfigure, topic))

    # ----------------------------------------------------------------------------------------- clients

    def ask(self, node_id: str, action: Callable[[Process], None]) -> None:
        """Send a client's request to a node; lost if the node is away or the network loses it."""

        def arrive() -> None:
            process = self._process_of(node_id)
            if process is not None:
                process.run(lambda: action(process))

        self._client_message(node_id, arrive)

    def answer(self, node_id: str, action: Callable[[], None]) -> None:
        """Send a node's reply to a client."""
        self._client_message(node_id, action)

    def _client_message(self, node_id: str, action: Callable[[], None]) -> None:
        if self.clock.random.random() >= self.network.loss:
            self.clock.after(self.network.delay_us(), action)

    # ----------------------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Start everything, let faults happen, stop them, and see that everything comes right.

        Raises:
            ViolationError: an invariant broke.
        """
        try:
            self._run()
        finally:
            for machine in self.machines:
                if machine.process is not None:
                    machine.process.end()

    def _run(self) -> None:
        for machine in self.machines:
            machine.start()
        self._start_clients()
        self.faults.start()
        self.clock.run_until(self.clock.now_us + self.scenario.fault_ms * 1000)
        self._calm_down()
        self._run_until(self._resumed, "I16: writes and reads do not resume")
        self._run_until(self._settled, "I16: the copies do not become equal")
        self.checks.final()

    def _start_clients(self) -> None:
        random = self.clock.random
        number = 0
        for key in self.genesis:
            for _ in range(self.scenario.producers):
                number += 1
                # A producer with an id would have to begin a new producer epoch after a loss of its records.
                idempotent = random.random() < 0.8 and not self.scenario.in_memory
                acks = random.choice([pb.QUORUM] * 6 + [pb.ALL]) if idempotent else random.choice([pb.QUORUM, pb.ONE])
                self.producers.append(Producer(self, key, number, idempotent=idempotent, acks=acks))
            self.consumers += [Consumer(self, key) for _ in range(self.scenario.consumers)]
        for producer in self.producers:
            producer.start()
        for consumer in self.consumers:
            consumer.start()
        for key in self.genesis:
            Asker(self, key).start()
            if self.scenario.indexed:
                Searcher(self, key).start()
            if self.scenario.retention_ms:
                Deleter(self, key).start()
        if self.scenario.retention_ms:
            Holder(self).start()

    def _calm_down(self) -> None:
        self.clock.note("calm")
        self.calm = True
        self.write_ms = min(self.write_ms, 1.0)
        self.network.calm()
        self.faults.stop()

    def _run_until(self, reached: Callable[[], bool], otherwise: str) -> None:
        end_us = self.clock.now_us + CALM_MS * 1000
        while not reached():
            if self.clock.now_us >= end_us:
                self.checks.fail("I16", otherwise + self.checks.describe_all())
            for machine in self.machines:
                machine.start()  # a sync that began under faults may have failed since, and ended a node
            self.clock.run_until(self.clock.now_us + POLL_US)

    def _resumed(self) -> bool:
        return all(producer.stopped for producer in self.producers)

    def _settled(self) -> bool:
        busy = self.operator.busy or any(producer.busy for producer in self.producers)
        return not busy and self.checks.all_equal()
